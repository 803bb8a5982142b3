//! The files in a directory of records, which a reboot empties. The next daemon and the watchdog read there what a
//! lease has.

use std::{fs, io, path::Path};

use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;
use serde::{Serialize, de::DeserializeOwned};

/// The leases that have a file with this suffix in the directory.
///
/// # Errors
/// The directory exists and cannot be listed.
pub fn leases(directory: &Path, suffix: &str) -> Result<Vec<LeaseId>, StepError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries,
    };
    let names = entries.and_then(|it| it.map(|entry| Ok(entry?.file_name())).collect());
    let names: Vec<_> = names.map_err(|error| failed("list records", directory, &error))?;
    let lease = |name: &std::ffi::OsString| name.to_str()?.strip_suffix(suffix)?.parse().ok();
    Ok(names.iter().filter_map(lease).collect())
}

/// The value in a file. `None`: there is no file.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn read<T: DeserializeOwned>(at: &Path) -> Result<Option<T>, StepError> {
    let text = match fs::read(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| failed("read record", at, &error))?,
    };
    let value = serde_json::from_slice(&text);
    value
        .map(Some)
        .map_err(|error| failed("read record", at, &error.into()))
}

/// Writes a whole file or nothing; `new` is the name of the file until it is whole.
///
/// # Errors
/// The file cannot be written.
pub fn write<T: Serialize>(at: &Path, new: &Path, value: &T) -> Result<(), StepError> {
    let text = serde_json::to_vec(value).map_err(io::Error::from);
    let written = text
        .and_then(|text| fs::write(new, text))
        .and_then(|()| fs::rename(new, at));
    written.map_err(|error| failed("write record", at, &error))
}

/// Removes a file. A missing file is no error.
///
/// # Errors
/// The file cannot be removed.
pub fn remove(step: &'static str, at: &Path) -> Result<(), StepError> {
    match fs::remove_file(at) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(step, at, &error)),
        _ => Ok(()),
    }
}

/// The error of a step whose call on a file failed.
#[must_use]
pub fn failed(step: &'static str, at: &Path, error: &io::Error) -> StepError {
    StepError::new(step, format_args!("{}: {error}", at.display())).with_errno(error.raw_os_error())
}
