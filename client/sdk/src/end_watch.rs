//! Waits for the end of a lease.

use std::{sync::Arc, time::Duration};

use fabricbios_wire::{EndCause, LeaseInfo, Request};
use tokio::time::{sleep, timeout};

use crate::{
    Error, Health,
    runtime::{run, wait},
    shared::SharedLease,
    transfer::end_error,
};

/// How often the node is asked: a revocation is noticed within this time.
const POLL: Duration = Duration::from_secs(1);
/// A node that does not answer within this time is asked again.
const SILENT: Duration = Duration::from_secs(5);
/// The node is asked this long after the end of the term, when the end is visible.
const AFTER_TERM: Duration = Duration::from_millis(5);

/// Waits for the end of a lease; from [`crate::Lease::end_watch`].
#[derive(Clone, Debug)]
pub struct EndWatch {
    shared: Arc<SharedLease>,
}

impl EndWatch {
    pub(crate) fn new(shared: Arc<SharedLease>) -> Self {
        Self { shared }
    }

    /// Waits until the lease gives no access any more, and returns why; [`Error::end_cause`] has the cause, if it can be
    /// known. The node is asked once a second. If it cannot be reached, the lease has expired when its term is over by the
    /// clock of this machine. A lease in its grace time has ended too, although a renewal would open it again.
    pub async fn wait_async(&self) -> Error {
        let shared = Arc::clone(&self.shared);
        let watching = run(async move { Ok(ended(&shared).await) });
        watching.await.unwrap_or_else(|error| error)
    }

    /// Waits for the end of the lease, blocking; see [`EndWatch::wait_async`].
    pub fn wait(&self) -> Error {
        wait(self.wait_async())
    }
}

async fn ended(shared: &SharedLease) -> Error {
    let mut is_silent = false;
    loop {
        // Enabled before the look: a change in between is not lost.
        let changed = shared.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if let Some(error) = access_over(shared) {
            if let Some(ended) = with_cause(shared, error, is_silent).await {
                return ended;
            }
            sleep(POLL).await;
            continue;
        }
        let pause = POLL.min(shared.remaining() + AFTER_TERM);
        if timeout(pause, changed).await.is_err() {
            let answer = query(shared).await;
            is_silent = answer.is_none();
            match answer {
                Some(Ok(info)) => shared.update(info),
                Some(Err(error)) if error.is_over() => return error,
                _unknown => {}
            }
        }
    }
}

/// The error if the lease gives no access any more. Renewals that failed for good leave the rest of the term.
fn access_over(shared: &SharedLease) -> Option<Error> {
    match shared.health() {
        Health::Lost(error) if error.is_over() || shared.remaining().is_zero() => Some(error),
        _ => None,
    }
}

/// The error with the cause that the node has on record; `None` if by its answer the lease goes on. A node that is silent or
/// cannot be reached ends leases by its own clock.
async fn with_cause(shared: &SharedLease, error: Error, is_silent: bool) -> Option<Error> {
    let known = shared.check_not_lost();
    if known.is_err_and(|known| known.end_cause().is_some()) {
        return Some(error);
    }
    let answer = match is_silent {
        true => None,
        false => query(shared).await,
    };
    if let Some(Ok(info)) = answer {
        if let Some(ended) = end_error(&info) {
            return Some(ended);
        }
        if info.remaining_ms > 0 {
            shared.update(info);
            return None;
        }
    }
    Some(match error {
        Error::Refused(_) | Error::InGrace { .. } | Error::Ended { cause: Some(_), .. } => error,
        error => Error::Ended {
            lease_id: shared.lease_id,
            cause: Some(EndCause::Expired),
            why: format!("the term has ended; the last renewal: {error}"),
        },
    })
}

/// `None` if the node is silent: the end of the term by this machine's clock is not waited for longer.
async fn query(shared: &SharedLease) -> Option<Result<LeaseInfo, Error>> {
    let request = Request::LeaseQuery(shared.lease_id);
    timeout(SILENT, shared.node.lease_async(request)).await.ok()
}
