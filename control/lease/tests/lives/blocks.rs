//! Leases of block storage: the choice of the transport, refusals, and keys of NVMe-oF.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;
use Transport::{Auto, Both, NvmeTcp, Udp};

fn read_only(transport: Transport) -> LeaseAllocRequest {
    let mut wanted = over_transport(transport);
    block_terms(&mut wanted).read_only = true;
    wanted
}

fn over_transport(transport: Transport) -> LeaseAllocRequest {
    LeaseAllocRequest {
        transport,
        ..blocks(10, 0)
    }
}

fn with_host(transport: Transport) -> LeaseAllocRequest {
    let mut wanted = over_transport(transport);
    block_terms(&mut wanted).host_nqn = "nqn.2025-01.org.example:mine".parse().ok();
    wanted
}

/// The bind order, or the text of the refusal.
fn bound(offer: Offer, wanted: LeaseAllocRequest) -> Result<BindOrder, String> {
    let mut world = World::of_blocks(offer);
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    match world.answer(ticket) {
        Some(Err(refusal)) => {
            let what = (refusal.error, refusal.class);
            assert_eq!(what, (LeaseError::InvalidArgs, RefusalClass::Permanent));
            Err(refusal.message.clone())
        }
        _ => Ok(world.bind_order()),
    }
}

fn transport(offer: Offer, wanted: LeaseAllocRequest) -> Result<Transport, String> {
    bound(offer, wanted).map(|order| order.transport)
}

#[test]
fn a_read_only_lease_goes_over_fbbu_and_over_nothing_else() {
    let fixed = || Offer {
        read_only: true,
        ..block_offer()
    };
    assert_eq!(transport(block_offer(), over_transport(Auto)), Ok(NvmeTcp));
    assert_eq!(transport(block_offer(), read_only(Auto)), Ok(Udp));
    assert_eq!(transport(block_offer(), read_only(Udp)), Ok(Udp));
    for wanted in [over_transport(Auto), read_only(Auto), over_transport(Udp)] {
        let order = bound(fixed(), wanted).unwrap();
        assert_eq!(order.transport, Udp);
        assert!(
            order.terms.block().unwrap().read_only,
            "it can be nothing else"
        );
    }
    let over_udp_alone = Offer {
        transports: vec![Udp],
        ..fixed()
    };
    let without_fbbu = Offer {
        transports: vec![NvmeTcp],
        ..fixed()
    };
    for (offer, wanted) in [
        (block_offer(), read_only(NvmeTcp)),
        (block_offer(), read_only(Both)),
        (fixed(), over_transport(NvmeTcp)),
        (over_udp_alone.clone(), over_transport(NvmeTcp)),
        (over_udp_alone, over_transport(Both)),
        (without_fbbu, over_transport(Auto)),
    ] {
        let said = transport(offer, wanted).unwrap_err();
        assert!(
            said.contains("FBBU") && said.contains("--transport udp"),
            "{said}"
        );
    }
}

#[test]
fn who_names_a_host_gets_a_transport_that_has_hosts() {
    let preferring_udp = Offer {
        transports: vec![Udp, Both, NvmeTcp],
        ..block_offer()
    };
    assert_eq!(transport(preferring_udp, with_host(Auto)), Ok(Both));
    let said = transport(block_offer(), with_host(Udp)).unwrap_err();
    assert!(said.contains("NVMe-oF"), "{said}");
    let mut contradictory = with_host(Auto);
    block_terms(&mut contradictory).read_only = true;
    let said = transport(block_offer(), contradictory).unwrap_err();
    assert!(
        said.contains("host NQN") && said.contains("read-only"),
        "{said}"
    );
}

#[test]
fn what_is_enforced_is_told_and_ordered() {
    let mut world = World::of_blocks(block_offer());
    let mut wanted = with_host(Auto);
    block_terms(&mut wanted).mutual_auth = true;
    wanted.grace_secs = 5;
    let ticket = world.ask(Request::LeaseAlloc(wanted.clone()));
    let order = world.bind_order();
    let terms = block_terms(&mut wanted).clone();
    assert_eq!((&*order.tenant, order.terms), ("alice", terms.into()));
    let grace = std::time::Duration::from_secs(5);
    assert_eq!((order.grace, order.adopts), (grace, false));
    world.report(Report::Bind(
        order.binding_id,
        Ok(block_binding_over(NvmeTcp, 7)),
    ));
    let told = world.lease(ticket).effective;
    assert!(told.mutual_auth && !told.read_only, "{told:?}");
    let read_only = world.ask(Request::LeaseAlloc(read_only(Auto)));
    let binding_id = world.bind_order().binding_id;
    world.report(Report::Bind(binding_id, Ok(block_binding_over(Udp, 8))));
    let told = world.lease(read_only).effective;
    assert!(told.read_only && !told.mutual_auth, "{told:?}");
}

#[test]
fn memory_has_none_of_the_terms_of_blocks() {
    let plain = BlockTerms::default;
    let stated = [
        (
            "read-only",
            BlockTerms {
                read_only: true,
                ..plain()
            },
        ),
        ("host NQN", block_terms(&mut with_host(Auto)).clone()),
        (
            "host identifier",
            BlockTerms {
                host_id: Some(HostId([1; 16])),
                ..plain()
            },
        ),
        (
            "mutual authentication",
            BlockTerms {
                mutual_auth: true,
                ..plain()
            },
        ),
    ];
    for (name, block) in stated {
        let mut world = World::new();
        let wanted = request(PAGE, 10, 0).with_terms(block);
        let ticket = world.ask(Request::LeaseAlloc(wanted));
        let refusal = world.refusal(ticket);
        let what = (refusal.error, refusal.class);
        assert_eq!(what, (LeaseError::InvalidArgs, RefusalClass::Permanent));
        assert!(refusal.message.contains(name), "{refusal:?}");
    }
}

#[test]
fn a_queue_pair_is_for_memory_alone() {
    for transport in [Auto, Both, NvmeTcp] {
        let wanted = over_transport(transport).with_terms(to_peers(vec![peer()]));
        let said = bound(block_offer(), wanted).unwrap_err();
        assert!(said.contains("queue pair"), "{said}");
    }
    let mut world = World::of_blocks(block_offer());
    let binding_id = world.granted_blocks(Both, 10, 0);
    let refused = world.rebind(binding_id.lease_id);
    assert_eq!(world.refusal(refused).error, LeaseError::InvalidArgs);
    assert_eq!(world.orders, []);
}

#[test]
fn the_key_of_nvmeof_rotates_on_demand_and_at_renewal() {
    for transport in [NvmeTcp, Both] {
        let mut world = World::of_blocks(block_offer());
        let mut wanted = over_transport(transport);
        wanted.rotate_on_renew = true;
        let binding_id = world.granted_for(wanted);
        let rotated = world.rotate(binding_id.lease_id, 0);
        assert_eq!(world.order(), Order::Rotate(binding_id));
        let second = block_binding_over(transport, 8);
        world.report(Report::Rotate(binding_id, Ok(second.clone())));
        assert_eq!(world.order(), Order::RetireKey(binding_id));
        world.report(Report::RetireKey(binding_id, Ok(second.clone())));
        assert_eq!(world.lease(rotated).binding, second);
        world.pass_ms(9_000);
        let renewed = world.renew(binding_id.lease_id);
        assert_eq!(world.order(), Order::Rotate(binding_id));
        let third = block_binding_over(transport, 9);
        world.report(Report::Rotate(binding_id, Ok(third.clone())));
        assert_eq!(world.lease(renewed).binding, third);
    }
}

#[test]
fn rotation_gives_a_key_to_a_lease_of_blocks_without_one() {
    let mut world = World::of_blocks(block_offer());
    let binding_id = world.granted_blocks(NvmeTcp, 10, 5);
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.renew(binding_id.lease_id);
    let bind = world.bind_order().binding_id;
    world.report(Report::Bind(bind, Err(BindError::Failed(failed("link")))));
    let ticket = world.rotate(binding_id.lease_id, 0);
    let order = world.bind_order();
    world.report(Report::Bind(
        order.binding_id,
        Ok(block_binding_over(NvmeTcp, 9)),
    ));
    assert!(world.lease(ticket).binding.nvmeof().is_some());
}

/// Files have no positions: one lease can have all that is free of a directory.
#[test]
fn a_directory_is_given_out_by_amount() {
    let mut world = World::of_blocks(Offer {
        allocation_mode: AllocationMode::Amounts,
        ..block_offer()
    });
    let binding_ids: Vec<BindingId> = (0..4).map(|_| world.granted_for(of_pages(4))).collect();
    assert_eq!(world.available(), 0);
    for binding_id in [binding_ids[0], binding_ids[2]] {
        world.free(binding_id.lease_id);
        let cut = world.cut_order();
        world.cut_ok(cut);
        world.released();
    }
    assert_eq!(world.available(), 8 * PAGE);
    world.ask(Request::LeaseAlloc(of_pages(8)));
    let extent = world.bind_order().extent();
    assert_eq!((extent.offset, extent.length), (0, 8 * PAGE));
}

fn of_pages(pages: u64) -> LeaseAllocRequest {
    LeaseAllocRequest {
        capacity: pages * PAGE - 1,
        ..blocks(10, 0)
    }
}

/// For example a read-only device without FBBU: its leases would have no transport.
#[test]
fn a_pool_without_any_transport_gives_no_leases() {
    let without = Offer {
        transports: vec![],
        ..block_offer()
    };
    for transport in [Auto, Udp] {
        let said = bound(without.clone(), over_transport(transport)).unwrap_err();
        assert!(said.contains("it has none"), "{said}");
    }
}
