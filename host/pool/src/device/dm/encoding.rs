//! Requests to device-mapper and its answers, as bytes in the form of `include/uapi/linux/dm-ioctl.h`.
//!
//! Every request is a `struct dm_ioctl` of 312 bytes, then data; the answer replaces it. Parsing an answer never
//! panics.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::super::block_device::SECTOR_BYTES;

/// `sizeof(struct dm_ioctl)`.
pub(super) const HEAD_BYTES: usize = 312;
/// `sizeof(struct dm_target_spec)`.
const TARGET_BYTES: usize = 40;
const VERSION: [u32; 3] = [4, 0, 0];
const NAME_AT: usize = 48;
const NAME_BYTES: usize = 128;
const UUID_AT: usize = 176;
const UUID_BYTES: usize = 129;
const TYPE_BYTES: usize = 16;

pub(super) const READ_ONLY: u32 = 1;
pub(super) const STATUS_TABLE: u32 = 1 << 4;
pub(super) const ACTIVE_PRESENT: u32 = 1 << 5;
pub(super) const BUFFER_FULL: u32 = 1 << 8;

/// `DM_UDEV_DISABLE_SUBSYSTEM_RULES_FLAG`, `…_DISK_RULES_FLAG`, `…_OTHER_RULES_FLAG` and `DM_UDEV_PRIMARY_SOURCE_FLAG`
/// of libdevmapper.h, which the udev rules read. With these flags udev makes its link and does nothing else. Without
/// them this machine would scan a tenant's data and activate volume groups, arrays and file systems in it.
pub(super) const HANDS_OFF: u32 = (0x2 | 0x4 | 0x8 | 0x40) << 16;

/// A block device's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceNumber {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl DeviceNumber {
    /// Decodes a number of stat(2).
    pub(crate) fn of(number: u64) -> Self {
        Self {
            major: libc::major(number),
            minor: libc::minor(number),
        }
    }

    /// Decodes a number of the kernel's `huge_encode_dev`.
    fn from_kernel(number: u64) -> Self {
        let part = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Self {
            major: part((number & 0xF_FF00) >> 8),
            minor: part((number & 0xFF) | ((number >> 12) & 0xFFF_FF00)),
        }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A request about one device, or about all devices.
#[derive(Clone, Debug, Default)]
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) uuid: &'a str,
    pub(super) flags: u32,
    pub(super) event: u32,
    pub(super) targets: u32,
    pub(super) data: Vec<u8>,
}

impl Request<'_> {
    /// The bytes of the request, with room for at least `data_bytes_min` bytes of the answer's data.
    pub(super) fn encode(&self, data_bytes_min: usize) -> Vec<u8> {
        let data_bytes = self.data.len().max(data_bytes_min);
        let mut bytes = vec![0; HEAD_BYTES + data_bytes];
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let numbers = [
            (12, size),
            (16, 312),
            (20, self.targets),
            (28, self.flags),
            (32, self.event),
        ];
        let versions = [0, 4, 8].into_iter().zip(VERSION);
        for (at, number) in versions.chain(numbers) {
            bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
        put_text(&mut bytes[NAME_AT..NAME_AT + NAME_BYTES], self.name);
        put_text(&mut bytes[UUID_AT..UUID_AT + UUID_BYTES], self.uuid);
        bytes[HEAD_BYTES..HEAD_BYTES + self.data.len()].copy_from_slice(&self.data);
        bytes
    }
}

/// Cuts the text if needed, so that a zero follows it.
fn put_text(field: &mut [u8], text: &str) {
    let length = text.len().min(field.len() - 1);
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
}

/// One target of a device, in sectors of 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) kind: String,
    pub(crate) parameters: String,
}

impl Target {
    /// A target that maps bytes of another device.
    pub(crate) fn linear(device: DeviceNumber, offset_bytes: u64, length_bytes: u64) -> Self {
        Self {
            start: 0,
            length: length_bytes / SECTOR_BYTES,
            kind: "linear".to_owned(),
            parameters: format!("{device} {}", offset_bytes / SECTOR_BYTES),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // The parameters end with a zero, and the size is a multiple of 8.
        let bytes_all = (TARGET_BYTES + self.parameters.len() + 1).next_multiple_of(8);
        let mut bytes = vec![0; bytes_all];
        bytes[..8].copy_from_slice(&self.start.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_ne_bytes());
        let next = u32::try_from(bytes_all).unwrap_or(u32::MAX);
        bytes[20..24].copy_from_slice(&next.to_ne_bytes());
        put_text(&mut bytes[24..24 + TYPE_BYTES], &self.kind);
        put_text(&mut bytes[TARGET_BYTES..], &self.parameters);
        bytes
    }
}

/// An answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer<'a>(pub(super) &'a [u8]);

impl<'a> Answer<'a> {
    pub(super) fn flags(self) -> u32 {
        self.number(28)
    }

    pub(super) fn device(self) -> DeviceNumber {
        DeviceNumber::from_kernel(long_at(self.0, 40).unwrap_or(0))
    }

    pub(super) fn uuid(self) -> String {
        text_at(self.0, UUID_AT)
    }

    /// Names of a `struct dm_name_list`.
    pub(super) fn names(self) -> Vec<String> {
        let data = self.data();
        let mut names = Vec::new();
        let mut at = 0;
        while let (Some(device), Some(next)) = (long_at(data, at), number_at(data, at + 8)) {
            // An empty list is one entry whose device number is 0.
            if device != 0 {
                names.push(text_at(data, at + 12));
            }
            match next {
                0 => break,
                next => at = at.saturating_add(next as usize),
            }
        }
        names
    }

    /// The first `struct dm_target_spec`s, as many as the answer says.
    pub(super) fn targets(self) -> Option<Vec<Target>> {
        let data = self.data();
        let mut at = 0;
        (0..self.number(20))
            .map(|_| {
                let target = Target {
                    start: long_at(data, at)?,
                    length: long_at(data, at + 8)?,
                    kind: text_at(data, at + 24),
                    parameters: text_at(data, at + TARGET_BYTES),
                };
                // In answers the offset counts from the first target.
                at = number_at(data, at + 20)? as usize;
                Some(target)
            })
            .collect()
    }

    fn data(self) -> &'a [u8] {
        self.0.get(self.number(16) as usize..).unwrap_or_default()
    }

    fn number(self, at: usize) -> u32 {
        number_at(self.0, at).unwrap_or(0)
    }
}

fn long_at(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(part.try_into().ok()?))
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let part = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(part.try_into().ok()?))
}

/// The text up to a zero or the end.
fn text_at(bytes: &[u8], at: usize) -> String {
    let rest = bytes.get(at..).unwrap_or_default();
    let text = rest.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests;
