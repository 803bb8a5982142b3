//! Why a command did not do what was asked: one line or one JSON object, and the exit status.

use std::{
    fmt,
    io::{self, Write},
    process::ExitCode,
};

use fabricbios_client::Error;
use fabricbios_wire::{LeaseError, Refusal, RefusalClass};
use serde::{Deserialize, Serialize};

use crate::{
    hint::{self, Topic},
    output::Output,
};

/// Exit statuses; `fabricctl --help` says what leads to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Other = 1,
    Usage = 2,
    Refused = 3,
    NotFound = 4,
    Fenced = 5,
    Unreachable = 6,
}

impl Exit {
    const ALL: [Self; 6] = [
        Self::Other,
        Self::Usage,
        Self::Refused,
        Self::NotFound,
        Self::Fenced,
        Self::Unreachable,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Other => "failed",
            Self::Usage => "usage",
            Self::Refused => "refused",
            Self::NotFound => "not_found",
            Self::Fenced => "fenced",
            Self::Unreachable => "unreachable",
        }
    }
}

/// A command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    class: RefusalClass,
    code: String,
    message: String,
    renewable_at_unix_ms: Option<u64>,
    /// The node's refusal, if it was one.
    refused: Option<LeaseError>,
    /// Nobody is listening: say nothing.
    silent: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    error: &'a str,
    reason: Reason<'a>,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewable_at_unix_ms: Option<u64>,
}

#[derive(Serialize)]
struct Reason<'a> {
    class: &'a str,
    code: &'a str,
}

/// [`Json`], read back.
#[derive(Deserialize)]
struct Said {
    reason: SaidReason,
    message: String,
}

#[derive(Deserialize)]
struct SaidReason {
    class: String,
    code: String,
}

impl Failure {
    pub(crate) fn new(
        exit: Exit,
        class: RefusalClass,
        code: &str,
        message: impl Into<String>,
    ) -> Self {
        let (code, message) = (code.to_owned(), message.into());
        Self {
            exit,
            class,
            code,
            message,
            renewable_at_unix_ms: None,
            refused: None,
            silent: false,
        }
    }

    /// Wrong arguments.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, RefusalClass::Permanent, "Usage", message)
    }

    /// Something on this machine.
    pub(crate) fn local(what: &str, error: &dyn fmt::Display) -> Self {
        let message = format!("cannot {what}: {error}");
        Self::new(Exit::Other, RefusalClass::Permanent, "Local", message)
    }

    /// Standard output did not take it. A reader that has gone away wanted no more.
    pub(crate) fn output(error: io::Error) -> Self {
        let silent = error.kind() == io::ErrorKind::BrokenPipe;
        Self {
            silent,
            ..Self::local("write to standard output", &error)
        }
    }

    /// Says on which lease or file, unless the node has said so itself.
    pub(crate) fn at(mut self, what: &str) -> Self {
        if !self.message.contains(what) {
            self.message = format!("{what}: {}", self.message);
        }
        self
    }

    /// Says what to do next, where a refusal leaves it open.
    pub(crate) fn advised(mut self, topic: Topic) -> Self {
        let hint = self
            .refused
            .and_then(|error| hint::hint(topic, error, &self.message));
        if let Some(hint) = hint {
            self.message = format!("{}; {hint}", self.message);
        }
        self
    }

    /// Says more.
    pub(crate) fn loudly(mut self, more: &str) -> Self {
        self.message = format!("{}; {more}", self.message);
        self.silent = false;
        self
    }

    /// Prints it; the exit status.
    pub(crate) fn report(&self, output: Output) -> ExitCode {
        if !self.silent {
            let line = if output.json {
                self.json()
            } else {
                self.line()
            };
            // With standard error gone too there is only the exit status left.
            writeln!(io::stderr(), "{line}").ok();
        }
        ExitCode::from(self.exit as u8)
    }

    fn line(&self) -> String {
        let Self {
            message,
            code,
            class,
            ..
        } = self;
        // A node's message is one line; whatever came, it stays one.
        let message = message.replace(char::is_control, " ");
        match self.exit {
            // What is wrong with the arguments has been said already.
            Exit::Usage => format!("fabricctl: {message}"),
            _ => format!("fabricctl: {message} [{code}, {class}]"),
        }
    }

    /// What another process of this program said with [`Failure::json`], and its exit status.
    pub(crate) fn from_json(text: &str, status: Option<i32>) -> Option<Self> {
        let said: Said = serde_json::from_str(text).ok()?;
        let exit = Exit::ALL
            .into_iter()
            .find(|exit| Some(*exit as i32) == status);
        let class = said.reason.class.parse().unwrap_or(RefusalClass::Permanent);
        let exit = exit.unwrap_or(Exit::Other);
        Some(Self::new(exit, class, &said.reason.code, said.message))
    }

    /// The words alone.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// One object, as `--json` has it.
    pub(crate) fn json(&self) -> String {
        let json = Json {
            error: self.exit.word(),
            reason: Reason {
                class: self.class.name(),
                code: &self.code,
            },
            message: &self.message,
            renewable_at_unix_ms: self.renewable_at_unix_ms,
        };
        serde_json::to_string(&json).unwrap_or_else(|_| r#"{"error":"failed"}"#.to_owned())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        use RefusalClass::{Permanent, Policy, Transient};
        let refusal = match error {
            Error::Refused(refusal) => return refused(refusal),
            other => other,
        };
        let (exit, class, code) = match &refusal {
            Error::Unreachable { .. } => (Exit::Unreachable, Transient, "Unreachable"),
            Error::Usage(_) => (Exit::Usage, Permanent, "Usage"),
            Error::Identity { .. } => (Exit::Usage, Permanent, "Identity"),
            Error::IdentityRefused { .. } => (Exit::Refused, Policy, "IdentityRefused"),
            Error::UntrustedNode { .. } => (Exit::Other, Permanent, "UntrustedNode"),
            Error::FailedClosed { .. } => (Exit::Refused, Permanent, "FailedClosed"),
            Error::Ended { .. } => (Exit::NotFound, Permanent, "Ended"),
            Error::WritesLost(_) => (Exit::Other, Transient, "WritesLost"),
            Error::Protocol { .. } => (Exit::Other, Permanent, "Protocol"),
            _ => (Exit::Other, Permanent, "Local"),
        };
        // What the node would have said.
        let refused = matches!(refusal, Error::Ended { .. }).then_some(LeaseError::Expired);
        Self {
            refused,
            ..Self::new(exit, class, code, refusal.to_string())
        }
    }
}

fn refused(refusal: Refusal) -> Failure {
    let Refusal {
        error,
        class,
        message,
        renewable_at_unix_ms,
    } = refusal;
    let failure = Failure::new(exit_of(error), class, error.name(), message);
    Failure {
        renewable_at_unix_ms,
        refused: Some(error),
        ..failure
    }
}

fn exit_of(error: LeaseError) -> Exit {
    match error {
        LeaseError::InvalidIntent
        | LeaseError::InvalidArgs
        | LeaseError::CapacityExceeded
        | LeaseError::ResourceBusy
        | LeaseError::NotPermitted
        | LeaseError::RenewTooEarly
        | LeaseError::Unsupported => Exit::Refused,
        LeaseError::NotFound | LeaseError::Expired | LeaseError::Revoked => Exit::NotFound,
        LeaseError::Fenced => Exit::Fenced,
        LeaseError::Unavailable => Exit::Unreachable,
        LeaseError::Malformed | LeaseError::Internal => Exit::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_exit_and_its_name() {
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
        assert_eq!(exit_of(LeaseError::Fenced), Exit::Fenced);
        assert_eq!(exit_of(LeaseError::Expired), Exit::NotFound);
        assert_eq!(exit_of(LeaseError::CapacityExceeded), Exit::Refused);
        assert_eq!(exit_of(LeaseError::Unavailable), Exit::Unreachable);
    }

    #[test]
    fn a_nodes_message_cannot_write_on_the_terminal() {
        let refusal = Refusal::new(LeaseError::Internal, RefusalClass::Permanent, "a\n\x1b[2Jb");
        let line = Failure::from(Error::Refused(refusal)).line();
        assert!(!line.contains(['\n', '\x1b']), "{line:?}");
    }
}
