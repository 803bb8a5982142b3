//! Announcing and looking over real sockets and multicast, on the loopback interface.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a failed test")]

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fabricbios_discovery::{Announcing, Looking};
use fabricbios_fabric::{Fabric, FabricDirectory, Verifier};
use fabricbios_wire::{FlatEntry, ResourceId, ResourceType, Solicit};
use tokio::{sync::watch, time::timeout};

const LISTEN: &str = "127.0.0.1:5704";

fn scheduler() -> Vec<FlatEntry> {
    vec![FlatEntry {
        resource_id: ResourceId(7),
        resource_type: ResourceType::Scheduler,
        flags: 0,
        capacity: 0,
        available: 1,
    }]
}

/// Waits until it has withdrawn. Unheard of, it would be forgotten after 20 s at the earliest.
async fn is_gone(looking: &Looking) {
    let mut changes = looking.changes();
    let gone = timeout(Duration::from_secs(15), changes.wait_for(Vec::is_empty));
    gone.await.expect("withdrawn").unwrap();
}

#[tokio::test]
async fn a_scheduler_is_found_by_all_who_look_and_is_gone_when_it_stops() {
    let root = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    let directory = FabricDirectory::init(root.path(), now).unwrap();
    let fabric = Fabric::open_scheduler(&directory.scheduler_identity(), now).unwrap();
    let (id, ca) = (fabric.node_id(), directory.ca().certificate());
    let lo = ["lo".to_owned()];
    let listen: SocketAddr = LISTEN.parse().unwrap();
    let wanted = ResourceType::Scheduler;
    // One listens before it announces, one asks later, and both have its answers.
    let node = Looking::start(&lo, Verifier::new(ca).unwrap(), wanted).unwrap();
    let announcing = Announcing::start(&lo, Arc::new(fabric), listen, scheduler()).unwrap();
    let client = Looking::ask(&lo, Verifier::new(ca).unwrap(), wanted).unwrap();
    for looking in [&node, &client] {
        let mut changes = looking.changes();
        let found = changes
            .wait_for(|all| !all.is_empty())
            .await
            .unwrap()
            .clone();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].id, &*found[0].addresses), (id, &[listen][..]));
    }
    announcing.stop().await;
    is_gone(&node).await;
}

#[tokio::test]
async fn a_node_is_found_with_what_it_has_now() {
    let root = tempfile::tempdir().unwrap();
    let fabric = Arc::new(Fabric::open_or_create(root.path(), SystemTime::now()).unwrap());
    let id = fabric.node_id();
    let verifier = || Verifier::new(&fabric.present().unwrap().ca).unwrap();
    let lo = ["lo".to_owned()];
    let memory = |available| {
        vec![FlatEntry {
            resource_type: ResourceType::Mem,
            capacity: 9,
            available,
            ..scheduler()[0]
        }]
    };
    // One of the interfaces is not there yet.
    let both = ["no-such-link", "lo"].map(str::to_owned);
    let listening = Looking::start(&lo, verifier(), Solicit::NODES).unwrap();
    let asking = Looking::ask(&lo, verifier(), Solicit::NODES).unwrap();
    let (tell, entries) = watch::channel(memory(9));
    let listen: SocketAddr = LISTEN.parse().unwrap();
    let announcing = Announcing::follow(&both, Arc::clone(&fabric), listen, entries).unwrap();
    for available in [9, 4] {
        tell.send_replace(memory(available));
        for looking in [&listening, &asking] {
            let mut changes = looking.changes();
            let now =
                changes.wait_for(|all| matches!(&all[..], [it] if it.entries == memory(available)));
            assert_eq!(now.await.unwrap()[0].id, id);
        }
    }
    announcing.stop().await;
    is_gone(&listening).await;
}

#[tokio::test]
async fn an_interface_that_is_not_there_is_named() {
    let root = tempfile::tempdir().unwrap();
    let directory = FabricDirectory::init(root.path(), SystemTime::now()).unwrap();
    let verifier = Verifier::new(directory.ca().certificate()).unwrap();
    let none = ["no-such-link".to_owned()];
    let error = Looking::ask(&none, verifier, ResourceType::Scheduler).unwrap_err();
    assert!(error.to_string().contains("no-such-link"), "{error}");
}
