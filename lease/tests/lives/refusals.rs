//! What a request for a lease is refused for.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

fn refused(change: impl FnOnce(&mut LeaseAllocRequest)) -> (LeaseError, RefusalClass) {
    let policy = Policy {
        detected: vec![ResourceType::Gpu],
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    let mut wanted = request(PAGE, 10, 0);
    change(&mut wanted);
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    assert_eq!(
        (world.orders.len(), world.available()),
        (0, 16 * PAGE),
        "nothing changes"
    );
    let refusal = world.refusal(ticket);
    assert!(!refusal.message.is_empty());
    (refusal.error, refusal.class)
}

#[test]
fn each_has_its_code_and_class() {
    use LeaseError::*;
    use RefusalClass::*;
    assert_eq!(refused(|r| r.capacity = 0), (InvalidArgs, Permanent));
    assert_eq!(
        refused(|r| r.capacity = 17 * PAGE),
        (CapacityExceeded, Permanent)
    );
    assert_eq!(
        refused(|r| r.capacity = u64::MAX),
        (CapacityExceeded, Permanent)
    );
    assert_eq!(refused(|r| r.lease_secs = 0), (InvalidArgs, Permanent));
    assert_eq!(refused(|r| r.lease_secs = 3601), (InvalidArgs, Policy));
    assert_eq!(refused(|r| r.grace_secs = 3601), (InvalidArgs, Policy));
    assert_eq!(
        refused(|r| r.resource_id = Some(ResourceId(9))),
        (NotFound, Permanent)
    );
    assert_eq!(
        refused(|r| r.transport = Transport::Udp),
        (InvalidArgs, Permanent)
    );
    assert_eq!(
        refused(|r| r.resource_type = ResourceType::Gpu),
        (InvalidArgs, Policy)
    );
    assert_eq!(
        refused(|r| r.resource_type = ResourceType::Cpu),
        (InvalidArgs, Permanent)
    );
    assert_eq!(
        refused(|r| r.resource_type = ResourceType::Vendor),
        (InvalidArgs, Permanent)
    );
    let unknown = |r: &mut LeaseAllocRequest| r.resource_type = ResourceType::Unknown(0x1234);
    assert_eq!(refused(unknown), (InvalidArgs, Permanent));
    let cpu = |r: &mut LeaseAllocRequest| r.cpu_isolation = Some(CpuIsolationClass::BestEffort);
    assert_eq!(refused(cpu), (InvalidArgs, Permanent));
    let gpu = |r: &mut LeaseAllocRequest| r.gpu_exclusivity = Some(GpuExclusivityClass::Shared);
    assert_eq!(refused(gpu), (InvalidArgs, Permanent));
}

#[test]
fn a_full_table_refuses_for_now() {
    let policy = Policy {
        records_max: 1,
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    world.granted(1, 10, 0);
    let ticket = world.ask(alloc(PAGE, 10, 0));
    assert_eq!(world.refusal(ticket).error, LeaseError::Unavailable);
}
