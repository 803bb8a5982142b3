//! A guest that several commands share, one after the other.
//!
//! After each command the guest checks what the command has left behind (boot/session.py lists the checked
//! things). If a command fails, hangs or leaves something behind, the guest ends, so that every command finds
//! the same clean guest.

use crate::guest::{Ending, Finished, Guest, nap};
use crate::job::{Job, Prelude};
use crate::lab::Lab;
use crate::machine::VmSpec;
use anyhow::{Context, Result, anyhow};
use std::time::Instant;

/// The program that the guest runs, relative to the checkout.
const PROGRAM: &str = "testbed/lab/boot/session.py";
const NAME: &str = "shared";

/// A guest that waits for commands. Dropping it ends it and leaves its logs.
#[derive(Debug)]
pub struct Session {
    guest: Guest,
    machine: VmSpec,
    commands: u32,
}

/// How a command in a shared guest ended.
#[derive(Debug)]
pub struct Turn {
    /// Exit code and output of the command.
    pub finished: Finished,
    /// The differences that the command left in the guest, as text; empty if the guest is as before.
    pub left: Vec<String>,
}

impl Lab {
    /// Boots a guest with soft-RoCE that waits for commands, with the machine and the echo of `first`.
    pub fn session(&self, first: &Job) -> Result<Session> {
        let mut job = Job::new(NAME, &["python3", PROGRAM]);
        job.preludes.push(Prelude::SoftRoce);
        job.timeout = None;
        job.echo = first.echo.clone();
        job.vm = first.vm.clone();
        let guest = self.booted(&job)?;
        Ok(Session {
            guest,
            machine: job.vm,
            commands: 0,
        })
    }
}

impl Session {
    /// Whether the guest has this machine.
    #[must_use]
    pub fn is(&self, machine: &VmSpec) -> bool {
        self.machine == *machine
    }

    /// Runs the command of a job, with its environment and its time limit. The session's own machine, preludes and echo
    /// are used, not those of the job. A guest that does not answer with an exit code is ended, and is an error.
    pub fn run(mut self, job: &Job) -> Result<(Self, Turn)> {
        let start = Instant::now();
        self.guest.goes_on(&job.name, job.timeout);
        self.commands += 1;
        let share = self.guest.directory.path().join("share");
        let [command, ended] =
            ["command", "ended"].map(|what| share.join(format!("{what}-{}", self.commands)));
        let unfinished = command.with_extension("part");
        std::fs::write(&unfinished, job.session_script())
            .and_then(|()| std::fs::rename(&unfinished, &command))
            .with_context(|| format!("cannot write {}", command.display()))?;
        while !ended.exists() {
            if let Some(ending) = self.guest.poll()? {
                return Err(self.failed(&ending));
            }
            nap();
        }
        let told = std::fs::read(&ended)?;
        let told = String::from_utf8_lossy(&told);
        let (code, left, output) = read(&told, self.guest.directory.nonce())
            .with_context(|| format!("{} makes no sense: {told:?}", ended.display()))?;
        let finished = Finished {
            code,
            output,
            took: start.elapsed(),
        };
        Ok((self, Turn { finished, left }))
    }

    fn failed(self, ending: &Ending) -> anyhow::Error {
        let (result, directory) = self.guest.finish(ending);
        let why = match result {
            Ok(finished) => anyhow!("the shared guest ended by itself, with {}", finished.code),
            Err(why) => why,
        };
        match directory.close(false) {
            Ok(()) => why,
            Err(error) => why.context(error),
        }
    }

    /// Ends the guest. After success no file of the guest stays on the host.
    pub fn close(self, succeeded: bool) -> Result<()> {
        let directory = self.guest.directory.clone();
        drop(self.guest);
        directory.close(succeeded)
    }
}

/// The nonce, the exit code and the number of lines about differences that follow; the rest is output.
fn read(told: &str, nonce: &str) -> Option<(i32, Vec<String>, String)> {
    let (first, mut rest) = told.split_once('\n')?;
    let (code, count) = first
        .strip_prefix(nonce)?
        .strip_prefix(' ')?
        .split_once(' ')?;
    let mut left = Vec::new();
    for _ in 0..count.parse::<u32>().ok()? {
        let (line, others) = rest.split_once('\n')?;
        left.push(line.to_owned());
        rest = others;
    }
    Some((code.parse().ok()?, left, rest.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_tells_is_read_with_its_own_nonce_only() {
        let told = "7-1 1 2\nleft a b\ntook away c\nok 1\nFAILED 2\n";
        let left = ["left a b", "took away c"].map(str::to_owned).to_vec();
        let output = "ok 1\nFAILED 2\n".to_owned();
        assert_eq!(read(told, "7-1"), Some((1, left, output)));
        assert_eq!(read("7-1 0 0\n", "7-1"), Some((0, vec![], String::new())));
        for wrong in ["", "7-2 0 0\n", "7-1 x 0\n", "7-1 0 2\nleft a\n", "7-1 0\n"] {
            assert_eq!(read(wrong, "7-1"), None, "{wrong:?}");
        }
    }
}
