//! The records: a file for each lease, in a directory that a reboot empties. The stores write and remove the files.
//! Paths and the watchdog read them, also after the daemon has died.

use std::{
    fs::{self, File},
    io,
    marker::PhantomData,
    path::PathBuf,
};

use fabricbios_cgroup::records::{self, failed};
use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseId, MacAddress};
use serde::{Serialize, de::DeserializeOwned};

use crate::claims::Claim;

/// Suffixes of the records of virtual functions and of macvlans.
pub(crate) const VF: &str = ".vf";
pub(crate) const MACVLAN: &str = ".macvlan";

/// The record of a lease of one kind of network function.
pub(crate) trait Record: Serialize + DeserializeOwned {
    /// Suffix of the files.
    const SUFFIX: &'static str;

    /// What the lease has for itself alone.
    fn claim(&self) -> Claim;
}

/// The records of one kind. The records of both kinds are in one directory.
#[derive(Clone, Debug)]
pub(crate) struct Records<R> {
    directory: PathBuf,
    record: PhantomData<R>,
}

/// A record that cannot be removed while this exists.
#[derive(Debug)]
pub(crate) struct Held<R> {
    pub(crate) record: R,
    _lock: File,
}

impl<R: Record> Records<R> {
    pub(crate) fn at(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            record: PhantomData,
        }
    }

    pub(crate) fn make_directory(&self) -> Result<(), StepError> {
        let made = fs::create_dir_all(&self.directory);
        made.map_err(|error| failed("make directory of records", &self.directory, &error))
    }

    pub(crate) fn find(&self, lease: LeaseId) -> Result<Option<R>, StepError> {
        records::read(&self.file(lease)).map_err(|error| match error.errno {
            Some(_) => error,
            // The file is damaged.
            None => StepError {
                detail: error.detail + "; end what its lease has, then remove the file",
                ..error
            },
        })
    }

    /// Locks and reads a record. `None`: there is no record, or the lease's release is at its last step.
    pub(crate) fn hold(&self, lease: LeaseId) -> Result<Option<Held<R>>, StepError> {
        let at = self.file(lease);
        let opened = match File::open(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| failed("read record", &at, &error))?,
        };
        if opened.try_lock_shared().is_err() {
            return Ok(None);
        }
        // The file may have been removed meanwhile: a release locks it first and then removes its name.
        let record = self.find(lease)?;
        Ok(record.map(|record| Held {
            record,
            _lock: opened,
        }))
    }

    /// Writes a whole record or nothing.
    pub(crate) fn write(&self, lease: LeaseId, record: &R) -> Result<(), StepError> {
        let at = self.file(lease);
        records::write(&at, &at.with_extension("new"), record)
    }

    /// Removes a record. Waits while another process or thread holds it. Succeeds also if there is no record.
    pub(crate) fn remove(&self, lease: LeaseId) -> Result<(), StepError> {
        const STEP: &str = "remove record";
        let at = self.file(lease);
        let opened = File::open(&at).and_then(|file| file.lock().map(|()| file));
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(STEP, &at, &error)),
            Ok(_locked) => records::remove(STEP, &at),
        }
    }

    /// All records that can be read. Damaged records are logged and skipped; their functions stay reserved, because
    /// such a function is not in the state of an unused one.
    pub(crate) fn readable(&self) -> Result<Vec<(LeaseId, R)>, StepError> {
        let found = self.all()?.filter_map(|found| {
            let told = found.inspect_err(|error| tracing::error!(%error, "a damaged record"));
            told.ok()
        });
        Ok(found.collect())
    }

    /// All records; an error for each that is damaged.
    pub(crate) fn all(
        &self,
    ) -> Result<impl Iterator<Item = Result<(LeaseId, R), StepError>>, StepError> {
        let leases = records::leases(&self.directory, R::SUFFIX)?;
        Ok(leases.into_iter().filter_map(|lease| {
            // The record may have been removed meanwhile.
            let found = self.find(lease).transpose()?;
            Some(found.map(|record| (lease, record)))
        }))
    }

    /// The rate of an interface's link, in bits per second. A driver reports no rate (`told`) while the link is down.
    /// Then this is the rate that an earlier start since the last reboot recorded: leases go on, and the link may come
    /// back.
    pub(crate) fn rate_of(&self, name: &str, told: Option<u64>) -> Result<Option<u64>, StepError> {
        let at = self.directory.with_file_name(format!("{name}.rate"));
        let Some(rate_bps) = told else {
            return records::read(&at);
        };
        let written = fs::write(&at, rate_bps.to_string());
        written.map_err(|error| failed("write rate", &at, &error))?;
        Ok(told)
    }

    fn file(&self, lease: LeaseId) -> PathBuf {
        self.directory.join(format!("{lease}{}", R::SUFFIX))
    }
}

/// A locally administered address of a single interface (IEEE 802, U/L and I/G bits).
pub(crate) fn random_mac() -> Result<MacAddress, StepError> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).map_err(|error| StepError::new("make address", error))?;
    bytes[0] = bytes[0] & 0b1111_1100 | 0b10;
    Ok(MacAddress(bytes))
}
