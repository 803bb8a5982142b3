//! Repeats requests that are refused for a moment only.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use fabricbios_wire::{LeaseError, RefusalClass};
use tokio::time::sleep;

use crate::Error;

/// How long the requests of builders and their leases are repeated by default.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// First pause between two tries; it doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Repeats a request while `may_repeat` accepts the error and `patience` lasts; with zero patience the request is sent
/// once. If the node says when the request will probably work, the next try waits for about that time, but at most one
/// second, since the time is an estimate. The last error has the number of tries and their time.
pub(crate) async fn patiently<T, F>(
    patience: Duration,
    may_repeat: impl Fn(&Error) -> bool,
    mut ask: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let began = Instant::now();
    let mut pause_max = PAUSE_FIRST;
    let mut tries = 0;
    loop {
        tries += 1;
        let error = match ask().await {
            Err(error) if may_repeat(&error) => error,
            outcome => return outcome,
        };
        let pause = pause_max.max(retry_after(&error)).mul_f64(jitter());
        if began.elapsed().saturating_add(pause) > patience {
            return Err(error.after(tries, began.elapsed()));
        }
        tracing::debug!("refused for now, asking again in {pause:?}: {error}");
        sleep(pause).await;
        pause_max = (pause_max * 2).min(PAUSE_MAX);
    }
}

/// Whether the same request may work a moment later. Capacity (CapacityExceeded), a fence and the time of a renewal depend
/// on others or on time; the caller waits for them.
pub(crate) fn is_momentary(error: &Error) -> bool {
    use LeaseError::{ResourceBusy, Unavailable};
    error.refusal().is_some_and(|refusal| {
        let momentary = matches!(refusal.error, ResourceBusy | Unavailable);
        momentary && refusal.class == RefusalClass::Transient
    })
}

/// The time after which the request will probably work, as the node says; at most [`PAUSE_MAX`].
fn retry_after(error: &Error) -> Duration {
    let after_ms = error.refusal().and_then(|it| it.retry_after_ms);
    Duration::from_millis(after_ms.unwrap_or(0).into()).min(PAUSE_MAX)
}

/// A factor from 0.5 to 1, so that clients that were refused together do not come back together.
fn jitter() -> f64 {
    let mut bytes = [0; 2];
    // Without randomness the request itself fails, with a message.
    getrandom::fill(&mut bytes).ok();
    0.5 + 0.5 * f64::from(u16::from_ne_bytes(bytes)) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::Refusal;

    use super::*;

    #[test]
    fn only_what_is_over_in_a_moment_is_asked_again() {
        use LeaseError as E;
        use RefusalClass::{Permanent, Policy, Transient};
        let momentary = |error, class| is_momentary(&Refusal::new(error, class, "").into());
        assert!(momentary(E::ResourceBusy, Transient));
        assert!(momentary(E::Unavailable, Transient));
        for (error, class) in [
            (E::ResourceBusy, Permanent),
            (E::Unavailable, Policy),
            (E::CapacityExceeded, Transient),
            (E::Fenced, Transient),
            (E::RenewTooEarly, Transient),
            (E::Internal, Transient),
        ] {
            assert!(!momentary(error, class), "{error}");
        }
    }

    #[test]
    fn a_node_that_says_when_is_asked_no_sooner_but_once_a_second() {
        let after = |after_ms| {
            let busy = Refusal::new(LeaseError::ResourceBusy, RefusalClass::Transient, "");
            retry_after(
                &Refusal {
                    retry_after_ms: after_ms,
                    ..busy
                }
                .into(),
            )
        };
        assert_eq!(after(None), Duration::ZERO);
        assert_eq!(after(Some(300)), Duration::from_millis(300));
        assert_eq!(after(Some(u32::MAX)), PAUSE_MAX);
    }

    #[test]
    fn pauses_differ() {
        let drawn: Vec<f64> = (0..100).map(|_| jitter()).collect();
        assert!(drawn.iter().all(|it| (0.5..=1.0).contains(it)));
        assert!(drawn.iter().any(|it| *it != drawn[0]));
    }
}
