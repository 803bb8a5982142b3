//! Leases through a scheduler, which names the nodes to ask.

use std::{
    net::UdpSocket,
    sync::{Arc, Mutex},
    time::Duration,
};

use fabricbios_client::{Error, Node, ResourceHealth};
use fabricbios_wire::{
    Answer, AwayNode, BlockDev, Candidate, CpuCap, Endpoint, Epoch, FlatEntry, FleetNode,
    FleetPage, GpuInfo, InventoryExtension, InventoryForm, LeaseAllocRequest, LeaseError, LeaseId,
    LeasePage, MemArena, NicInfo, NodeId, RefusalClass, Reply, Request, RequestToken, ResourceId,
    ResourceInventory, ResourceType, Transport, health, resource_flags,
};

use crate::{
    admin, builder,
    common::{
        FakeNode, LEASE,
        fleet::{Fleet, candidate, resource_of},
        refuse,
    },
    nodes::{alloc_and_lose_the_reply, granting, memory},
    obliging,
};

pub(crate) const ONCE: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(60);
/// Long enough for every answer that comes at all.
pub(crate) const SHORT: Duration = Duration::from_secs(4);

pub(crate) fn at(to: &FakeNode) -> Node {
    Node::connect(&to.addr(), &admin(to)).unwrap()
}

fn refusing(
    error: LeaseError,
    class: RefusalClass,
) -> impl FnMut(&Request) -> Answer + Send + 'static {
    move |_: &Request| refuse(error, class, "not here")
}

pub(crate) fn full() -> impl FnMut(&Request) -> Answer + Send + 'static {
    refusing(LeaseError::CapacityExceeded, RefusalClass::Transient)
}

/// The requests for leases that the node got.
pub(crate) fn asked_for(node: &FakeNode) -> Vec<LeaseAllocRequest> {
    let alloc = |request| match request {
        Request::LeaseAlloc(asked) => Some(asked),
        _ => None,
    };
    node.asked().into_iter().filter_map(alloc).collect()
}

/// Asks through the scheduler once, in vain.
pub(crate) fn refused(scheduler: &FakeNode) -> Error {
    let asked = builder(scheduler).patience(ONCE).acquire();
    asked.map(drop).unwrap_err()
}

#[test]
fn a_lease_is_of_the_node_that_the_scheduler_names_and_is_used_there() {
    let fleet = Fleet::new();
    let node = fleet.node(obliging());
    let scheduler = fleet.redirecting_to(&[&node]);
    let lease = builder(&scheduler).acquire().unwrap();
    assert_eq!(lease.node_id(), Some(node.id()));
    assert_eq!(lease.node().address(), node.addr());
    lease.query().unwrap();
    lease.renew().unwrap();
    let lease_id = lease.lease_id();
    lease.free().unwrap();

    let [asked] = &asked_for(&scheduler)[..] else {
        panic!("{:?}", scheduler.asked())
    };
    assert!(asked.follows_redirect && asked.resource_id.is_none());
    assert_eq!(scheduler.asked().len(), 1, "the rest is the node's");
    let expected = LeaseAllocRequest {
        follows_redirect: false,
        resource_id: Some(resource_of(node.id())),
        ..asked.clone()
    };
    let renew = Request::LeaseRenew {
        lease_id,
        lease_secs: 60,
    };
    let expected = [
        Request::LeaseAlloc(expected),
        Request::LeaseQuery(lease_id),
        renew,
        Request::LeaseFree(lease_id),
    ];
    assert_eq!(node.asked(), expected);
    assert!(node.tokens()[0].is_some());
    assert_eq!(node.tokens(), scheduler.tokens());
}

#[test]
fn a_node_is_not_followed() {
    let fleet = Fleet::new();
    let tempting = fleet.node(obliging());
    let candidates = vec![candidate(&tempting)];
    let node = fleet.node(move |_: &Request| Ok(Reply::Redirect(candidates.clone())));
    let error = refused(&node);
    assert_eq!(error.code(), "Protocol");
    let text = error.to_string();
    assert!(
        text.contains(&node.addr()) && text.contains("is no scheduler"),
        "{text}"
    );
    assert_eq!(tempting.asked(), []);
}

#[test]
fn a_node_with_another_id_than_the_named_one_is_asked_nothing() {
    let fleet = Fleet::new();
    let (other, good) = (fleet.node(obliging()), fleet.node(obliging()));
    let absent = NodeId([7; 32]);
    let mistaken = Candidate {
        node_id: absent,
        ..candidate(&other)
    };
    let answer = |candidates: Vec<Candidate>| {
        fleet.scheduler(move |_: &Request| Ok(Reply::Redirect(candidates.clone())))
    };
    let lease = builder(&answer(vec![mistaken, candidate(&good)])).acquire();
    assert_eq!(lease.unwrap().node_id(), Some(good.id()));
    let error = refused(&answer(vec![mistaken]));
    assert_eq!(error.code(), "UntrustedNode");
    let text = error.to_string();
    for part in [other.id().to_string(), absent.to_string(), other.addr()] {
        assert!(text.contains(&part), "{part} in {text}");
    }
    assert_eq!(other.asked(), []);
}

#[test]
fn a_node_that_cannot_grant_now_or_is_gone_is_passed_over() {
    use LeaseError as E;
    let fleet = Fleet::new();
    for error in [
        E::CapacityExceeded,
        E::ResourceBusy,
        E::Unavailable,
        E::Fenced,
        E::NotFound,
    ] {
        let class = match error {
            E::NotFound => RefusalClass::Permanent,
            _ => RefusalClass::Transient,
        };
        let first = fleet.node(refusing(error, class));
        let second = fleet.node(obliging());
        let scheduler = fleet.redirecting_to(&[&first, &second]);
        let lease = builder(&scheduler).patience(LONG).acquire().unwrap();
        assert_eq!(lease.node_id(), Some(second.id()), "{error}");
        assert_eq!((first.asked().len(), scheduler.asked().len()), (1, 1));
        assert_eq!(first.tokens(), second.tokens());
    }
    let (mut gone, here) = (fleet.node(obliging()), fleet.node(obliging()));
    let scheduler = fleet.redirecting_to(&[&gone, &here]);
    gone.crash();
    let lease = builder(&scheduler).patience(ONCE).acquire().unwrap();
    assert_eq!(lease.node_id(), Some(here.id()));
}

#[test]
fn a_node_that_grants_less_than_requested_is_passed_over() {
    let fleet = Fleet::new();
    let mut oblige = obliging();
    let old = fleet.node(move |request: &Request| match request {
        Request::LeaseAlloc(asked) => oblige(&Request::LeaseAlloc(LeaseAllocRequest {
            rotate_on_renew: false,
            ..asked.clone()
        })),
        other => oblige(other),
    });
    let good = fleet.node(obliging());
    let scheduler = fleet.redirecting_to(&[&old, &good]);
    let lease = builder(&scheduler).rotate_on_renew().acquire().unwrap();
    assert_eq!(lease.node_id(), Some(good.id()));
    assert_eq!(old.asked().last(), Some(&Request::LeaseFree(LEASE)));
}

#[test]
fn a_refusal_of_one_node_is_none_of_another() {
    let fleet = Fleet::new();
    for (error, class) in [
        (LeaseError::InvalidIntent, RefusalClass::Permanent),
        (LeaseError::NotPermitted, RefusalClass::Policy),
    ] {
        let (first, second) = (fleet.node(refusing(error, class)), fleet.node(obliging()));
        let lease = builder(&fleet.redirecting_to(&[&first, &second])).acquire();
        assert_eq!(lease.unwrap().node_id(), Some(second.id()));
        let alone = refused(&fleet.redirecting_to(&[&first]));
        assert_eq!(alone.refusal().unwrap().error, error);
    }
    // What may change counts more than what stays, in whatever order they come.
    let busy = fleet.node(refusing(LeaseError::ResourceBusy, RefusalClass::Transient));
    let never = fleet.node(refusing(LeaseError::InvalidArgs, RefusalClass::Permanent));
    for nodes in [[&busy, &never], [&never, &busy]] {
        let refused = refused(&fleet.redirecting_to(&nodes));
        assert_eq!(refused.refusal().unwrap().error, LeaseError::ResourceBusy);
        assert!(refused.to_string().contains(&busy.addr()), "{refused}");
    }
}

#[test]
fn a_scheduler_that_grants_is_believed_neither_at_first_nor_as_a_candidate() {
    let fleet = Fleet::new();
    let granting = fleet.scheduler(obliging());
    let error = refused(&granting);
    assert_eq!(error.code(), "Protocol");
    assert!(error.to_string().contains("only a node grants"), "{error}");
    let naming = fleet.redirecting_to(&[&granting]);
    let error = refused(&naming);
    assert_eq!(error.code(), "Protocol");
    assert!(error.to_string().contains("only a node grants"), "{error}");
}

#[test]
fn a_quota_of_one_node_is_no_quota_of_another() {
    let fleet = Fleet::new();
    let first = fleet.node(refusing(LeaseError::CapacityExceeded, RefusalClass::Policy));
    let second = fleet.node(obliging());
    let lease = builder(&fleet.redirecting_to(&[&first, &second])).acquire();
    assert_eq!(lease.unwrap().node_id(), Some(second.id()));
}

#[test]
fn a_redirect_is_followed_once() {
    let fleet = Fleet::new();
    let candidates: Arc<Mutex<Vec<Candidate>>> = Arc::default();
    let named = Arc::clone(&candidates);
    let scheduler =
        fleet.scheduler(move |_: &Request| Ok(Reply::Redirect(named.lock().unwrap().clone())));
    let node = fleet.node(obliging());
    *candidates.lock().unwrap() = vec![candidate(&scheduler)];
    let error = refused(&scheduler);
    assert_eq!(error.code(), "Protocol");
    assert!(error.to_string().contains("not again"), "{error}");
    assert_eq!(scheduler.asked().len(), 2);
    *candidates.lock().unwrap() = vec![candidate(&scheduler), candidate(&node)];
    let lease = builder(&scheduler).acquire().unwrap();
    assert_eq!(lease.node_id(), Some(node.id()));
    assert_eq!((scheduler.asked().len(), node.asked().len()), (4, 1));
}

#[test]
fn the_last_refusal_says_how_many_nodes_were_asked() {
    let fleet = Fleet::new();
    let (first, last) = (fleet.node(full()), fleet.node(full()));
    let mut gone = fleet.node(obliging());
    let scheduler = fleet.redirecting_to(&[&first, &last, &gone]);
    gone.crash();
    let error = refused(&scheduler);
    assert_eq!(error.refusal().unwrap().error, LeaseError::CapacityExceeded);
    let text = error.to_string();
    let told = format!(
        "not here (node {}, one of 3 nodes that scheduler {} named; not asked: ",
        last.addr(),
        scheduler.addr()
    );
    assert!(
        text.starts_with(&told) && text.contains(&gone.addr()),
        "{text}"
    );
}

/// Busy when asked for the first time.
fn busy_once() -> impl FnMut(&Request) -> Answer + Send + 'static {
    let (mut asked, mut oblige) = (false, obliging());
    move |request| match std::mem::replace(&mut asked, true) {
        false => refuse(LeaseError::ResourceBusy, RefusalClass::Transient, "later"),
        true => oblige(request),
    }
}

#[test]
fn while_all_nodes_are_busy_the_scheduler_is_asked_anew() {
    let fleet = Fleet::new();
    let (full, busy) = (fleet.node(full()), fleet.node(busy_once()));
    let scheduler = fleet.redirecting_to(&[&full, &busy]);
    let lease = builder(&scheduler).patience(LONG).acquire().unwrap();
    assert_eq!(lease.node_id(), Some(busy.id()));
    let [first, second] = scheduler.tokens()[..] else {
        panic!("{:?}", scheduler.tokens())
    };
    assert_ne!(first, second);
    assert_eq!(full.tokens(), [first, second]);
    assert_eq!(busy.tokens(), [first, second]);
}

#[test]
fn a_token_of_the_caller_is_for_one_node_and_no_scheduler() {
    let fleet = Fleet::new();
    let node = fleet.node(obliging());
    let scheduler = fleet.redirecting_to(&[&node]);
    let asked = LeaseAllocRequest {
        request_token: Some(RequestToken(7)),
        ..memory()
    };
    let error = at(&scheduler).acquire(asked.clone()).unwrap_err();
    assert_eq!(error.code(), "Usage");
    let text = error.to_string();
    assert!(
        text.contains(&scheduler.addr()) && text.contains("ask a node itself"),
        "{text}"
    );
    assert_eq!(node.asked(), []);
    at(&node).acquire(asked).unwrap();
    assert_eq!(node.tokens(), [Some(RequestToken(7))]);
}

/// Of all nodes that the scheduler names, the last one has more time to answer a connection.
#[test]
fn a_node_that_is_silent_is_left_soon_while_others_can_be_asked() {
    let fleet = Fleet::new();
    let full = fleet.node(full());
    // Nobody reads here, and the port is not closed.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = Candidate {
        endpoint: socket.local_addr().unwrap().into(),
        ..candidate(&full)
    };
    for (candidates, waited) in [
        ([silent, candidate(&full)], "within 2s"),
        ([candidate(&full), silent], "within 5s"),
    ] {
        let scheduler =
            fleet.scheduler(move |_: &Request| Ok(Reply::Redirect(candidates.to_vec())));
        let text = refused(&scheduler).to_string();
        assert!(text.contains(waited), "{text}");
    }
}

#[test]
fn a_node_that_connects_and_does_not_answer_is_settled_with_and_no_other_is_asked() {
    for knows_tokens in [true, false] {
        let fleet = Fleet::new();
        let (first, second) = (fleet.node(granting(knows_tokens)), fleet.node(obliging()));
        let scheduler = fleet.redirecting_to(&[&first, &second]);
        let client = at(&scheduler);
        client.acquire(memory()).unwrap();
        let _arrived = first.ignore_next();
        let outcome = client.answers_within(SHORT).acquire(memory());
        match (knows_tokens, outcome) {
            (true, Ok(granted)) => {
                assert_eq!(granted.node.id(), Some(first.id()));
                let [_, lost, again] = first.tokens()[..] else {
                    panic!("{:?}", first.tokens())
                };
                assert_eq!(lost, again);
            }
            (false, Err(error)) => {
                let text = error.to_string();
                for part in [&*first.addr(), "has not answered", "for 4s", "query before"] {
                    assert!(text.contains(part), "{part} in {text}");
                }
            }
            (_, other) => panic!("{other:?}"),
        }
        assert_eq!(second.asked(), []);
    }
}

#[test]
fn a_node_whose_list_of_leases_never_ends_is_left() {
    let fleet = Fleet::new();
    let mut pages = 0;
    let first = fleet.node(move |request: &Request| match request {
        Request::LeaseList { .. } => {
            pages += 1;
            Ok(Reply::Leases(LeasePage {
                leases: vec![],
                next: Some(LeaseId(pages)),
            }))
        }
        other => panic!("{other:?}"),
    });
    let scheduler = fleet.redirecting_to(&[&first]);
    let _arrived = first.ignore_next();
    let asked = at(&scheduler).answers_within(SHORT).acquire(memory());
    let text = asked.unwrap_err().to_string();
    assert!(text.contains("query before repeating"), "{text}");
    assert!(first.asked().len() > 2, "pages were read");
}

#[test]
fn a_lost_reply_of_a_node_is_settled_with_that_node() {
    for knows_tokens in [true, false] {
        let fleet = Fleet::new();
        let (mut first, second) = (fleet.node(granting(knows_tokens)), fleet.node(obliging()));
        let scheduler = fleet.redirecting_to(&[&first, &second]);
        let client = Node::connect(&scheduler.addr(), &admin(&scheduler)).unwrap();
        let client = client.patient(LONG);
        let before = client.acquire(memory()).unwrap();
        let outcome = alloc_and_lose_the_reply(&mut first, &client);
        match (knows_tokens, outcome) {
            (true, Ok(granted)) => {
                assert_eq!(granted.node.id(), Some(first.id()));
                assert_ne!(granted.info.lease_id, before.info.lease_id);
                let [_, lost, again] = first.tokens()[..] else {
                    panic!("{:?}", first.tokens())
                };
                assert_eq!(lost, again);
            }
            (false, Err(error)) => {
                let text = error.to_string();
                assert!(text.contains("query before repeating"), "{text}");
                assert!(text.contains(&first.addr()), "{text}");
            }
            (_, other) => panic!("{other:?}"),
        }
        assert_eq!((second.asked().len(), scheduler.asked().len()), (0, 2));
    }
}

#[test]
fn a_resource_of_the_caller_reaches_the_scheduler() {
    let fleet = Fleet::new();
    let node = fleet.node(obliging());
    let scheduler = fleet.redirecting_to(&[&node]);
    let mine = resource_of(node.id());
    builder(&scheduler).resource(mine).acquire().unwrap();
    assert_eq!(asked_for(&scheduler)[0].resource_id, Some(mine));
    let other = builder(&scheduler).resource(ResourceId(5)).acquire();
    assert_eq!(other.unwrap_err().code(), "Protocol");
    assert_eq!(asked_for(&node).len(), 1);
}

/// One resource of each kind, with 7 of 10 available; the GPU is fenced.
fn inventory(node: NodeId) -> ResourceInventory {
    let id = |of: ResourceType| ResourceId(of.code().into());
    let extensions = KINDS.into_iter().flat_map(|kind| {
        [
            InventoryExtension::Name(id(kind), format!("{kind}0")),
            InventoryExtension::Available(id(kind), 7),
            InventoryExtension::Transports(id(kind), vec![Transport::Udp]),
        ]
    });
    ResourceInventory {
        node_id: node,
        epoch: Epoch(3),
        health: health::FENCED,
        mem_arenas: vec![MemArena {
            resource_id: id(ResourceType::Mem),
            base: 0,
            len: 10,
            align: 1,
            max_read: 1,
            max_write: 1,
            health: health::OK,
        }],
        block_devs: vec![BlockDev {
            resource_id: id(ResourceType::Block),
            block_size: 1,
            capacity: 10,
            flags: 0,
            health: health::OK,
        }],
        cpu_caps: vec![CpuCap {
            resource_id: id(ResourceType::Cpu),
            cores: 10,
            threads: 20,
            max_mhz: 0,
            flags: 0,
            health: health::OK,
        }],
        nics: vec![NicInfo {
            resource_id: id(ResourceType::Net),
            speed_bps: 10,
            mtu: 1_500,
            flags: 0,
            health: health::OK,
        }],
        gpus: vec![GpuInfo {
            resource_id: id(ResourceType::Gpu),
            vram_bytes: 10,
            compute_units: 0,
            flags: 0,
            health: health::FENCED,
        }],
        extensions: extensions.collect(),
    }
}

const KINDS: [ResourceType; 5] = [
    ResourceType::Cpu,
    ResourceType::Mem,
    ResourceType::Block,
    ResourceType::Net,
    ResourceType::Gpu,
];

#[test]
fn a_scheduler_tells_its_nodes_and_their_inventories_as_they_do() {
    let fleet = Fleet::new();
    let node = fleet.node(|request: &Request| match request {
        Request::GetInventory(InventoryForm::Flat) => {
            let entry = |kind: ResourceType| FlatEntry {
                resource_id: ResourceId(kind.code().into()),
                resource_type: kind,
                flags: u16::from(kind == ResourceType::Gpu) * resource_flags::FENCED,
                capacity: 10,
                available: 7,
            };
            Ok(Reply::FlatInventory(KINDS.map(entry).to_vec()))
        }
        _ => Ok(Reply::Inventory(inventory(NodeId([1; 32])))),
    });
    let endpoint = node.endpoint();
    let fleet_node = move |id: u8| FleetNode {
        node_id: NodeId([id; 32]),
        endpoint,
        since_unix_ms: 1_800_000_000_000,
        labels: vec!["rack=r12".into()],
        inventory: inventory(NodeId([id; 32])),
    };
    let scheduler = fleet.scheduler(move |request: &Request| {
        let (id, next) = match request {
            Request::NodeList(NodeId([0, ..])) => (1, Some(NodeId([1; 32]))),
            Request::NodeList(NodeId([1, ..])) => (2, None),
            other => panic!("{other:?}"),
        };
        let nodes = vec![fleet_node(id)];
        let away = match id {
            1 => vec![],
            _ => vec![away(NodeId([3; 32]), endpoint)],
        };
        Ok(Reply::Nodes(FleetPage { nodes, away, next }))
    });
    let connect = |to: &FakeNode| Node::connect(&to.addr(), &admin(to)).unwrap();
    let members = connect(&scheduler).members().unwrap();
    let away: Vec<NodeId> = members.away.iter().map(|it| it.id).collect();
    assert_eq!(away, [NodeId([3; 32])]);
    assert_eq!(members.away[0].last_seen_unix_ms, 1_800_000_000_009);
    let nodes = connect(&scheduler).nodes().unwrap();
    assert_eq!(nodes, members.reporting);
    let [first, second] = &nodes[..] else {
        panic!("{nodes:?}")
    };
    assert_eq!((first.id, second.id), (NodeId([1; 32]), NodeId([2; 32])));
    assert_eq!(first.address.to_string(), node.addr());
    assert_eq!(first.labels, ["rack=r12"]);
    assert_eq!(first.inventory, connect(&node).inventory().unwrap());
    assert_eq!(first.inventory.health, ResourceHealth::Fenced);
}

fn away(node_id: NodeId, endpoint: Endpoint) -> AwayNode {
    AwayNode {
        node_id,
        endpoint,
        last_seen_unix_ms: 1_800_000_000_009,
        labels: vec![],
    }
}

#[test]
fn a_node_is_not_asked_for_other_nodes() {
    let node = FakeNode::start(obliging());
    let client = Node::connect(&node.addr(), &admin(&node)).unwrap();
    let error = client.nodes().unwrap_err();
    assert_eq!(error.code(), "Usage");
    assert!(error.to_string().contains("no scheduler"), "{error}");
    assert_eq!(node.asked(), []);
}

#[test]
fn a_scheduler_whose_pages_do_not_go_on_is_left() {
    let fleet = Fleet::new();
    let scheduler = fleet.scheduler(|_: &Request| {
        Ok(Reply::Nodes(FleetPage {
            nodes: vec![],
            away: vec![],
            next: Some(NodeId([1; 32])),
        }))
    });
    let client = Node::connect(&scheduler.addr(), &admin(&scheduler)).unwrap();
    let error = client.nodes().unwrap_err();
    assert_eq!(error.code(), "Protocol");
    assert!(error.to_string().contains("is empty"), "{error}");
    assert_eq!(scheduler.asked().len(), 1);
}

#[test]
fn a_lease_of_the_asked_one_itself_is_not_looked_for_elsewhere() {
    let fleet = Fleet::new();
    let node = fleet.node(obliging());
    let scheduler = fleet.redirecting_to(&[&node]);
    at(&node).alloc(memory()).unwrap();
    assert!(!asked_for(&node)[0].follows_redirect);
    assert_eq!(
        at(&scheduler).alloc(memory()).unwrap_err().code(),
        "Protocol"
    );
    assert_eq!(node.asked().len(), 1);
}
