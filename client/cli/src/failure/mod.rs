//! The failure of a command: one line or one JSON object, and the exit status.

mod attach;
mod client;
mod exit;
mod report;

use std::{fmt, io};

use fabricbios_wire::{LeaseError, RefusalClass};

pub(crate) use self::exit::Exit;
use crate::hint::{self, Topic};

/// A command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    class: RefusalClass,
    code: String,
    message: String,
    renewable_at_unix_ms: Option<u64>,
    retry_after_ms: Option<u32>,
    /// The code of the node, if the node refused.
    refused: Option<LeaseError>,
    /// Whether to print nothing, because the reader has gone or knows it already.
    silent: bool,
    /// An exit status of the command's own, in the place of that of `exit`.
    status: Option<u8>,
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
            retry_after_ms: None,
            refused: None,
            silent: false,
            status: None,
        }
    }

    /// Standard output has said everything.
    pub(crate) fn told(exit: Exit) -> Self {
        Self {
            silent: true,
            ..Self::new(exit, RefusalClass::Permanent, "Told", "")
        }
    }

    /// Has the command exit with a status of its own.
    pub(crate) fn exiting_with(self, status: u8) -> Self {
        let status = Some(status);
        Self { status, ..self }
    }

    /// Wrong arguments.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, RefusalClass::Permanent, "Usage", message)
    }

    /// A failed operation of this machine.
    pub(crate) fn local(what: &str, error: &dyn fmt::Display) -> Self {
        let message = format!("cannot {what}: {error}");
        Self::new(Exit::Other, RefusalClass::Permanent, "Local", message)
    }

    /// A failed write to standard output. It is silent if the reader has closed the pipe.
    pub(crate) fn output(error: io::Error) -> Self {
        let silent = error.kind() == io::ErrorKind::BrokenPipe;
        Self {
            silent,
            ..Self::local("write to standard output", &error)
        }
    }

    /// Adds the lease or file, unless the message of the node has it.
    pub(crate) fn at(mut self, what: &str) -> Self {
        if !self.message.contains(what) {
            self.message = format!("{what}: {}", self.message);
        }
        self
    }

    /// Adds a hint about the next step, unless the refusal has one.
    pub(crate) fn with_hint(mut self, topic: Topic) -> Self {
        let is_over = self.class == RefusalClass::Permanent;
        let refused = self.refused;
        // A permanent Unavailable stays the same at the next try, so its hint would be wrong.
        let refused = refused.filter(|error| !(is_over && *error == LeaseError::Unavailable));
        let hint = refused.and_then(|error| hint::hint(topic, error, &self.message));
        if let Some(hint) = hint {
            self.message = format!("{}; {hint}", self.message.trim_end_matches('.'));
        }
        self
    }

    /// Adds to the message, which is then not silent.
    pub(crate) fn and_message(mut self, more: &str) -> Self {
        self.message = format!("{}; {more}", self.message);
        self.silent = false;
        self
    }
}
