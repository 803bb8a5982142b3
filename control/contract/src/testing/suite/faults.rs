//! Cuts in the middle of a bind, and deaths.

use std::sync::Arc;

use fabricbios_lease::Linger;

pub use super::failures::{
    a_bind_that_fails_at_any_call_leaves_nothing,
    an_end_that_fails_at_any_call_succeeds_later_and_opens_nothing_meanwhile,
};
use super::{failures::calls_of_a_bind, next_of};
use crate::{
    DataPath as _,
    testing::{FOR_EVER, Fails, Faulty, World},
};

pub fn a_cut_at_any_call_of_a_bind_waits_for_nothing_and_nothing_opens<F: Faulty>() {
    let order = F::order(1);
    let id = order.binding_id;
    for number in 1..=calls_of_a_bind::<F>() {
        let world = World::<F>::new();
        let path = Arc::clone(&world.path);
        world.machine.calls().before(number, move || {
            path.extend(id, FOR_EVER).unwrap();
            path.revoke(id, Linger::None).unwrap();
        });
        let late = world.provider.bind(&order);
        assert!(late.is_err(), "{late:?} at {:?}", world.machine.calls());
        assert!(F::client(&world, id.lease_id).is_none());
        world.path.verify(id, None).unwrap();
        world.is_clean();
    }
}

pub fn a_death_behind_any_call_leaves_nothing_that_the_next_process_does_not_end<F: Faulty>() {
    let order = F::order(1);
    let id = order.binding_id;
    for number in 0.. {
        let world = World::<F>::new();
        world.machine.calls().fail(Fails::After(number));
        let bound = world.provider.bind(&order);
        world.provider.extend(id, FOR_EVER).ok();
        let cut = bound.is_ok().then(|| world.cut(&order));
        let released = matches!(cut, Some(Ok(_))).then(|| world.release(&order));
        let is_over = matches!(released, Some(Ok(_)));
        world.machine.calls().fail(Fails::Never);
        let world = world.restarted();
        world.provider.reset(id.resource_id, &[]).unwrap();
        assert!(F::client(&world, id.lease_id).is_none());
        world.is_clean();
        world.used(&next_of::<F>(&order));
        if is_over {
            assert!(number > 0, "no call can fail");
            break;
        }
    }
}
