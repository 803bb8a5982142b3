//! Leases of GPUs: the requests, and the properties that the answer must have.

use fabricbios_client::{Error, GpuBuilder, GpuLease, unmet};
use fabricbios_wire::{
    Effective, GpuExclusivityClass, GpuExecutionMode, GpuTerms, LeaseAllocRequest, LeaseInfo,
    Reply, Request, ResourceId, ResourceType,
};

use crate::{
    admin,
    common::{FakeNode, LEASE, granted, lease},
    obliging,
};

pub(crate) fn on(node: &FakeNode, builder: GpuBuilder) -> Result<GpuLease, Error> {
    builder
        .node(node.addr())
        .identity(&admin(node))
        .auto_renew(false)
        .acquire()
}

fn terms() -> GpuTerms {
    GpuTerms {
        exclusivity: Some(GpuExclusivityClass::SessionExclusive),
        execution_mode: Some(GpuExecutionMode::OneShot),
        compute_slices: Some(3),
    }
}

#[test]
fn every_call_of_the_gpu_builder_is_in_the_request() {
    let node = FakeNode::start(obliging());
    let builder = GpuBuilder::new()
        .min_vram(8 << 30)
        .exclusivity(GpuExclusivityClass::SessionExclusive)
        .execution_mode(GpuExecutionMode::OneShot)
        .compute_slices(3)
        .lease_secs(90)
        .resource(ResourceId(0xfeed));
    let lease = on(&node, builder).unwrap();
    assert_eq!(lease.binding().gpu().unwrap().compute_slices, Some(3));
    lease.free().unwrap();
    let expected = LeaseAllocRequest {
        resource_id: Some(ResourceId(0xfeed)),
        follows_redirect: true,
        ..LeaseAllocRequest::new(ResourceType::Gpu, 8 << 30, 90).with_terms(terms())
    };
    assert_eq!(node.asked()[0], Request::LeaseAlloc(expected));
}

#[test]
fn nothing_is_asked_for_that_no_node_accepts() {
    let node = FakeNode::start(obliging());
    let without_slices = GpuBuilder::new().min_vram(1).compute_slices(0);
    for (builder, part) in [
        (GpuBuilder::new(), "min_vram()"),
        (without_slices, "at least 1 compute slice"),
    ] {
        let error = on(&node, builder).unwrap_err();
        assert!(matches!(error, Error::Usage(_)), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(node.asked().is_empty());
}

#[test]
fn terms_of_a_gpu_that_are_not_echoed_are_missed() {
    let request = LeaseAllocRequest::new(ResourceType::Gpu, 1 << 30, 60).with_terms(terms());
    let honest = granted(&request);
    assert!(unmet(&request, &honest).is_empty());
    type Change = fn(&mut Effective);
    let changes: [(Change, &str); 6] = [
        (
            |it| it.gpu_exclusivity = Some(GpuExclusivityClass::Shared),
            "GPU exclusivity session",
        ),
        (|it| it.gpu_exclusivity = None, "GPU exclusivity session"),
        (
            |it| it.gpu_execution_mode = Some(GpuExecutionMode::Session),
            "GPU execution mode one_shot",
        ),
        (
            |it| it.gpu_execution_mode = None,
            "GPU execution mode one_shot",
        ),
        (|it| it.gpu_compute_slices = Some(2), "GPU compute slices 3"),
        (|it| it.gpu_compute_slices = None, "GPU compute slices 3"),
    ];
    for (change, missing) in changes {
        let mut info = honest.clone();
        change(&mut info.effective);
        assert_eq!(unmet(&request, &info), [missing]);
    }
    let mut more = honest;
    more.effective.gpu_exclusivity = Some(GpuExclusivityClass::DeviceExclusive);
    more.effective.gpu_compute_slices = Some(7);
    assert!(unmet(&request, &more).is_empty());
}

#[test]
fn a_node_that_shares_what_was_asked_for_alone_gets_its_lease_back() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(alloc) => Ok(Reply::Lease(LeaseInfo {
            effective: Effective::default(),
            ..granted(alloc)
        })),
        _ => Ok(Reply::Lease(lease(0))),
    });
    let builder = GpuBuilder::new()
        .min_vram(1)
        .exclusivity(GpuExclusivityClass::DeviceExclusive);
    let error = on(&node, builder).unwrap_err();
    assert!(
        matches!(&error, Error::FailedClosed { missing, freed: true, .. } if missing == &["GPU exclusivity device"]),
        "{error}"
    );
    assert_eq!(node.asked()[1], Request::LeaseFree(LEASE));
}

#[test]
fn a_partition_is_no_whole_device() {
    let terms = GpuTerms {
        exclusivity: Some(GpuExclusivityClass::DeviceExclusive),
        ..GpuTerms::default()
    };
    let request = LeaseAllocRequest::new(ResourceType::Gpu, 1, 1).with_terms(terms);
    let mut info = granted(&request);
    assert!(unmet(&request, &info).is_empty());
    info.effective.gpu_exclusivity = Some(GpuExclusivityClass::PartitionExclusive);
    assert_eq!(unmet(&request, &info), ["GPU exclusivity device"]);
}
