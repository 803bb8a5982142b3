//! A scheduler as the server, and members that ask it.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up should fail loudly"
)]

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use fabricbios_control::{CallError, Caller, PeerRequest};
use fabricbios_fabric::FabricDirectory;
use fabricbios_wire::{
    Epoch, LeaseId, NodeId, NodeReport, RefusalClass, Reply, Request, ResourceInventory, Role,
};

use crate::{
    common::{Client, Handler, World, credentials},
    free,
    members::{alloc, dial, join, refused, tenant_of},
};

fn report(node_id: NodeId) -> Request {
    Request::NodeReport(NodeReport {
        sequence: 1,
        endpoint: SocketAddr::from(([10, 0, 0, 1], 5701)).into(),
        inventory: ResourceInventory {
            node_id,
            epoch: Epoch(1),
            health: 0,
            mem_arenas: Vec::new(),
            block_devs: Vec::new(),
            cpu_caps: Vec::new(),
            nics: Vec::new(),
            gpus: Vec::new(),
            extensions: Vec::new(),
        },
    })
}

fn fabric() -> (tempfile::TempDir, FabricDirectory) {
    let root = tempfile::tempdir().unwrap();
    let fabric = FabricDirectory::init(root.path(), SystemTime::now()).unwrap();
    (root, fabric)
}

/// A node that has joined the fabric.
async fn node_of(fabric: &FabricDirectory) -> World {
    let node = World::start(Handler::Refuse).await;
    join(&node, fabric);
    node
}

async fn connect(from: &World, to: &World, expected: Role) -> Result<Caller, CallError> {
    let to = to.addr().to_string();
    Caller::connect(&to, &from.membership().now(), expected).await
}

/// Sends a report, which the scheduler takes; returns what it has seen.
async fn reported(caller: &Caller, node: &World, scheduler: &World) -> PeerRequest {
    let request = report(node.membership().now().node_id());
    let (answer, held) = tokio::join!(caller.call(&request), async {
        let mut held = scheduler.take_held().await;
        assert_eq!(held.request, request);
        let (unused, _) = tokio::sync::oneshot::channel();
        let reply = std::mem::replace(&mut held.reply, unused);
        reply.send(Ok(Reply::Reported)).unwrap();
        held
    });
    assert_eq!(answer.unwrap(), Ok(Reply::Reported));
    held
}

#[tokio::test]
async fn a_scheduler_knows_the_node_that_reports_and_learns_when_it_has_gone() {
    let (_root, fabric) = fabric();
    let (node, scheduler) = (
        node_of(&fabric).await,
        World::scheduler(&fabric, Handler::Hold),
    );
    let caller = connect(&node, &scheduler, Role::Scheduler).await.unwrap();
    let first = reported(&caller, &node, &scheduler).await;
    assert_eq!(first.principal.role, Role::Node);
    assert_eq!(first.peer.key, node.membership().now().node_id());
    assert_eq!(*first.peer.labels, ["rack=r7".parse().unwrap()]);
    let second = reported(&caller, &node, &scheduler).await;
    assert_eq!(second.peer.connection.number, first.peer.connection.number);
    let other = connect(&node, &scheduler, Role::Scheduler).await.unwrap();
    let of_other = reported(&other, &node, &scheduler).await;
    assert!(of_other.peer.connection.number > first.peer.connection.number);
    drop(caller);
    first.peer.connection.closed().await;
    let closed = of_other.peer.connection.clone().closed();
    let still_open = tokio::select! {
        biased;
        () = closed => false,
        _ = reported(&other, &node, &scheduler) => true,
    };
    assert!(
        still_open,
        "the end of one connection is not that of another"
    );
    drop(other);
    of_other.peer.connection.closed().await;
}

#[tokio::test]
async fn a_scheduler_takes_reports_of_nodes_and_questions_of_tenants_only() {
    let (_root, fabric) = fabric();
    let scheduler = World::scheduler(&fabric, Handler::Refuse);
    let tenant = dial(&scheduler, &tenant_of(fabric.ca()), fabric.ca()).await;
    let admin = dial(
        &scheduler,
        &credentials(&fabric.admin_identity()),
        fabric.ca(),
    )
    .await;
    let tenant: Client = tenant.unwrap();
    for who in [&tenant, &admin.unwrap()] {
        refused(who.call(&report(NodeId([1; 32]))).await, "only a node");
        let list = Request::LeaseList {
            after: LeaseId(0),
            ended: false,
        };
        refused(who.call(&list).await, "`node list`");
    }
    assert!(scheduler.seen().is_empty());
    tenant.call(&alloc()).await.unwrap_err();
    let list = Request::NodeList(NodeId([0; 32]));
    tenant.call(&list).await.unwrap_err();
    let roles = scheduler.seen().into_iter().map(|it| it.principal.role);
    assert_eq!(roles.collect::<Vec<_>>(), [Role::Tenant; 2]);
    let node = node_of(&fabric).await;
    let caller = connect(&node, &scheduler, Role::Scheduler).await.unwrap();
    for request in [alloc(), free(), list] {
        refused(caller.call(&request).await.unwrap(), "a node");
    }
    let at_node = dial(&node, &tenant_of(fabric.ca()), fabric.ca()).await;
    let answer = at_node
        .unwrap()
        .call(&Request::NodeList(NodeId([0; 32])))
        .await;
    let refusal = answer.unwrap_err();
    assert_eq!(refusal.class, RefusalClass::Policy, "{refusal}");
    assert!(refusal.message.contains("ask the scheduler"), "{refusal}");
}

#[tokio::test]
async fn who_looks_for_a_scheduler_of_its_fabric_asks_nobody_else() {
    let (_root, of_both) = fabric();
    let (node, other) = (node_of(&of_both).await, node_of(&of_both).await);
    let found = connect(&node, &other, Role::Scheduler).await.unwrap_err();
    let is_other = matches!(
        found,
        CallError::OtherRole {
            found: Role::Node,
            ..
        }
    );
    assert!(is_other, "{found}");
    let (_root, elsewhere) = fabric();
    let stranger = World::scheduler(&elsewhere, Handler::Refuse);
    let alone = World::start(Handler::Refuse).await;
    let scheduler = World::scheduler(&of_both, Handler::Refuse);
    for (from, to) in [(&node, &stranger), (&alone, &scheduler)] {
        let found = connect(from, to, Role::Scheduler).await.unwrap_err();
        assert!(matches!(found, CallError::NotOfFabric { .. }), "{found}");
    }
    let gone = "127.0.0.1:port";
    let error = Caller::connect(gone, &node.membership().now(), Role::Scheduler).await;
    let error = error.unwrap_err();
    assert!(matches!(error, CallError::Resolve { .. }), "{error}");
    assert!(error.to_string().contains(gone), "{error}");
}

#[tokio::test]
async fn a_caller_learns_that_the_scheduler_has_gone() {
    let (_root, fabric) = fabric();
    let node = node_of(&fabric).await;
    let mut scheduler = World::scheduler(&fabric, Handler::Hold);
    let caller = connect(&node, &scheduler, Role::Scheduler).await.unwrap();
    let request = Request::GetIdentity;
    let call = caller.call(&request);
    let (answer, _) = tokio::join!(call, scheduler.shutdown(Duration::ZERO));
    let is_gone = match &answer {
        Ok(answer) => answer.is_err(),
        Err(error) => matches!(error, CallError::Lost { .. }),
    };
    assert!(is_gone, "{answer:?}");
    let closed = caller.closed().await;
    assert!(matches!(closed, CallError::Lost { .. }), "{closed}");
}
