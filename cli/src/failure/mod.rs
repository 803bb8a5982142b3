//! Why a command did not do what was asked: one line or one JSON object, and the exit status.

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
    /// The node's refusal, if it was one.
    refused: Option<LeaseError>,
    /// Nobody is listening: say nothing.
    silent: bool,
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

    /// The words alone.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}
