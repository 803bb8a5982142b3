//! Ends leases whose daemon is dead, stopped or hangs: another process, the watchdog, ends them by name.

use std::fmt;

use fabricbios_lease::{BindError, BindOrder, BindingId, BootTime, StepError};
use fabricbios_wire::{Generation, LeaseId};

/// Sends the deadlines of the leases of one kind to the watchdog. No method waits.
pub trait Guard: fmt::Debug + Send + Sync {
    /// Whether the watchdog runs and can end access if this process cannot.
    fn watches(&self) -> bool;

    /// Sets the deadline of the lease. The newest generation counts; within it, the last call.
    fn extend(&self, binding_id: BindingId, deadline: BootTime);

    /// Reports that the end of access was proved, for this generation and all older ones.
    fn over(&self, binding_id: BindingId);

    /// Refuses a new lease while the watchdog is absent, since nothing would end the lease if this process hangs. A
    /// lease that has access already goes on.
    ///
    /// # Errors
    /// The lease is new, and there is no watchdog.
    fn check(&self, order: &BindOrder) -> Result<(), BindError> {
        let is_new = !order.adopts && order.binding_id.generation == Generation(1);
        if self.watches() || !is_new {
            return Ok(());
        }
        Err(BindError::Failed(StepError::new(
            "reach the watchdog",
            format_args!(
                "{}: no watchdog runs; the daemon is starting it again",
                order.binding_id
            ),
        )))
    }
}

/// Ends leases of one kind without the daemon, in the watchdog's process. The crate of the kind builds it from plain
/// paths. It finds the objects of a lease by itself.
pub trait EndByName: Send {
    /// Ends the access of a lease, as [`DataPath::revoke`](crate::DataPath::revoke) does: by its name alone, also while
    /// the daemon does the same. Idempotent: a lease without objects counts as ended. The other leases of the kind wait
    /// for this call, so the call waits only a moment for processes of a tenant. Their end goes on beside the ends of
    /// other leases, and the next call returns its outcome.
    ///
    /// # Errors
    /// A client may still have access. The call is repeated.
    fn end(&self, lease: LeaseId) -> Result<(), StepError>;
}

#[cfg(test)]
mod tests {
    use fabricbios_lease::Placement;
    use fabricbios_wire::{ResourceId, Transport};

    use super::*;
    use crate::testing::{Watching, binding_id};

    fn order(generation: u32, adopts: bool) -> BindOrder {
        BindOrder {
            adopts,
            ..BindOrder::new(
                binding_id(LeaseId(1), generation, ResourceId(7)),
                Placement::Amount(1 << 20),
                Transport::NvmeTcp,
            )
        }
    }

    #[test]
    fn without_a_watchdog_no_lease_begins_and_what_is_there_goes_on() {
        let guard = Watching::default();
        guard.check(&order(1, false)).unwrap();
        guard.set_present(false);
        let Err(BindError::Failed(error)) = guard.check(&order(1, false)) else {
            panic!("nobody would end it");
        };
        assert_eq!(error.step, "reach the watchdog".into());
        guard.check(&order(2, false)).unwrap();
        guard.check(&order(1, true)).unwrap();
    }
}
