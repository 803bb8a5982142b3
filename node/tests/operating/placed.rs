//! Two nodes and a scheduler: leases are placed, used, and go on without the scheduler.

use std::{net::SocketAddr, time::SystemTime};

use fabricbios_client::{Error, FleetNode, Identity, Node};
use fabricbios_fabric::FabricDirectory;
use fabricbios_scheduler::{Scheduler, Settings};
use fabricbios_wire::{
    LeaseAllocRequest, LeaseError, LeasePhase, RefusalClass, Request, ResourceType,
};

use crate::daemon::*;

/// Most of a node's MiB: a second lease of this size needs a second node.
const MOST: u64 = 768 << 10;

struct Fleet {
    directory: FabricDirectory,
    identity: std::path::PathBuf,
    scheduler: Option<Scheduler>,
    listen: SocketAddr,
    _place: tempfile::TempDir,
}

impl Fleet {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("fabric");
        let directory = FabricDirectory::init(&at, SystemTime::now()).unwrap();
        let mut fleet = Self {
            directory,
            identity: at.join("scheduler.identity"),
            scheduler: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            _place: place,
        };
        fleet.start();
        fleet
    }

    /// Starts the scheduler where it was before.
    fn start(&mut self) {
        let settings = Settings {
            identity: self.identity.clone(),
            listen: self.listen,
        };
        let scheduler = Scheduler::start(&settings).unwrap();
        self.listen = scheduler.local_addr();
        self.scheduler = Some(scheduler);
    }

    fn node(&self, place: &Place) -> Daemon {
        let fabric = self.identity.parent().unwrap().to_str().unwrap();
        let words = vec![
            format!("--fabric-dir={fabric}"),
            format!("--scheduler={}", self.listen),
        ];
        place.start(&[place.memory(), words].concat())
    }

    async fn client(&self) -> Node {
        let identity = Identity::load(self.directory.admin_identity()).unwrap();
        let client = Node::connect_async(&self.listen.to_string(), &identity).await;
        client.unwrap()
    }

    async fn until_reported(&self, client: &Node, nodes: usize) -> Vec<FleetNode> {
        loop {
            match client.nodes_async().await {
                Ok(told) if told.len() == nodes => return told,
                _ => tokio::task::yield_now().await,
            }
        }
    }
}

fn wanted() -> LeaseAllocRequest {
    LeaseAllocRequest {
        capacity: MOST,
        ..request(ResourceType::Mem)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_leases_go_to_two_nodes_and_go_on_without_the_scheduler() {
    let mut fleet = Fleet::new();
    let places = [Place::new(), Place::new()];
    let [one_node, other_node] = [fleet.node(&places[0]), fleet.node(&places[1])];
    let client = fleet.client().await;
    assert!(client.is_scheduler());
    let told = fleet.until_reported(&client, 2).await;
    let mut ids: Vec<String> = told.iter().map(|it| it.id.to_string()).collect();
    ids.sort_unstable();
    let mut nodes = [one_node.node.clone(), other_node.node.clone()];
    nodes.sort_unstable();
    assert_eq!(ids, nodes);

    let one = client.acquire_async(wanted()).await.unwrap();
    // The scheduler may not know of the first lease yet: then the first node refuses, and the client asks the second.
    let other = client.acquire_async(wanted()).await.unwrap();
    assert_ne!(one.node.id(), other.node.id());
    let full = client.acquire_async(wanted()).await.unwrap_err();
    let Error::Refused(refusal) = full else {
        panic!("{full}")
    };
    assert_eq!(
        (refusal.error, refusal.class),
        (LeaseError::CapacityExceeded, RefusalClass::Transient)
    );
    write(&one.info, b"first").await;
    write(&other.info, b"other").await;

    fleet.scheduler.take().unwrap().stop().await;
    for (granted, bytes) in [(&one, b"first"), (&other, b"other")] {
        assert_eq!(first(&granted.info).await, *bytes);
        let id = granted.info.lease_id;
        let now = granted.node.lease_async(Request::LeaseQuery(id)).await;
        assert_eq!(now.unwrap().phase, LeasePhase::Active);
    }
    let freed = Request::LeaseFree(one.info.lease_id);
    one.node.lease_async(freed).await.unwrap();

    // A scheduler that starts anew learns from the nodes what is free.
    fleet.start();
    let client = fleet.client().await;
    fleet.until_reported(&client, 2).await;
    let again = client.acquire_async(wanted()).await.unwrap();
    assert_eq!(again.node.id(), one.node.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_is_no_candidate_any_more() {
    let fleet = Fleet::new();
    let place = Place::new();
    let daemon = fleet.node(&place);
    let client = fleet.client().await;
    fleet.until_reported(&client, 1).await;
    daemon.end(nix::sys::signal::Signal::SIGKILL);
    fleet.until_reported(&client, 0).await;
    let none = client.acquire_async(wanted()).await.unwrap_err();
    assert!(none.to_string().contains("no node reports"), "{none}");
}
