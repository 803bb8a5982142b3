//! Refusals of requests for a lease.

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
        refused(|r| r.terms = LeaseTerms::plain(ResourceType::Gpu)),
        (InvalidArgs, Policy)
    );
    // The node has no network function.
    assert_eq!(
        refused(|r| r.terms = LeaseTerms::plain(ResourceType::Net)),
        (InvalidArgs, Permanent)
    );
    assert_eq!(
        refused(|r| r.terms = LeaseTerms::plain(ResourceType::Cpu)),
        (InvalidArgs, Permanent)
    );
    assert_eq!(
        refused(|r| r.terms = LeaseTerms::plain(ResourceType::Vendor)),
        (InvalidArgs, Permanent)
    );
    let unknown =
        |r: &mut LeaseAllocRequest| r.terms = LeaseTerms::plain(ResourceType::Unknown(0x1234));
    assert_eq!(refused(unknown), (InvalidArgs, Permanent));
    let isolation = Some(CpuIsolationClass::BestEffort);
    let cpu = |r: &mut LeaseAllocRequest| {
        *r = r.clone().with_terms(CpuTerms {
            isolation,
            ..CpuTerms::default()
        });
    };
    assert_eq!(refused(cpu), (InvalidArgs, Permanent));
    let exclusivity = Some(GpuExclusivityClass::Shared);
    let gpu = |r: &mut LeaseAllocRequest| {
        *r = r.clone().with_terms(GpuTerms {
            exclusivity,
            ..GpuTerms::default()
        });
    };
    assert_eq!(refused(gpu), (InvalidArgs, Permanent));
}

#[test]
fn a_full_table_refuses_for_now() {
    let policy = Policy {
        leases_max: 1,
        ..Policy::default()
    };
    let mut world = World::with_policy(policy);
    world.granted(1, 10, 0);
    let ticket = world.ask(alloc(PAGE, 10, 0));
    assert_eq!(world.refusal(ticket).error, LeaseError::Unavailable);
}

fn pool(id: u128, pages: u64) -> Offer {
    Offer {
        resource_id: ResourceId(id),
        capacity: pages * PAGE,
        ..block_offer()
    }
}

fn of_pages(pages: u64) -> LeaseAllocRequest {
    LeaseAllocRequest {
        capacity: pages * PAGE,
        ..blocks(10, 0)
    }
}

#[test]
fn what_is_too_much_is_told_the_most_that_any_pool_has() {
    let mut world = World::of_blocks(pool(1, 4));
    world.table.offer(ResourceType::Block, pool(2, 64));
    world.granted_for(of_pages(60));
    let ticket = world.ask(Request::LeaseAlloc(of_pages(32)));
    let refusal = world.refusal(ticket);
    assert_eq!(refusal.class, RefusalClass::Transient, "{refusal}");
    // The refusal has each amount in a unit for people and as a number for programs.
    for amount in ["128 KiB (131072)", "16 KiB (16384)", "256 KiB (262144)"] {
        assert!(refusal.message.contains(amount), "{refusal}");
    }
    // The refusal of a request that names a resource is about that resource.
    let named = LeaseAllocRequest {
        resource_id: Some(ResourceId(1)),
        ..of_pages(32)
    };
    let ticket = world.ask(Request::LeaseAlloc(named));
    assert_eq!(world.refusal(ticket).class, RefusalClass::Permanent);
}

#[test]
fn a_resource_that_cannot_be_had_at_the_moment_is_left_for_another() {
    let mut world = World::of_blocks(pool(1, 4));
    world.table.offer(ResourceType::Block, pool(2, 64));
    let gone = Condition::Unavailable("/dev/sdz: it is gone".into());
    world.report(Report::Condition(ResourceId(1), gone));
    let binding_id = world.granted_for(of_pages(1));
    assert_eq!(binding_id.resource_id, ResourceId(2));
    let mut its = world.table.availability();
    let gone = its.find(|it| it.resource_id == ResourceId(1)).unwrap();
    assert_eq!((gone.capacity, gone.available), (4 * PAGE, 0));
    assert!(!gone.fenced);
    assert_eq!(
        gone.trouble.as_ref().map(Trouble::why),
        Some("/dev/sdz: it is gone")
    );
    drop(its);
    let named = LeaseAllocRequest {
        resource_id: Some(ResourceId(1)),
        ..of_pages(1)
    };
    let ticket = world.ask(Request::LeaseAlloc(named));
    let refusal = world.refusal(ticket);
    let told = (refusal.error, refusal.class);
    assert_eq!(told, (LeaseError::Unavailable, RefusalClass::Transient));
    assert!(
        refusal.message.contains("/dev/sdz: it is gone"),
        "{refusal}"
    );
    // The resource comes back by itself.
    world.report(Report::Condition(ResourceId(1), Condition::Good));
    let ticket = world.ask(Request::LeaseAlloc(LeaseAllocRequest {
        resource_id: Some(ResourceId(1)),
        ..of_pages(1)
    }));
    assert_eq!(world.bind_order().binding_id.resource_id, ResourceId(1));
    assert!(world.answer(ticket).is_none());
}

/// The room of the pool went away between the admission and the binding.
#[test]
fn what_is_not_there_at_the_moment_is_told_with_the_reason() {
    let mut world = World::of_blocks(pool(1, 4));
    let ticket = world.ask(Request::LeaseAlloc(of_pages(1)));
    let bind = world.bind_order();
    let full = StepError::new("make volume", "64 bytes are free");
    world.report(Report::Bind(
        bind.binding_id,
        Err(BindError::Unavailable(full)),
    ));
    let refusal = world.refusal(ticket);
    let told = (refusal.error, refusal.class);
    assert_eq!(told, (LeaseError::Unavailable, RefusalClass::Transient));
    assert!(refusal.message.contains("64 bytes are free"), "{refusal}");
}

#[test]
fn what_is_wrong_inside_the_node_is_for_its_log() {
    let mut world = World::of_blocks(pool(1, 4));
    let ticket = world.ask(Request::LeaseAlloc(of_pages(1)));
    let bind = world.bind_order();
    let stuck = StepError::new(
        "read from the storage",
        "/dev/dm-3: process 4711 waits in blkdev_read_iter",
    );
    world.report(Report::Bind(
        bind.binding_id,
        Err(BindError::Failed(stuck.clone())),
    ));
    let refusal = world.refusal(ticket);
    assert_eq!(
        (refusal.error, refusal.class),
        (LeaseError::Unavailable, RefusalClass::Transient)
    );
    for inside in ["/dev", "4711", "blkdev"] {
        assert!(!refusal.message.contains(inside), "{refusal}");
    }
    let logged = Note::NotBound {
        lease_id: bind.binding_id.lease_id,
        resource_id: bind.binding_id.resource_id,
        tenant: "alice".into(),
        is_new: true,
        error: stuck,
    };
    assert!(world.notes.contains(&logged), "{:?}", world.notes);
}
