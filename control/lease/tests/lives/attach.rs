//! Attach codes: who is told one, what it opens, and when it is gone.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::support::*;

const LISTENER: &str = "192.0.2.10:7471";
/// See control/lease/src/attach.rs.
const CODES_MAX: usize = 8;

fn world() -> World {
    World::with_policy(Policy {
        attach_at: LISTENER.parse().ok(),
        ..Policy::default()
    })
}

fn asked(world: &mut World, lease_id: LeaseId) -> Ticket {
    world.ask(Request::LeaseAttach(lease_id))
}

fn code(world: &mut World, lease_id: LeaseId) -> AttachCode {
    let ticket = asked(world, lease_id);
    let rdma = world.lease(ticket).binding.rdma().expect("bound");
    let attach = rdma.attach.clone().expect("a code");
    assert_eq!(attach.endpoint.to_string(), LISTENER);
    attach.code
}

fn spend(world: &mut World, code: &AttachCode) -> Option<LeaseId> {
    let spent = world.table.spend_attach_code(code);
    assert_eq!(world.table.check(), []);
    spent.map(|(lease_id, tenant)| {
        assert_eq!(&*tenant, "alice");
        lease_id
    })
}

#[test]
fn a_code_opens_its_lease_once_and_is_told_in_no_other_answer() {
    let mut world = world();
    let id = world.granted(1, 10, 0).lease_id;
    let (first, second) = (code(&mut world, id), code(&mut world, id));
    assert_ne!(first, second);
    let told = world.query(id);
    assert_eq!(told.binding.rdma().unwrap().attach, None);
    assert_eq!(spend(&mut world, &first), Some(id));
    assert_eq!(spend(&mut world, &first), None);
    assert_eq!(spend(&mut world, &second), Some(id));
    let seen = format!("{:?}{:?}{:?}", world.journal, world.notes, world.table);
    let digits = format!("{:?}", first.0);
    assert!(!seen.contains(digits.trim_matches(['[', ']'])), "{seen}");
}

#[test]
fn only_the_holder_is_told_a_code_of_a_lease_over_rdma_on_a_node_with_a_listener() {
    let mut world = world();
    let id = world.granted(1, 10, 0).lease_id;
    let others = world.ask_as("mallory", Role::Tenant, Request::LeaseAttach(id));
    assert_eq!(world.refusal(others).error, LeaseError::NotFound);
    let operators = world.operator(Request::LeaseAttach(id));
    assert_eq!(world.refusal(operators).error, LeaseError::NotPermitted);
    let mut without = World::new();
    let id = without.granted(1, 10, 0).lease_id;
    let ticket = asked(&mut without, id);
    let refusal = without.refusal(ticket);
    assert!(refusal.message.contains("--rdma-cm-listen"), "{refusal:?}");
}

#[test]
fn a_lease_has_8_codes_that_nobody_has_used_at_most() {
    let mut world = world();
    let id = world.granted(1, 10, 0).lease_id;
    let codes: Vec<AttachCode> = (0..CODES_MAX).map(|_| code(&mut world, id)).collect();
    let ninth = asked(&mut world, id);
    assert_eq!(world.refusal(ninth).error, LeaseError::ResourceBusy);
    assert_eq!(spend(&mut world, &codes[3]), Some(id));
    code(&mut world, id);
}

#[test]
fn a_lease_that_is_not_reached_over_rdma_keeps_no_code() {
    let mut world = world();
    let granted = world.ask(alloc(PAGE, 10, 0));
    let order = world.bind_order();
    let over_udp_alone = binding_over(Transport::Udp, 7);
    world.report(Report::Bind(order.binding_id, Ok(over_udp_alone)));
    let id = world.lease(granted).lease_id;
    for _ in 0..CODES_MAX {
        let ticket = asked(&mut world, id);
        let refusal = world.refusal(ticket);
        assert!(
            refusal.message.contains("not reached over RDMA"),
            "{refusal:?}"
        );
    }
    // None of them counts once the lease is bound over RDMA.
    world.rebind(id);
    let order = world.bind_order();
    world.report(Report::Bind(order.binding_id, Ok(binding(8))));
    for _ in 0..CODES_MAX {
        code(&mut world, id);
    }
}

#[test]
fn no_code_is_told_when_the_listener_has_ended() {
    let mut world = world();
    let id = world.granted(1, 10, 0).lease_id;
    code(&mut world, id);
    world.table.on_attach_lost();
    let ticket = asked(&mut world, id);
    let refusal = world.refusal(ticket);
    assert_eq!(refusal.class, RefusalClass::Policy);
    assert!(
        refusal.message.contains("rdma_cm listener has ended"),
        "{refusal:?}"
    );
}

#[test]
fn codes_are_gone_as_soon_as_the_lease_ends() {
    for ends in [
        (|world, id| {
            world.ask(Request::LeaseFree(id));
        }) as fn(&mut World, LeaseId),
        |world, id| {
            world.operator(Request::LeaseRevoke(id));
        },
        |world, _| world.pass_ms(10_000),
        |world, _| {
            world.table.on_drain(world.now);
            world.drain();
        },
    ] {
        let mut world = world();
        let id = world.granted(1, 10, 60).lease_id;
        let code = code(&mut world, id);
        ends(&mut world, id);
        // The cut is ordered, and not yet proved.
        assert_eq!(spend(&mut world, &code), None);
        let again = asked(&mut world, id);
        world.refusal(again);
    }
}

#[test]
fn a_million_guessed_codes_change_nothing() {
    let mut world = world();
    let id = world.granted(1, 10, 0).lease_id;
    let good = code(&mut world, id);
    let before = format!("{:?}", world.table);
    // The code of this world is a small number.
    for nth in 0..1_000_000 {
        let guessed = AttachCode(((1 << 127) | (nth * 0x5851_F42D_4C95_7F2D_u128)).to_be_bytes());
        assert_eq!(world.table.spend_attach_code(&guessed), None);
    }
    assert_eq!(format!("{:?}", world.table), before);
    assert_eq!(world.table.poll_effect(), None);
    assert_eq!(spend(&mut world, &good), Some(id));
}
