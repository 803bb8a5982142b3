//! The watchdog.

use fabricbios_lease::{BindError, BindOrder};
use fabricbios_wire::LeaseId;

use super::later;
use crate::{
    EndByName,
    testing::{EndedByName, FOR_EVER, World},
};

/// Ends a lease. A call that gives up is repeated, as the watchdog does.
fn end(watchdog: &dyn EndByName, lease: LeaseId) {
    while watchdog.end(lease).is_err() {
        std::thread::yield_now();
    }
}

pub fn the_watchdog_ends_a_lease_by_its_name_and_no_other<F: EndedByName>() {
    let world = World::<F>::new();
    let watchdog = world.machine.watchdog();
    let [order, other] = [F::order(1), F::order(2)];
    let id = order.binding_id;
    watchdog.end(id.lease_id).unwrap();
    let mut client = world.used(&order);
    let mut beside = world.used(&other);
    assert!(world.guard.extended().contains(&(id, FOR_EVER)));
    end(&*watchdog, id.lease_id);
    assert!(!world.machine.has_access(&mut client));
    watchdog.end(id.lease_id).unwrap();
    assert!(world.machine.has_access(&mut beside));
    world.cut(&order).unwrap();
    assert_eq!(world.guard.over(), [id]);
    world.release(&order).unwrap();
    let next = BindOrder {
        placement: order.placement.clone(),
        ..F::order(3)
    };
    let mut client = world.used(&next);
    watchdog.end(id.lease_id).unwrap();
    assert!(
        world.machine.has_access(&mut client),
        "it has the same part"
    );
    assert!(world.machine.has_access(&mut beside));
    world.end(&next);
    world.end(&other);
    world.is_clean();
}

pub fn no_lease_begins_without_a_watchdog_and_those_in_use_go_on<F: EndedByName>() {
    let world = World::<F>::new();
    let [order, other] = [F::order(1), F::order(2)];
    let mut client = world.used(&order);
    world.guard.set_present(false);
    let refused = world.provider.bind(&other);
    let Err(BindError::Failed(why)) = refused else {
        panic!("nobody would end it: {refused:?}");
    };
    assert!(why.to_string().contains("watchdog"), "{why}");
    assert_eq!(world.leases(), [order.binding_id.lease_id]);
    world.bound(&later(&order, 2));
    assert!(world.machine.has_access(&mut client));
    world.end(&later(&order, 2));
    world.is_clean();
}
