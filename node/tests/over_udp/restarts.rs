//! Leases after a restart.

use std::{fs, os::unix::fs::FileExt, path::PathBuf};

use fabricbios_lease::Extent;
use fabricbios_node::settings::Settings;
use fabricbios_wire::*;

use crate::world::*;

/// Length of the first page of the file, which says whose file it is.
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
    // Bytes outside every lease, as an earlier run may leave them.
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
    no_answer_to(&with_old_key).await;
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

/// Of a reply that was lost with the daemon.
#[tokio::test]
async fn a_repeat_after_a_crash_gets_the_same_lease_with_a_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(with_file(directory.path())).await;
    let asked = LeaseAllocRequest {
        request_token: Some(RequestToken(7)),
        ..request(60)
    };
    let before = world.grant(asked.clone()).await;
    write(&before, 0, b"stays").await.expect("written");
    world.crash().await;

    let world = World::start(with_file(directory.path())).await;
    let again = world.grant(asked.clone()).await;
    assert_eq!(again.lease_id, before.lease_id);
    assert_eq!(again.expires_at_unix_ms, before.expires_at_unix_ms);
    assert_eq!(first(&again).await.expect("read"), *b"stays");
    let other = world.tenant("other").await.alloc_async(asked).await;
    let other = other.expect("a lease of its own");
    assert_ne!(other.lease_id, before.lease_id);
    assert_eq!(first(&other).await.expect("read"), [0; 5]);
    world.stop().await;
}

/// Whatever happens to the files between the runs, no lease has bytes of another tenant.
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

/// The extent from byte 0 to `length`.
fn up_to(length: u64) -> Extent {
    Extent { offset: 0, length }
}

/// The path of the journal in a node's state directory.
fn journal(settings: &Settings) -> PathBuf {
    settings.state_dir().join("journal.redb")
}

/// Restores an older journal in which `hers` is live, after another tenant wrote to the same memory.
async fn put_back_an_older_journal(settings: &Settings) -> LeaseInfo {
    let copy = settings.state_dir().join("copy");
    let world = World::start(settings.clone()).await;
    let hers = world.alloc(60).await;
    world.crash().await;
    fs::copy(journal(settings), &copy).expect("copied");

    let world = World::start(settings.clone()).await;
    world.until(hers.lease_id, LeasePhase::Active).await;
    world.lease(Request::LeaseFree(hers.lease_id)).await;
    let his = world.alloc(60).await;
    write(&his, 0, b"his!!").await.expect("written");
    world.crash().await;
    fs::rename(&copy, journal(settings)).expect("put back");
    hers
}

/// Checks that the lease is over and its bytes are overwritten, and that from now on journal and bytes agree again.
async fn is_over_and_forgotten(settings: &Settings, lease: &LeaseInfo) {
    let world = World::start(settings.clone()).await;
    assert_eq!(world.query(lease.lease_id).await.phase, LeasePhase::Revoked);
    let fresh = world.alloc(60).await;
    assert_eq!(first(&fresh).await.expect("read"), [0; 5]);
    world.crash().await;
    let world = World::start(settings.clone()).await;
    world.until(fresh.lease_id, LeasePhase::Active).await;
    world.stop().await;
}

#[tokio::test]
async fn an_older_journal_gives_nobody_the_bytes_of_whoever_came_after() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = with_file(directory.path());
    let hers = put_back_an_older_journal(&settings).await;
    is_over_and_forgotten(&settings, &hers).await;
}

/// The start fails because of a typing error elsewhere in its settings, or ends during its scrub.
#[tokio::test]
async fn an_older_journal_is_still_found_out_after_a_start_in_vain() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = with_file(directory.path());
    let hers = put_back_an_older_journal(&settings).await;
    start_in_vain(&settings, &[up_to(ARENA_BYTES)]);
    start_in_vain(&settings, &[up_to(LEASE_BYTES)]);
    is_over_and_forgotten(&settings, &hers).await;
}

/// After an older journal was restored, an earlier copy with a higher number is wrong too.
#[tokio::test]
async fn a_newer_copy_put_back_after_an_older_one_is_found_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = with_file(directory.path());
    let [older, newer] = ["older", "newer"].map(|name| settings.state_dir().join(name));
    World::start(settings.clone()).await.crash().await;
    fs::copy(journal(&settings), &older).expect("copied");

    let world = World::start(settings.clone()).await;
    for _ in 0..8 {
        let passing = world.alloc(60).await;
        world.lease(Request::LeaseFree(passing.lease_id)).await;
    }
    let hers = world.alloc(60).await;
    world.crash().await;
    fs::copy(journal(&settings), &newer).expect("copied");

    let world = World::start(settings.clone()).await;
    world.lease(Request::LeaseFree(hers.lease_id)).await;
    world.crash().await;
    fs::rename(&older, journal(&settings)).expect("put back");

    let world = World::start(settings.clone()).await;
    let all = LeaseAllocRequest::new(ResourceType::Mem, ARENA_BYTES, 60);
    let his = world.grant(all).await;
    write(&his, 0, b"his!!").await.expect("written");
    world.crash().await;
    fs::rename(&newer, journal(&settings)).expect("put back");
    is_over_and_forgotten(&settings, &hers).await;
}

#[tokio::test]
async fn a_file_of_another_node_is_still_found_out_after_a_start_in_vain() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = with_file(directory.path());
    let mut other = settings.clone();
    other.kinds.shared.state_dir = Some(directory.path().join("other"));
    let world = World::start(settings.clone()).await;
    let hers = world.alloc(60).await;
    world.crash().await;

    let world = World::start(other).await;
    let his = world.alloc(60).await;
    write(&his, 0, b"his!!").await.expect("written");
    world.crash().await;

    start_in_vain(&settings, &[up_to(ARENA_BYTES)]);
    is_over_and_forgotten(&settings, &hers).await;
}

/// A lease that was valid before a failed start is valid after it.
#[tokio::test]
async fn a_start_in_vain_ends_no_lease() {
    let directory = tempfile::tempdir().expect("a directory");
    let settings = with_file(directory.path());
    let world = World::start(settings.clone()).await;
    let lease = world.alloc(60).await;
    write(&lease, 0, b"stays").await.expect("written");
    world.crash().await;
    start_in_vain(&settings, &[up_to(LEASE_BYTES)]);
    let world = World::start(settings).await;
    let now = world.until(lease.lease_id, LeasePhase::Active).await;
    assert_eq!(first(&now).await.expect("read"), *b"stays");
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
