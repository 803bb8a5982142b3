//! Checks that storage answers, by a helper process, which can be abandoned: a thread of the daemon that hangs on a
//! device would keep the whole process and its locks after its death.

use std::{path::Path, time::Duration};

use fabricbios_helper::{CallError, ReadFirst, Supervisor};
use fabricbios_lease::StepError;

/// A slow disk, or one that spins up, answers within this time.
const PATIENCE: Duration = Duration::from_secs(9);

/// Reads the beginning, not from a cache. `Err`: no answer came. A read error is not reported here; opening the storage
/// reports it.
pub(super) fn check(supervisor: &Supervisor, path: &Path) -> Result<(), StepError> {
    if path.is_dir() {
        return Ok(());
    }
    match supervisor.call(&ReadFirst::of(path), PATIENCE, &|_what| ()) {
        Ok(()) | Err(CallError::Failed(_)) => Ok(()),
        Err(error) => {
            let detail = format!("{}: {error}", path.display());
            Err(StepError::new("read from the storage", detail))
        }
    }
}
