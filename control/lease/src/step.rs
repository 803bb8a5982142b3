//! A step that failed.

use alloc::{borrow::Cow, format, string::String};
use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The name of a step, such as `modify_qp RTR` or `dealloc_mw`, with the path if the lease has several. For people
/// only: the program decides nothing by the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    path: Option<Cow<'static, str>>,
    name: Cow<'static, str>,
}

impl Step {
    /// Its name, without the path.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path, such as `UDP`.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }
}

impl From<&'static str> for Step {
    fn from(name: &'static str) -> Self {
        Self {
            path: None,
            name: Cow::Borrowed(name),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{path} transport: ")?;
        }
        f.write_str(&self.name)
    }
}

/// A step that failed: the step, the place and the error of the operating system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// Which step.
    pub step: Step,
    /// The error number, if a system call failed.
    pub errno: Option<i32>,
    /// Path, value, lease and errno, for people.
    pub detail: String,
}

impl StepError {
    /// A failure of `step`.
    pub fn new(step: impl Into<Step>, detail: impl fmt::Display) -> Self {
        Self {
            step: step.into(),
            errno: None,
            detail: format!("{detail}"),
        }
    }

    /// Adds the error number of a system call.
    #[must_use]
    pub fn with_errno(self, errno: impl Into<Option<i32>>) -> Self {
        let errno = errno.into();
        Self { errno, ..self }
    }

    /// Names the path of the step.
    #[must_use]
    pub fn over(mut self, path: &'static str) -> Self {
        self.step.path = Some(Cow::Borrowed(path));
        self
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.step, self.detail)
    }
}

impl core::error::Error for StepError {}

/// A step error in a record: the name of the step, with its path, and the detail. Records have no errno field; the
/// detail has the number.
pub(crate) mod recorded {
    use super::{
        Cow, Deserialize, Deserializer, Serialize, Serializer, Step, StepError, String, format,
    };

    #[derive(Serialize, Deserialize)]
    struct Recorded {
        step: String,
        detail: String,
    }

    pub(crate) fn serialize<S: Serializer>(error: &StepError, to: S) -> Result<S::Ok, S::Error> {
        let recorded = Recorded {
            step: format!("{}", error.step),
            detail: error.detail.clone(),
        };
        recorded.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<StepError, D::Error> {
        let Recorded { step, detail } = Recorded::deserialize(from)?;
        Ok(StepError {
            step: Step {
                path: None,
                name: Cow::Owned(step),
            },
            errno: None,
            detail,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_path_and_its_step() {
        let error = StepError::new("bind", "on purpose")
            .with_errno(5)
            .over("UDP");
        assert_eq!(format!("{error}"), "UDP transport: bind: on purpose");
        assert_eq!(
            (error.step.path(), error.step.name()),
            (Some("UDP"), "bind")
        );
        assert_eq!(error.errno, Some(5));
    }
}
