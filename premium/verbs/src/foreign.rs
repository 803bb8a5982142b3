//! Puts a queue pair of another process in ERR, by the pair's handle in that process and a duplicate of the process's
//! descriptor of the device.
//!
//! libibverbs accepts only objects of its own process. The structures are those of `include/uapi/rdma/`: the call of
//! `rdma_user_ioctl_cmds.h`, the method of `ib_user_ioctl_cmds.h`, the command of `ib_user_verbs.h`.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use rdma_mummy_sys as ffi;

/// `RDMA_VERBS_IOCTL`: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`; the structure has 24 bytes. The value is the same
/// on x86-64 and AArch64.
const VERBS: libc::c_ulong = 3 << 30 | 24 << 16 | 0x1b << 8 | 1;
const OBJECT_DEVICE: u16 = 0;
const METHOD_INVOKE_WRITE: u16 = 0;
const ATTR_CORE_IN: u16 = 0;
const ATTR_WRITE_CMD: u16 = 2;
const ATTR_MANDATORY: u16 = 1;
const CMD_MODIFY_QP: u64 = 26;

/// `struct ib_uverbs_ioctl_hdr` and the attributes behind it.
#[repr(C)]
struct Call {
    length: u16,
    object: u16,
    method: u16,
    attributes: u16,
    reserved: u64,
    driver: u32,
    reserved_too: u32,
    command_in: Attribute,
    command: Attribute,
}

/// `struct ib_uverbs_attr`.
#[repr(C)]
struct Attribute {
    id: u16,
    bytes: u16,
    flags: u16,
    reserved: u16,
    data: u64,
}

/// `struct ib_uverbs_modify_qp`.
#[repr(C)]
struct ModifyQueuePair {
    addresses: [u8; 64],
    handle: u32,
    mask: u32,
    numbers: [u8; 24],
    state: u8,
    others: [u8; 15],
}

/// Puts the queue pair with this handle in ERR, from any state. `driver` is the `enum rdma_driver_id` of the device.
///
/// # Errors
/// The kernel refuses. `EINVAL`: the device has another driver. `ENOTTY`: the descriptor is no RDMA device.
pub fn fail_queue_pair(device: BorrowedFd<'_>, driver: u32, handle: u32) -> Result<(), Errno> {
    let modify = ModifyQueuePair {
        addresses: [0; 64],
        handle,
        mask: ffi::ibv_qp_attr_mask::IBV_QP_STATE.0,
        numbers: [0; 24],
        state: u8::try_from(ffi::ibv_qp_state::IBV_QPS_ERR).unwrap_or(u8::MAX),
        others: [0; 15],
    };
    let attribute = |id, bytes, data| Attribute {
        id,
        bytes,
        flags: ATTR_MANDATORY,
        reserved: 0,
        data,
    };
    let mut call = Call {
        length: bytes_of::<Call>(),
        object: OBJECT_DEVICE,
        method: METHOD_INVOKE_WRITE,
        attributes: 2,
        reserved: 0,
        driver,
        reserved_too: 0,
        command_in: attribute(
            ATTR_CORE_IN,
            bytes_of::<ModifyQueuePair>(),
            (&raw const modify).expose_provenance() as u64,
        ),
        command: attribute(ATTR_WRITE_CMD, bytes_of::<u64>(), CMD_MODIFY_QP),
    };
    // SAFETY: the kernel reads `call` and `modify`, whose lengths `call` contains, and may write `flags` of the
    // attributes. Both live until the call returns, and the kernel keeps no pointer to them. A descriptor that is no
    // RDMA device does not have this call: ENOTTY.
    Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), VERBS as _, &raw mut call) }).map(drop)
}

/// The size of a structure in bytes; every structure here has less than a few hundred.
const fn bytes_of<T>() -> u16 {
    #[allow(clippy::cast_possible_truncation, reason = "as above")]
    let bytes = size_of::<T>() as u16;
    bytes
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_structures_are_laid_out_as_in_the_headers() {
        assert_eq!(size_of::<Call>(), 24 + 2 * 16);
        assert_eq!(offset_of!(Call, driver), 16);
        assert_eq!(size_of::<ModifyQueuePair>(), 112);
        assert_eq!(offset_of!(ModifyQueuePair, handle), 64);
        assert_eq!(offset_of!(ModifyQueuePair, state), 96);
    }

    #[test]
    fn what_is_no_rdma_device_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let refused = fail_queue_pair(std::os::fd::AsFd::as_fd(&file), 0, 0);
        assert_eq!(refused, Err(Errno::ENOTTY));
    }
}
