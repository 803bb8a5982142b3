//! What a node tells a scheduler, which answers by script.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use fabricbios_client::{Identity, Node};
use fabricbios_control::{Limits, Membership, NoSessions, PeerRequest, Server};
use fabricbios_fabric::{Fabric, FabricDirectory};
use fabricbios_wire::{
    Answer, LeaseError, LeaseId, LeasePhase, LeaseReport, NodeId, Refusal, RefusalClass, Reply,
    ReportPart, Request, ResourceType,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::daemon::*;

/// A report, and the number of its connection.
type Told = (u64, NodeId, Request);

/// A scheduler, and a node that reports to it.
struct World {
    reports: UnboundedReceiver<Told>,
    daemon: Daemon,
    node: Node,
    _server: Server,
    _place: (Place, tempfile::TempDir),
}

impl World {
    /// `answer`: `None` to a report leaves it without an answer.
    async fn new(answer: impl FnMut(&Request) -> Option<Answer> + Send + 'static) -> Self {
        let at = tempfile::tempdir().unwrap();
        let directory = at.path().join("fabric");
        let fabric = FabricDirectory::init(&directory, SystemTime::now()).unwrap();
        let identity = fabric.scheduler_identity();
        let membership =
            Membership::new(Fabric::open_scheduler(&identity, SystemTime::now()).unwrap());
        let (tell, reports) = unbounded_channel();
        let (answer, unanswered) = (Mutex::new(answer), Mutex::new(Vec::new()));
        let on_request = move |it: PeerRequest| {
            tell.send((it.peer.connection.number, it.peer.key, it.request.clone()))
                .unwrap();
            match (answer.lock().unwrap())(&it.request) {
                Some(answer) => drop(it.reply.send(answer)),
                None => unanswered.lock().unwrap().push(it.reply),
            }
        };
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::start(
            listen,
            &membership,
            Limits::default(),
            Arc::new(on_request),
            Arc::new(NoSessions),
        );
        let server = server.unwrap();
        let place = Place::new();
        let words = vec![
            format!("--fabric-dir={}", directory.to_str().unwrap()),
            format!("--scheduler={}", server.local_addr()),
        ];
        let daemon = place.start(&[place.memory(), words].concat());
        let admin = Identity::load(fabric.admin_identity()).unwrap();
        Self {
            reports,
            node: daemon.client(&admin).await,
            daemon,
            _server: server,
            _place: (place, at),
        }
    }

    /// The next report of leases, with its connection.
    async fn leases(&mut self) -> (u64, LeaseReport) {
        loop {
            let (connection, key, request) = self.reports.recv().await.unwrap();
            assert_eq!(key.to_string(), self.daemon.node);
            if let Request::NodeLeases(report) = request {
                return (connection, report);
            }
        }
    }

    /// What is told of the lease until it is `phase`; `None`: until it is gone. All changes follow each other.
    async fn until(&mut self, mut last: u64, id: LeaseId, phase: Option<LeasePhase>) -> u64 {
        loop {
            let (_, report) = self.leases().await;
            // A slow node may have connected anew.
            let is_whole = report.part == ReportPart::Whole;
            if !is_whole {
                assert_eq!(report.part, ReportPart::Changes);
                assert!(report.sequence > last, "{report:?}");
            }
            last = report.sequence;
            let told = report.leases.iter().find(|it| it.lease_id == id);
            let is_over = report.gone.contains(&id) || is_whole && told.is_none();
            if phase.is_none() && is_over || told.is_some_and(|it| Some(it.phase) == phase) {
                return last;
            }
        }
    }
}

fn taken(_: &Request) -> Option<Answer> {
    Some(Ok(Reply::Reported))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_is_told_the_whole_list_and_then_what_changes() {
    let mut world = World::new(taken).await;
    let (_, whole) = world.leases().await;
    assert_eq!((whole.sequence, whole.part), (2, ReportPart::Whole));
    assert_eq!((whole.leases.len(), whole.gone.len()), (0, 0));
    let info = alloc(&world.node, ResourceType::Mem).await;
    let id = info.lease_id;
    let last = world.until(2, id, Some(LeasePhase::Active)).await;
    let free = Request::LeaseFree(id);
    world.node.lease_async(free).await.unwrap();
    world.until(last, id, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_gap_the_whole_list_is_told_over_a_new_connection() {
    let mut is_refused = false;
    let mut world = World::new(move |request| {
        let is_change =
            matches!(request, Request::NodeLeases(it) if it.part == ReportPart::Changes);
        if is_change && !is_refused {
            is_refused = true;
            let why = "report 7 came where 6 was due: connect anew";
            let gap = Refusal::new(LeaseError::InvalidArgs, RefusalClass::Transient, why);
            return Some(Err(gap));
        }
        taken(request)
    })
    .await;
    let (first, _) = world.leases().await;
    let id = alloc(&world.node, ResourceType::Mem).await.lease_id;
    let (connection, report) = world.leases().await;
    assert_eq!((connection, report.part), (first, ReportPart::Changes));
    let (connection, report) = world.leases().await;
    assert!(connection > first);
    assert_eq!((report.sequence, report.part), (2, ReportPart::Whole));
    let told: Vec<LeaseId> = report.leases.iter().map(|it| it.lease_id).collect();
    assert_eq!(told, [id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_is_busy_is_told_the_same_again() {
    let mut asked = 0;
    let mut world = World::new(move |request| {
        asked += usize::from(matches!(request, Request::NodeLeases(_)));
        let is_busy = matches!(request, Request::NodeLeases(_)) && asked == 1;
        let busy = Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, "busy");
        if is_busy {
            Some(Err(busy))
        } else {
            taken(request)
        }
    })
    .await;
    assert_eq!(world.leases().await, world.leases().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_does_not_answer_holds_up_no_grant() {
    let mut world = World::new(|_| None).await;
    let mut connections = BTreeSet::from([world.reports.recv().await.unwrap().0]);
    for _ in 0..50 {
        let id = alloc(&world.node, ResourceType::Mem).await.lease_id;
        let freed = world.node.lease_async(Request::LeaseFree(id)).await;
        assert_eq!(freed.unwrap().phase, LeasePhase::Freed);
    }
    // A slow machine may have given it up meanwhile, and tried it again.
    while let Ok((connection, ..)) = world.reports.try_recv() {
        assert!(connections.insert(connection), "one report at a time");
    }
}
