//! What went wrong: operation, path, value, and the system's answer.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// Why a call did not work.
#[derive(Debug)]
pub enum Cause {
    /// The system refused.
    Os(io::Error),
    /// The path is absolute or has a `..`: the caller's mistake.
    Outside,
    /// Longer than this many bytes, the most that is read.
    TooLong(usize),
    /// Not UTF-8, or a link without a last name.
    NotText,
    /// Text that does not parse.
    Malformed {
        /// The type that was asked for.
        wanted: &'static str,
        /// The start of what was there.
        got: String,
    },
    /// The write went through and this is there instead.
    ReadBack(String),
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

    /// On what, with the root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why it did not work.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// The system's error number, if it was the system that refused.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        if let Cause::Os(e) = &self.cause {
            e.raw_os_error()
        } else {
            None
        }
    }

    /// Whether there was nothing at the path.
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
            Self::ReadBack(got) => write!(f, "accepted, but reads back `{got}`"),
        }
    }
}

impl std::error::Error for Error {}
