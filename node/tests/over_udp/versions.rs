//! A journal that a version before wrote.

use std::{fs, path::Path, process::Command};

use fabricbios_wire::*;

use crate::world::*;

/// See `records.rs` for what is in it.
fn put_journal(version: u8, state: &Path) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let fixture = format!("{folder}/journal-of-records-{version}.redb.gz");
    let unpacked = Command::new("gzip").args(["-dc", &fixture]).output();
    fs::create_dir_all(state).expect("a directory");
    fs::write(state.join("journal.redb"), unpacked.expect("gzip").stdout).expect("written");
}

/// The machine, its memory and its pool are others: nothing that lived can go on, and what was told stays told. How
/// long ago a lease ended is on record from version 4 on: those of the fixture are forgotten by now.
#[tokio::test]
async fn a_journal_of_a_version_before_is_opened_and_told_from() {
    for (version, told_of) in [(3, 6), (4, 3), (5, 3)] {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = with_file(directory.path());
        put_journal(version, settings.state_dir());
        let world = World::start(settings).await;
        let list = Request::LeaseList {
            after: LeaseId(0),
            ended: true,
        };
        let answer = world.operator.call_async(list).await;
        let Ok(Reply::Leases(page)) = answer else {
            panic!("{answer:?}")
        };
        let mut told = Vec::new();
        for lease in &page.leases {
            let info = world.query(lease.lease_id).await;
            told.push((info.granted_at_unix_ms, info.resource_type(), info.phase));
        }
        told.sort_unstable_by_key(|(granted, ..)| *granted);
        let told: Vec<_> = told
            .into_iter()
            .map(|(_, kind, phase)| (kind, phase))
            .collect();
        let (mem, block) = (ResourceType::Mem, ResourceType::Block);
        let expected = [
            (mem, LeasePhase::Revoked),
            (block, LeasePhase::Revoked),
            (block, LeasePhase::Revoked),
            (mem, LeasePhase::Freed),
            (mem, LeasePhase::Expired),
            (block, LeasePhase::Revoked),
        ];
        assert_eq!(told, expected[..told_of], "version {version}");
        world.alloc(60).await;
        world.stop().await;
    }
}
