//! Runs the calls that may wait for storage for ever in helper processes: [`run`] starts a [`PoolCall`].

mod calls;
mod zero;

use std::time::Duration;

use fabricbios_helper::{CallError, Supervisor};

use crate::error::{At, Error};

pub(crate) use calls::PoolCall;
pub(crate) use zero::{Identity, range_is_busy};

/// Longest time without a finished chunk. Then the device is given up, just before the lease table gives up.
const SILENCE_MAX: Duration = Duration::from_secs(9);

/// Makes a call in a helper process.
pub(crate) fn run(
    supervisor: &Supervisor,
    call: &PoolCall,
    progress: &dyn Fn(),
) -> Result<(), Error> {
    match supervisor.call(call, SILENCE_MAX, &|_what| progress()) {
        // Its text has the place.
        Err(failed @ CallError::Failed(_)) => Err(failed.into()),
        done => done.during(call),
    }
}
