//! Tests of the kind without a node: store and path in this process, and again with each behind a socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::Arc,
    thread,
};

use fabricbios_contract::{
    DataPath, Provider, Store,
    remote::{RemotePath, RemoteStore, serve_path, serve_store},
};
use fabricbios_lease::{BindError, BindOrder, BindingId, BootTime, Linger, Placement};
use fabricbios_test_units::{Client, UnitPath, UnitStore};
use fabricbios_wire::{Generation, LeaseId, ResourceId, Transport};
use tempfile::TempDir;

const UNITS: ResourceId = ResourceId(3);
const SHARERS: usize = 2;

struct World {
    directory: TempDir,
    store: Arc<dyn Store>,
    path: Arc<dyn DataPath>,
    provider: Arc<Provider>,
}

impl World {
    fn new(apart: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = UnitStore::open(directory.path(), 4, SHARERS).unwrap();
        let path = UnitPath::open(&directory.path().join("sockets")).unwrap();
        let (mut store, mut path): (Arc<dyn Store>, Arc<dyn DataPath>) =
            (Arc::new(store), Arc::new(path));
        if apart {
            let (here, there) = UnixStream::pair().unwrap();
            thread::spawn(move || serve_store(there, &store));
            store = Arc::new(RemoteStore::new(here).unwrap());
            let (here, there) = UnixStream::pair().unwrap();
            thread::spawn(move || serve_path(there, &path));
            path = Arc::new(RemotePath::new(here).unwrap());
        }
        let provider = Provider::new().with_store(UNITS, store.clone()).with_path(
            "units",
            &[Transport::Auto],
            path.clone(),
        );
        Self {
            directory,
            store,
            path,
            provider: Arc::new(provider),
        }
    }

    fn both() -> [Self; 2] {
        [Self::new(false), Self::new(true)]
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn client(&self, lease: u128) -> std::io::Result<Client> {
        Client::connect(&self.at("sockets"), LeaseId(lease))
    }

    fn bound(&self, lease: u128, numbers: &[u32], shared: bool) -> Client {
        self.provider.bind(&order(lease, numbers, shared)).unwrap();
        self.provider
            .extend(binding_id(lease), BootTime(u64::MAX))
            .unwrap();
        self.client(lease).unwrap()
    }

    fn release(&self, lease: u128) -> Result<(), fabricbios_lease::StepError> {
        self.provider
            .release(binding_id(lease), units(&[0], false), &|| ())
            .map(drop)
    }
}

fn binding_id(lease: u128) -> BindingId {
    BindingId {
        lease_id: LeaseId(lease),
        generation: Generation(1),
        resource_id: UNITS,
    }
}

fn units(numbers: &[u32], shared: bool) -> Placement {
    Placement::Units {
        numbers: numbers.into(),
        shared,
    }
}

fn order(lease: u128, numbers: &[u32], shared: bool) -> BindOrder {
    BindOrder::new(binding_id(lease), units(numbers, shared), Transport::Auto)
}

#[test]
fn a_client_gets_a_descriptor_for_its_units_and_for_no_other() {
    for world in World::both() {
        let mut client = world.bound(1, &[0, 2], false);
        assert_eq!(client.numbers(), [0, 2]);
        assert_eq!(client.add(0, 5).unwrap(), Some(5));
        assert_eq!(client.add(0, 2).unwrap(), Some(7));
        assert_eq!(client.add(2, 1).unwrap(), Some(1));
        assert_eq!(client.add(1, 1).unwrap(), None);
    }
}

#[test]
fn the_store_gives_a_unit_to_as_many_as_may_share_it() {
    for world in World::both() {
        let mut one = world.bound(1, &[1], true);
        for numbers in [[0, 1], [1, 2]] {
            let refused = world.provider.bind(&order(9, &numbers, false));
            let Err(BindError::Failed(why)) = refused else {
                panic!("{refused:?}")
            };
            assert!(why.detail.contains("unit 1"), "{why}");
        }
        let mut other = world.bound(2, &[1], true);
        assert_eq!(one.add(1, 1).unwrap(), Some(1));
        assert_eq!(other.add(1, 1).unwrap(), Some(2));
        let third = world.provider.bind(&order(3, &[1], true));
        assert!(matches!(third, Err(BindError::Failed(_))), "{third:?}");
        assert_eq!(
            world.store.leases().unwrap().len(),
            2,
            "nothing stays of it"
        );
    }
}

#[test]
fn a_cut_ends_what_a_client_has_and_the_next_lease_begins_at_0() {
    for world in World::both() {
        let mut client = world.bound(1, &[0], false);
        client.add(0, 5).unwrap();
        let open = world.path.verify(binding_id(1), None).unwrap_err();
        assert!(open.detail.contains("somebody answers"), "{open}");
        let early = world.path.remove(binding_id(1), &|| ());
        assert!(early.is_err(), "removed under a client");
        let proof = world.provider.cut(binding_id(1), Linger::None).unwrap();
        let steps: Vec<&str> = proof.steps().iter().map(|it| &*it.step).collect();
        assert_eq!(steps, ["shut", "connect"]);
        assert!(client.add(0, 1).is_err());
        assert!(world.client(1).is_err());
        world.path.verify(binding_id(1), None).unwrap();
        world.release(1).unwrap();
        assert_eq!(world.bound(2, &[0], false).add(0, 0).unwrap(), Some(0));
        // Late calls change nothing.
        let late = world.provider.bind(&order(1, &[0], false));
        assert!(matches!(late, Err(BindError::Cancelled)), "{late:?}");
        let late = world.store.open(&order(1, &[0], false)).unwrap_err();
        assert!(matches!(late, BindError::Cancelled), "{late:?}");
    }
}

#[test]
fn nothing_is_written_before_a_deadline_is_told_or_after_it() {
    for world in World::both() {
        world.provider.bind(&order(1, &[0], false)).unwrap();
        assert!(world.client(1).unwrap().add(0, 1).is_err());
        let extend = |to| world.provider.extend(binding_id(1), BootTime(to)).unwrap();
        extend(u64::MAX);
        let mut client = world.client(1).unwrap();
        assert_eq!(client.add(0, 1).unwrap(), Some(1));
        extend(1);
        assert!(client.add(0, 1).is_err());
        let counter = fs::read(world.at("units/0")).unwrap();
        assert_eq!(counter, 1u64.to_le_bytes());
        world.path.revoke(binding_id(1), Linger::None).unwrap();
        let over = world.provider.extend(binding_id(1), BootTime(u64::MAX));
        assert!(over.is_err(), "extended after its cut");
    }
}

#[test]
fn what_a_process_of_before_has_left_is_ended_by_its_name() {
    for world in World::both() {
        // The state that a killed process leaves.
        world.store.open(&order(1, &[0], false)).unwrap();
        drop(UnixListener::bind(world.at("sockets").join(LeaseId(1).to_string())).unwrap());
        assert_eq!(world.path.leases().unwrap(), [LeaseId(1)]);
        let left = world.provider.reconcile(&BTreeSet::new()).unwrap();
        assert_eq!(left, []);
        assert_eq!(world.path.leases().unwrap(), []);
        assert_eq!(world.store.leases().unwrap(), []);
        world.bound(2, &[0], false);
    }
}

#[test]
fn a_unit_that_cannot_be_cleaned_is_nobodys_until_it_can() {
    for world in World::both() {
        world.bound(1, &[0], false).add(0, 5).unwrap();
        world.provider.cut(binding_id(1), Linger::None).unwrap();
        fs::rename(world.at("units/0"), world.at("aside")).unwrap();
        let failed = world.release(1).unwrap_err();
        assert!(failed.detail.contains("/0"), "{failed}");
        fs::write(world.at("units/0"), [0; 8]).unwrap();
        let failed = world.release(1).unwrap_err();
        assert!(failed.detail.contains("another file"), "{failed}");
        let taken = world.provider.bind(&order(2, &[0], false));
        assert!(matches!(taken, Err(BindError::Failed(_))), "{taken:?}");
        world.bound(3, &[1], false);
        fs::rename(world.at("aside"), world.at("units/0")).unwrap();
        let leases = [(binding_id(1), units(&[0], false))];
        world.provider.reset(UNITS, &leases).unwrap();
        assert_eq!(world.bound(4, &[0], false).add(0, 0).unwrap(), Some(0));
    }
}
