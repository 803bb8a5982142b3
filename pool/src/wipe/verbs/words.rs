//! What follows a verb, read with care.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use super::Verb;
use crate::device::dm::{DeviceNumber, Slice, Target};
use crate::device::{SECTOR_BYTES, header::Header};

pub(super) fn remove(directory: &OsStr, names: &[&OsStr]) -> Option<Verb> {
    let is_name = |name: &&OsStr| {
        let mut parts = Path::new(name).components();
        matches!(parts.next(), Some(Component::Normal(part)) if part == *name)
    };
    let directory = PathBuf::from(directory);
    let whole = directory.is_absolute() && !names.is_empty() && names.iter().all(is_name);
    whole.then(|| Verb::Remove {
        directory,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    })
}

pub(super) fn zero(device: &OsStr, rest: &[&OsStr]) -> Option<Verb> {
    let [identity, offset, length] = rest else {
        return None;
    };
    let identity = base16ct::mixed::decode_vec(identity.as_encoded_bytes()).ok()?;
    Some(Verb::Zero {
        device: PathBuf::from(device),
        identity: identity.try_into().ok()?,
        offset: offset.to_str()?.parse().ok()?,
        length: length.to_str()?.parse().ok()?,
    })
}

pub(super) fn record(device: &OsStr, header: &OsStr) -> Option<Verb> {
    let bytes = base16ct::mixed::decode_vec(header.as_encoded_bytes()).ok()?;
    Some(Verb::Record {
        device: PathBuf::from(device),
        header: Header::decode(&bytes).ok()??,
    })
}

pub(super) fn map(words: &[&OsStr]) -> Option<Verb> {
    let words: Vec<&str> = words
        .iter()
        .map(|word| word.to_str())
        .collect::<Option<_>>()?;
    let [name, uuid, device, sector, length, access] = words[..] else {
        return None;
    };
    let (major, minor) = device.split_once(':')?;
    let number = DeviceNumber {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    };
    let bytes = |sectors: &str| sectors.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES);
    matches!(access, "ro" | "rw").then_some(())?;
    Some(Verb::Map(Slice {
        name: name.to_owned(),
        uuid: uuid.to_owned(),
        target: Target::linear(number, bytes(sector)?, bytes(length)?),
        read_only: access == "ro",
    }))
}

pub(super) fn make(directory: &OsStr, words: &[&OsStr]) -> Option<Verb> {
    let words: Vec<&str> = words
        .iter()
        .map(|word| word.to_str())
        .collect::<Option<_>>()?;
    let [device, inode, lease, bytes] = words[..] else {
        return None;
    };
    Some(Verb::Make {
        directory: PathBuf::from(directory),
        identity: (device.parse().ok()?, inode.parse().ok()?),
        lease: lease.parse().ok()?,
        bytes: bytes.parse().ok()?,
    })
}
