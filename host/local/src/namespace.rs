//! Checks that a descriptor is a network namespace into which the caller may put an interface.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    libc,
    sys::statfs::{NSFS_MAGIC, fstatfs},
};

use crate::peer::Peer;

/// Most kinds of file answer an ioctl(2) in their own way, so only files of nsfs are asked.
///
/// # Errors
/// The text says what is wrong with the descriptor. An error number is of a call of this process.
pub(crate) fn check(given: BorrowedFd<'_>, caller: &Peer) -> io::Result<()> {
    let of = |what: &str, errno| io::Error::other(format!("{what}: {errno}"));
    let system = fstatfs(given).map_err(|errno| of("the descriptor", errno))?;
    let is_network = system.filesystem_type() == NSFS_MAGIC
        && ask(given, NS_GET_NSTYPE, 0) == Ok(libc::CLONE_NEWNET);
    if !is_network {
        return Err(io::Error::other("the descriptor is no network namespace"));
    }
    let owner = owner(given).map_err(|errno| match errno {
        Errno::EMFILE | Errno::ENFILE => errno.into(),
        _ => of("the owner of the namespace", errno),
    })?;
    // The owner of a namespace's user namespace has all capabilities in it; root of the machine has them everywhere.
    // The machine's own user namespace belongs to uid 0. Root of a container is uid 0 too, but has no capabilities in
    // it; so for uid 0 ownership is not enough.
    let uid = caller.uid;
    if caller.is_root || owner == uid && uid != 0 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the network namespace is of uid {owner}, and the caller is uid {uid}: who owns it, or root of this node, enters it"
    )))
}

/// The requests of ioctl_ns(2).
const NS_GET_USERNS: libc::Ioctl = nix::request_code_none!(0xb7, 1) as libc::Ioctl;
const NS_GET_NSTYPE: libc::Ioctl = nix::request_code_none!(0xb7, 3) as libc::Ioctl;
const NS_GET_OWNER_UID: libc::Ioctl = nix::request_code_none!(0xb7, 4) as libc::Ioctl;

/// The user who made the user namespace to which the network namespace belongs.
fn owner(namespace: BorrowedFd<'_>) -> nix::Result<u32> {
    let users = ask(namespace, NS_GET_USERNS, 0)?;
    // SAFETY: the kernel has just made the descriptor for this process; no other code has it.
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
