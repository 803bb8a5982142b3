//! Backup and restore as docs/backup.md says, with the commands of that page.

use std::{fs, path::Path, process::Command};

use fabricbios_client::Node;
use fabricbios_wire::{LeaseInfo, LeasePhase, Request, ResourceType};
use nix::sys::signal::Signal;

use crate::{both_go_on, daemon::*, keeping, lease_both};

/// Runs the block of the page with this name, on the directories of this place.
fn page(place: &Place, name: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/backup.md");
    let page = fs::read_to_string(page).expect("the page");
    let mark = format!("<!-- runs: {name} -->\n```sh\n");
    let (_, block) = page.split_once(&mark).expect("a block");
    let (script, _) = block.split_once("```").expect("its end");
    let script = script
        .replace("/var/lib/fabricbios", &place.text("state"))
        .replace("/var/backups/fabricbios", &place.text("backup"));
    let done = Command::new("sh").args(["-euc", &script]).output();
    let done = done.expect("a shell");
    assert!(done.status.success(), "{name}: {done:?}");
}

async fn phase(node: &Node, lease: &LeaseInfo) -> Option<LeasePhase> {
    let found = node.lease_async(Request::LeaseQuery(lease.lease_id)).await;
    found.ok().map(|it| it.phase)
}

/// A node with leases of memory and of blocks, stopped, with both backups.
async fn backed_up() -> (Place, [LeaseInfo; 2]) {
    let place = Place::new();
    let daemon = place.start(&keeping(&place));
    let leases = lease_both(&daemon, &place.admin()).await;
    page(&place, "backup-keys");
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
    page(&place, "backup-whole");
    (place, leases)
}

#[tokio::test]
async fn a_whole_backup_of_a_stopped_node_brings_its_live_leases_back() {
    let (place, leases) = backed_up().await;
    fs::remove_dir_all(place.at("state")).expect("the disk is lost");
    page(&place, "restore-whole");
    let daemon = place.start(&keeping(&place));
    both_go_on(&daemon, &place.admin(), &leases).await;
}

/// A run since the backup has ended both leases, and granted others of the same bytes.
#[tokio::test]
async fn of_an_old_copy_no_lease_comes_alive() {
    let (place, leases) = backed_up().await;
    let daemon = place.start(&keeping(&place));
    let node = daemon.client(&place.admin()).await;
    let mut later = Vec::new();
    for lease in &leases {
        let freed = node.lease_async(Request::LeaseFree(lease.lease_id)).await;
        freed.expect("freed");
        later.push(alloc(&node, lease.resource_type()).await);
    }
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
    page(&place, "restore-whole");

    let daemon = place.start(&keeping(&place));
    let log = place.log();
    for said in [
        "the journal is older than the memory file",
        "the pool knows of 2 grants",
    ] {
        assert!(log.contains(said), "{said}: {log}");
    }
    let node = daemon.client(&place.admin()).await;
    for lease in &leases {
        assert_eq!(phase(&node, lease).await, Some(LeasePhase::Revoked));
    }
    for lease in &later {
        assert_eq!(phase(&node, lease).await, None);
    }
    let refused = node.alloc_async(request(ResourceType::Block)).await;
    let refused = refused.expect_err("the pool is withheld").to_string();
    assert!(refused.contains("withheld"), "{refused}");
    let fresh = alloc(&node, ResourceType::Mem).await;
    assert_eq!(first(&fresh).await, [0; 5]);
    daemon.end(Signal::SIGTERM);

    let daemon = place.start(&[keeping(&place), vec!["--force".into()]].concat());
    alloc(&daemon.client(&place.admin()).await, ResourceType::Block).await;
}

/// A run since the backup has ended both leases, and granted nothing.
#[tokio::test]
async fn an_ended_lease_of_a_copy_with_the_newest_grant_gives_no_access() {
    let (place, leases) = backed_up().await;
    let daemon = place.start(&keeping(&place));
    let node = daemon.client(&place.admin()).await;
    for lease in &leases {
        let freed = node.lease_async(Request::LeaseFree(lease.lease_id)).await;
        freed.expect("freed");
    }
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
    page(&place, "restore-whole");

    let daemon = place.start(&keeping(&place));
    let node = daemon.client(&place.admin()).await;
    assert_eq!(phase(&node, &leases[0]).await, Some(LeasePhase::Revoked));
    wait_for("a line of the log", || {
        place.log().contains("its file is gone").then_some(())
    });
    let blocks = node
        .lease_async(Request::LeaseQuery(leases[1].lease_id))
        .await;
    assert_eq!(blocks.expect("on record").binding.dp_key, None);
}

#[tokio::test]
async fn with_the_keys_alone_it_is_the_same_node_without_leases() {
    let (place, leases) = backed_up().await;
    let id = place.admin();
    page(&place, "restore-keys");
    let daemon = place.start(&keeping(&place));
    let node = daemon.client(&id).await;
    for lease in &leases {
        assert_eq!(phase(&node, lease).await, None);
        alloc(&node, lease.resource_type()).await;
    }
}

#[tokio::test]
async fn without_any_backup_it_is_a_new_node_and_pools_need_force() {
    let (place, leases) = backed_up().await;
    let before = place.admin();
    fs::remove_dir_all(place.at("state")).expect("lost");
    let log = place.start_in_vain(&keeping(&place));
    assert!(log.contains("take it with --force"), "{log}");
    let daemon = place.start(&[keeping(&place), vec!["--force".into()]].concat());
    let stranger = Node::connect_async(&daemon.address, &before).await;
    stranger.expect_err("an identity of the lost node");
    let node = daemon.client(&place.admin()).await;
    for lease in &leases {
        assert_eq!(phase(&node, lease).await, None);
    }
    let fresh = alloc(&node, ResourceType::Mem).await;
    assert_eq!(first(&fresh).await, [0; 5]);
}

#[tokio::test]
async fn without_its_identity_a_start_is_refused_until_it_is_restored() {
    let (place, leases) = backed_up().await;
    fs::remove_file(place.at("state/node.identity")).expect("lost");
    let log = place.start_in_vain(&keeping(&place));
    assert!(log.contains("restore the file from a backup"), "{log}");
    let kept = place.at("backup/keys/node.identity");
    fs::copy(kept, place.at("state/node.identity")).expect("restored");
    let daemon = place.start(&keeping(&place));
    both_go_on(&daemon, &place.admin(), &leases).await;
}
