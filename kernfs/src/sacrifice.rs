//! Calls that may never return, made by a process that can be given up.
//!
//! A thread that waits in the kernel without being interruptible cannot be ended, and the process that it
//! belongs to neither. So such a call is another process's: it is killed and forgotten, and whatever it
//! held is said.

use std::{ffi::OsString, fmt, io, time::Duration};

/// A program that makes one such call.
#[derive(Clone, Debug)]
pub struct Sacrifice {
    command: Vec<OsString>,
}

/// Why it did not do what it was for.
#[derive(Debug)]
pub enum Sacrificed {
    /// It could not be started.
    NotStarted(io::Error),
    /// It ended and said why.
    Failed(String),
    /// It made no progress for this long; it was killed and may stay for as long as the kernel likes.
    Stuck {
        /// Its process id.
        pid: u32,
        /// For how long nothing came from it.
        silent: Duration,
        /// Where in the kernel it waits, if that is told (`/proc/PID/wchan`).
        waits_in: Option<String>,
    },
}

impl fmt::Display for Sacrificed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(error) => write!(f, "cannot be started: {error}"),
            Self::Failed(why) => f.write_str(why),
            Self::Stuck {
                pid,
                silent,
                waits_in,
            } => {
                write!(
                    f,
                    "no progress for {} ms: process {pid}",
                    silent.as_millis()
                )?;
                match waits_in {
                    Some(place) => write!(f, " waits in {place}"),
                    None => f.write_str(" waits in the kernel"),
                }
            }
        }
    }
}

impl std::error::Error for Sacrificed {}

impl Sacrifice {
    /// A program and its arguments.
    #[must_use]
    pub fn new<A: Into<OsString>>(command: impl IntoIterator<Item = A>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
        }
    }

    /// Runs it. Each line on its standard output is progress; after `silence_max` without one it is given
    /// up.
    pub fn run(&self, silence_max: Duration, _progress: &dyn Fn(&str)) -> Result<(), Sacrificed> {
        Err(Sacrificed::Failed(format!(
            "{:?} within {silence_max:?}",
            self.command
        )))
    }
}
