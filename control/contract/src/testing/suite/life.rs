//! The life of a lease, and orders that come at the wrong time.

use fabricbios_lease::{AlreadyCut, BindError, Linger};

use super::{later, next_of};
use crate::{
    DataPath as _, Store as _,
    testing::{FOR_EVER, Fixture, World},
};

pub fn a_lease_opens_and_ends_and_leaves_nothing<F: Fixture>() {
    let world = World::<F>::new();
    let order = F::order(1);
    let id = order.binding_id;
    world.is_clean();
    // The deadline of a lease that was adopted comes before its bind.
    world.path.extend(id, FOR_EVER).unwrap();
    let mut client = world.used(&order);
    assert_eq!(world.leases(), [id.lease_id]);
    let part = world.store.open(&order).unwrap();
    assert_eq!(part.placement, order.placement, "it has this part already");
    world.path.remove(id, &|| ()).unwrap_err();
    assert!(world.machine.has_access(&mut client));
    world.cut(&order).unwrap();
    assert!(!world.machine.has_access(&mut client));
    assert!(F::client(&world, id.lease_id).is_none());
    assert_eq!(world.path.extend(id, FOR_EVER), Err(AlreadyCut));
    let again = world.path.revoke(id, Linger::None).unwrap();
    world.path.verify(id, Some(&again)).unwrap();
    // As after a crash between the cut and its proof.
    world.path.verify(id, None).unwrap();
    let cleaned = world.release(&order).unwrap();
    assert!(
        !cleaned.steps().is_empty(),
        "it does not say what it cleaned"
    );
    world.is_clean();
    let again = world.release(&order).unwrap();
    assert_eq!(again.steps(), [], "cleaned twice");
}

pub fn a_cut_before_the_bind_lets_nothing_open<F: Fixture>() {
    let world = World::<F>::new();
    let order = F::order(1);
    let part = world.store.open(&order).unwrap();
    world.path.revoke(order.binding_id, Linger::None).unwrap();
    let late = world.path.bind(&order, &part);
    assert!(matches!(late, Err(BindError::Cancelled)), "{late:?}");
    assert_eq!(
        world.path.extend(order.binding_id, FOR_EVER),
        Err(AlreadyCut)
    );
    assert!(F::client(&world, order.binding_id.lease_id).is_none());
    world.path.verify(order.binding_id, None).unwrap();
    world.path.remove(order.binding_id, &|| ()).unwrap();
    let id = order.binding_id;
    world.store.forget(id, &order.placement).unwrap();
    world.is_clean();
    world.bound(&next_of::<F>(&order));
}

pub fn a_newer_binding_goes_on_behind_orders_to_the_older_one<F: Fixture>() {
    let world = World::<F>::new();
    let first = F::order(1);
    let second = later(&first, 2);
    world.used(&first);
    let mut client = world.used(&second);
    let late = world.provider.bind(&first);
    assert!(matches!(late, Err(BindError::Cancelled)), "{late:?}");
    assert!(world.machine.has_access(&mut client), "a late bind");
    let revoked = world.path.revoke(first.binding_id, Linger::None).unwrap();
    assert!(world.machine.has_access(&mut client), "a late cut");
    let id = first.binding_id;
    world.path.verify(id, Some(&revoked)).unwrap();
    world.path.rotate(id).unwrap_err();
    world.release(&first).unwrap_err();
    assert!(world.machine.has_access(&mut client), "a late release");
    world.path.extend(second.binding_id, FOR_EVER).unwrap();
    world.cut(&second).unwrap();
    assert!(!world.machine.has_access(&mut client));
    world.release(&second).unwrap();
    world.is_clean();
}

pub fn late_calls_do_not_touch_the_next_lease<F: Fixture>() {
    let world = World::<F>::new();
    let order = F::order(1);
    let id = order.binding_id;
    world.used(&order);
    let part = world.store.open(&order).unwrap();
    world.end(&order);
    let next = next_of::<F>(&order);
    let mut client = world.used(&next);
    for late in [&order, &later(&order, 2)] {
        let bound = world.provider.bind(late);
        assert!(matches!(bound, Err(BindError::Cancelled)), "{bound:?}");
        let bound = world.path.bind(late, &part);
        assert!(matches!(bound, Err(BindError::Cancelled)), "{bound:?}");
        let revoked = world.path.revoke(late.binding_id, Linger::None).unwrap();
        world.path.verify(late.binding_id, Some(&revoked)).unwrap();
    }
    assert_eq!(world.path.extend(id, FOR_EVER), Err(AlreadyCut));
    world.path.verify(id, None).unwrap();
    world.path.remove(id, &|| ()).unwrap();
    let released = world.release(&order).unwrap();
    assert_eq!(released.steps(), [], "it cleaned the next lease's part");
    assert!(world.machine.has_access(&mut client));
    assert_eq!(world.leases(), [next.binding_id.lease_id]);
    world.end(&next);
    world.is_clean();
}
