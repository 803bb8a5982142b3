//! The calls of this crate, as the helper process makes them.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::path::Path;

use fabricbios_helper::{Call, CallError, Caller, Failure};
use fabricbios_wire::LeaseId;

use serde::{Deserialize, Serialize};

use super::zero::{Identity, write_header, zero};
use crate::device::dm::{self, Slice};
use crate::device::header::Header;
use crate::directory::{self, Inode, remove_if_there};
use crate::error::{At, Error};

/// Reports progress. Fails if the daemon no longer listens: it has given up the helper process.
pub(super) type Progress<'a> = &'a dyn Fn() -> Result<(), Error>;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum PoolCall {
    /// Unlinks names in a directory, if they exist.
    Remove {
        directory: OsString,
        names: Vec<OsString>,
    },
    /// Removes a device-mapper device, if it exists.
    Unmap { uuid: String },
    /// Zeroes a part of a raw device, if it is still the device of the pool.
    Zero {
        device: OsString,
        identity: Identity,
        offset: u64,
        length: u64,
    },
    /// Writes the header of a pool at its place on the device.
    Record { device: OsString, header: Header },
    /// Makes a device-mapper device.
    Map(Slice),
    /// Makes a volume in a directory, unless it exists.
    Make {
        directory: OsString,
        identity: Inode,
        lease: LeaseId,
        bytes: u64,
    },
    /// Overwrites the beginning of a file.
    Mark { file: OsString, text: String },
}

/// Path and action, for error messages.
impl fmt::Display for PoolCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove { directory, .. } => write!(f, "{}: removing files", directory.display()),
            Self::Unmap { uuid } => write!(f, "device-mapper device {uuid}: removing the device"),
            Self::Record { device, .. } => write!(f, "{}: writing the header", device.display()),
            Self::Map(Slice { uuid, .. }) => {
                write!(f, "device-mapper device {uuid}: making the device")
            }
            Self::Make { directory, .. } => write!(f, "{}: making a file", directory.display()),
            Self::Mark { file, .. } => write!(f, "{}: writing the marker", file.display()),
            Self::Zero {
                device,
                offset,
                length,
                ..
            } => write!(
                f,
                "{}: zeroing {length} bytes at {offset}",
                device.display()
            ),
        }
    }
}

impl Call for PoolCall {
    const NAME: &'static str = "wipe";
    type Answer = ();

    fn make(self, caller: &Caller) -> Result<(), Failure> {
        let progress = || Ok(caller.progress("").map_err(CallError::Failed)?);
        Ok(self.perform(&progress)?)
    }
}

impl PoolCall {
    fn perform(&self, progress: Progress<'_>) -> Result<(), Error> {
        match self {
            Self::Remove { directory, names } => remove_names(directory.as_ref(), names, progress),
            Self::Unmap { uuid } => {
                let control = dm::Control::open()?;
                control.remove_patiently(uuid)?;
                progress()
            }
            Self::Zero {
                device,
                identity,
                offset,
                length,
            } => zero(device.as_ref(), *identity, *offset, *length, progress),
            Self::Record { device, header } => write_header(device.as_ref(), header),
            Self::Map(slice) => dm::Control::open()?.make(slice),
            Self::Make {
                directory,
                identity,
                lease,
                bytes,
            } => directory::make(directory.as_ref(), *identity, *lease, *bytes),
            Self::Mark { file, text } => directory::write_marker(file.as_ref(), text),
        }
    }
}

fn remove_names(directory: &Path, names: &[OsString], progress: Progress<'_>) -> Result<(), Error> {
    for name in names {
        let path = directory.join(name);
        remove_if_there(&path).at(&path)?;
        progress()?;
    }
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.at(directory)
}
