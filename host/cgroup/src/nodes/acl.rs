//! The users who may open a device node: its owner, group and mode, and its access control list (acl(5)) in the binary
//! format of the extended attribute (include/uapi/linux/posix_acl_xattr.h).

use std::{
    collections::BTreeSet,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, XattrFlags, chmod, chownat, fstat,
        getxattr, major, minor, open, removexattr, setxattr,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{Admits, Node, NodeError};

const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
/// Tags of entries.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The number of an entry that names no user or group.
const NOBODY: u32 = u32::MAX;
const READ_WRITE: u16 = 6;
/// Room for some 500 entries: no list needs more.
const LIST_BYTES_MAX: usize = 4096;

/// The owner of a node, and the users who may open it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Access {
    uid: u32,
    gid: u32,
    mode: u32,
    /// `None`: the node has no list; the mode alone decides.
    list: Option<Vec<u8>>,
}

/// A device node, opened for calls about the node itself: another file may take its name meanwhile.
pub(super) struct OpenNode<'a> {
    file: OwnedFd,
    path: &'a Path,
}

impl<'a> OpenNode<'a> {
    /// # Errors
    /// The node does not exist, or its path names something else.
    pub(super) fn of(node: &'a Node) -> Result<Self, NodeError> {
        let path = &*node.path;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Err(NodeError::Gone(path.into())),
            file => file.map_err(|errno| failed(path, errno))?,
        };
        let found = fstat(&file).map_err(|errno| failed(path, errno))?;
        let number = (major(found.st_rdev), minor(found.st_rdev));
        let is_device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
        if !is_device || number != node.number() {
            return Err(NodeError::Replaced {
                path: path.into(),
                number: node.number(),
            });
        }
        Ok(Self { file, path })
    }

    /// A path to the open node: calls on extended attributes do not accept an `O_PATH` descriptor.
    fn at(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    pub(super) fn access(&self) -> Result<Access, NodeError> {
        let found = fstat(&self.file).map_err(|errno| failed(self.path, errno))?;
        let mut list = vec![0; LIST_BYTES_MAX];
        let list = match getxattr(self.at(), ATTRIBUTE, &mut list[..]) {
            Ok(length) => {
                list.truncate(length);
                Some(list)
            }
            Err(Errno::NODATA | Errno::NOTSUP) => None,
            Err(errno) => return Err(failed(self.path, errno)),
        };
        Ok(Access {
            uid: found.st_uid,
            gid: found.st_gid,
            mode: found.st_mode & 0o7777,
            list,
        })
    }

    /// The users besides root who may open the node.
    ///
    /// # Errors
    /// The node admits users whom its list does not name.
    pub(super) fn users(&self) -> Result<BTreeSet<u32>, NodeError> {
        self.access()?.users().map_err(|admits| NodeError::Others {
            path: self.path.into(),
            admits,
        })
    }

    /// Makes root the owner of the node and admits these users. One call sets the list and the mode, so at no moment
    /// may more users open the node.
    pub(super) fn admit_only(&self, users: &BTreeSet<u32>) -> Result<(), NodeError> {
        self.own(0, 0)?;
        self.set_list(&list(users))
    }

    pub(super) fn restore(&self, access: &Access) -> Result<(), NodeError> {
        match removexattr(self.at(), ATTRIBUTE) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(failed(self.path, errno)),
        }
        self.own(access.uid, access.gid)?;
        let changed = chmod(self.at(), Mode::from_raw_mode(access.mode));
        changed.map_err(|errno| failed(self.path, errno))?;
        { access.list.as_ref() }.map_or(Ok(()), |list| self.set_list(list))
    }

    fn set_list(&self, list: &[u8]) -> Result<(), NodeError> {
        let set = setxattr(self.at(), ATTRIBUTE, list, XattrFlags::empty());
        set.map_err(|errno| failed(self.path, errno))
    }

    fn own(&self, uid: u32, gid: u32) -> Result<(), NodeError> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let owned = chownat(CWD, self.at(), Some(uid), Some(gid), AtFlags::empty());
        owned.map_err(|errno| failed(self.path, errno))
    }
}

fn failed(path: &Path, errno: Errno) -> NodeError {
    NodeError::Machine {
        path: path.into(),
        errno,
    }
}

impl Access {
    /// The users besides root who may open the node. The node must admit only users whom its list names.
    ///
    /// # Errors
    /// Who else may open the node.
    pub(super) fn users(&self) -> Result<BTreeSet<u32>, Admits> {
        let mut users = BTreeSet::new();
        if self.uid != 0 {
            return Err(Admits::Owner(self.uid));
        }
        let Some(list) = &self.list else {
            return match self.mode & 0o077 {
                0 => Ok(users),
                _ => Err(Admits::Mode(self.mode)),
            };
        };
        let entries = entries(list).ok_or(Admits::Unreadable)?;
        let mask = entries.iter().find(|(tag, ..)| *tag == MASK);
        let mask = mask.map_or(READ_WRITE | 1, |(_, rights, _)| *rights);
        for (tag, rights, of) in entries {
            match tag {
                USER_OBJ | MASK => {}
                USER if rights & mask == 0 => {}
                USER => {
                    users.insert(of);
                }
                _ if rights == 0 || (tag != OTHER && rights & mask == 0) => {}
                OTHER => return Err(Admits::Everybody),
                _ => return Err(Admits::Group),
            }
        }
        Ok(users)
    }
}

/// The list of a node that root and these users may open.
fn list(users: &BTreeSet<u32>) -> Vec<u8> {
    let mut entries = vec![(USER_OBJ, READ_WRITE, NOBODY)];
    entries.extend(users.iter().map(|&uid| (USER, READ_WRITE, uid)));
    entries.push((GROUP_OBJ, 0, NOBODY));
    if !users.is_empty() {
        entries.push((MASK, READ_WRITE, NOBODY));
    }
    entries.push((OTHER, 0, NOBODY));
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, rights, of) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(of.to_le_bytes());
    }
    bytes
}

/// Tag, rights and number of each entry. `None`: the bytes are no list of the known version.
fn entries(list: &[u8]) -> Option<Vec<(u16, u16, u32)>> {
    let (version, entries) = list.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let entry = |it: &[u8]| {
        let (tag, rest) = it.split_first_chunk::<2>()?;
        let (rights, of) = rest.split_first_chunk::<2>()?;
        let (tag, rights) = (u16::from_le_bytes(*tag), u16::from_le_bytes(*rights));
        Some((tag, rights, u32::from_le_bytes(of.try_into().ok()?)))
    };
    entries.chunks(8).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(mode: u32, list: Option<Vec<u8>>) -> Access {
        Access {
            uid: 0,
            gid: 44,
            mode,
            list,
        }
    }

    #[test]
    fn a_list_names_its_users_and_nobody_else() {
        for users in [vec![], vec![1000], vec![1000, 0x4000_0001]] {
            let users: BTreeSet<u32> = users.into_iter().collect();
            assert_eq!(access(0o660, Some(list(&users))).users(), Ok(users));
        }
        assert_eq!(access(0o600, None).users(), Ok(BTreeSet::new()));
        for mode in [0o666, 0o660, 0o604] {
            assert!(access(mode, None).users().is_err(), "{mode:o}");
        }
        let others = Access {
            uid: 7,
            ..access(0o600, None)
        };
        assert_eq!(others.users(), Err(Admits::Owner(7)));
    }

    #[test]
    fn a_list_that_lets_others_in_or_is_broken_is_none_of_users() {
        let whole = list(&[1000].into());
        let with = |tag: u16, rights: u8| {
            let mut list = whole.clone();
            let entry = list[4..]
                .chunks(8)
                .position(|it| it[..2] == tag.to_le_bytes());
            list[4 + 8 * entry.unwrap() + 2] = rights;
            access(0o660, Some(list)).users()
        };
        assert_eq!(with(OTHER, 4), Err(Admits::Everybody));
        assert_eq!(with(GROUP_OBJ, 4), Err(Admits::Group));
        // The mask removes the right again.
        assert_eq!(with(MASK, 0), Ok(BTreeSet::new()));
        for length in [0, 3, 5, whole.len() - 1] {
            let cut = access(0o660, Some(whole[..length].to_vec()));
            assert_eq!(cut.users(), Err(Admits::Unreadable), "{length}");
        }
        let mut next = whole.clone();
        next[0] = 3;
        assert_eq!(access(0o660, Some(next)).users(), Err(Admits::Unreadable));
    }
}
