//! Leases that are used on the node: CPU cores and network functions.

use fabricbios_client::{
    Builder, CpuBuilder, Error, IsolationPolicy, Kind, Lease, NetBuilder, unmet,
};
use fabricbios_wire::{
    Affinity, CpuExecutionMode, CpuPartition, CpuTerms, Effective, Enforcement, HandOver,
    LeaseAllocRequest, LeaseInfo, MacAddress, NetTerms, Reply, Request, ResourceType, VlanId,
};

use crate::{
    admin,
    common::{FakeNode, LEASE, granted, lease},
    obliging,
};

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 7]);

fn on<K: Kind>(node: &FakeNode, builder: Builder<K>) -> Result<Lease<K>, Error> {
    builder
        .node(node.addr())
        .identity(&admin(node))
        .auto_renew(false)
        .acquire()
}

fn requested(node: &FakeNode) -> LeaseAllocRequest {
    match node.asked().into_iter().next() {
        Some(Request::LeaseAlloc(request)) => request,
        other => panic!("{other:?}"),
    }
}

fn near_rack() -> Affinity {
    Affinity {
        category: 3,
        strength: 2,
        target_type: 4,
        target: b"r12".to_vec(),
    }
}

#[test]
fn the_example_of_the_specification() {
    let node = FakeNode::start(obliging());
    let builder = CpuBuilder::new()
        .single_core()
        .isolation(IsolationPolicy::WholeCore)
        .lease_secs(60);
    let lease = on(&node, builder).unwrap();
    assert_eq!(lease.binding().cpu().unwrap().partition, CpuPartition::Root);
    lease.free().unwrap();
    let terms = CpuTerms {
        isolation: Some(IsolationPolicy::WholeCore),
        ..CpuTerms::default()
    };
    let expected = LeaseAllocRequest {
        follows_redirect: true,
        ..LeaseAllocRequest::new(ResourceType::Cpu, 1, 60).with_terms(terms)
    };
    assert_eq!(requested(&node), expected);
}

#[test]
fn every_call_of_the_cpu_builder_is_in_the_request() {
    let node = FakeNode::start(obliging());
    let builder = CpuBuilder::new()
        .cores(4)
        .isolation(IsolationPolicy::StrictIsolated)
        .execution_mode(CpuExecutionMode::SharedMemory)
        .execution_width(4)
        .partition(CpuPartition::Isolated)
        .affinity(near_rack());
    on(&node, builder).unwrap().free().unwrap();
    let request = requested(&node);
    let terms = CpuTerms {
        isolation: Some(IsolationPolicy::StrictIsolated),
        execution_mode: Some(CpuExecutionMode::SharedMemory),
        execution_width: Some(4),
        partition: Some(CpuPartition::Isolated),
    };
    assert_eq!((request.capacity, request.terms), (4, terms.into()));
    assert_eq!(request.intent.affinities, [near_rack()]);
}

#[test]
fn every_call_of_the_net_builder_is_in_the_request() {
    let node = FakeNode::start(obliging());
    let builder = NetBuilder::new()
        .mbps(100)
        .vlan(7)
        .unwrap()
        .mac(MAC)
        .hand_over(HandOver::Vfio);
    let lease = on(&node, builder).unwrap();
    assert_eq!(lease.binding().net().unwrap().vfio_group, Some(12));
    assert!(lease.rate_is_enforced());
    lease.free().unwrap();
    let request = requested(&node);
    let terms = NetTerms {
        mac: Some(MAC),
        vlan: VlanId::new(7),
        hand_over: Some(HandOver::Vfio),
    };
    assert_eq!(
        (request.capacity, request.terms),
        (100_000_000, terms.into())
    );
}

#[test]
fn nothing_is_asked_for_that_no_node_accepts() {
    let node = FakeNode::start(obliging());
    let wrong = [
        (on(&node, CpuBuilder::new()).unwrap_err(), "cores()"),
        (
            on(&node, CpuBuilder::new().cores(1).execution_width(0)).unwrap_err(),
            "width",
        ),
        (on(&node, NetBuilder::new()).unwrap_err(), "mbps()"),
        (
            on(&node, NetBuilder::new().mbps(1).mac(MacAddress([1; 6]))).unwrap_err(),
            "multicast",
        ),
        (NetBuilder::new().vlan(0).unwrap_err(), "1 to 4094"),
        (NetBuilder::new().vlan(4_095).unwrap_err(), "1 to 4094"),
        (
            on(
                &node,
                (0..17).fold(CpuBuilder::new().cores(1), |it, _| it.affinity(near_rack())),
            )
            .unwrap_err(),
            "16",
        ),
    ];
    for (error, part) in wrong {
        assert!(matches!(error, Error::Usage(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(node.asked().is_empty());
}

/// A node that does not know the constraints: it grants the lease and echoes nothing.
#[test]
fn a_node_of_an_older_version_gets_its_lease_back() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(alloc) => Ok(Reply::Lease(LeaseInfo {
            effective: Effective::default(),
            ..granted(alloc)
        })),
        _ => Ok(Reply::Lease(lease(0))),
    });
    let builder = CpuBuilder::new()
        .single_core()
        .isolation(IsolationPolicy::BestEffort);
    let error = on(&node, builder).unwrap_err();
    assert!(
        matches!(&error, Error::FailedClosed { missing, freed: true, .. } if missing == &["CPU isolation best_effort"]),
        "{error}"
    );
    assert_eq!(node.asked()[1], Request::LeaseFree(LEASE));
}

#[test]
fn terms_of_cores_that_are_not_echoed_are_missed() {
    let terms = CpuTerms {
        isolation: Some(IsolationPolicy::WholeCore),
        execution_mode: Some(CpuExecutionMode::SingleThreaded),
        execution_width: Some(1),
        partition: Some(CpuPartition::Isolated),
    };
    let request = LeaseAllocRequest::new(ResourceType::Cpu, 1, 60).with_terms(terms);
    let honest = granted(&request);
    assert!(unmet(&request, &honest).is_empty());
    type Change = fn(&mut Effective);
    let changes: [(Change, &str); 5] = [
        (
            |it| it.cpu_isolation = Some(IsolationPolicy::BestEffort),
            "CPU isolation whole_core",
        ),
        (
            |it| it.cpu_execution_mode = Some(CpuExecutionMode::SharedMemory),
            "execution mode single_threaded",
        ),
        (|it| it.cpu_execution_width = Some(2), "execution width 1"),
        (
            |it| it.cpu_partition = Some(CpuPartition::Root),
            "cpuset partition isolated",
        ),
        (|it| it.cpu_partition = None, "cpuset partition isolated"),
    ];
    for (change, missing) in changes {
        let mut info = honest.clone();
        change(&mut info.effective);
        assert_eq!(unmet(&request, &info), [missing]);
    }
    let mut tighter = honest;
    tighter.effective.cpu_isolation = Some(IsolationPolicy::StrictIsolated);
    assert!(unmet(&request, &tighter).is_empty());
}

#[test]
fn a_network_function_is_the_one_that_was_asked_for() {
    let terms = NetTerms {
        mac: Some(MAC),
        vlan: VlanId::new(7),
        hand_over: Some(HandOver::Netns),
    };
    let request = LeaseAllocRequest::new(ResourceType::Net, 100_000_000, 60).with_terms(terms);
    assert!(unmet(&request, &granted(&request)).is_empty());
    let got = |terms: NetTerms, rate_bps| {
        let request = LeaseAllocRequest::new(ResourceType::Net, rate_bps, 60).with_terms(terms);
        LeaseInfo {
            capacity: 100_000_000,
            ..granted(&request)
        }
    };
    let asked = request.terms.net().cloned().unwrap();
    let cases = [
        (
            NetTerms {
                mac: None,
                ..asked.clone()
            },
            100_000_000,
            "MAC address 02:00:00:00:00:07",
        ),
        (
            NetTerms {
                vlan: VlanId::new(8),
                ..asked.clone()
            },
            100_000_000,
            "VLAN 7",
        ),
        (
            NetTerms {
                vlan: None,
                ..asked.clone()
            },
            100_000_000,
            "VLAN 7",
        ),
        (
            NetTerms {
                hand_over: None,
                ..asked.clone()
            },
            100_000_000,
            "hand-over netns",
        ),
        (asked, 99_000_000, "rate 100 Mbit/s"),
    ];
    for (terms, rate_bps, missing) in cases {
        assert_eq!(unmet(&request, &got(terms, rate_bps)), [missing]);
    }
    let without_binding = LeaseInfo {
        capacity: 100_000_000,
        binding: fabricbios_wire::Binding::plain(ResourceType::Net),
        ..lease(60_000)
    };
    assert_eq!(unmet(&request, &without_binding).len(), 4);
}

#[test]
fn a_rate_that_is_best_effort_is_told_and_no_reason_to_fail() {
    for rate in [Some(Enforcement::BestEffort), None] {
        let node = FakeNode::start(move |request: &Request| match request {
            Request::LeaseAlloc(alloc) => {
                let mut info = granted(alloc);
                info.effective.net_rate = rate;
                Ok(Reply::Lease(info))
            }
            _ => Ok(Reply::Lease(lease(0))),
        });
        let lease = on(&node, NetBuilder::new().mbps(100)).unwrap();
        assert!(!lease.rate_is_enforced());
        lease.free().unwrap();
    }
}

#[test]
fn a_lease_is_opened_as_what_it_is() {
    let node = FakeNode::start(obliging());
    let lease = on(&node, NetBuilder::new().mbps(100)).unwrap();
    let there = fabricbios_client::Node::connect(&node.addr(), &admin(&node)).unwrap();
    fabricbios_client::NetLease::open(&there, lease.lease_id()).unwrap();
    let error = fabricbios_client::CpuLease::open(&there, lease.lease_id()).unwrap_err();
    assert!(error.to_string().contains("is one of net"), "{error}");
    lease.free().unwrap();
}
