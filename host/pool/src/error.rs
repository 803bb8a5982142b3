//! Why a call of a pool fails: whose fault it is, where it happened, and what to do.

use std::path::Path;
use std::{fmt, io};

use fabricbios_helper::{CallError, Failure};
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

/// Why a call of a pool failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine: a call to the kernel failed, or the storage did not do what it answered.
    #[error(transparent)]
    Machine(#[from] io::Error),
    /// The machine: an attribute of a device cannot be read.
    #[error(transparent)]
    Attribute(#[from] fabricbios_kernfs::Error),
    /// The machine: a call in a helper process failed, or has no end.
    #[error(transparent)]
    Helper(#[from] CallError),
    /// The operator: the directory or device in the settings cannot be a pool as it is.
    #[error("{0}")]
    Setting(String),
    /// Another program or person: the storage is not as the pool left it.
    #[error("{0}")]
    Changed(String),
    /// The caller: the order contradicts the properties or the leases of the pool.
    #[error("{0}")]
    Order(String),
    /// An error at a path or in an operation.
    #[error("{0}: {1}")]
    At(String, Box<Error>),
    /// An error and what to do, with the punctuation between them.
    #[error("{0}{1}")]
    Advised(Box<Error>, String),
}

impl Error {
    /// The error of a step.
    pub(crate) fn of(self, step: &'static str) -> StepError {
        StepError::new(step, &self).with_errno(self.errno())
    }

    /// The error of a step for a lease.
    pub(crate) fn of_lease(self, step: &'static str, lease: LeaseId) -> StepError {
        Self::At(format!("lease {lease}"), self.into()).of(step)
    }

    /// The error number, if a system call failed.
    pub(crate) fn errno(&self) -> Option<i32> {
        match self {
            Self::Machine(error) => error.raw_os_error(),
            Self::Attribute(error) => error.errno(),
            Self::Helper(CallError::Failed(failure)) => failure.errno,
            Self::At(_, error) | Self::Advised(error, _) => error.errno(),
            _ => None,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            errno: error.errno(),
            detail: error.to_string(),
        }
    }
}

/// Adds to an error where it happened and what to do.
pub(crate) trait At<T>: Sized {
    fn during(self, operation: impl fmt::Display) -> Result<T, Error>;
    fn advise(self, remedy: impl fmt::Display) -> Result<T, Error>;

    fn at(self, path: impl AsRef<Path>) -> Result<T, Error> {
        self.during(path.as_ref().display())
    }
}

impl<T, E: Into<Error>> At<T> for Result<T, E> {
    fn during(self, operation: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|error| Error::At(operation.to_string(), Box::new(error.into())))
    }

    fn advise(self, remedy: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|error| Error::Advised(Box::new(error.into()), remedy.to_string()))
    }
}
