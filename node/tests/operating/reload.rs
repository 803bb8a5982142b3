//! SIGHUP: the daemon reads its configuration file and its certificates again.

use std::{fs, os::unix::fs::DirBuilderExt, process::Stdio, time::SystemTime};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_fabric::Fabric;
use fabricbios_wire::{
    EndCause, LeaseAllocRequest, LeaseError, LeasePhase, Refusal, Request, ResourceType,
};
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::mkfifo,
};

use crate::{
    both_go_on,
    daemon::*,
    joining::{fabric, signed},
    lease_both,
    service_manager::Manager,
};

/// A place whose daemon reads this file.
fn with_file(place: &Place, text: &str) -> Vec<String> {
    let config = place.text("node.toml");
    fs::write(&config, text).unwrap();
    let config = vec![format!("--config={config}")];
    [place.memory(), place.pool(), config].concat()
}

/// Waits for these words in the log behind its first `from` bytes: it is written on a thread of its own.
fn logs(place: &Place, from: usize, words: &str) {
    wait_for(words, || {
        unquoted(&place.log()[from..]).contains(words).then_some(())
    });
}

/// The log with its quotes as they are in a message.
fn unquoted(log: &str) -> String {
    log.replace("\\\"", "\"")
}

fn hang_up(daemon: &Daemon) {
    kill(daemon.pid(), Signal::SIGHUP).unwrap();
}

async fn refused(node: &Node, request: LeaseAllocRequest) -> Refusal {
    match node.alloc_async(request).await {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn limits_of_the_file_hold_from_a_sighup_on_and_live_leases_stay() {
    let place = Place::new();
    let words = with_file(&place, "lease-secs-max = 3600");
    let manager = Manager::of(&place);
    let daemon = manager.start(&place, &words);
    let leases = lease_both(&daemon, &place.admin()).await;
    let narrow =
        "lease-secs-max = 60\nleases-per-tenant-max = 2\ncut-within-ms = 2000\nfbmu-ops-max = 9";
    with_file(&place, narrow);
    hang_up(&daemon);
    manager.hears_reload();
    for words in [
        "SIGHUP: new values hold of lease-secs-max, leases-per-tenant-max",
        "cut-within-ms: changes at the next start",
        "fbmu-ops-max: changes at the next start",
    ] {
        logs(&place, 0, words);
    }
    both_go_on(&daemon, &place.admin(), &leases).await;
    let node = daemon.client(&place.admin()).await;
    let over = refused(&node, request(ResourceType::Mem)).await;
    assert_eq!(over.error, LeaseError::CapacityExceeded);
    assert!(over.message.contains("leases-per-tenant-max"), "{over}");

    // A file without the setting brings the default back.
    with_file(&place, "log-level = \"trace\"\nleases-per-tenant-max = 9");
    hang_up(&daemon);
    manager.hears_reload();
    alloc(&node, ResourceType::Mem).await;
    both_go_on(&daemon, &place.admin(), &leases).await;
    logs(&place, 0, " TRACE ");
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
}

#[tokio::test]
async fn a_file_that_a_start_would_refuse_changes_nothing_and_is_told_as_by_check() {
    let place = Place::new();
    let words = with_file(&place, "lease-secs-max = 700");
    let manager = Manager::of(&place);
    let daemon = manager.start(&place, &words);
    let leases = lease_both(&daemon, &place.admin()).await;
    let config = place.at("node.toml");
    let make = |what: &str| {
        if what != "nothing" {
            fs::remove_file(&config).unwrap();
        }
        match what {
            "a directory" => fs::DirBuilder::new().mode(0o700).create(&config).unwrap(),
            // Nobody writes to it.
            "a FIFO" => mkfifo(&config, Mode::S_IRWXU).unwrap(),
            "nothing" => fs::remove_dir(&config).unwrap(),
            "too much" => fs::write(&config, " ".repeat(2 << 20)).unwrap(),
            "a conflict" => fs::write(&config, "lease-secs-max = 5\ncpu-pids-max = 7").unwrap(),
            "two faults" => {
                let text = "lease-secs-max = 5\nx = 1\ngrace-secs-max = \"y\"";
                fs::write(&config, text).unwrap();
            }
            other => panic!("{other}"),
        }
    };
    for what in [
        "a FIFO",
        "too much",
        "a conflict",
        "two faults",
        "a directory",
        "nothing",
    ] {
        make(what);
        let check = [&["check".into(), "--state-dir=other".into()], &words[..]].concat();
        let check: Vec<&str> = check.iter().map(String::as_str).collect();
        let told = String::from_utf8(place.run(&check).stdout).unwrap();
        let told = told.lines().filter(|line| line.starts_with("refused: "));
        let told: Vec<&str> = told.collect();
        let before = place.log().len();
        hang_up(&daemon);
        let status = manager.hears_reload();
        let why = told[0].strip_prefix("refused: ").unwrap();
        let expected = format!("{}; the last reload was refused: {why}", daemon.address);
        assert_eq!(status, expected, "{what}");
        for fault in told {
            logs(&place, before, fault);
        }
        logs(&place, before, "SIGHUP: nothing has changed");
    }
    // With the faults, no other line of the file held.
    let node = daemon.client(&place.admin()).await;
    alloc(&node, ResourceType::Mem).await;
    let long = LeaseAllocRequest {
        lease_secs: 701,
        ..request(ResourceType::Mem)
    };
    assert!(refused(&node, long).await.message.contains("700"));
    with_file(&place, "lease-secs-max = 700");
    hang_up(&daemon);
    assert_eq!(manager.hears_reload(), daemon.address);
    both_go_on(&daemon, &place.admin(), &leases).await;
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
}

#[tokio::test]
async fn a_storm_of_sighups_is_read_a_few_times_and_a_lease_ends_at_its_deadline() {
    let place = Place::new();
    let daemon = place.start(&with_file(&place, "lease-secs-max = 3600"));
    let node = daemon.client(&place.admin()).await;
    let short = LeaseAllocRequest {
        lease_secs: 1,
        ..request(ResourceType::Mem)
    };
    let lease = node.alloc_async(short).await.unwrap();
    let mut sent = 0;
    let ended = loop {
        for _ in 0..1_000 {
            hang_up(&daemon);
        }
        sent += 1_000;
        let query = Request::LeaseQuery(lease.lease_id);
        let info = node.lease_async(query).await.unwrap();
        if info.phase != LeasePhase::Active {
            break info;
        }
    };
    let end = ended.end.expect("an end");
    assert_eq!(end.cause, EndCause::Expired);
    assert!(!end.proof.is_empty());
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
    let readings = place.log().matches("SIGHUP:").count();
    assert!((1..sent / 10).contains(&readings), "{readings} of {sent}");
}

#[test]
fn a_sighup_during_the_start_is_obeyed_after_it_and_during_a_stop_never() {
    let place = Place::new();
    let manager = Manager::of(&place);
    let mut command = place.command(&with_file(&place, "lease-secs-max = 3600"));
    command.env("NOTIFY_SOCKET", place.at("notify"));
    let command = command.stdout(Stdio::null()).stderr(place.new_log());
    let mut daemon = Daemon {
        node: String::new(),
        address: String::new(),
        metrics: None,
        child: command.spawn().unwrap(),
    };
    manager.next();
    hang_up(&daemon);
    manager.hears_reload();
    kill(daemon.pid(), Signal::SIGTERM).unwrap();
    manager.hears("STOPPING=1");
    // It may have ended before the last ones.
    for _ in 0..100 {
        kill(daemon.pid(), Signal::SIGHUP).ok();
    }
    assert!(daemon.child.wait().unwrap().success(), "{}", place.log());
    assert_eq!(place.log().matches("SIGHUP:").count(), 1, "{}", place.log());
}

#[tokio::test]
async fn what_a_sighup_right_before_a_stop_asks_for_holds_of_the_stop() {
    let place = Place::new();
    let words = with_file(&place, "on-stop = \"end\"");
    let daemon = place.start(&words);
    let leases = lease_both(&daemon, &place.admin()).await;
    with_file(&place, "on-stop = \"keep\"");
    hang_up(&daemon);
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
    let log = place.log();
    assert!(log.contains("leases stay (on-stop = keep"), "{log}");
    let daemon = place.start(&words);
    both_go_on(&daemon, &place.admin(), &leases).await;
}

/// Access over UDP ends with the process; the lab shows how the watchdog ends that of the kernel's target
/// (`suite_block_restart`).
#[tokio::test]
async fn a_restart_with_a_broken_file_fails_in_words_and_the_next_start_adopts_the_leases() {
    let place = Place::new();
    let words = with_file(&place, "on-stop = \"keep\"");
    let daemon = place.start(&words);
    let leases = lease_both(&daemon, &place.admin()).await;
    let node = daemon.client(&place.admin()).await;
    let short = LeaseAllocRequest {
        lease_secs: 1,
        ..request(ResourceType::Block)
    };
    let short = node.alloc_async(short).await.unwrap();
    assert!(daemon.end(Signal::SIGTERM).success(), "{}", place.log());
    with_file(&place, "on-stop = \"keep\"\nlease-secs-max = \"an hour\"");
    let is_past = |at: u64| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap().as_millis() > u128::from(at)
    };
    loop {
        let log = place.start_in_vain(&words);
        let word = "node.toml: line 2: lease-secs-max = \"an hour\"";
        assert!(unquoted(&log).contains(word), "{log}");
        if is_past(short.expires_at_unix_ms) {
            break;
        }
    }
    let daemon = place.start(&with_file(&place, "on-stop = \"keep\""));
    both_go_on(&daemon, &place.admin(), &leases).await;
    let node = daemon.client(&place.admin()).await;
    let over = settled(&node, short.lease_id).await;
    assert_eq!(over.phase, LeasePhase::Expired);
}

#[tokio::test]
async fn certificates_that_were_put_into_the_state_directory_are_served() {
    let place = Place::new();
    let words = with_file(&place, "on-stop = \"keep\"");
    let manager = Manager::of(&place);
    let daemon = manager.start(&place, &words);
    let leases = lease_both(&daemon, &place.admin()).await;
    let (former, fabric) = (place.admin(), fabric(&place));
    let operator = Identity::load(fabric.admin_identity()).unwrap();
    let joins = || Node::connect_async(&daemon.address, &operator);
    joins().await.map(drop).unwrap_err();
    signed(&place, &fabric, "answer");

    // The identity of another node is refused.
    let own = fs::read(place.at("state/node.identity")).unwrap();
    let ca = fs::read(place.at("state/ca-key.pem")).unwrap();
    let other = place.at("other");
    Fabric::open_or_create(&other, SystemTime::now()).unwrap();
    let files = ["node.identity", "ca-key.pem", "ca.pem", "admin.identity"];
    let kept = place.at("kept");
    fs::create_dir(&kept).unwrap();
    for file in files {
        fs::copy(place.at("state").join(file), kept.join(file)).unwrap();
        fs::copy(other.join(file), place.at("state").join(file)).unwrap();
    }
    hang_up(&daemon);
    manager.hears_reload();
    logs(
        &place,
        0,
        "put its own back; the node keeps its certificates",
    );
    for file in files {
        fs::copy(kept.join(file), place.at("state").join(file)).unwrap();
    }
    assert_eq!(fs::read(place.at("state/node.identity")).unwrap(), own);
    assert_eq!(fs::read(place.at("state/ca-key.pem")).unwrap(), ca);

    let answer = fs::read_to_string(place.at("answer")).unwrap();
    Fabric::accept(&place.at("state"), &answer, SystemTime::now()).unwrap();
    hang_up(&daemon);
    manager.hears_reload();
    let node = joins().await.unwrap();
    alloc(&node, ResourceType::Mem).await;
    both_go_on(&daemon, &former, &leases).await;
}
