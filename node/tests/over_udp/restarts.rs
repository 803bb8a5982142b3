//! What a restart leaves of leases.

use std::{fs, os::unix::fs::FileExt};

use fabricbios_wire::*;

use crate::world::*;

/// The first page of the file says whose it is.
const PAGE: usize = 4096;

#[tokio::test]
async fn a_restart_adopts_leases_whose_bytes_are_in_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(with_file(directory.path())).await;
    let gone = world.alloc(60).await;
    let kept = world.alloc(60).await;
    write(&gone, 0, b"freed").await.expect("written");
    world.lease(Request::LeaseFree(gone.lease_id)).await;
    write(&kept, 0, b"stays").await.expect("written");
    world.crash().await;
    // Something that no lease holds, left by whatever.
    let file = fs::OpenOptions::new()
        .write(true)
        .open(directory.path().join("arena"));
    file.expect("the arena")
        .write_all_at(b"left", PAGE as u64)
        .expect("written");

    let world = World::start(with_file(directory.path())).await;
    let now = world.until(kept.lease_id, LeasePhase::Active).await;
    assert_eq!(first(&now).await.expect("read"), *b"stays");
    assert_ne!(now.binding.dp_key, kept.binding.dp_key);
    assert_eq!(now.expires_at_unix_ms, kept.expires_at_unix_ms);
    let with_old_key = LeaseInfo {
        binding: Binding {
            dp_key: kept.binding.dp_key.clone(),
            ..now.binding.clone()
        },
        ..now.clone()
    };
    assert!(is_silent(&first(&with_old_key).await));
    let fresh = world.alloc(60).await;
    assert_eq!(
        first(&fresh).await.expect("read"),
        [0; 5],
        "it was scrubbed"
    );
    assert_eq!(world.query(gone.lease_id).await.phase, LeasePhase::Freed);
    world.stop().await;
    let arena = fs::read(directory.path().join("arena")).expect("the arena");
    assert!(
        arena[PAGE..].iter().all(|byte| *byte == 0),
        "a drain leaves nothing"
    );
}

/// Whatever was done with files in between, nobody finds somebody else's bytes in his lease.
#[tokio::test]
async fn nothing_is_adopted_into_other_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let (here, aside) = (
        directory.path().join("arena"),
        directory.path().join("aside"),
    );
    let world = World::start(with_file(directory.path())).await;
    let lease = world.alloc(60).await;
    write(&lease, 0, b"hers!").await.expect("written");
    world.crash().await;
    fs::rename(&here, &aside).expect("moved");

    let world = World::start(with_file(directory.path())).await;
    assert_eq!(world.query(lease.lease_id).await.phase, LeasePhase::Revoked);
    let other = world.alloc(60).await;
    world.crash().await;
    fs::rename(&aside, &here).expect("moved back");

    let world = World::start(with_file(directory.path())).await;
    assert_eq!(world.query(other.lease_id).await.phase, LeasePhase::Revoked);
    let fresh = world.alloc(60).await;
    assert_eq!(first(&fresh).await.expect("read"), [0; 5]);
    world.stop().await;
}

#[tokio::test]
async fn an_older_journal_gives_nobody_the_bytes_of_whoever_came_after() {
    let directory = tempfile::tempdir().expect("a directory");
    let state = with_file(directory.path()).state_dir().to_owned();
    let (journal, copy) = (state.join("journal.redb"), state.join("copy"));
    let world = World::start(with_file(directory.path())).await;
    let hers = world.alloc(60).await;
    world.crash().await;
    fs::copy(&journal, &copy).expect("copied");

    let world = World::start(with_file(directory.path())).await;
    world.until(hers.lease_id, LeasePhase::Active).await;
    world.lease(Request::LeaseFree(hers.lease_id)).await;
    let his = world.alloc(60).await;
    write(&his, 0, b"his!!").await.expect("written");
    world.crash().await;
    fs::rename(&copy, &journal).expect("put back");

    let world = World::start(with_file(directory.path())).await;
    assert_eq!(world.query(hers.lease_id).await.phase, LeasePhase::Revoked);
    let fresh = world.alloc(60).await;
    assert_eq!(first(&fresh).await.expect("read"), [0; 5]);
    world.crash().await;

    // From here on the two agree again.
    let world = World::start(with_file(directory.path())).await;
    world.until(fresh.lease_id, LeasePhase::Active).await;
    world.stop().await;
}

#[tokio::test]
async fn a_restart_without_a_file_revokes() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let info = world.alloc(60).await;
    world.crash().await;
    let world = World::start(settings(directory.path())).await;
    assert_eq!(world.query(info.lease_id).await.phase, LeasePhase::Revoked);
    world.stop().await;
}
