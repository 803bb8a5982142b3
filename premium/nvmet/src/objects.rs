//! The operations that steps use: on configfs, or on the imitation of a test.

use std::{fmt, path::Path, time::Duration};

use fabricbios_helper::{CallError, ReadFirst, Supervisor};
use fabricbios_kernfs::{Error, Tree};
use fabricbios_lease::StepError;

use super::{Target, namespace};

/// Longest silence of a helper process that waits for a device. A stuck removal is thus reported within 10 s.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(9);

/// The reason why an operation failed.
#[derive(Debug)]
pub(super) struct ObjectError {
    /// The errno, if a system call failed.
    pub(super) errno: Option<i32>,
    pub(super) detail: String,
    /// Whether a process still waits in the kernel: the objects that it uses are not free.
    pub(super) stuck: bool,
}

impl ObjectError {
    pub(super) fn new(detail: impl fmt::Display) -> Self {
        Self {
            errno: None,
            detail: detail.to_string(),
            stuck: false,
        }
    }
}

impl From<Error> for ObjectError {
    fn from(error: Error) -> Self {
        Self {
            errno: error.errno(),
            ..Self::new(&error)
        }
    }
}

/// The error of a step.
pub(super) fn failed(step: &'static str, error: impl Into<ObjectError>) -> StepError {
    let error = error.into();
    StepError::new(step, &error).with_errno(error.errno)
}

impl From<CallError> for ObjectError {
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

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// Objects, attributes and links by their path in configfs.
pub(super) trait Objects {
    fn tree(&self) -> &Tree;

    /// The supervisor for calls that may hang; links need none.
    fn supervisor(&self) -> Option<&Supervisor> {
        None
    }

    fn exists(&self, path: &str) -> Result<bool, ObjectError> {
        Ok(self.tree().exists(path)?)
    }

    fn read(&self, path: &str) -> Result<String, ObjectError> {
        Ok(self.tree().read(path)?)
    }

    fn write(&self, path: &str, value: &str) -> Result<(), ObjectError> {
        Ok(self.tree().write(path, value)?)
    }

    /// Changes the mode of the file: from now on only root can open it.
    fn make_private(&self, path: &str) -> Result<(), ObjectError> {
        Ok(self.tree().set_mode(path, 0o600)?)
    }

    fn holds_secret(&self, path: &str, value: &str) -> Result<bool, ObjectError> {
        Ok(self.tree().holds_secret(path, value)?)
    }

    /// Writes an attribute; errors do not show the value.
    fn write_secret(&self, path: &str, value: &str) -> Result<(), ObjectError> {
        Ok(self.tree().write_secret(path, value)?)
    }

    fn mkdir(&self, path: &str) -> Result<(), ObjectError> {
        Ok(self.tree().mkdir(path)?)
    }

    fn rmdir(&self, path: &str) -> Result<(), ObjectError> {
        Ok(self.tree().rmdir(path)?)
    }

    fn symlink(&self, target: &str, at: &str) -> Result<(), ObjectError> {
        Ok(self.tree().symlink(target, at)?)
    }

    fn unlink(&self, path: &str) -> Result<(), ObjectError> {
        Ok(self.tree().unlink(path)?)
    }

    /// Removes a namespace, which waits for its device. Gives up after [`SILENCE_MAX`].
    fn remove_namespace(&self, path: &str) -> Result<(), ObjectError> {
        let supervisor = self.supervisor().ok_or_else(no_supervisor)?;
        namespace::remove(self.tree(), supervisor, path, None)
    }

    /// Reads the start of a device or file without the page cache. Gives up after [`SILENCE_MAX`].
    fn read_once(&self, volume: &Path) -> Result<(), ObjectError> {
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

fn no_supervisor() -> ObjectError {
    ObjectError::new("this process has no helper processes for calls that may hang")
}
