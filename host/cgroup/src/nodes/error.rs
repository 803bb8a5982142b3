//! Why device nodes cannot be used, or kept for some users: whose fault it is, and where.

use std::path::PathBuf;

use fabricbios_lease::StepError;
use rustix::io::Errno;

use crate::DeviceNumber;

/// A device node is not as expected, or a call on it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The machine: a call on the node failed.
    #[error("{}: {errno}{}", path.display(), hint(*errno))]
    Machine {
        /// The path of the node.
        path: PathBuf,
        /// The error number of the call.
        errno: Errno,
    },
    /// The machine: the state of the nodes cannot be recorded.
    #[error(transparent)]
    Record(#[from] StepError),
    /// The machine: no nodes of the device are known.
    #[error("the node does not know its device nodes")]
    Unknown,
    /// Who makes the nodes: no file is at the path.
    #[error("{} is not there", .0.display())]
    Gone(PathBuf),
    /// Who makes the nodes: the file at the path is of another type.
    #[error("{} is no character device", .0.display())]
    NoDevice(PathBuf),
    /// Another program or person: something else has taken the path.
    #[error("{} is not the character device {}:{}, and no link to one is taken", path.display(), number.0, number.1)]
    Replaced {
        /// The path of the node.
        path: PathBuf,
        /// The device of the node.
        number: DeviceNumber,
    },
    /// Another program or person: the node changed during a change of its users.
    #[error("{}: others change it", .0.display())]
    Changed(PathBuf),
    /// Another program or person: the node admits this user, who has no lease.
    #[error("{}: user {user} may open it", path.display())]
    User {
        /// The path of the node.
        path: PathBuf,
        /// The number of the user.
        user: u32,
    },
    /// Another program or person: the node admits users whom no list names.
    #[error("{}: {admits}, so others may open it", path.display())]
    Others {
        /// The path of the node.
        path: PathBuf,
        /// Whom the node admits.
        admits: Admits,
    },
}

/// Users besides root who may open a node, and whom no access control list names one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Admits {
    /// The owner.
    #[error("it belongs to user {0}")]
    Owner(u32),
    /// Those that the mode admits; there is no list.
    #[error("its mode is {0:04o}")]
    Mode(u32),
    /// Unknown users: the bytes of the list are of another version, or damaged.
    #[error("its access control list is not understood")]
    Unreadable,
    /// Every user.
    #[error("its access control list lets everybody in")]
    Everybody,
    /// The members of a group.
    #[error("its access control list lets a group in")]
    Group,
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOTSUP => " (its file system has no access control lists)",
        Errno::ROFS => " (its file system is read-only)",
        _ => "",
    }
}

impl NodeError {
    pub(super) fn of(self, step: &'static str) -> StepError {
        let errno = match &self {
            Self::Machine { errno, .. } => Some(errno.raw_os_error()),
            _ => None,
        };
        StepError::new(step, self).with_errno(errno)
    }
}
