//! The records: a file for each lease, in a directory that a reboot empties. The stores write and remove the files.
//! Paths and the watchdog read them, also after the daemon has died.

use std::{
    fs::{self, File},
    io,
    marker::PhantomData,
    path::{Path, PathBuf},
};

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
        read(&self.file(lease))
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
        let new = at.with_extension("new");
        let text = serde_json::to_vec(record).map_err(io::Error::other);
        let written = text
            .and_then(|text| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &at));
        written.map_err(|error| failed("write record", &at, &error))
    }

    /// Removes a record. Waits while another process or thread holds it. Succeeds also if there is no record.
    pub(crate) fn remove(&self, lease: LeaseId) -> Result<(), StepError> {
        let at = self.file(lease);
        let removed = match File::open(&at) {
            Err(error) => unless_gone(Err(error)),
            Ok(file) => file.lock().and_then(|()| unless_gone(fs::remove_file(&at))),
        };
        removed.map_err(|error| failed("remove record", &at, &error))
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
        let name = |it: io::Result<fs::DirEntry>| Ok(it?.file_name().to_string_lossy().into());
        let names = fs::read_dir(&self.directory).and_then(|it| it.map(name).collect());
        let names: Vec<String> = match names {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names.map_err(|error| failed("list records", &self.directory, &error))?,
        };
        Ok(names.into_iter().filter_map(|name| {
            let lease = name.strip_suffix(R::SUFFIX)?.parse().ok()?;
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
            return read(&at);
        };
        let written = fs::write(&at, rate_bps.to_string());
        written.map_err(|error| failed("write rate", &at, &error))?;
        Ok(told)
    }

    fn file(&self, lease: LeaseId) -> PathBuf {
        self.directory.join(format!("{lease}{}", R::SUFFIX))
    }
}

fn read<T: DeserializeOwned>(at: &Path) -> Result<Option<T>, StepError> {
    let text = match fs::read(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| failed("read record", at, &error))?,
    };
    let parsed = serde_json::from_slice(&text);
    parsed.map(Some).map_err(|error| {
        let why = format_args!(
            "{}: {error}; end what its lease has, then remove the file",
            at.display()
        );
        StepError::new("read record", why)
    })
}

pub(crate) fn failed(step: &'static str, at: &Path, error: &io::Error) -> StepError {
    let detail = format_args!("{}: {error}", at.display());
    StepError::new(step, detail).with_errno(error.raw_os_error())
}

/// Succeeds also if the file did not exist.
pub(crate) fn unless_gone(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A locally administered address of a single interface (IEEE 802, U/L and I/G bits).
pub(crate) fn random_mac() -> Result<MacAddress, StepError> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).map_err(|error| StepError::new("make address", error))?;
    bytes[0] = bytes[0] & 0b1111_1100 | 0b10;
    Ok(MacAddress(bytes))
}
