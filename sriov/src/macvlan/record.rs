//! What each lease has: a file for each lease, in a directory that a reboot empties. The store writes and removes the
//! files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use fabricbios_lease::StepError;
use fabricbios_wire::{HandOver, LeaseId, MacAddress, VlanId};
use serde::{Deserialize, Serialize};

/// The files of macvlan leases end so; virtual functions have records in the same directory.
const SUFFIX: &str = ".macvlan";

/// What a lease has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The name of the parent.
    pub(super) parent: String,
    pub(super) mac: MacAddress,
    pub(super) vlan: Option<VlanId>,
    /// Bits per second.
    pub(super) rate_bps: u64,
    pub(super) hand_over: HandOver,
}

/// The files of all network functions end so.
const SUFFIXES: [&str; 2] = [SUFFIX, ".vf"];

/// The part of any record in the directory that no two leases share.
#[derive(Deserialize)]
struct Addressed {
    mac: MacAddress,
}

/// The directory.
#[derive(Clone, Debug)]
pub(super) struct Records(PathBuf);

impl Records {
    pub(super) fn open(directory: PathBuf) -> Result<Self, StepError> {
        let made = fs::create_dir_all(&directory);
        made.map_err(|error| failed("make directory of records", &directory, &error))?;
        Ok(Self(directory))
    }

    pub(super) fn find(&self, lease: LeaseId) -> Result<Option<Record>, StepError> {
        read(&self.file(lease))
    }

    pub(super) fn write(&self, lease: LeaseId, record: &Record) -> Result<(), StepError> {
        let at = self.file(lease);
        let new = at.with_extension("new");
        let text = serde_json::to_vec(record).map_err(io::Error::other);
        let written = text
            .and_then(|text| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &at));
        written.map_err(|error| failed("write record", &at, &error))
    }

    pub(super) fn remove(&self, lease: LeaseId) -> Result<(), StepError> {
        let at = self.file(lease);
        match fs::remove_file(&at) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove record", &at, &error))
            }
            _ => Ok(()),
        }
    }

    /// Of all parents.
    pub(super) fn all(&self) -> Result<Vec<(LeaseId, Record)>, StepError> {
        let mut all = Vec::new();
        for name in self.names()? {
            let lease = name.strip_suffix(SUFFIX).and_then(|it| it.parse().ok());
            let Some(lease) = lease else { continue };
            // It may have been removed meanwhile.
            all.extend(self.find(lease)?.map(|record| (lease, record)));
        }
        Ok(all)
    }

    /// Whether a lease of any kind in this directory has the address.
    pub(super) fn has_mac(&self, mac: MacAddress) -> Result<bool, StepError> {
        for name in self.names()? {
            if !SUFFIXES.iter().any(|it| name.ends_with(it)) {
                continue;
            }
            let found: Option<Addressed> = read(&self.0.join(name))?;
            if found.is_some_and(|it| it.mac == mac) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn names(&self) -> Result<Vec<String>, StepError> {
        let name = |it: io::Result<fs::DirEntry>| Ok(it?.file_name().to_string_lossy().into());
        let names = fs::read_dir(&self.0).and_then(|it| it.map(name).collect());
        names.map_err(|error| failed("list records", &self.0, &error))
    }

    fn file(&self, lease: LeaseId) -> PathBuf {
        self.0.join(format!("{lease}{SUFFIX}"))
    }
}

fn read<T: for<'a> Deserialize<'a>>(at: &Path) -> Result<Option<T>, StepError> {
    let parsed = match fs::read(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.and_then(|text| Ok(serde_json::from_slice(&text)?)),
    };
    parsed
        .map(Some)
        .map_err(|error| failed("read record", at, &error))
}

fn failed(step: &'static str, at: &Path, error: &io::Error) -> StepError {
    let detail = format_args!("{}: {error}", at.display());
    StepError::new(step, detail).with_errno(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn an_address_of_any_network_function_is_found_and_other_files_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::open(directory.path().to_owned()).unwrap();
        fs::write(directory.path().join("notes.txt"), "no record").unwrap();
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        assert!(!records.has_mac(mac).unwrap());
        let text = serde_json::json!({ "mac": mac }).to_string();
        fs::write(directory.path().join("1.vf"), text).unwrap();
        assert!(records.has_mac(mac).unwrap());
    }
}
