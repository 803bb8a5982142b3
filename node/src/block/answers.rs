//! Whether storage answers, asked by a process that can be given up: a thread of the daemon that waits for
//! a device without end would keep the whole process, and what it has locked, after its death.

use std::{path::Path, time::Duration};

use fabricbios_helper::{CallError, ReadFirst, Supervisor};
use fabricbios_lease::StepError;

/// A disk that is only slow, or spinning up, answers by then.
const PATIENCE: Duration = Duration::from_secs(9);

/// Reads the beginning, not from a cache. `Err`: no answer came; what cannot be read at all is for whoever
/// opens it to say.
pub(super) fn within_patience(supervisor: &Supervisor, path: &Path) -> Result<(), StepError> {
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
