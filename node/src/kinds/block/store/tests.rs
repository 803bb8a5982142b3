mod suite;

use std::path::Path;

use fabricbios_helper::Supervisor;
use fabricbios_pool::PoolConfig;
use fabricbios_wire::{Generation, NodeId, ResourceId, Transport};

use super::*;
use crate::journal::{Journal, Recovered};

const POOL: ResourceId = ResourceId(7);

pub(super) fn in_directory(path: &Path, writer: Writer) -> (PoolStore, u64) {
    let pool = Pool::open(PoolConfig {
        path: path.to_owned(),
        node_id: NodeId([7; 32]),
        force: false,
        may_begin: true,
        supervisor: Supervisor::of_threads(fabricbios_pool::calls()),
    });
    let pool = pool.unwrap();
    let (facts, grants) = (pool.facts(), pool.grants().unwrap());
    let record = PoolRecord::of(facts, path, grants);
    let capacity = facts.capacity;
    (PoolStore::new(pool, record, writer), capacity)
}

/// A store in an empty directory, and the journal at `place`.
fn scene(place: &Path, directory: &Path) -> (PoolStore, Journal) {
    let (journal, _) = journal_at(place);
    let (store, _) = in_directory(directory, journal.writer());
    (store, journal)
}

fn journal_at(place: &Path) -> (Journal, Recovered) {
    Journal::open_here(&place.join("journal"), "boot", Box::new(|_| ())).unwrap()
}

fn order(lease: u128) -> BindOrder {
    let binding_id = BindingId {
        lease_id: LeaseId(lease),
        generation: Generation(1),
        resource_id: POOL,
    };
    BindOrder::new(binding_id, Placement::Amount(1 << 20), Transport::Udp)
}

/// The table counts the free space that the directory had at the start.
#[test]
fn a_lease_that_the_file_system_has_no_room_for_is_refused_with_what_is_free() {
    let [place, directory] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let (store, _journal) = scene(place.path(), directory.path());
    let too_much = BindOrder {
        placement: Placement::Amount(1 << 60),
        ..order(1)
    };
    let Err(BindError::Unavailable(why)) = store.open(&too_much) else {
        panic!("not refused for lack of room");
    };
    assert!(why.detail.contains("are free"), "{why}");
}

#[test]
fn what_a_failed_grant_leaves_in_the_pool_is_removed() {
    let [place, directory] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let (store, _journal) = scene(place.path(), directory.path());
    // As a call that was given up and went on.
    store.create(LeaseId(1), order(1).extent()).unwrap();
    let failed = store.open(&order(1));
    assert!(matches!(failed, Err(BindError::Failed(_))), "{failed:?}");
    assert_eq!(store.leases().unwrap(), []);
    store.open(&order(1)).unwrap();
}

#[test]
fn a_pool_has_the_number_of_a_grant_when_the_journal_has_it_and_not_before() {
    let [place, directory] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let (store, journal) = scene(place.path(), directory.path());
    let grants = |store: &PoolStore| store.pool.grants().unwrap();
    for lease in [1, 2] {
        store.open(&order(lease)).unwrap();
    }
    assert_eq!((grants(&store), journal.counts().commits), (0, 0));
    // The records of the leases.
    let writer = journal.writer();
    writer.wait(writer.submit(Vec::new())).unwrap();
    store.confirm(order(2).binding_id).unwrap();
    store.confirm(order(1).binding_id).unwrap();
    assert_eq!((grants(&store), journal.counts().commits), (2, 1));
    drop((store, journal));
    let (_journal, recovered) = journal_at(place.path());
    let [bytes] = Vec::from_iter(recovered.records.values())
        .try_into()
        .unwrap();
    let record: PoolRecord = crate::journal::records::decode(bytes).unwrap();
    assert_eq!(record.grants, 2);
}

#[test]
fn a_grant_that_comes_to_nothing_is_not_counted_by_the_pool() {
    let [place, directory] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let (store, _journal) = scene(place.path(), directory.path());
    let BindOrder {
        binding_id,
        placement,
        ..
    } = order(1);
    store.open(&order(1)).unwrap();
    store.release(binding_id, Some(&placement), &|| ()).unwrap();
    store.confirm(binding_id).unwrap();
    assert_eq!(store.pool.grants(), Some(0));
}
