//! Whether a descriptor is a network namespace that the caller may put an interface into.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::{
    errno::Errno,
    libc,
    sys::statfs::{NSFS_MAGIC, fstatfs},
};

use crate::peer::Peer;

/// Most kinds of file answer an ioctl(2) in their own way, so it is asked of files of nsfs only.
pub(crate) fn check(given: BorrowedFd<'_>, caller: &Peer) -> Result<(), String> {
    let system = fstatfs(given).map_err(|errno| format!("the descriptor: {errno}"))?;
    let is_network = system.filesystem_type() == NSFS_MAGIC
        && ask(given, NS_GET_NSTYPE, 0) == Ok(libc::CLONE_NEWNET);
    if !is_network {
        return Err("the descriptor is no network namespace".into());
    }
    let owner = owner(given).map_err(|errno| format!("the owner of the namespace: {errno}"))?;
    // The owner of its user namespace has all capabilities in it; root of the machine has them everywhere. The machine's own
    // user namespace is of uid 0, and root of a container has no capabilities in it for that.
    let uid = caller.uid;
    if caller.is_root || owner == uid && uid != 0 {
        return Ok(());
    }
    Err(format!(
        "the network namespace is of uid {owner}, and the caller is uid {uid}: who owns it, or root of this node, enters it"
    ))
}

/// ioctl_ns(2).
const NS_GET_USERNS: libc::Ioctl = nix::request_code_none!(0xb7, 1) as libc::Ioctl;
const NS_GET_NSTYPE: libc::Ioctl = nix::request_code_none!(0xb7, 3) as libc::Ioctl;
const NS_GET_OWNER_UID: libc::Ioctl = nix::request_code_none!(0xb7, 4) as libc::Ioctl;

/// The user who made the user namespace to which the network namespace belongs.
fn owner(namespace: BorrowedFd<'_>) -> nix::Result<u32> {
    let users = ask(namespace, NS_GET_USERNS, 0)?;
    // SAFETY: the kernel has just made the descriptor for this process; nobody else has it.
    let users = unsafe { OwnedFd::from_raw_fd(users) };
    let mut uid: libc::uid_t = 0;
    // SAFETY: NS_GET_OWNER_UID writes one uid_t to this address.
    let asked = unsafe { libc::ioctl(users.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
    Errno::result(asked).map(|_| uid)
}

fn ask(namespace: BorrowedFd<'_>, request: libc::Ioctl, argument: libc::c_int) -> nix::Result<i32> {
    // SAFETY: NS_GET_USERNS and NS_GET_NSTYPE take no argument and return an integer.
    Errno::result(unsafe { libc::ioctl(namespace.as_raw_fd(), request, argument) })
}
