//! The behaviours. The macros of the suites name each of them.

#![allow(missing_docs, reason = "the name of a test says what it shows")]

pub mod adoption;
pub mod by_name;
pub mod entry;
pub mod failures;
pub mod faults;
pub mod life;

use fabricbios_lease::BindOrder;
use fabricbios_wire::Generation;

use super::Fixture;

/// The order of a later binding of the same lease.
fn later(order: &BindOrder, generation: u32) -> BindOrder {
    let mut later = order.clone();
    later.binding_id.generation = Generation(generation);
    later
}

/// The order of another lease, which may get the part that this one had.
fn next_of<F: Fixture>(order: &BindOrder) -> BindOrder {
    BindOrder {
        placement: order.placement.clone(),
        ..F::order(2)
    }
}
