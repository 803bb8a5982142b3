//! Calls that the kernel refuses.

use fabricbios_lease::BindError;

use super::next_of;
use crate::testing::{Fails, Faulty, World};

/// The number of calls in a bind.
pub(super) fn calls_of_a_bind<F: Faulty>() -> usize {
    let world = World::<F>::new();
    world.machine.calls().taken();
    world.bound(&F::order(1));
    let calls = world.machine.calls().taken().len();
    assert!(calls > 0, "no call can fail");
    calls
}

pub fn a_bind_that_fails_at_any_call_leaves_nothing<F: Faulty>() {
    let order = F::order(1);
    for number in 1..=calls_of_a_bind::<F>() {
        let world = World::<F>::new();
        world.machine.calls().fail(Fails::At(number));
        let failed = world.provider.bind(&order);
        let made = world.machine.calls().taken();
        world.machine.calls().fail(Fails::Never);
        assert!(
            matches!(failed, Err(BindError::Failed(_))),
            "{failed:?} at {made:?}"
        );
        assert!(F::client(&world, order.binding_id.lease_id).is_none());
        assert_eq!(world.machine.left(), [""; 0], "{made:?}");
        world.is_clean();
        world.used(&next_of::<F>(&order));
    }
}

pub fn an_end_that_fails_at_any_call_succeeds_later_and_opens_nothing_meanwhile<F: Faulty>() {
    let order = F::order(1);
    let mut failed = 0;
    for number in 1.. {
        let world = World::<F>::new();
        let mut client = world.used(&order);
        world.machine.calls().fail(Fails::At(number));
        let cut = world.cut(&order);
        if cut.is_err() {
            let late = world.provider.bind(&order);
            assert!(matches!(late, Err(BindError::Cancelled)), "{late:?}");
            world.cut(&order).unwrap();
        }
        assert!(!world.machine.has_access(&mut client));
        let released = world.release(&order);
        if released.is_err() {
            // Its part is not given to another lease.
            let other = F::order(2);
            let mut beside = world.used(&other);
            world.release(&order).unwrap();
            assert!(world.machine.has_access(&mut beside));
            world.end(&other);
        }
        failed += usize::from(cut.is_err() || released.is_err());
        let is_beyond = world.machine.calls().taken().len() < number;
        world.machine.calls().fail(Fails::Never);
        world.is_clean();
        if released.is_ok() {
            world.used(&next_of::<F>(&order));
        }
        if is_beyond {
            break;
        }
    }
    assert!(failed > 0, "no call of an end can fail");
}
