//! Leases of an earlier process.

use fabricbios_lease::BindOrder;

use crate::testing::{Fixture, World};

fn adopts(order: BindOrder) -> BindOrder {
    BindOrder {
        adopts: true,
        ..order
    }
}

pub fn the_next_process_adopts_a_lease_as_it_is_and_makes_none_anew<F: Fixture>() {
    let world = World::<F>::new();
    let order = adopts(F::order(1));
    let binding = world.bound(&F::order(1));
    let id = order.binding_id;
    let mut client = F::client(&world, id.lease_id).unwrap();
    let made = world.machine.left();
    let world = world.restarted();
    assert_eq!(world.leases(), [id.lease_id]);
    // The client used the lease all the time.
    assert!(world.machine.has_access(&mut client));
    assert_eq!(world.bound(&order), binding);
    assert_eq!(world.machine.left(), made);
    assert!(world.machine.has_access(&mut client));
    let gone = world.provider.bind(&adopts(F::order(2)));
    assert!(gone.is_err(), "made anew: {gone:?}");
    assert_eq!(world.leases(), [id.lease_id]);
    assert_eq!(world.machine.left(), made);
    world.cut(&order).unwrap();
    assert!(!world.machine.has_access(&mut client));
    world.release(&order).unwrap();
    world.is_clean();
}

pub fn the_next_process_ends_a_lease_by_its_name_alone<F: Fixture>() {
    let world = World::<F>::new();
    let order = F::order(1);
    let mut client = world.used(&order);
    let world = world.restarted();
    let resource_id = order.binding_id.resource_id;
    world.provider.reset(resource_id, &[]).unwrap();
    assert!(!world.machine.has_access(&mut client));
    world.is_clean();
}
