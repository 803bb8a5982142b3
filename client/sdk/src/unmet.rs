//! Compares a lease with its request.

use std::fmt::Display;

use fabricbios_wire::{LeaseAllocRequest, LeaseInfo, Transport};

use crate::kinds;

/// The parts of a request that its lease does not fulfil. An older node skips a constraint that it does not
/// know, and then does not echo it.
pub fn unmet(request: &LeaseAllocRequest, info: &LeaseInfo) -> Vec<String> {
    let mut missing = Missing(Vec::new());
    let amount = request.resource_type().amount(request.capacity);
    missing.need(
        info.capacity >= request.capacity,
        format!("capacity {amount}"),
    );
    let transport = Some(request.transport).filter(|it| *it != Transport::Auto);
    missing.asked("transport", transport, |it| {
        info.effective.transport == Some(it)
    });
    missing.need(
        !request.rotate_on_renew || info.effective.rotate_on_renew,
        "rotate-on-renew",
    );
    kinds::unmet(request, info, &mut missing);
    missing.0
}

/// What a lease lacks of its request.
#[derive(Debug)]
pub struct Missing(Vec<String>);

impl Missing {
    /// Needs `met`.
    pub(crate) fn need(&mut self, met: bool, what: impl Into<String>) {
        if !met {
            self.0.push(what.into());
        }
    }

    /// Needs `met` for the requested value, if there is one.
    pub(crate) fn asked<T: Copy + Display>(
        &mut self,
        name: &str,
        value: Option<T>,
        met: impl FnOnce(T) -> bool,
    ) {
        if let Some(value) = value {
            self.need(met(value), format!("{name} {value}"));
        }
    }
}
