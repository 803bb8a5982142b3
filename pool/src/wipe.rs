//! Calls that may wait for storage for ever run in helper processes. Here is the side that asks; [`Verb`] is the other one.

mod verbs;
mod zero;

use std::time::Duration;

use fabricbios_helper::{CallError, Supervisor};

pub(crate) use verbs::Verb;
pub(crate) use zero::{Identity, range_is_busy};

/// A device that does not finish a chunk in this time is given up, just before the lease table gives up.
const SILENCE_MAX: Duration = Duration::from_secs(9);

/// Runs a command in a helper process.
pub(crate) fn run(supervisor: &Supervisor, verb: &Verb, progress: &dyn Fn()) -> Result<(), String> {
    let done = supervisor.call(verb, SILENCE_MAX, &|_what| progress());
    done.map_err(|error| match error {
        CallError::Failed(failure) => failure.detail,
        error => format!("{verb}: {error}"),
    })
}
