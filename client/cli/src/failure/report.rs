//! The output of a failure: one line for people, one JSON object for programs.

use std::{
    borrow::Cow,
    io::{self, Write},
    process::ExitCode,
};

use fabricbios_wire::RefusalClass;
use serde::{Deserialize, Serialize};

use super::{Exit, Failure};
use crate::output::{Output, one_line};

/// The JSON of a failure.
#[derive(Serialize, Deserialize)]
struct Json<'a> {
    error: Exit,
    reason: Reason<'a>,
    message: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewable_at_unix_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct Reason<'a> {
    class: Cow<'a, str>,
    code: Cow<'a, str>,
}

impl Failure {
    /// Prints the failure and returns the exit status.
    pub(crate) fn report(&self, output: Output) -> ExitCode {
        if !self.silent {
            let line = if output.json {
                self.json()
            } else {
                self.line()
            };
            // If standard error is closed too, only the exit status is left.
            writeln!(io::stderr(), "{line}").ok();
        }
        ExitCode::from(self.status.unwrap_or(self.exit as u8))
    }

    fn line(&self) -> String {
        let Self {
            message,
            code,
            class,
            ..
        } = self;
        let message = one_line(message);
        match self.exit {
            // The message is enough for wrong arguments.
            Exit::Usage => format!("fabricctl: {message}"),
            _ => format!("fabricctl: {message} [{code}, {class}]"),
        }
    }

    /// Parses the output of [`Failure::json`] of another process.
    pub(crate) fn from_json(text: &str) -> Option<Self> {
        let json: Json<'_> = serde_json::from_str(text).ok()?;
        let Reason { class, code } = &json.reason;
        let class = class.parse().unwrap_or(RefusalClass::Permanent);
        Some(Self::new(json.error, class, code, json.message))
    }

    /// The JSON object.
    pub(crate) fn json(&self) -> String {
        let json = Json {
            error: self.exit,
            reason: Reason {
                class: self.class.name().into(),
                code: (&self.code).into(),
            },
            message: (&self.message).into(),
            renewable_at_unix_ms: self.renewable_at_unix_ms,
            retry_after_ms: self.retry_after_ms,
        };
        serde_json::to_string(&json).unwrap_or_else(|_| r#"{"error":"failed"}"#.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_client::Error;
    use fabricbios_wire::{LeaseError, Refusal};

    use super::*;

    #[test]
    fn every_refusal_is_told_with_its_name_and_class() {
        for error in LeaseError::ALL {
            let refusal = Refusal::new(*error, RefusalClass::Transient, "why");
            let failure = Failure::from(Error::Refused(refusal));
            assert!(
                failure.line().starts_with("fabricctl: why ["),
                "{}",
                failure.line()
            );
            assert!(
                failure
                    .line()
                    .ends_with(&format!("[{}, transient]", error.name()))
            );
        }
    }

    #[test]
    fn a_nodes_message_cannot_write_on_the_terminal() {
        let refusal = Refusal::new(LeaseError::Internal, RefusalClass::Permanent, "a\n\x1b[2Jb");
        let line = Failure::from(Error::Refused(refusal)).line();
        assert!(!line.contains(['\n', '\x1b']), "{line:?}");
    }
}
