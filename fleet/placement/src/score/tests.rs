use fabricbios_wire::{
    Affinity, Candidate, InventoryExtension, KvCacheIntent, LeaseError, LeaseIntent, LeasePhase,
    LeaseReport, Refusal, RefusalClass, ReportPart, ReportedLease, ResourceId, Tried,
};

use super::*;
use crate::view::tests::{from, node, report};

const ALL: u64 = 1 << 30;

/// A view of nodes 1, 2, 3… with one arena each, of which this many eighths are free.
fn view(eighths: &[u64]) -> View {
    let mut view = View::default();
    for (number, free) in (1..).zip(eighths) {
        let told = report(number, 1, ALL / 8 * free);
        view.report(&from(number, number.into()), 0, told).unwrap();
    }
    view
}

fn mem(capacity: u64) -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, capacity, 60)
}

fn by(policy: Policy, seed: u64) -> Asking<'static> {
    Asking {
        tenant: "blue",
        policy,
        seed,
    }
}

fn nodes(placed: Result<Vec<Candidate>, Refusal>) -> Vec<NodeId> {
    placed.unwrap().iter().map(|it| it.node_id).collect()
}

fn placed(view: &View, request: &LeaseAllocRequest, policy: Policy) -> Vec<NodeId> {
    nodes(view.place_for(request, &by(policy, 1)))
}

fn leases_of(view: &mut View, number: u8, tenant: &str) {
    let lease = ReportedLease {
        lease_id: fabricbios_wire::LeaseId(number.into()),
        resource_id: ResourceId(u128::from(number) + 1),
        resource_type: ResourceType::Mem,
        phase: LeasePhase::Active,
        capacity: 1,
        expires_at_unix_ms: 0,
        tenant: tenant.into(),
    };
    let whole = LeaseReport {
        sequence: 2,
        part: ReportPart::Whole,
        leases: vec![lease],
        gone: vec![],
    };
    view.report_leases(&from(number, number.into()), whole)
        .unwrap();
}

#[test]
fn a_node_that_claims_terabytes_is_first_no_more_often_than_an_honest_empty_one() {
    let mut view = view(&[8; 10]);
    let mut liar = report(1, 2, u64::MAX);
    liar.inventory.mem_arenas[0].len = u64::MAX;
    view.report(&from(1, 1), 0, liar).unwrap();
    // It may claim more room than it has at all, too.
    view.report(&from(2, 2), 0, report(2, 2, u64::MAX)).unwrap();
    for policy in [Policy::Spread, Policy::Binpack, Policy::CacheAware] {
        let first = |seed| nodes(view.place_for(&mem(1), &by(policy, seed)))[0];
        let firsts = (0..1000).map(first);
        let lying = firsts.filter(|it| *it == node(1) || *it == node(2)).count();
        // 200 of 1000 are their share.
        assert!((100..300).contains(&lying), "{policy}: {lying}");
    }
}

#[test]
fn a_resource_whose_whole_is_not_told_counts_as_full() {
    let mut view = view(&[1, 8]);
    let mut told = report(2, 2, ALL);
    told.inventory.mem_arenas[0].len = 0;
    view.report(&from(2, 2), 0, told).unwrap();
    assert_eq!(placed(&view, &mem(1), Policy::Spread), [node(1), node(2)]);
}

#[test]
fn a_policy_says_whether_empty_or_full_nodes_or_those_of_the_caller_come_first() {
    let mut view = view(&[6, 2, 4]);
    leases_of(&mut view, 3, "blue");
    leases_of(&mut view, 1, "red");
    for (policy, order) in [
        (Policy::Spread, [1, 3, 2]),
        (Policy::Binpack, [2, 3, 1]),
        (Policy::CacheAware, [3, 1, 2]),
    ] {
        assert_eq!(placed(&view, &mem(1), policy), order.map(node), "{policy}");
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!("best".parse::<Policy>(), Err(UnknownPolicy));
    // Who has no lease gets what everybody gets.
    let of_nobody = Asking {
        tenant: "green",
        ..by(Policy::CacheAware, 1)
    };
    let found = nodes(view.place_for(&mem(1), &of_nobody));
    assert_eq!(found, [1, 3, 2].map(node));
}

#[test]
fn a_node_that_is_about_as_free_is_as_good() {
    let mut view = view(&[8, 8]);
    // A few pages are in use.
    view.report(&from(2, 2), 0, report(2, 2, ALL - 8192))
        .unwrap();
    let first = |seed| nodes(view.place(&mem(1), seed))[0];
    let of_second = (0..200).filter(|seed| first(*seed) == node(2)).count();
    assert!((50..150).contains(&of_second), "{of_second}");
}

fn kv_cache(tier: KvCacheTier) -> LeaseAllocRequest {
    LeaseAllocRequest {
        intent: LeaseIntent {
            kv_cache: Some(KvCacheIntent {
                tier,
                block_bytes: 0,
            }),
            ..LeaseIntent::default()
        },
        ..mem(1)
    }
}

#[test]
fn a_hot_cache_goes_where_rdma_is_and_near_its_data_and_a_cold_one_is_packed() {
    let mut view = view(&[8, 6, 2, 4]);
    let mut told = report(3, 2, ALL / 8 * 2);
    let id = told.inventory.mem_arenas[0].resource_id;
    told.inventory.extensions[1] =
        InventoryExtension::Transports(id, vec![Transport::Udp, Transport::Rdma]);
    view.report(&from(3, 3), 0, told).unwrap();
    let warm = kv_cache(KvCacheTier::Warm);
    assert_eq!(placed(&view, &warm, Policy::Spread), [1, 2, 4, 3].map(node));
    let cold = kv_cache(KvCacheTier::Cold);
    assert_eq!(placed(&view, &cold, Policy::Spread), [3, 4, 2, 1].map(node));
    let mut hot = kv_cache(KvCacheTier::Hot);
    assert_eq!(placed(&view, &hot, Policy::Spread), [3, 1, 2, 4].map(node));
    // The label of its data comes before the transport.
    let mut labelled = from(4, 9);
    labelled.labels = vec!["data=model-7".into()];
    view.report(&labelled, 0, report(4, 1, ALL)).unwrap();
    hot.intent.affinities = vec![Affinity {
        category: 5,
        strength: 2,
        target_type: 4,
        target: b"model-7".to_vec(),
    }];
    assert_eq!(placed(&view, &hot, Policy::Spread), [4, 3, 1, 2].map(node));
}

fn tried(number: u8, refused: Option<LeaseError>, class: RefusalClass) -> Tried {
    Tried {
        node_id: node(number),
        refused,
        class,
    }
}

#[test]
fn nodes_that_were_tried_come_behind_all_others_and_those_that_refused_for_good_not_at_all() {
    use LeaseError::{CapacityExceeded, NotFound, ResourceBusy};
    use RefusalClass::{Permanent, Policy as ByPolicy, Transient};
    let mut view = view(&[8, 7, 6, 5, 4, 3]);
    // Worse than any that was not tried.
    let mut told = report(6, 2, ALL);
    told.inventory.mem_arenas[0].health = health::DEGRADED;
    view.report(&from(6, 6), 0, told).unwrap();
    let request = LeaseAllocRequest {
        tried: vec![
            tried(1, None, Transient),
            tried(2, Some(ResourceBusy), Transient),
            tried(3, Some(CapacityExceeded), ByPolicy),
            // The worst counts.
            tried(1, Some(ResourceBusy), Transient),
            // It has another resource perhaps.
            tried(4, Some(NotFound), Permanent),
            tried(99, None, Transient),
        ],
        ..mem(1)
    };
    let found = placed(&view, &request, Policy::Spread);
    assert_eq!(found, [5, 6, 2, 4, 1].map(node));

    let avoiding = LeaseAllocRequest {
        tried: (1..=6).map(|it| Tried::avoided(node(it))).collect(),
        ..mem(1)
    };
    let none = view.place(&avoiding, 1).unwrap_err();
    assert_eq!(none.class, Transient);
    let says = "6 by the request";
    assert!(none.message.contains(says), "{none}");
}

#[test]
fn what_one_client_says_of_tried_nodes_changes_no_order_of_another() {
    let view = view(&[8; 20]);
    let before: Vec<_> = (0..50)
        .map(|seed| nodes(view.place(&mem(1), seed)))
        .collect();
    for of in 0..1000_u32 {
        let number = u8::try_from(of % 20).unwrap() + 1;
        let flood = LeaseAllocRequest {
            tried: vec![tried(number, None, RefusalClass::Permanent); 16],
            ..mem(1)
        };
        view.place(&flood, of.into()).unwrap();
    }
    let after: Vec<_> = (0..50)
        .map(|seed| nodes(view.place(&mem(1), seed)))
        .collect();
    assert_eq!(before, after);
}

/// After each refusal it reports that it is empty.
#[test]
fn a_node_that_claims_to_be_empty_and_refuses_costs_each_request_one_refusal() {
    let mut view = view(&[8, 4, 4, 4]);
    for round in 2..12 {
        let named = |view: &View, request: &LeaseAllocRequest| {
            nodes(view.place_for(request, &by(Policy::Spread, round)))
        };
        let first = named(&view, &mem(1));
        assert_eq!(first[0], node(1), "it claims the most");
        view.report(&from(1, 1), 0, report(1, round, ALL)).unwrap();
        let refused = Some(LeaseError::CapacityExceeded);
        let again = |class| LeaseAllocRequest {
            tried: vec![tried(1, refused, class)],
            ..mem(1)
        };
        let for_now = named(&view, &again(RefusalClass::Transient));
        assert_eq!((for_now.len(), for_now.last()), (4, Some(&node(1))));
        let for_good = named(&view, &again(RefusalClass::Policy));
        assert!(for_good.len() == 3 && !for_good.contains(&node(1)));
    }
}
