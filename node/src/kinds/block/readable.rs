//! Checks that storage answers. A helper process does this, because the daemon can abandon a process: a thread of the
//! daemon that hangs on a device would keep the whole process and its locks after its death.

use std::{path::Path, time::Duration};

use fabricbios_helper::{CallError, ReadFirst, Supervisor};
use fabricbios_lease::StepError;

/// How long a read may take: a slow disk, or a disk that spins up, answers within this time.
const PATIENCE: Duration = Duration::from_secs(9);

/// Reads the beginning of the storage, not from a cache. `Err`: no answer came. This call does not report a read error;
/// opening the storage reports it.
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
