//! Which lease has which virtual function: a file for each lease, in a directory that a reboot empties. The store writes
//! and removes the files. Path and watchdog find in them what a lease has, also after the daemon has died.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use fabricbios_lease::StepError;
use fabricbios_wire::{HandOver, LeaseId, MacAddress, PciFunction, VlanId};
use serde::{Deserialize, Serialize};

use super::{cdi::unless_gone, pci::failed_at};

/// The files of virtual functions end so; other network functions have records in the same directory.
const SUFFIX: &str = ".vf";

/// What a lease has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The card.
    pub(super) card: PciFunction,
    /// The virtual function.
    pub(super) function: PciFunction,
    /// Its number on the card.
    pub(super) number: u32,
    pub(super) mac: MacAddress,
    pub(super) vlan: Option<VlanId>,
    pub(super) rate_mbps: u32,
    pub(super) hand_over: HandOver,
    /// Present if the function is handed over through vfio.
    pub(super) vfio: Option<Vfio>,
}

/// A function that a process gets through vfio.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Vfio {
    /// The IOMMU group.
    pub(super) group: u32,
    /// The directory of its specification.
    pub(super) specs: String,
}

/// The directory.
#[derive(Clone, Debug)]
pub(super) struct Records(pub(super) PathBuf);

/// A record that stays while this exists.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) record: Record,
    _lock: File,
}

impl Records {
    pub(super) fn make_directory(&self) -> Result<(), StepError> {
        let made = fs::create_dir_all(&self.0);
        made.map_err(|error| failed_at("make directory of records", &self.0, &error))
    }

    pub(super) fn find(&self, lease: LeaseId) -> Result<Option<Record>, StepError> {
        let at = self.file(lease);
        match fs::read(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => parse(&at, read).map(Some),
        }
    }

    /// `None`: the lease has no function any more, or its release is at its last step.
    pub(super) fn hold(&self, lease: LeaseId) -> Result<Option<Held>, StepError> {
        let at = self.file(lease);
        let opened = match File::open(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| failed_at("read record", &at, &error))?,
        };
        if opened.try_lock_shared().is_err() {
            return Ok(None);
        }
        // A release that has removed the name had locked the file before.
        let record = self.find(lease)?;
        Ok(record.map(|record| Held {
            record,
            _lock: opened,
        }))
    }

    pub(super) fn write(&self, lease: LeaseId, record: &Record) -> Result<(), StepError> {
        let at = self.file(lease);
        let new = at.with_extension("new");
        let text = serde_json::to_vec(record).map_err(io::Error::other);
        let written = text
            .and_then(|text| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &at));
        written.map_err(|error| failed_at("claim function", &at, &error))
    }

    /// Waits while somebody holds the record. Success also if there is none.
    pub(super) fn remove(&self, lease: LeaseId) -> Result<(), StepError> {
        let at = self.file(lease);
        let removed = match File::open(&at) {
            Err(error) => unless_gone(Err(error)),
            Ok(file) => file.lock().and_then(|()| unless_gone(fs::remove_file(&at))),
        };
        removed.map_err(|error| failed_at("remove record", &at, &error))
    }

    /// Of all cards.
    pub(super) fn all(&self) -> Result<Vec<(LeaseId, Record)>, StepError> {
        let failed = |error| failed_at("list records", &self.0, &error);
        let mut all = Vec::new();
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(all),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let lease = name.to_str().and_then(|it| it.strip_suffix(SUFFIX));
            let Some(lease) = lease.and_then(|it| it.parse().ok()) else {
                continue;
            };
            all.extend(self.find(lease)?.map(|record| (lease, record)));
        }
        Ok(all)
    }

    fn file(&self, lease: LeaseId) -> PathBuf {
        self.0.join(format!("{lease}{SUFFIX}"))
    }
}

fn parse(at: &Path, read: io::Result<Vec<u8>>) -> Result<Record, StepError> {
    let record = read.and_then(|text| Ok(serde_json::from_slice(&text)?));
    record.map_err(|error| failed_at("read record", at, &error))
}
