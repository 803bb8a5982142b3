//! A node that announces itself, on the loopback interface.

use std::{fs, time::Duration};

use fabricbios_discovery::{Found, Looking};
use fabricbios_fabric::Verifier;
use fabricbios_wire::{LeaseAllocRequest, Request, ResourceType, Solicit};
use nix::sys::signal::Signal;
use tokio::{task::spawn_blocking, time::timeout};

use crate::{
    daemon::*,
    joining::{accept, fabric, signed, text},
};

/// The memory of [`Place::memory`], and half of it.
const ALL: u64 = 1 << 20;
const HALF: u64 = ALL / 2;

/// Looks for nodes of the fabric of this identity file.
fn look(identity: &str) -> Looking {
    let identity = fs::read(identity).unwrap();
    let verifier = Verifier::of_identity(&identity).unwrap();
    Looking::start(&["lo".into()], verifier, Solicit::NODES).unwrap()
}

async fn until(looking: &Looking, is_so: impl Fn(&[Found]) -> bool) -> Vec<Found> {
    let mut changes = looking.changes();
    changes.wait_for(|all| is_so(all)).await.unwrap().clone()
}

/// Waits until the node has withdrawn. Unheard of, it would be forgotten after 20 s at the earliest.
async fn is_gone(looking: &Looking) {
    let gone = timeout(Duration::from_secs(15), until(looking, <[Found]>::is_empty));
    gone.await.expect("withdrawn");
}

fn has(found: &[Found], available: u64) -> bool {
    let entries = found.iter().flat_map(|it| &it.entries);
    let mut memory = entries.filter(|it| it.resource_type == ResourceType::Mem);
    memory.any(|it| (it.capacity, it.available) == (ALL, available))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_announces_what_is_available_now_and_as_a_member_of_the_fabric_that_it_joins() {
    let place = Place::new();
    let socket = format!("--local-socket={}", place.text("sock"));
    let words = [place.memory(), vec![socket, "--announce=lo".into()]].concat();
    let daemon = place.start(&words);
    let looking = look(&place.text("state/admin.identity"));
    let found = until(&looking, |all| has(all, ALL)).await;
    let [one] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(one.id.to_string(), daemon.node);
    let addresses: Vec<String> = one.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, [&*daemon.address]);
    assert!(!one.has_more);
    // Nothing that is only listed, such as the CPUs.
    assert_eq!(one.entries.len(), 1, "{:?}", one.entries);

    let client = daemon.client(&place.admin()).await;
    let half = LeaseAllocRequest {
        capacity: HALF,
        ..request(ResourceType::Mem)
    };
    let lease = client.alloc_async(half).await.unwrap();
    until(&looking, |all| has(all, HALF)).await;
    let free = Request::LeaseFree(lease.lease_id);
    client.lease_async(free).await.unwrap();
    until(&looking, |all| has(all, ALL)).await;

    let fabric = fabric(&place);
    signed(&place, &fabric, "answer");
    let accepted = accept(&place, "answer");
    assert!(accepted.status.success(), "{}", text(&accepted));
    let new = look(fabric.admin_identity().to_str().unwrap());
    let found = until(&new, |all| has(all, ALL)).await;
    assert_eq!(found[0].id.to_string(), daemon.node);
    // It has withdrawn from the former fabric.
    is_gone(&looking).await;
    let ended = spawn_blocking(|| daemon.end(Signal::SIGTERM));
    is_gone(&new).await;
    assert!(ended.await.unwrap().success(), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_serves_and_says_why_it_does_not_announce_itself() {
    let place = Place::new();
    let words = [place.memory(), vec!["--announce=no-such-link".into()]].concat();
    let daemon = place.start(&words);
    let why = wait_for("a line of the log", || {
        let log = place.log();
        let mut lines = log.lines();
        let found = lines.find(|it| it.contains("does not announce itself"));
        found.map(str::to_owned)
    });
    assert!(why.contains("interface no-such-link"), "{why}");
    alloc(&daemon.client(&place.admin()).await, ResourceType::Mem).await;
}
