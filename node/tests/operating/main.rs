//! The daemon as a process, in the hands of its operator: stops, starts with other settings, a new CA, and the check before
//! a start; its descriptors, its log, its local socket, and the processes beside it.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on says why"
)]

mod alerts;
mod announced;
mod backup;
mod check;
mod daemon;
mod descriptors;
mod helpers;
mod joining;
mod journal;
mod local_socket;
mod log_drops;
mod log_lines;
mod monitor;
mod page;
mod placed;
mod port;
mod reload;
mod reports;
mod service_manager;
mod watchdog;

use std::fs;

use fabricbios_client::{Identity, Node};
use fabricbios_wire::{LeaseAllocRequest, LeaseInfo, LeasePhase, RequestToken, ResourceType};
use nix::sys::signal::Signal;

use daemon::*;

/// Leases memory, with these bytes in it, and blocks.
async fn lease_both(daemon: &Daemon, identity: &Identity) -> [LeaseInfo; 2] {
    let node = daemon.client(identity).await;
    let leases = [
        alloc(&node, ResourceType::Mem).await,
        alloc(&node, ResourceType::Block).await,
    ];
    write(&leases[0], b"stays").await;
    leases
}

async fn both_go_on(daemon: &Daemon, identity: &Identity, leases: &[LeaseInfo; 2]) {
    let node = daemon.client(identity).await;
    for lease in leases {
        let now = settled(&node, lease.lease_id).await;
        assert_eq!(now.phase, LeasePhase::Active);
        assert_eq!(now.expires_at_unix_ms, lease.expires_at_unix_ms);
        if lease.resource_type() == ResourceType::Mem {
            assert_eq!(first(&now).await, *b"stays");
        }
    }
}

fn keeping(place: &Place) -> Vec<String> {
    [place.memory(), place.pool(), vec!["--on-stop=keep".into()]].concat()
}

#[tokio::test]
async fn a_stop_that_keeps_leases_ends_none_and_the_next_start_adopts_them() {
    let place = Place::new();
    let config = place.text("node.toml");
    fs::write(&config, "on-stop = \"keep\"").expect("a file");
    let words = [
        place.memory(),
        place.pool(),
        vec![format!("--config={config}")],
    ]
    .concat();
    let first = place.start(&words);
    let leases = lease_both(&first, &place.admin()).await;
    assert!(first.end(Signal::SIGTERM).success(), "{}", place.log());
    let log = place.log();
    assert!(log.contains("leases stay (on-stop = keep"), "{log}");
    assert!(!log.contains("taking every lease back"), "{log}");
    let second = place.start(&words);
    both_go_on(&second, &place.admin(), &leases).await;
    assert!(second.end(Signal::SIGINT).success(), "{}", place.log());
    // Afterwards the leases go on, as after a kill.
    let third = place.start(&words);
    both_go_on(&third, &place.admin(), &leases).await;
    third.end(Signal::SIGKILL);
    both_go_on(&place.start(&words), &place.admin(), &leases).await;
}

#[tokio::test]
async fn the_signal_of_a_restart_keeps_leases_whatever_a_stop_does() {
    let place = Place::new();
    let words = [place.memory(), place.pool()].concat();
    let first = place.start(&words);
    let leases = lease_both(&first, &place.admin()).await;
    assert!(first.end(Signal::SIGUSR1).success(), "{}", place.log());
    let second = place.start(&words);
    both_go_on(&second, &place.admin(), &leases).await;
    assert!(second.end(Signal::SIGTERM).success(), "{}", place.log());
    let log = place.log();
    assert!(log.contains("taking every lease back"), "{log}");
}

/// The daemon dies after the grant is on record; whether its reply was sent makes no difference.
#[tokio::test]
async fn a_repeat_after_a_kill_gets_the_same_lease_of_memory_and_of_blocks() {
    let place = Place::new();
    let words = keeping(&place);
    let daemon = place.start(&words);
    let asked = |kind, token| LeaseAllocRequest {
        request_token: Some(RequestToken(token)),
        ..request(kind)
    };
    let all = [asked(ResourceType::Mem, 7), asked(ResourceType::Block, 8)];
    let mut before = Vec::new();
    for asked in &all {
        let client = daemon.client(&place.admin()).await;
        before.push(client.alloc_async(asked.clone()).await.expect("granted"));
    }
    daemon.end(Signal::SIGKILL);
    let daemon = place.start(&words);
    let client = daemon.client(&place.admin()).await;
    for (asked, before) in all.iter().zip(&before) {
        let again = client.alloc_async(asked.clone()).await.expect("the lease");
        assert_eq!(again.lease_id, before.lease_id);
        assert!(again.binding.dp_key.is_some(), "{again:?}");
        let other = LeaseAllocRequest {
            lease_secs: 5,
            ..asked.clone()
        };
        let refused = client.alloc_async(other).await.expect_err("other terms");
        assert!(refused.to_string().contains("other terms"), "{refused}");
    }
    daemon.end(Signal::SIGTERM);
}

#[tokio::test]
async fn a_stop_ends_every_lease_unless_told_to_keep_them() {
    for on_stop in [&[][..], &["--on-stop=end".to_owned()]] {
        let place = Place::new();
        let words = [&place.memory(), &place.pool(), on_stop].concat();
        let first = place.start(&words);
        let leases = lease_both(&first, &place.admin()).await;
        assert!(first.end(Signal::SIGTERM).success(), "{}", place.log());
        let log = place.log();
        assert!(log.contains("taking every lease back"), "{log}");
        let second = place.start(&words);
        let node = second.client(&place.admin()).await;
        for lease in leases {
            let now = settled(&node, lease.lease_id).await;
            assert_eq!(now.phase, LeasePhase::Revoked);
        }
    }
}

#[tokio::test]
async fn a_forgotten_pool_with_live_leases_stops_the_start_until_the_operator_means_it() {
    let place = Place::new();
    let daemon = place.start(&keeping(&place));
    let leases = lease_both(&daemon, &place.admin()).await;
    daemon.end(Signal::SIGTERM);

    let alone = [place.memory(), vec!["--on-stop=keep".into()]].concat();
    let log = place.start_in_vain(&alone);
    let pool = place.text("pool");
    for word in [
        &format!("the last run offered the pool {pool}, and 1 of its leases live"),
        &format!("--block-pool {pool}"),
        &format!("--without-pool {pool}"),
    ] {
        assert!(log.contains(word), "{word}: {log}");
    }
    // The option names another pool, so it has no effect. The failed start has ended no lease.
    let other = vec![format!("--without-pool={}", place.text("other"))];
    let log = place.start_in_vain(&[&alone[..], &other].concat());
    assert!(log.contains("--without-pool has no effect"), "{log}");
    let daemon = place.start(&keeping(&place));
    both_go_on(&daemon, &place.admin(), &leases).await;
    daemon.end(Signal::SIGTERM);

    let without = vec![format!("--without-pool={pool}")];
    let daemon = place.start(&[&alone[..], &without].concat());
    let log = place.log();
    assert!(log.contains("its leases are over"), "{log}");
    let node = daemon.client(&place.admin()).await;
    let now = settled(&node, leases[1].lease_id).await;
    assert_eq!(now.phase, LeasePhase::Revoked);
    daemon.end(Signal::SIGTERM);
    // The operator needs the option for one start only.
    let daemon = place.start(&alone);
    let node = daemon.client(&place.admin()).await;
    assert_eq!(
        settled(&node, leases[0].lease_id).await.phase,
        LeasePhase::Active
    );
}

#[test]
fn bytes_of_leases_in_the_state_directory_stop_the_start_and_the_check() {
    let place = Place::new();
    fs::create_dir_all(place.at("state/pool")).expect("a directory");
    for (name, path) in [("mem-file", "state/arena"), ("block-pool", "state/pool")] {
        let given = format!("--{name}={}", place.text(path));
        let state = format!("--state-dir={}", place.text("state"));
        let words = [&*given, &*state, "--mem-bytes=1MiB"];
        for command in ["control-server", "check"] {
            let output = place.run(&[&[command][..], &words].concat());
            let told = joining::text(&output);
            assert!(!output.status.success(), "{told}");
            for part in [name, &place.text(path), "name a place outside"] {
                assert!(told.contains(part), "{part}: {told}");
            }
        }
    }
}

#[tokio::test]
async fn a_pool_without_live_leases_is_left_out_without_a_word() {
    let place = Place::new();
    let daemon = place.start(&keeping(&place));
    let node = daemon.client(&place.admin()).await;
    let lease = alloc(&node, ResourceType::Block).await;
    let free = fabricbios_wire::Request::LeaseFree(lease.lease_id);
    node.lease_async(free).await.expect("freed");
    daemon.end(Signal::SIGTERM);
    place.start(&place.memory());
}

#[tokio::test]
async fn a_renewed_ca_keeps_node_leases_pools_and_identities() {
    let place = Place::new();
    let daemon = place.start(&keeping(&place));
    let (node, old) = (daemon.node.clone(), place.admin());
    let leases = lease_both(&daemon, &old).await;
    let state = place.text("state");
    let renew = |more: &[&str]| {
        let words = [&["renew-ca", "--state-dir", &state], more].concat();
        let output = place.run(&words);
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let (status, said) = renew(&[]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("another daemon runs"), "{said}");
    daemon.end(Signal::SIGTERM);

    let (status, said) = renew(&[]);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        said.contains(&node) && said.contains("stay valid"),
        "{said}"
    );
    let daemon = place.start(&keeping(&place));
    assert_eq!(daemon.node, node);
    both_go_on(&daemon, &old, &leases).await;
    both_go_on(&daemon, &place.admin(), &leases).await;
    daemon.end(Signal::SIGTERM);

    // The new key makes identities of the old key void, as after a theft.
    let (status, said) = renew(&["--new-key"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(&node) && said.contains("is void"), "{said}");
    let daemon = place.start(&keeping(&place));
    assert_eq!(daemon.node, node);
    let refused = Node::connect_async(&daemon.address, &old).await.map(drop);
    refused.expect_err("an identity of the old CA");
    both_go_on(&daemon, &place.admin(), &leases).await;
}

/// Follows the instruction in the error of the start.
#[tokio::test]
async fn a_lost_ca_key_costs_identities_and_nothing_else() {
    let place = Place::new();
    let daemon = place.start(&keeping(&place));
    let leases = lease_both(&daemon, &place.admin()).await;
    let node = daemon.node.clone();
    daemon.end(Signal::SIGTERM);
    fs::remove_file(place.at("state/ca-key.pem")).expect("removed");
    let log = place.start_in_vain(&keeping(&place));
    assert!(log.contains("fabricbiosd renew-ca --new-key"), "{log}");
    let output = place.run(&["renew-ca", "--new-key", "--state-dir", &place.text("state")]);
    assert!(output.status.success(), "{output:?}");
    let daemon = place.start(&keeping(&place));
    assert_eq!(daemon.node, node);
    both_go_on(&daemon, &place.admin(), &leases).await;
}
