//! Calls that may wait for storage for ever run in helper processes. Here is the side that asks; [`Verb`] is the other one.

mod verbs;
mod zero;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use fabricbios_helper::{CallError, Supervisor};
use fabricbios_wire::LeaseId;

use crate::device::{dm::Slice, header::Header};
use crate::directory::Inode;
pub(crate) use verbs::Verb;
pub(crate) use zero::{Identity, range_is_busy};

/// A device that does not finish a chunk in this time is given up, just before the lease table gives up.
const SILENCE_MAX: Duration = Duration::from_secs(9);

/// Runs [`Verb`]s in helper processes.
#[derive(Debug)]
pub(crate) struct Wiper(pub(crate) Supervisor);

impl Wiper {
    /// Unlinks names in a directory, if they exist.
    pub(crate) fn remove(
        &self,
        directory: &Path,
        names: impl IntoIterator<Item = OsString>,
        progress: &dyn Fn(),
    ) -> Result<(), String> {
        let verb = Verb::Remove {
            directory: directory.into(),
            names: names.into_iter().collect(),
        };
        self.run(&verb, directory, progress)
    }

    /// Writes the header of a pool to its place on the device.
    pub(crate) fn record(&self, device: &Path, header: &Header) -> Result<(), String> {
        let verb = Verb::Record {
            device: device.into(),
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

    /// Makes a volume in a directory, unless it exists.
    pub(crate) fn make(
        &self,
        directory: &Path,
        identity: Inode,
        lease: LeaseId,
        bytes: u64,
    ) -> Result<(), String> {
        let verb = Verb::Make {
            directory: directory.into(),
            identity,
            lease,
            bytes,
        };
        self.run(&verb, directory, &|| ())
    }

    /// Overwrites the beginning of a file.
    pub(crate) fn mark(&self, file: &Path, text: &str) -> Result<(), String> {
        let verb = Verb::Mark {
            file: file.into(),
            text: text.to_owned(),
        };
        self.run(&verb, file, &|| ())
    }

    /// Removes a device-mapper device, if it exists.
    pub(crate) fn unmap(&self, uuid: &str, progress: &dyn Fn()) -> Result<(), String> {
        let uuid = uuid.to_owned();
        let device = format!("device-mapper device {uuid}");
        self.run(&Verb::Unmap { uuid }, device.as_ref(), progress)
    }

    /// Zeroes a part of a raw device, if it is still the device of the pool.
    pub(crate) fn zero(
        &self,
        device: &Path,
        identity: Identity,
        offset: u64,
        length: u64,
        progress: &dyn Fn(),
    ) -> Result<(), String> {
        let verb = Verb::Zero {
            device: device.into(),
            identity,
            offset,
            length,
        };
        self.run(&verb, device, progress)
    }

    fn run(&self, verb: &Verb, place: &Path, progress: &dyn Fn()) -> Result<(), String> {
        let done = self.0.call(verb, SILENCE_MAX, &|_what| progress());
        done.map_err(|error| match error {
            CallError::Failed(failure) => failure.detail,
            error => format!("{}: {verb}: {error}", place.display()),
        })
    }
}
