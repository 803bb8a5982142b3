//! What each lease has: a file for each lease, in a directory that a reboot empties. The next daemon and the watchdog find
//! there what a lease has.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use fabricbios_cgroup::{Containers, Process};
use fabricbios_contract::Cdi;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{Node, STEPS, management};

/// The files of records end so.
const SUFFIX: &str = ".gpu";

/// The files of devices that are not wiped end so.
const UNWIPED: &str = ".unwiped";

/// The files of devices that were wiped end so.
const WIPED: &str = ".wiped";

/// The files of devices that have failed and were not reset since end so.
const FAILED: &str = ".failed";

/// What a lease has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The device or partition.
    pub(crate) uuid: String,
    /// No other lease has any of the device.
    pub(crate) is_exclusive: bool,
    /// The device's nodes, if the lease may have programs on this node.
    pub(crate) nodes: Vec<Node>,
    /// The device's own nodes, if only those may open them who have a lease.
    pub(crate) owned: Vec<Node>,
    /// Those who may open them: the worker's user, and in an exclusive class those of the tenant.
    pub(crate) users: BTreeSet<u32>,
    /// The directory of its CDI specification.
    pub(crate) cdi: PathBuf,
    /// The most bytes that its session can allocate.
    pub(crate) vram_bytes: u64,
    /// Everything that a stream makes is wiped at its end.
    pub(crate) one_shot: bool,
    /// The device is wiped when the session is closed.
    pub(crate) scrub_at_close: bool,
    /// The device before the grant.
    pub(crate) baseline: Baseline,
    /// The worker that was started last.
    pub(crate) worker: Option<Worker>,
    /// A worker has ended without wiping its memory.
    pub(crate) is_dirty: bool,
    /// The lease is over, and the device may not be clean yet.
    pub(crate) is_over: bool,
}

impl Record {
    /// What container engines get.
    pub(crate) fn cdi(&self) -> Cdi {
        Cdi::at(&self.cdi, "gpu")
    }
}

/// A device before a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Baseline {
    /// Bytes of memory that were free.
    pub(crate) free_bytes: u64,
    /// Those who had the device's nodes open.
    pub(crate) holders: Vec<Process>,
    /// Those whom the vendor's library listed.
    pub(crate) listed: Vec<Listed>,
}

impl Baseline {
    /// A device as the vendor's library tells it, with those who have its nodes open to be added.
    pub(crate) fn of(account: &management::Accounted) -> Self {
        Self {
            free_bytes: account.free_bytes,
            holders: Vec::new(),
            listed: account.processes.iter().map(Listed::of).collect(),
        }
    }
}

/// A process that the vendor's library lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) pid: u32,
    /// `None`: there is none with this number.
    pub(crate) process: Option<Process>,
}

impl Listed {
    pub(crate) fn of(listed: &management::Process) -> Self {
        let process = i32::try_from(listed.pid).ok().and_then(Process::of);
        Self {
            pid: listed.pid,
            process,
        }
    }
}

/// A worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Worker {
    pub(crate) process: Process,
    /// The number of its session.
    pub(crate) session: u64,
}

/// The records of all leases.
#[derive(Clone, Debug)]
pub(crate) struct Records(PathBuf);

impl Records {
    pub(crate) fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    /// Only root may reach the sockets of workers.
    pub(crate) fn make_directory(&self) -> Result<(), StepError> {
        use std::os::unix::fs::DirBuilderExt;
        let mut make = fs::DirBuilder::new();
        let made = make.recursive(true).mode(0o700).create(&self.0);
        made.map_err(|error| failed("make directory of records", &self.0, &error))
    }

    pub(crate) fn find(&self, lease: LeaseId) -> Result<Option<Record>, StepError> {
        read(&self.file(lease, SUFFIX))
    }

    pub(crate) fn write(&self, lease: LeaseId, record: &Record) -> Result<(), StepError> {
        write(&self.file(lease, SUFFIX), &self.file(lease, ".new"), record)
    }

    /// The containers of a lease.
    pub(crate) fn containers(&self, lease: LeaseId) -> Containers {
        Containers::of(&self.0, lease, STEPS)
    }

    /// Removes everything of a lease, the record last.
    pub(crate) fn remove(&self, lease: LeaseId) -> Result<(), StepError> {
        self.containers(lease).remove()?;
        for at in [
            self.socket(lease),
            self.closed(lease),
            self.file(lease, ".new"),
            self.file(lease, SUFFIX),
        ] {
            remove_file("remove record", &at)?;
        }
        Ok(())
    }

    pub(crate) fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| failed("list records", &self.0, &error))?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name()));
        let names: io::Result<Vec<_>> = names.collect();
        let names = names.map_err(|error| failed("list records", &self.0, &error))?;
        let lease = |name: &std::ffi::OsString| name.to_str()?.strip_suffix(SUFFIX)?.parse().ok();
        Ok(names.iter().filter_map(lease).collect())
    }

    /// The socket of a lease's worker.
    pub(crate) fn socket(&self, lease: LeaseId) -> PathBuf {
        self.file(lease, ".sock")
    }

    /// The file in which a worker says that it has wiped its memory before it ended.
    pub(crate) fn closed(&self, lease: LeaseId) -> PathBuf {
        self.file(lease, ".closed")
    }

    /// A file of the device with this UUID.
    pub(crate) fn of_device(&self, uuid: &str, suffix: &str) -> PathBuf {
        self.0
            .join(format!("{}{suffix}", uuid.replace(['/', '\0'], "_")))
    }

    /// The device as it was before its leases, if one of them has left bytes there that are not wiped.
    pub(crate) fn unwiped(&self, uuid: &str) -> Result<Option<Baseline>, StepError> {
        read(&self.of_device(uuid, UNWIPED))
    }

    pub(crate) fn set_unwiped(&self, uuid: &str, baseline: &Baseline) -> Result<(), StepError> {
        let new = self.of_device(uuid, ".new");
        write(&self.of_device(uuid, UNWIPED), &new, baseline)
    }

    /// All that was free on the device, so many bytes, was wiped.
    pub(crate) fn set_wiped(&self, uuid: &str, free_bytes: u64) -> Result<(), StepError> {
        let new = self.of_device(uuid, ".new");
        write(&self.of_device(uuid, WIPED), &new, &free_bytes)?;
        remove_file("remove record", &self.of_device(uuid, UNWIPED))
    }

    /// Others use the device from now on.
    pub(crate) fn forget_wiped(&self, uuid: &str) -> Result<(), StepError> {
        remove_file("remove record", &self.of_device(uuid, WIPED))
    }

    /// Bytes that were free on the device when it was last wiped. More than these are not wiped.
    pub(crate) fn wiped_bytes(&self, uuid: &str) -> Result<Option<u64>, StepError> {
        read(&self.of_device(uuid, WIPED))
    }

    /// Why the device has failed, for people, if it was not reset since.
    pub(crate) fn failure(&self, uuid: &str) -> Option<String> {
        let at = self.of_device(uuid, FAILED);
        let why = match read::<String>(&at) {
            Ok(why) => why?,
            Err(error) => error.to_string(),
        };
        Some(format!(
            "{why} (before this start of the node; if the device was reset by hand since, remove {} and start again)",
            at.display()
        ))
    }

    pub(crate) fn set_failed(&self, uuid: &str, why: &str) -> Result<(), StepError> {
        let new = self.of_device(uuid, ".failed.new");
        write(&self.of_device(uuid, FAILED), &new, &why)
    }

    /// The device was reset.
    pub(crate) fn set_reset(&self, uuid: &str) -> Result<(), StepError> {
        remove_file("remove record", &self.of_device(uuid, FAILED))
    }

    fn file(&self, lease: LeaseId, suffix: &str) -> PathBuf {
        self.0.join(format!("{lease}{suffix}"))
    }
}

/// What a file says. `None`: there is no file.
pub(crate) fn read<T: DeserializeOwned>(at: &Path) -> Result<Option<T>, StepError> {
    let text = match fs::read(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| failed("read record", at, &error))?,
    };
    let value = serde_json::from_slice(&text);
    value
        .map(Some)
        .map_err(|error| failed("read record", at, &error.into()))
}

/// Writes a file, all or nothing of it.
pub(crate) fn write<T: Serialize>(at: &Path, new: &Path, value: &T) -> Result<(), StepError> {
    let text = serde_json::to_vec(value).map_err(io::Error::from);
    let written = text
        .and_then(|text| fs::write(new, text))
        .and_then(|()| fs::rename(new, at));
    written.map_err(|error| failed("write record", at, &error))
}

/// Success also if there is none.
pub(crate) fn remove_file(step: &'static str, at: &Path) -> Result<(), StepError> {
    match fs::remove_file(at) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(step, at, &error)),
        _ => Ok(()),
    }
}

/// The error of a call on a file as that of a step.
pub(crate) fn failed(step: &'static str, at: &Path, error: &io::Error) -> StepError {
    StepError::new(step, format_args!("{}: {error}", at.display())).with_errno(error.raw_os_error())
}
