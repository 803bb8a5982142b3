//! The users who may open a device node: its owner, group and mode, and its access control list (acl(5)) in the binary
//! format of the extended attribute (include/uapi/linux/posix_acl_xattr.h).

use std::{
    collections::BTreeSet,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, XattrFlags, chmod, chownat, fstat,
        getxattr, major, minor, open, removexattr, setxattr,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::Node;

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
pub(crate) struct Access {
    uid: u32,
    gid: u32,
    mode: u32,
    /// `None`: the node has no list; the mode alone decides.
    list: Option<Vec<u8>>,
}

/// A device node, opened for calls about the node itself: another file may take its name meanwhile.
pub(crate) struct OpenNode {
    file: OwnedFd,
    shown: String,
}

/// Why a node is not as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// No file is at its path.
    Gone(String),
    /// Any other reason, for people.
    Other(String),
}

impl Trouble {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Gone(why) | Self::Other(why) => why,
        }
    }
}

impl OpenNode {
    /// # Errors
    /// The node does not exist, or its path names something else.
    pub(crate) fn of(node: &Node) -> Result<Self, Trouble> {
        let shown = node.path.display().to_string();
        let file = open(
            &node.path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let file = file.map_err(|errno| match errno {
            Errno::NOENT => Trouble::Gone(format!("{shown} is not there")),
            errno => Trouble::Other(format!("{shown}: {errno}")),
        })?;
        let found = fstat(&file).map_err(|errno| Trouble::Other(format!("{shown}: {errno}")))?;
        let number = (major(found.st_rdev), minor(found.st_rdev));
        let is_device = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice;
        if !is_device || number != node.number() {
            let (wanted, least) = node.number();
            return Err(Trouble::Other(format!(
                "{shown} is not the character device {wanted}:{least}, and no link to one is taken"
            )));
        }
        Ok(Self { file, shown })
    }

    /// A path to the open node: calls on extended attributes do not accept an `O_PATH` descriptor.
    fn at(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    fn failed(&self, errno: Errno) -> String {
        let hint = match errno {
            Errno::NOTSUP => " (its file system has no access control lists)",
            Errno::ROFS => " (its file system is read-only)",
            _ => "",
        };
        format!("{}: {errno}{hint}", self.shown)
    }

    pub(crate) fn access(&self) -> Result<Access, String> {
        let found = fstat(&self.file).map_err(|errno| self.failed(errno))?;
        let mut list = vec![0; LIST_BYTES_MAX];
        let list = match getxattr(self.at(), ATTRIBUTE, &mut list[..]) {
            Ok(length) => {
                list.truncate(length);
                Some(list)
            }
            Err(Errno::NODATA | Errno::NOTSUP) => None,
            Err(errno) => return Err(self.failed(errno)),
        };
        Ok(Access {
            uid: found.st_uid,
            gid: found.st_gid,
            mode: found.st_mode & 0o7777,
            list,
        })
    }

    /// Makes root the owner of the node and admits these users. One call sets the list and the mode, so at no moment
    /// may more users open the node.
    pub(crate) fn admit_only(&self, users: &BTreeSet<u32>) -> Result<(), String> {
        self.own(0, 0)?;
        let set = setxattr(self.at(), ATTRIBUTE, &list(users), XattrFlags::empty());
        set.map_err(|errno| self.failed(errno))
    }

    pub(crate) fn restore(&self, access: &Access) -> Result<(), String> {
        match removexattr(self.at(), ATTRIBUTE) {
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(errno) => return Err(self.failed(errno)),
        }
        self.own(access.uid, access.gid)?;
        chmod(self.at(), Mode::from_raw_mode(access.mode)).map_err(|errno| self.failed(errno))?;
        let set = access.list.as_ref().map_or(Ok(()), |list| {
            setxattr(self.at(), ATTRIBUTE, list, XattrFlags::empty())
        });
        set.map_err(|errno| self.failed(errno))
    }

    fn own(&self, uid: u32, gid: u32) -> Result<(), String> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let owned = chownat(CWD, self.at(), Some(uid), Some(gid), AtFlags::empty());
        owned.map_err(|errno| self.failed(errno))
    }
}

impl Access {
    /// The users besides root who may open the node. The node must admit only users whom its list names.
    ///
    /// # Errors
    /// Who else may open the node; for people.
    pub(crate) fn users(&self) -> Result<BTreeSet<u32>, String> {
        let mut users = BTreeSet::new();
        if self.uid != 0 {
            return Err(format!("it belongs to user {}", self.uid));
        }
        let Some(list) = &self.list else {
            return match self.mode & 0o077 {
                0 => Ok(users),
                _ => Err(format!("its mode is {:04o}", self.mode)),
            };
        };
        let entries = entries(list).ok_or("its access control list is not understood")?;
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
                OTHER => return Err("its access control list lets everybody in".into()),
                _ => return Err("its access control list lets a group in".into()),
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
        assert_eq!(others.users().unwrap_err(), "it belongs to user 7");
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
        assert!(with(OTHER, 4).unwrap_err().contains("everybody"));
        assert!(with(GROUP_OBJ, 4).unwrap_err().contains("group"));
        // The mask removes the right again.
        assert_eq!(with(MASK, 0), Ok(BTreeSet::new()));
        for length in [0, 3, 5, whole.len() - 1] {
            let cut = access(0o660, Some(whole[..length].to_vec()));
            assert!(cut.users().is_err(), "{length}");
        }
        let mut next = whole.clone();
        next[0] = 3;
        assert!(access(0o660, Some(next)).users().is_err());
    }
}
