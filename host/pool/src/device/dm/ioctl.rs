//! The ioctl of device-mapper: the only unsafe code of this crate.
#![allow(unsafe_code, reason = "ioctl(2) takes a pointer")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::encoding::HEAD_BYTES;

const GROUP: libc::c_ulong = 0xFD;
/// `_IOC_READ | _IOC_WRITE` of include/uapi/asm-generic/ioctl.h, the same on x86-64 and AArch64.
const BOTH_WAYS: libc::c_ulong = 3;

/// The commands of device-mapper; `enum` of dm-ioctl.h.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Command {
    ListDevices = 2,
    Create = 3,
    Remove = 4,
    /// Used to resume.
    Suspend = 6,
    Status = 7,
    LoadTable = 9,
    TableStatus = 12,
}

/// Makes the call; the answer replaces the request. The field `data_size` must be the length of `request`.
pub(super) fn call(control: &File, command: Command, request: &mut [u8]) -> io::Result<()> {
    let told = request.get(12..16).map(|size| size == length_of(request));
    if told != Some(true) || request.len() < HEAD_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let number = BOTH_WAYS << 30
        | (HEAD_BYTES as libc::c_ulong) << 16
        | GROUP << 8
        | command as libc::c_ulong;
    // SAFETY: the kernel reads and writes `data_size` bytes from the pointer, no more, and that is the
    // length of the slice; it keeps no pointer to it.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), number as _, request.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn length_of(request: &[u8]) -> [u8; 4] {
    u32::try_from(request.len()).unwrap_or(0).to_ne_bytes()
}
