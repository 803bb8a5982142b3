//! Leases of network functions: each has a rate of the link and one of its functions.

use std::time::Duration;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{restart::restart_into, support::*};

const GBIT: u64 = 1_000_000_000;

/// A link of 10 Gbit/s with three functions.
fn port(rate: Enforcement) -> Offer {
    let dimension = |name: &str, capacity, takes| Dimension {
        name: name.into(),
        capacity,
        takes,
    };
    Offer {
        capacity: 10 * GBIT,
        align: 1,
        transports: vec![],
        durability: Durability::Boot,
        fence_scope: FenceScope::Separate,
        allocation_mode: AllocationMode::Vector(vec![
            dimension("rate", 10 * GBIT, Takes::Asked),
            dimension("function", 3, Takes::Each(1)),
        ]),
        rate: Some(rate),
        ..offer(ARENA, 0)
    }
}

fn world(rate: Enforcement) -> World {
    World::of(ResourceType::Net, policy(&[("alice", "0")]), port(rate))
}

/// Tenants with their VLANs.
fn policy(vlans: &[(&str, &str)]) -> Policy {
    let list = |text: &str| text.parse().expect("a list");
    let vlans = vlans.iter().map(|it| (it.0.to_owned(), list(it.1)));
    Policy {
        network: NetworkRights {
            vlans: vlans.collect(),
            ..NetworkRights::default()
        },
        ..Policy::default()
    }
}

fn asked(bits: u64) -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Net, bits, 10)
}

fn free(world: &World) -> Vec<u64> {
    let told = world.table.availability().next().expect("the offer");
    told.free_dimensions.iter().map(|it| it.amount).collect()
}

#[test]
fn rates_never_add_up_to_more_than_the_link_and_each_lease_has_a_function() {
    let mut world = world(Enforcement::Enforced);
    let (first, _) = granted(&mut world, asked(6 * GBIT));
    assert_eq!(
        (free(&world), world.available()),
        (vec![4 * GBIT, 2], 4 * GBIT)
    );
    let ticket = world.ask(Request::LeaseAlloc(asked(4 * GBIT + 1)));
    let refusal = world.refusal(ticket);
    let told = (refusal.error, refusal.class);
    assert_eq!(
        told,
        (LeaseError::CapacityExceeded, RefusalClass::Transient)
    );
    let ticket = world.ask(Request::LeaseAlloc(asked(10 * GBIT + 1)));
    let refusal = world.refusal(ticket);
    assert_eq!(refusal.class, RefusalClass::Permanent);
    for amount in ["10000000001", "4000000000", "10000000000", "Gbit/s"] {
        assert!(refusal.message.contains(amount), "{refusal}");
    }
    granted(&mut world, asked(1));
    granted(&mut world, asked(1));
    assert_eq!(
        (free(&world), world.available()),
        (vec![4 * GBIT - 2, 0], 0)
    );
    let ticket = world.ask(Request::LeaseAlloc(asked(1)));
    let refusal = &world.refusal(ticket).message;
    assert!(
        refusal.ends_with("nothing is left of its function"),
        "{refusal}"
    );
    ended(&mut world, first);
    assert_eq!(world.available(), 10 * GBIT - 2);
}

#[test]
fn whether_the_rate_is_enforced_is_told() {
    for rate in [Enforcement::BestEffort, Enforcement::Enforced] {
        let mut world = world(rate);
        let (binding_id, _) = granted(&mut world, asked(GBIT));
        let effective = world.query(binding_id.lease_id).effective;
        assert_eq!(effective.net_rate, Some(rate));
    }
}

#[test]
fn terms_that_no_function_has_are_refused() {
    let mac = |bytes| {
        asked(GBIT).with_terms(NetTerms {
            mac: Some(MacAddress(bytes)),
            ..NetTerms::default()
        })
    };
    let with_grace = LeaseAllocRequest {
        grace_secs: 1,
        ..asked(GBIT)
    };
    let rotating = LeaseAllocRequest {
        rotate_on_renew: true,
        ..asked(GBIT)
    };
    let isolation = Some(CpuIsolationClass::WholeCore);
    let isolated = asked(GBIT).with_terms(CpuTerms {
        isolation,
        ..CpuTerms::default()
    });
    let mut world = world(Enforcement::Enforced);
    for (wanted, word) in [
        (mac([0; 6]), "MAC address"),
        (mac([1, 0, 0x5e, 0, 0, 1]), "MAC address"),
        (with_grace, "no contents"),
        (rotating, "needs a key"),
        (isolated, "cpu isolation whole_core"),
    ] {
        let ticket = world.ask(Request::LeaseAlloc(wanted));
        let refusal = world.refusal(ticket);
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        assert!(refusal.message.contains(word), "{refusal}");
    }
    let wanted = mac([2, 0, 0, 0, 0, 1]);
    let terms = wanted.terms.clone();
    world.ask(Request::LeaseAlloc(wanted));
    assert_eq!(world.bind_order().terms, terms);
}

/// The frames of a function stop at once; the proof that its holder's access has ended comes later.
#[test]
fn the_time_limit_of_a_cut_is_that_of_the_offer_if_it_is_longer_than_the_nodes() {
    for (node_ms, limit_ms) in [(1_000, 11_000), (30_000, 30_000)] {
        let world = || {
            let policy = Policy {
                cut_within: Duration::from_millis(node_ms),
                ..policy(&[("alice", "0")])
            };
            let offer = Offer {
                cut_within: Some(Duration::from_secs(11)),
                ..port(Enforcement::Enforced)
            };
            World::of(ResourceType::Net, policy, offer)
        };
        let (mut first, mut before) = (world(), world());
        let (binding_id, _) = granted(&mut first, asked(GBIT));
        let (other, _) = granted(&mut before, asked(GBIT));
        first.free(binding_id.lease_id);
        // The time limit also holds for a lease of an earlier run.
        let mut next = restart_into(&before, world(), true);
        next.orders.clear();
        next.free(other.lease_id);
        for (mut world, id) in [(first, binding_id.lease_id), (next, other.lease_id)] {
            world.cut_order();
            world.pass_ms(limit_ms - 1);
            assert_eq!(world.phase(id), LeasePhase::Active);
            world.pass_ms(1);
            assert_eq!(world.phase(id), LeasePhase::Fenced);
            let fences = world.table.fences();
            let limit = format!("no outcome within {limit_ms} ms");
            assert!(fences[0].reason.contains(&limit), "{fences:?}");
        }
    }
}

fn with(vlan: u16, mac: Option<[u8; 6]>) -> Request {
    Request::LeaseAlloc(asked(GBIT).with_terms(NetTerms {
        vlan: VlanId::new(vlan),
        mac: mac.map(MacAddress),
        ..NetTerms::default()
    }))
}

#[test]
fn two_tenants_share_a_vlan_only_if_it_is_listed_for_both() {
    let policy = policy(&[("blue", "0,40-49"), ("red", "42")]);
    let mut world = World::of(ResourceType::Net, policy, port(Enforcement::Enforced));
    for (tenant, vlan, expected) in [
        ("blue", 42, true),
        ("red", 42, true),
        ("blue", 0, true),
        ("red", 0, false),
        ("red", 43, false),
        ("green", 42, false),
        ("green", 0, false),
    ] {
        world.orders.clear();
        let ticket = world.ask_as(tenant, Role::Tenant, with(vlan, None));
        if expected {
            world.bind_order();
            continue;
        }
        let refusal = world.refusal(ticket);
        let told = (refusal.error, refusal.class);
        assert_eq!(told, (LeaseError::InvalidArgs, RefusalClass::Policy));
        let words = [format!("vlan={vlan}"), tenant.into(), "net-vlan".into()];
        assert!(
            words.iter().all(|it| refusal.message.contains(it)),
            "{refusal}"
        );
        let has = refusal.message.contains("may have 42 on this node");
        assert_eq!(has, tenant == "red", "{refusal}");
        assert!(world.orders.is_empty(), "nothing is ordered");
    }
    assert_eq!(free(&world)[1], 0, "three leases");
}

#[test]
fn an_address_of_a_manufacturer_or_of_others_is_refused_by_policy() {
    let (local, of_maker) = ([2, 0, 0, 0, 0, 1], [0, 0x1b, 0x21, 0, 0, 1]);
    for (listed, address, expected) in [
        (None, local, true),
        (None, of_maker, false),
        (Some("alice"), of_maker, true),
        (Some("bob"), of_maker, false),
        (Some("bob"), local, false),
    ] {
        let mut policy = policy(&[("alice", "0")]);
        let tenants = listed.map(|it| (MacAddress(address), [it.to_owned()].into()));
        policy.network.addresses.extend(tenants);
        let mut world = World::of(ResourceType::Net, policy, port(Enforcement::Enforced));
        let ticket = world.ask(with(0, Some(address)));
        if expected {
            world.bind_order();
            continue;
        }
        let refusal = world.refusal(ticket);
        assert_eq!(refusal.class, RefusalClass::Policy);
        assert!(refusal.message.contains("net-mac"), "{refusal}");
    }
}

#[test]
fn a_card_that_sends_tags_of_tenants_gives_no_untagged_lease() {
    let card = Offer {
        resource_id: ResourceId(77),
        needs_vlan: Some("igb sends tags".into()),
        ..port(Enforcement::BestEffort)
    };
    let mut world = World::of(ResourceType::Net, policy(&[("alice", "0,7")]), card);
    let ticket = world.ask(with(0, None));
    let refusal = world.refusal(ticket);
    let told = (refusal.error, refusal.class);
    assert_eq!(told, (LeaseError::InvalidArgs, RefusalClass::Permanent));
    assert!(
        refusal.message.contains("igb sends tags; ask for a VLAN"),
        "{refusal}"
    );
    world.ask(with(7, None));
    assert_eq!(world.bind_order().binding_id.resource_id, ResourceId(77));
    // Another resource of the node may have the function that this resource lacks.
    world
        .table
        .offer(ResourceType::Net, port(Enforcement::Enforced));
    world.orders.clear();
    world.ask(with(0, None));
    assert_eq!(world.bind_order().binding_id.resource_id, ARENA);
}

/// The operator has changed the list and restarted the node.
#[test]
fn a_lease_that_is_not_allowed_any_more_goes_on_and_is_not_renewed() {
    let of = |listed: (&str, &str), needs_vlan: Option<&str>| {
        let offer = Offer {
            needs_vlan: needs_vlan.map(str::to_owned),
            ..port(Enforcement::Enforced)
        };
        World::of(ResourceType::Net, policy(&[listed]), offer)
    };
    let mut before = of(("alice", "0"), None);
    let (binding_id, _) = granted(&mut before, asked(GBIT));
    let id = binding_id.lease_id;
    for (listed, needs_vlan, class) in [
        (("alice", "0"), None, None),
        (("alice", "7"), None, Some(RefusalClass::Policy)),
        (("bob", "0"), None, Some(RefusalClass::Policy)),
        (("alice", "0"), Some("igb"), Some(RefusalClass::Permanent)),
    ] {
        let mut world = restart_into(&before, of(listed, needs_vlan), true);
        let adopted = world.bind_order().binding_id;
        let binding = Binding::plain(ResourceType::Net);
        world.report(Report::Bind(adopted, Ok(binding)));
        world.pass_ms(9_000);
        let ticket = world.renew(id);
        match class {
            Some(class) => assert_eq!(world.refusal(ticket).class, class),
            None => assert_eq!(world.lease(ticket).lease_id, id),
        }
        assert_eq!(world.phase(id), LeasePhase::Active);
    }
}
