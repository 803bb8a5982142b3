//! The records of leases: a file for each lease, in a directory that a reboot empties. The next daemon and the watchdog
//! read there what a lease has.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use fabricbios_cgroup::{
    Containers, Process,
    nodes::Node,
    records::{self, failed, read, remove, write},
};
use fabricbios_contract::Cdi;
use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;
use serde::{Deserialize, Serialize};

use crate::{STEPS, management};

/// Suffix of the files of leases.
const SUFFIX: &str = ".gpu";

/// Suffix of the files of devices with bytes that are not wiped.
const UNWIPED: &str = ".unwiped";

/// Suffix of the files of wiped devices.
const WIPED: &str = ".wiped";

/// Suffix of the files of devices that have failed and were not reset since.
const FAILED: &str = ".failed";

/// The record of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The device or partition.
    pub(crate) uuid: String,
    /// No other lease shares the device.
    pub(crate) is_exclusive: bool,
    /// The device's nodes, if the lease may have programs on this node.
    pub(crate) nodes: Vec<Node>,
    /// The device's own nodes, if only users of leases may open them.
    pub(crate) owned: Vec<Node>,
    /// The users who may open `owned`: the worker's user, and in an exclusive class the tenant's users.
    pub(crate) users: BTreeSet<u32>,
    /// The directory of the lease's CDI specification.
    pub(crate) cdi: PathBuf,
    /// Most bytes that the session can allocate.
    pub(crate) vram_bytes: u64,
    /// Everything that a stream makes is wiped when the stream ends.
    pub(crate) one_shot: bool,
    /// The device is wiped when the session is closed.
    pub(crate) scrub_at_close: bool,
    /// The state of the device before the grant.
    pub(crate) baseline: Baseline,
    /// The last started worker.
    pub(crate) worker: Option<Worker>,
    /// A worker has ended without wiping its memory.
    pub(crate) is_dirty: bool,
    /// The lease is over, and the device may not be clean yet.
    pub(crate) is_over: bool,
}

impl Record {
    /// The CDI specification for container engines.
    pub(crate) fn cdi(&self) -> Cdi {
        Cdi::at(&self.cdi, "gpu")
    }
}

/// The state of a device before a grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Baseline {
    /// Free memory, bytes.
    pub(crate) free_bytes: u64,
    /// The processes that had the device's nodes open.
    pub(crate) holders: Vec<Process>,
    /// The processes that the vendor's library listed.
    pub(crate) listed: Vec<Listed>,
}

impl Baseline {
    /// The state that the vendor's library reports. The caller adds the processes that have the nodes open.
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
    /// `None`: no process has this number.
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

    /// Makes the directory. Only root may reach the sockets of workers.
    pub(crate) fn make_directory(&self) -> Result<(), StepError> {
        use std::os::unix::fs::DirBuilderExt;
        let mut make = fs::DirBuilder::new();
        let made = make.recursive(true).mode(0o700).create(&self.0);
        made.map_err(|error| failed("make directory of records", &self.0, &error))
    }

    pub(crate) fn find(&self, lease: LeaseId) -> Result<Option<Record>, StepError> {
        read(&self.of_lease(lease))
    }

    /// The file with the record of a lease.
    pub(crate) fn of_lease(&self, lease: LeaseId) -> PathBuf {
        self.file(lease, SUFFIX)
    }

    pub(crate) fn write(&self, lease: LeaseId, record: &Record) -> Result<(), StepError> {
        write(&self.of_lease(lease), &self.file(lease, ".new"), record)
    }

    /// The containers of a lease.
    pub(crate) fn containers(&self, lease: LeaseId) -> Containers {
        Containers::of(&self.0, lease, STEPS)
    }

    /// Removes all files of a lease, its record last.
    pub(crate) fn remove(&self, lease: LeaseId) -> Result<(), StepError> {
        self.containers(lease).remove()?;
        for at in [
            self.socket(lease),
            self.closed(lease),
            self.file(lease, ".new"),
            self.of_lease(lease),
        ] {
            remove("remove record", &at)?;
        }
        Ok(())
    }

    pub(crate) fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        records::leases(&self.0, SUFFIX)
    }

    /// The socket of a lease's worker.
    pub(crate) fn socket(&self, lease: LeaseId) -> PathBuf {
        self.file(lease, ".sock")
    }

    /// The file into which a worker writes that it wiped its memory before it ended.
    pub(crate) fn closed(&self, lease: LeaseId) -> PathBuf {
        self.file(lease, ".closed")
    }

    /// A file of the device with this UUID.
    pub(crate) fn of_device(&self, uuid: &str, suffix: &str) -> PathBuf {
        self.0
            .join(format!("{}{suffix}", uuid.replace(['/', '\0'], "_")))
    }

    /// The state of the device before its leases, if a lease left bytes there that are not wiped.
    pub(crate) fn unwiped(&self, uuid: &str) -> Result<Option<Baseline>, StepError> {
        read(&self.of_device(uuid, UNWIPED))
    }

    pub(crate) fn set_unwiped(&self, uuid: &str, baseline: &Baseline) -> Result<(), StepError> {
        let new = self.of_device(uuid, ".new");
        write(&self.of_device(uuid, UNWIPED), &new, baseline)
    }

    /// Records that all free memory of the device, this many bytes, was wiped.
    pub(crate) fn set_wiped(&self, uuid: &str, free_bytes: u64) -> Result<(), StepError> {
        let new = self.of_device(uuid, ".new");
        write(&self.of_device(uuid, WIPED), &new, &free_bytes)?;
        remove("remove record", &self.of_device(uuid, UNWIPED))
    }

    /// Records that the wiped memory no longer counts, because others may use the device from now on.
    pub(crate) fn forget_wiped(&self, uuid: &str) -> Result<(), StepError> {
        remove("remove record", &self.of_device(uuid, WIPED))
    }

    /// Free bytes of the device at its last wipe. Free bytes beyond this number are not wiped.
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

    /// Records that the device was reset.
    pub(crate) fn set_reset(&self, uuid: &str) -> Result<(), StepError> {
        remove("remove record", &self.of_device(uuid, FAILED))
    }

    fn file(&self, lease: LeaseId, suffix: &str) -> PathBuf {
        self.0.join(format!("{lease}{suffix}"))
    }
}
