//! Whether storage answers, asked by a process that can be given up: a thread of the daemon that waits for
//! a device without end would keep the whole process, and what it has locked, after its death.

use std::{path::Path, time::Duration};

use fabricbios_kernfs::{Sacrifice, Sacrificed};
use fabricbios_lease::StepError;

/// A disk that is only slow, or spinning up, answers by then.
const PATIENCE: Duration = Duration::from_secs(9);

/// Reads the beginning, not from a cache. `Err`: no answer came; what cannot be read at all is for whoever
/// opens it to say.
pub(super) fn within_patience(path: &Path) -> Result<(), StepError> {
    if path.is_dir() {
        return Ok(());
    }
    match Sacrifice::read_of(path).run(PATIENCE, &|_line| ()) {
        Err(stuck @ Sacrificed::Stuck { .. }) => {
            let detail = format!("{}: {stuck}", path.display());
            Err(StepError::new("read from the storage", detail))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
