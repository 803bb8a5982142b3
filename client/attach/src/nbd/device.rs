//! A device `/dev/nbdN` of the NBD driver, with its ioctls (linux/nbd.h).
#![allow(unsafe_code, reason = "ioctls have no safe form")]

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
};

use fabricbios_client::Geometry;

use crate::error::AttachError;

/// `_IO(0xab, n)`
const fn call(number: u8) -> libc::c_ulong {
    0xab << 8 | number as libc::c_ulong
}

const SET_SOCK: libc::c_ulong = call(0);
const SET_BLKSIZE: libc::c_ulong = call(1);
const DO_IT: libc::c_ulong = call(3);
const CLEAR_SOCK: libc::c_ulong = call(4);
const SET_SIZE_BLOCKS: libc::c_ulong = call(7);
const DISCONNECT: libc::c_ulong = call(8);
const SET_FLAGS: libc::c_ulong = call(10);

const HAS_FLAGS: u64 = 1;
const READ_ONLY: u64 = 1 << 1;
const SEND_FLUSH: u64 = 1 << 2;

/// A device that this process has set up.
#[derive(Debug)]
pub(crate) struct DriverDevice {
    file: File,
    pub(crate) path: PathBuf,
}

impl DriverDevice {
    /// Sets up a free device with `socket`; it does not run yet.
    pub(crate) fn open(socket: &UnixStream, geometry: Geometry) -> Result<Self, AttachError> {
        let none = |why: String| Err(AttachError::local("make a device", why));
        // Without the driver there may be no such directory.
        let names = names().unwrap_or_default();
        if names.is_empty() {
            return none("the kernel's nbd driver is not there; run modprobe nbd".to_owned());
        }
        for name in &names {
            let path = Path::new("/dev").join(name);
            let failed =
                |error: io::Error| AttachError::local(format!("set {} up", path.display()), error);
            if Path::new("/sys/block").join(name).join("pid").exists() {
                continue;
            }
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let device = Self {
                file: file.map_err(failed)?,
                path: path.clone(),
            };
            match device.set_up(socket, geometry) {
                // Another program has just taken this device.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => {
                    device.clear();
                    return Err(failed(error));
                }
                Ok(()) => return Ok(device),
            }
        }
        let count = names.len();
        none(format!(
            "all {count} devices /dev/nbd* are in use; load nbd with a larger nbds_max"
        ))
    }

    /// The same device, for the thread that runs it.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            path: self.path.clone(),
        })
    }

    /// Whether the device has its size, so that it can be used.
    pub(crate) fn is_ready(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default();
        let size = Path::new("/sys/block").join(name).join("size");
        fs::read_to_string(size).is_ok_and(|size| size.trim() != "0")
    }

    /// Runs the device on this thread, until it is disconnected.
    pub(crate) fn run(&self) -> io::Result<()> {
        self.control(DO_IT, 0)
    }

    /// Announces to the driver that the socket will be closed on purpose.
    pub(crate) fn disconnect(&self) {
        // The device was disconnected before, or `clear` will do it.
        self.control(DISCONNECT, 0).ok();
    }

    /// Takes the socket from the device: requests without an answer fail.
    pub(crate) fn clear(&self) {
        // A failure cannot be handled.
        self.control(CLEAR_SOCK, 0).ok();
    }

    fn set_up(&self, socket: &UnixStream, geometry: Geometry) -> io::Result<()> {
        let writes = if geometry.read_only { READ_ONLY } else { 0 };
        self.control(SET_SOCK, libc_word(socket)?)?;
        self.control(SET_BLKSIZE, geometry.block_bytes.into())?;
        self.control(SET_SIZE_BLOCKS, geometry.blocks)?;
        self.control(SET_FLAGS, HAS_FLAGS | SEND_FLUSH | writes)
    }

    fn control(&self, request: libc::c_ulong, value: u64) -> io::Result<()> {
        let value = libc::c_ulong::try_from(value).map_err(io::Error::other)?;
        // SAFETY: the driver's calls take a number and touch no memory of this process.
        let rc = unsafe { libc::ioctl(self.file.as_raw_fd(), request, value) };
        nix::errno::Errno::result(rc)?;
        Ok(())
    }
}

fn libc_word(socket: &UnixStream) -> io::Result<u64> {
    u64::try_from(socket.as_fd().as_raw_fd()).map_err(io::Error::other)
}

/// The devices of the driver without their partitions, in the order of their numbers.
fn names() -> io::Result<Vec<String>> {
    let mut found: Vec<(u32, String)> = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("nbd"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.push((number, format!("nbd{number}")));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, name)| name).collect())
}
