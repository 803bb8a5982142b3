//! Renewals: automatic ones, and those of leases that another program uses. A renewal comes at 85 % of the term, plus
//! or minus 5 % by lease, so that leases that were granted together are not renewed together.

use std::{sync::Arc, time::Duration};

use fabricbios_wire::{LeaseError, LeaseId, LeaseInfo, Refusal, RefusalClass, Request};
use tokio::time::sleep;

use crate::{
    Error, Node,
    lease::Health,
    runtime::{self, wait},
    shared::SharedLease,
    transfer::end_error,
};

/// First pause after a failed attempt; it doubles with each further one.
const BACK_OFF_FIRST: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// The renewals of a lease of any kind that another program or a process of the node uses. Several programs may renew
/// the same lease.
#[derive(Debug)]
pub struct Renewals {
    shared: Arc<SharedLease>,
}

impl Renewals {
    /// Looks a lease up. `lease_secs`: the length of each new term in seconds; 0: as long as the last term. A lease in
    /// its grace time can be renewed.
    ///
    /// # Errors
    /// [`Error::Ended`] or [`Error::Refused`] if the lease is over; another one if the node or this machine fails.
    pub async fn open_async(
        node: &Node,
        lease_id: LeaseId,
        lease_secs: u32,
    ) -> Result<Self, Error> {
        let info = node.lease_async(Request::LeaseQuery(lease_id)).await?;
        match end_error(&info).filter(Error::is_over) {
            Some(error) => Err(error),
            None => Ok(Self {
                shared: SharedLease::new(node.of_lease(lease_id), info, lease_secs),
            }),
        }
    }

    /// Looks a lease up, blocking; see [`Renewals::open_async`].
    ///
    /// # Errors
    /// See [`Renewals::open_async`].
    pub fn open(node: &Node, lease_id: LeaseId, lease_secs: u32) -> Result<Self, Error> {
        wait(Self::open_async(node, lease_id, lease_secs))
    }

    /// The last answer of the node.
    pub fn info(&self) -> LeaseInfo {
        self.shared.info()
    }

    /// Time until [`Renewals::renew_next`] asks for the next renewal: the node accepts it in the last fifth of the term.
    pub fn due_in(&self) -> Duration {
        let Self { shared } = self;
        wait_for(shared.lease_id, shared.window(), shared.remaining())
    }

    /// Waits until the next renewal is due and renews the lease; repeats this while the node is busy or cannot be reached,
    /// until the lease is over.
    ///
    /// # Errors
    /// If the lease cannot be renewed any more.
    pub async fn renew_next_async(&self) -> Result<LeaseInfo, Error> {
        let shared = Arc::clone(&self.shared);
        runtime::run(async move { renew_when_due(&shared).await }).await?;
        Ok(self.shared.info())
    }

    /// Waits for the next renewal, blocking; see [`Renewals::renew_next_async`].
    ///
    /// # Errors
    /// See [`Renewals::renew_next_async`].
    pub fn renew_next(&self) -> Result<LeaseInfo, Error> {
        wait(self.renew_next_async())
    }
}

/// Renews until the lease is lost. Freeing or dropping the lease aborts this.
pub(crate) async fn keep(shared: Arc<SharedLease>) {
    loop {
        if let Err(error) = renew_when_due(&shared).await {
            let lease_id = shared.lease_id;
            tracing::warn!(%lease_id, "lease will not be renewed any more: {error}");
            shared.set_health(Health::Lost(error));
            return;
        }
    }
}

async fn renew_when_due(shared: &SharedLease) -> Result<(), Error> {
    let due_in = wait_for(shared.lease_id, shared.window(), shared.remaining());
    // A lower bound, so that a node with strange terms is not flooded.
    sleep(due_in.max(BACK_OFF_FIRST.min(shared.remaining() / 4))).await;
    renew(shared).await
}

/// Renews once; repeats until the renewal works or can never work.
async fn renew(shared: &SharedLease) -> Result<(), Error> {
    let mut pause = BACK_OFF_FIRST;
    loop {
        let error = match shared.node.lease_async(shared.renewal()).await {
            Ok(info) => {
                shared.update(info);
                return Ok(());
            }
            Err(error) => error,
        };
        if is_too_early(&error) && renewed_by_another(shared).await {
            return Ok(());
        }
        let with_grace = shared.left_with_grace();
        if is_final(&error) || with_grace.is_zero() {
            return Err(error);
        }
        tracing::debug!(lease_id = %shared.lease_id, "renewal failed, trying again: {error}");
        shared.set_health(Health::Retrying(error));
        sleep(soon_enough(pause, shared.remaining(), with_grace)).await;
        pause = (pause * 2).min(BACK_OFF_MAX);
    }
}

fn is_too_early(error: &Error) -> bool {
    let code = error.refusal().map(|refusal| refusal.error);
    code == Some(LeaseError::RenewTooEarly)
}

/// Whether the node reports a longer term than the known one.
async fn renewed_by_another(shared: &SharedLease) -> bool {
    let query = Request::LeaseQuery(shared.lease_id);
    let Ok(info) = shared.node.lease_async(query).await else {
        return false;
    };
    let is_longer = info.expires_at_unix_ms > shared.info().expires_at_unix_ms;
    shared.update(info);
    is_longer
}

/// A pause that leaves time for more tries before access ends or, after that, before the grace time ends.
fn soon_enough(pause: Duration, remaining: Duration, with_grace: Duration) -> Duration {
    let left = match remaining {
        Duration::ZERO => with_grace,
        access => access,
    };
    pause.min(left / 4)
}

/// Until 85 % ± 5 % of the term are over. `window` is the last fifth of it.
fn wait_for(lease_id: LeaseId, window: Duration, remaining: Duration) -> Duration {
    remaining.saturating_sub(window.mul_f64(share_of_window(lease_id)))
}

/// Between half of the window and all of it, by lease.
fn share_of_window(lease_id: LeaseId) -> f64 {
    // Lease ids are random, so any 16 bits of one are as good as a hash of it.
    let [low, high, ..] = lease_id.0.to_le_bytes();
    let seed = f64::from(u16::from_le_bytes([low, high])) / f64::from(u16::MAX);
    0.5 + 0.5 * seed
}

/// Whether another try cannot help.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Refused(Refusal {
            error: LeaseError::RenewTooEarly,
            ..
        }) => false,
        Error::Refused(refusal) => refusal.class != RefusalClass::Transient,
        // The node of the lease may come back to its address.
        Error::Unreachable { .. } | Error::UntrustedNode { .. } | Error::Protocol { .. } => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_falls_between_80_and_90_percent_and_differs_by_lease() {
        let (term, window) = (Duration::from_secs(100), Duration::from_secs(20));
        let at = |id| wait_for(LeaseId(id), window, term).as_secs_f64();
        assert!((at(0) - 90.0).abs() < 0.01);
        assert!((at(0xffff) - 80.0).abs() < 0.01);
        assert!(at(0x4000) != at(0x8000));
    }

    #[test]
    fn a_lease_that_is_nearly_over_is_renewed_at_once() {
        assert_eq!(
            wait_for(LeaseId(0), Duration::from_secs(20), Duration::from_secs(5)),
            Duration::ZERO
        );
    }

    #[test]
    fn a_long_grace_time_does_not_make_a_renewal_miss_the_end_of_access() {
        let (ms, hour) = (Duration::from_millis, Duration::from_secs(3_600));
        assert_eq!(soon_enough(ms(50), ms(1_000), hour), ms(50));
        assert_eq!(soon_enough(ms(800), ms(1_000), hour), ms(250));
        assert_eq!(soon_enough(ms(800), ms(0), ms(2_000)), ms(500));
    }

    #[test]
    fn only_what_can_change_is_tried_again() {
        let refused = |error, class| is_final(&Error::Refused(Refusal::new(error, class, "")));
        assert!(!refused(LeaseError::RenewTooEarly, RefusalClass::Transient));
        assert!(!refused(LeaseError::Unavailable, RefusalClass::Transient));
        assert!(refused(LeaseError::Revoked, RefusalClass::Permanent));
        assert!(refused(LeaseError::NotPermitted, RefusalClass::Policy));
        let (node, why) = (String::new(), String::new());
        assert!(!is_final(&Error::UntrustedNode { node, why }));
    }
}
