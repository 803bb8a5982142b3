//! Leases of block storage: which road is taken, what is refused, and keys of NVMe-oF.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;
use Transport::{Auto, Both, NvmeTcp, Udp};

fn read_only(road: Transport) -> LeaseAllocRequest {
    let mut wanted = over_road(road);
    block_terms(&mut wanted).read_only = true;
    wanted
}

fn over_road(road: Transport) -> LeaseAllocRequest {
    LeaseAllocRequest {
        transport: road,
        ..blocks(10, 0)
    }
}

fn with_host(road: Transport) -> LeaseAllocRequest {
    let mut wanted = over_road(road);
    block_terms(&mut wanted).host_nqn = "nqn.2025-01.org.example:mine".parse().ok();
    wanted
}

/// The order, or what was said instead.
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

fn road(offer: Offer, wanted: LeaseAllocRequest) -> Result<Transport, String> {
    bound(offer, wanted).map(|order| order.transport)
}

#[test]
fn a_read_only_lease_goes_over_fbbu_and_over_nothing_else() {
    let fixed = || Offer {
        read_only: true,
        ..block_offer()
    };
    assert_eq!(road(block_offer(), over_road(Auto)), Ok(NvmeTcp));
    assert_eq!(road(block_offer(), read_only(Auto)), Ok(Udp));
    assert_eq!(road(block_offer(), read_only(Udp)), Ok(Udp));
    for wanted in [over_road(Auto), read_only(Auto), over_road(Udp)] {
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
        (fixed(), over_road(NvmeTcp)),
        (over_udp_alone.clone(), over_road(NvmeTcp)),
        (over_udp_alone, over_road(Both)),
        (without_fbbu, over_road(Auto)),
    ] {
        let said = road(offer, wanted).unwrap_err();
        assert!(
            said.contains("FBBU") && said.contains("--transport udp"),
            "{said}"
        );
    }
}

#[test]
fn who_names_a_host_gets_a_road_that_has_hosts() {
    let preferring_udp = Offer {
        transports: vec![Udp, Both, NvmeTcp],
        ..block_offer()
    };
    assert_eq!(road(preferring_udp, with_host(Auto)), Ok(Both));
    let said = road(block_offer(), with_host(Udp)).unwrap_err();
    assert!(said.contains("NVMe-oF"), "{said}");
    let mut contradictory = with_host(Auto);
    block_terms(&mut contradictory).read_only = true;
    let said = road(block_offer(), contradictory).unwrap_err();
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
    world.report(Report::Bind(order.tag, Ok(block_binding_over(NvmeTcp, 7))));
    let told = world.lease(ticket).effective;
    assert!(told.mutual_auth && !told.read_only, "{told:?}");
    let read_only = world.ask(Request::LeaseAlloc(read_only(Auto)));
    let tag = world.bind_order().tag;
    world.report(Report::Bind(tag, Ok(block_binding_over(Udp, 8))));
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
    for road in [Auto, Both, NvmeTcp] {
        let wanted = over_road(road).with_terms(to_peers(vec![peer()]));
        let said = bound(block_offer(), wanted).unwrap_err();
        assert!(said.contains("queue pair"), "{said}");
    }
    let mut world = World::of_blocks(block_offer());
    let tag = world.granted_blocks(Both, 10, 0);
    let refused = world.rebind(tag.lease_id);
    assert_eq!(world.refusal(refused).error, LeaseError::InvalidArgs);
    assert_eq!(world.orders, []);
}

#[test]
fn the_key_of_nvmeof_rotates_on_demand_and_at_renewal() {
    for road in [NvmeTcp, Both] {
        let mut world = World::of_blocks(block_offer());
        let mut wanted = over_road(road);
        wanted.rotate_on_renew = true;
        let tag = world.granted_for(wanted);
        let rotated = world.rotate(tag.lease_id, 0);
        assert_eq!(world.order(), Order::Rotate(tag));
        let second = block_binding_over(road, 8);
        world.report(Report::Rotate(tag, Ok(second.clone())));
        assert_eq!(world.order(), Order::RetireKey(tag));
        world.report(Report::RetireKey(tag, Ok(second.clone())));
        assert_eq!(world.lease(rotated).binding, second);
        world.pass_ms(9_000);
        let renewed = world.renew(tag.lease_id);
        assert_eq!(world.order(), Order::Rotate(tag));
        let third = block_binding_over(road, 9);
        world.report(Report::Rotate(tag, Ok(third.clone())));
        assert_eq!(world.lease(renewed).binding, third);
    }
}

#[test]
fn rotation_gives_a_key_to_a_lease_of_blocks_without_one() {
    let mut world = World::of_blocks(block_offer());
    let tag = world.granted_blocks(NvmeTcp, 10, 5);
    world.pass_ms(10_000);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.renew(tag.lease_id);
    let bind = world.bind_order().tag;
    world.report(Report::Bind(bind, Err(BindError::Failed(failed("link")))));
    let ticket = world.rotate(tag.lease_id, 0);
    let order = world.bind_order();
    world.report(Report::Bind(order.tag, Ok(block_binding_over(NvmeTcp, 9))));
    assert!(world.lease(ticket).binding.nvmeof.is_some());
}

/// Files are nowhere: what is left of a directory is had in one piece.
#[test]
fn a_directory_is_given_out_by_amount() {
    let mut world = World::of_blocks(Offer {
        layout: Layout::Amounts,
        ..block_offer()
    });
    let tags: Vec<Tag> = (0..4).map(|_| world.granted_for(of_pages(4))).collect();
    assert_eq!(world.available(), 0);
    for tag in [tags[0], tags[2]] {
        world.free(tag.lease_id);
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

/// Such as a read-only device where FBBU is not offered. Its leases would be of no use to anybody.
#[test]
fn a_pool_without_any_road_gives_no_leases() {
    let without = Offer {
        transports: vec![],
        ..block_offer()
    };
    for road in [Auto, Udp] {
        let said = bound(without.clone(), over_road(road)).unwrap_err();
        assert!(said.contains("it has none"), "{said}");
    }
}
