//! Device nodes of leased devices: who may open them ([`Taken`], [`admit`], [`withdraw`]), and which processes have them
//! open ([`Holders`], [`EndUsers`]). The processes in a lease's cgroup open its nodes alone
//! ([`allow_only`](crate::allow_only)).

mod acl;
mod error;
mod holders;
mod owned;

use std::path::{Path, PathBuf};

use rustix::fs::{FileType, major, minor, stat};
use serde::{Deserialize, Serialize};

use crate::DeviceNumber;

pub use error::{Admits, NodeError};
pub use holders::{EndUsers, Holder, Holders};
pub use owned::{Taken, admit, check, check_withdrawn, withdraw};

/// A character device node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Such as `/dev/nvidia0`.
    pub path: PathBuf,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Programs that use other devices open this node too, such as `/dev/nvidiactl`.
    pub is_shared: bool,
}

impl Node {
    /// The character device at this path.
    ///
    /// # Errors
    /// No node is there, or something else is.
    pub fn at(path: &Path, is_shared: bool) -> Result<Self, NodeError> {
        let found = stat(path).map_err(|errno| NodeError::Machine {
            path: path.to_owned(),
            errno,
        })?;
        if FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice {
            return Err(NodeError::NoDevice(path.to_owned()));
        }
        Ok(Self {
            path: path.to_owned(),
            major: major(found.st_rdev),
            minor: minor(found.st_rdev),
            is_shared,
        })
    }

    /// Its major and its minor number.
    #[must_use]
    pub fn number(&self) -> DeviceNumber {
        (self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_character_device_is_a_node() {
        let null = Node::at(Path::new("/dev/null"), false).unwrap();
        assert_eq!(null.number(), (1, 3));
        let why = |path: &str| Node::at(Path::new(path), false).unwrap_err().to_string();
        assert!(why("/dev/no-such-node").starts_with("/dev/no-such-node: No such file"));
        assert_eq!(why("/dev"), "/dev is no character device");
    }
}
