//! What steps are made of: configfs, or a test's imitation of it.

use std::{fmt, path::Path, time::Duration};

use fabricbios_helper::{CallError, ReadFirst, Supervisor};
use fabricbios_kernfs::{Error, Tree};
use fabricbios_lease::StepError;

use super::{Target, namespace};

/// The longest that a process which only waits for a device may be silent. With what comes around it, a
/// removal that is stuck is told within ten seconds.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(9);

/// Why something was not done.
#[derive(Debug)]
pub(super) struct Trouble {
    /// Of the system, where it was the system that refused.
    pub(super) errno: Option<i32>,
    pub(super) detail: String,
    /// A process is left that waits in the kernel, and what it holds is not free.
    pub(super) stuck: bool,
}

impl Trouble {
    pub(super) fn new(detail: impl fmt::Display) -> Self {
        Self {
            errno: None,
            detail: detail.to_string(),
            stuck: false,
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self {
            errno: error.errno(),
            ..Self::new(&error)
        }
    }
}

/// A step that the system refused, or that has another trouble.
pub(super) fn failed(step: &'static str, trouble: impl Into<Trouble>) -> StepError {
    let trouble = trouble.into();
    StepError::new(step, &trouble).with_errno(trouble.errno)
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Self {
        let errno = match &error {
            CallError::Failed(failure) => failure.errno,
            _ => None,
        };
        Self {
            errno,
            stuck: error.is_stuck(),
            ..Self::new(error)
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// Objects, attributes and links by their path in configfs.
pub(super) trait Objects {
    fn tree(&self) -> &Tree;

    /// Who makes calls there that may hang. Links need nobody.
    fn supervisor(&self) -> Option<&Supervisor> {
        None
    }

    fn exists(&self, path: &str) -> Result<bool, Trouble> {
        Ok(self.tree().exists(path)?)
    }

    fn read(&self, path: &str) -> Result<String, Trouble> {
        Ok(self.tree().read(path)?)
    }

    fn write(&self, path: &str, value: &str) -> Result<(), Trouble> {
        Ok(self.tree().write(path, value)?)
    }

    /// Nobody but root may open it from now on.
    fn make_private(&self, path: &str) -> Result<(), Trouble> {
        Ok(self.tree().set_mode(path, 0o600)?)
    }

    fn holds_secret(&self, path: &str, value: &str) -> Result<bool, Trouble> {
        Ok(self.tree().holds_secret(path, value)?)
    }

    /// The value appears in no error.
    fn write_secret(&self, path: &str, value: &str) -> Result<(), Trouble> {
        Ok(self.tree().write_secret(path, value)?)
    }

    fn mkdir(&self, path: &str) -> Result<(), Trouble> {
        Ok(self.tree().mkdir(path)?)
    }

    fn rmdir(&self, path: &str) -> Result<(), Trouble> {
        Ok(self.tree().rmdir(path)?)
    }

    fn symlink(&self, target: &str, at: &str) -> Result<(), Trouble> {
        Ok(self.tree().symlink(target, at)?)
    }

    fn unlink(&self, path: &str) -> Result<(), Trouble> {
        Ok(self.tree().unlink(path)?)
    }

    /// Removes a namespace, which waits for its device: gives up when that takes too long.
    fn remove_namespace(&self, path: &str) -> Result<(), Trouble> {
        let supervisor = self.supervisor().ok_or_else(no_supervisor)?;
        namespace::remove(self.tree(), supervisor, path, None)
    }

    /// Reads the beginning of a device or file, not from a cache; gives up when that takes too long.
    fn read_once(&self, volume: &Path) -> Result<(), Trouble> {
        let supervisor = self.supervisor().ok_or_else(no_supervisor)?;
        let read = supervisor.call(&ReadFirst::of(volume), SILENCE_MAX, &|_what| ());
        Ok(read?)
    }
}

impl Objects for Tree {
    fn tree(&self) -> &Tree {
        self
    }
}

impl Objects for Target {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn supervisor(&self) -> Option<&Supervisor> {
        Some(&self.supervisor)
    }
}

fn no_supervisor() -> Trouble {
    Trouble::new("this process makes no calls that may hang")
}
