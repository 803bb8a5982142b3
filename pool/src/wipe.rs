//! What can wait for storage for ever is done by processes of its own: the half that starts them, and
//! [`wipe_main`], which is what they do.

mod verbs;
mod zero;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use fabricbios_kernfs::{Sacrifice, Sacrificed};
use fabricbios_wire::LeaseId;

use crate::device::{dm::Slice, header::Header};
use crate::directory::Inode;
use verbs::Verb;
pub(crate) use zero::{Identity, range_is_busy};

/// A device that has not finished a chunk in this time is given up: just before the lease table would.
const SILENCE_MAX: Duration = Duration::from_secs(9);

/// The program that does [`wipe_main`].
#[derive(Debug)]
pub(crate) struct Wiper {
    command: Vec<OsString>,
}

impl Wiper {
    pub(crate) fn new(command: &[OsString]) -> Self {
        Self {
            command: command.to_vec(),
        }
    }

    /// Unlinks names in a directory, those that are there.
    pub(crate) fn remove(
        &self,
        directory: &Path,
        names: impl IntoIterator<Item = OsString>,
        progress: &dyn Fn(),
    ) -> Result<(), String> {
        let verb = Verb::Remove {
            directory: directory.to_owned(),
            names: names.into_iter().collect(),
        };
        self.run(&verb, directory, progress)
    }

    /// Writes a pool's header onto its device, where it belongs.
    pub(crate) fn record(&self, device: &Path, header: &Header) -> Result<(), String> {
        let verb = Verb::Record {
            device: device.to_owned(),
            header: header.clone(),
        };
        self.run(&verb, device, &|| ())
    }

    /// Makes a device-mapper device.
    pub(crate) fn map(&self, slice: &Slice) -> Result<(), String> {
        let device = format!("device-mapper device {}", slice.uuid);
        let verb = Verb::Map(slice.clone());
        self.run(&verb, device.as_ref(), &|| ())
    }

    /// Makes a volume in a directory, unless it is there.
    pub(crate) fn make(
        &self,
        directory: &Path,
        identity: Inode,
        lease: LeaseId,
        bytes: u64,
    ) -> Result<(), String> {
        let verb = Verb::Make {
            directory: directory.to_owned(),
            identity,
            lease,
            bytes,
        };
        self.run(&verb, directory, &|| ())
    }

    /// Overwrites the beginning of a file.
    pub(crate) fn mark(&self, file: &Path, text: &str) -> Result<(), String> {
        let verb = Verb::Mark {
            file: file.to_owned(),
            text: text.to_owned(),
        };
        self.run(&verb, file, &|| ())
    }

    /// Removes a device-mapper device, if it is there.
    pub(crate) fn unmap(&self, uuid: &str, progress: &dyn Fn()) -> Result<(), String> {
        let uuid = uuid.to_owned();
        let device = format!("device-mapper device {uuid}");
        self.run(&Verb::Unmap { uuid }, device.as_ref(), progress)
    }

    /// Makes part of a raw device zeros, if it is still the device of that pool.
    pub(crate) fn zero(
        &self,
        device: &Path,
        identity: Identity,
        offset: u64,
        length: u64,
        progress: &dyn Fn(),
    ) -> Result<(), String> {
        let verb = Verb::Zero {
            device: device.to_owned(),
            identity,
            offset,
            length,
        };
        self.run(&verb, device, progress)
    }

    fn run(&self, verb: &Verb, place: &Path, progress: &dyn Fn()) -> Result<(), String> {
        let command = self.command.iter().cloned().chain(verb.to_arguments());
        let done = Sacrifice::new(command).run(SILENCE_MAX, &|_line| progress());
        done.map_err(|error| match error {
            Sacrificed::Failed(why) => why,
            Sacrificed::NotStarted(_) => format!("{:?}: {error}", self.command),
            Sacrificed::Stuck { .. } => format!("{}: {verb}: {error}", place.display()),
        })
    }
}

/// The process that wipes: a call that can wait for ever for a device must not be the daemon's.
/// It says a line on its standard output whenever it has got on, and on standard error why it failed.
#[must_use]
pub fn wipe_main(arguments: &[OsString]) -> ExitCode {
    let words: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
    let done = outlive_no_parent()
        .and_then(|()| Verb::parse(&words))
        .and_then(|verb| verb.perform(&say_so));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// One whose daemon has died would otherwise go on zeroing what the next daemon gives out.
fn outlive_no_parent() -> Result<(), String> {
    let killed = nix::sys::signal::Signal::SIGKILL;
    nix::sys::prctl::set_pdeathsig(killed).map_err(|error| format!("parent death signal: {error}"))
}

fn say_so() -> Result<(), String> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "on")
        .and_then(|()| output.flush())
        .map_err(|error| format!("nobody listens any more: {error}"))
}
