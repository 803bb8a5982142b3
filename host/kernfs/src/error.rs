//! The error of a call: operation, path, value, and the cause.

use std::path::PathBuf;
use std::{fmt, io};

/// The cause of an error.
#[derive(Debug)]
pub(crate) enum Cause {
    /// A system call failed.
    Os(io::Error),
    /// The path is absolute or has a `..`: an error of the caller.
    Outside,
    /// The text is longer than this many bytes, the most that one read takes.
    TooLong(usize),
    /// The text is not UTF-8, or the target of a link has no last name.
    NotText,
    /// The text does not parse.
    Malformed {
        /// The wanted type.
        wanted: &'static str,
        /// The start of the text.
        got: String,
    },
}

impl From<io::Error> for Cause {
    fn from(e: io::Error) -> Self {
        Self::Os(e)
    }
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

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os(e) => write!(f, "{e}"),
            Self::Outside => write!(f, "path must be relative and without `..`"),
            Self::TooLong(limit) => write!(f, "longer than {limit} bytes"),
            Self::NotText => write!(f, "not UTF-8 text"),
            Self::Malformed { wanted, got } => write!(f, "expected {wanted}, got `{got}`"),
        }
    }
}

impl std::error::Error for Error {}
