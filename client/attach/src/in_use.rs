//! Checks whether a device is in use.

use std::{
    fmt, fs,
    io::{self, ErrorKind},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use fabricbios_kernfs::{Mount, mounts};
use nix::unistd::syncfs;

use crate::{error::AttachError, wait::within};

/// How long the kernel may take to say whether a device is in use.
const LOOK: Duration = Duration::from_secs(2);

/// The user of a device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// A mounted file system, at this place.
    Mount(PathBuf),
    /// Another device, such as `dm-0`.
    Holder(String),
    /// The kernel says that the device is in use, but not by whom: swap, LVM on a partition, a mount in another namespace.
    Unseen,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(place) => write!(f, "mounted at {}", place.display()),
            Self::Holder(name) => write!(f, "part of {name}"),
            Self::Unseen => f.write_str("used as swap, by LVM or in another mount namespace"),
        }
    }
}

impl User {
    /// How to end the use.
    pub(crate) fn remedy(&self) -> String {
        match self {
            // In quotes, since the path may have any characters.
            Self::Mount(place) => format!("`umount {place:?}`"),
            Self::Holder(name) => format!("take {name} down"),
            Self::Unseen => {
                "find the user with `swapon --show`, `pvs` and `lsns -t mnt`, and end that use"
                    .to_owned()
            }
        }
    }

    /// Writes the file system back, within this time.
    pub(crate) fn write_back(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Mount(_) if limit.is_zero() => {
                Err(io::Error::other("the device takes no more writes"))
            }
            Self::Mount(place) => write_back(place, limit),
            _ => Err(io::Error::other("the writes of such a user are not known")),
        }
    }
}

/// The user of a device or of its partitions, as far as /proc and /sys show it.
pub(crate) fn user(device: &Path) -> Option<User> {
    // Without /proc nothing is known.
    mounted_at(mounts(), device)
        .map(User::Mount)
        .or_else(|| holder(device).map(User::Holder))
}

/// Refuses to detach a device that is in use.
pub(crate) fn check(device: &Path) -> Result<(), AttachError> {
    let user = user(device).or_else(|| is_claimed(device).then_some(User::Unseen));
    match user {
        None => Ok(()),
        Some(user) => Err(AttachError::InUse {
            device: device.to_owned(),
            user: user.to_string(),
            remedy: user.remedy(),
        }),
    }
}

fn holder(device: &Path) -> Option<String> {
    let place = Path::new("/sys/class/block").join(device.file_name()?);
    let holder = fs::read_dir(place.join("holders")).ok()?.flatten().next()?;
    holder.file_name().into_string().ok()
}

/// Whether a mount or another device claims the device exclusively (open(2), `O_EXCL`). On another thread: the kernel may be
/// reading the partitions of a device that does not answer.
fn is_claimed(device: &Path) -> bool {
    let device = device.to_owned();
    let is_busy = move || {
        let mut options = fs::OpenOptions::new();
        let opened = options.read(true).custom_flags(libc::O_EXCL).open(device);
        opened.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
    };
    within(LOOK, is_busy).unwrap_or(false)
}

/// The mount point of the device or of a partition.
fn mounted_at(mounts: Vec<Mount>, device: &Path) -> Option<PathBuf> {
    let device = device.to_str()?;
    let is_ours = |mount: &Mount| {
        let rest = mount.source.to_str().and_then(|it| it.strip_prefix(device));
        rest.is_some_and(|rest| {
            let partition = rest.strip_prefix('p').unwrap_or("x");
            rest.is_empty() || partition.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    mounts.into_iter().find(is_ours).map(|mount| mount.place)
}

/// On another thread, since syncfs(2) hangs while the node does not answer.
fn write_back(place: &Path, limit: Duration) -> io::Result<()> {
    let place = fs::File::open(place)?;
    match within(limit, move || syncfs(&place)) {
        Some(written) => written.map_err(io::Error::from),
        None => Err(ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricbios_kernfs::parse_mounts;

    const MOUNTS: &[u8] = b"\
        22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        36 22 259:3 / /mnt/a\\040b rw - ext4 /dev/nvme1n1p2 rw\n\
        37 22 259:4 / /mnt/b rw shared:7 - xfs /dev/nvme10n1 rw\n";

    #[test]
    fn a_mounted_device_or_partition_is_found() {
        let at = |device: &str| mounted_at(parse_mounts(MOUNTS), Path::new(device));
        assert_eq!(at("/dev/nvme1n1"), Some("/mnt/a b".into()));
        assert_eq!(at("/dev/nvme10n1"), Some("/mnt/b".into()));
        assert_eq!(at("/dev/vda"), Some("/".into()));
        for other in ["/dev/nvme1n2", "/dev/nvme10n", "/dev/nbd0", "/dev/nvme1n"] {
            assert_eq!(at(other), None, "{other}");
        }
    }

    #[test]
    fn what_nobody_uses_may_go() {
        check(Path::new("/dev/nothing-of-that-name")).unwrap();
    }

    #[test]
    fn what_has_no_time_left_is_not_stored() {
        let user = User::Mount(std::env::temp_dir());
        user.write_back(Duration::ZERO).unwrap_err();
        user.write_back(Duration::from_secs(60)).unwrap();
    }
}
