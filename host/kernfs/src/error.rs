//! The error of a call: operation, path, value, and the cause.

use std::path::PathBuf;
use std::{fmt, io};

/// The cause of an error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] io::Error),
    /// The path is absolute or has a `..`: an error of the caller.
    #[error("path must be relative and without `..`")]
    Outside,
    /// The text is longer than this many bytes, the most that one read takes.
    #[error("longer than {0} bytes")]
    TooLong(usize),
    /// The text is not UTF-8, or the target of a link has no last name.
    #[error("not UTF-8 text")]
    NotText,
    /// The text does not parse.
    #[error("expected {wanted}, got `{got}`")]
    Malformed {
        /// The wanted type.
        wanted: &'static str,
        /// The start of the text.
        got: String,
    },
}

/// A failed call on a [`Tree`](crate::Tree).
#[derive(Debug)]
pub struct Error {
    operation: &'static str,
    path: PathBuf,
    value: Option<String>,
    cause: Cause,
}

impl Error {
    pub(crate) fn new(operation: &'static str, path: PathBuf, cause: impl Into<Cause>) -> Self {
        Self {
            operation,
            path,
            value: None,
            cause: cause.into(),
        }
    }

    pub(crate) fn with_value(self, shown: String) -> Self {
        Self {
            value: Some(shown),
            ..self
        }
    }

    /// The errno, if a system call failed.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        if let Cause::Os(e) = &self.cause {
            e.raw_os_error()
        } else {
            None
        }
    }

    /// Whether the path does not exist.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(&self.cause, Cause::Os(e) if crate::absent(e))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.operation)?;
        if let Some(value) = &self.value {
            write!(f, "{value} to ")?;
        }
        write!(f, "{}: {}", self.path.display(), self.cause)
    }
}

impl std::error::Error for Error {}
