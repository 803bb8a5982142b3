//! Network namespaces, by descriptor.

use std::{
    fmt, fs, io,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
};

use nix::sys::stat::fstat;

/// `NS_GET_NSTYPE` of ioctl_ns(2).
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;

/// Why a descriptor is no network namespace that a tenant may have.
#[derive(Debug)]
pub enum NotANamespace {
    /// Another kind of file or of namespace.
    Other,
    /// The namespace of the node itself.
    TheNodes,
    /// The kernel does not say; the error.
    Unknown(io::Error),
}

impl fmt::Display for NotANamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other => f.write_str("the descriptor is no network namespace"),
            Self::TheNodes => f.write_str("that is the network namespace of the node itself"),
            Self::Unknown(error) => write!(f, "the network namespace cannot be examined: {error}"),
        }
    }
}

impl std::error::Error for NotANamespace {}

/// Checks that the descriptor is a network namespace other than that of this thread.
///
/// # Errors
/// See [`NotANamespace`].
pub fn require_network_namespace(namespace: BorrowedFd<'_>) -> Result<(), NotANamespace> {
    // SAFETY: the descriptor is open during the call; the request takes no argument.
    let kind = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_NSTYPE) };
    if kind != libc::CLONE_NEWNET {
        return Err(NotANamespace::Other);
    }
    match is_own_network_namespace(namespace) {
        Ok(false) => Ok(()),
        Ok(true) => Err(NotANamespace::TheNodes),
        Err(error) => Err(NotANamespace::Unknown(error)),
    }
}

/// Whether this is the network namespace of this thread.
///
/// # Errors
/// A namespace cannot be examined.
pub fn is_own_network_namespace(namespace: BorrowedFd<'_>) -> io::Result<bool> {
    let (own, its) = (
        fs::metadata("/proc/thread-self/ns/net")?,
        fstat(namespace).map_err(io::Error::from)?,
    );
    Ok((own.dev(), own.ino()) == (its.st_dev, its.st_ino))
}
