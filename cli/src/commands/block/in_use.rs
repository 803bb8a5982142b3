//! Whether somebody would lose a device.

use std::{fs, path::Path};

use fabricbios_wire::RefusalClass;

use crate::failure::{Exit, Failure};

/// A device that is mounted, or below another device, is not taken away on request.
pub(super) fn check(device: &Path) -> Result<(), Failure> {
    // Without /proc nobody can tell, and who asked is root.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let holders = device
        .file_name()
        .map(|name| Path::new("/sys/class/block").join(name).join("holders"));
    let above = holders.and_then(|path| fs::read_dir(path).ok()?.flatten().next());
    let user = match (mounted_at(&mounts, device), above) {
        (Some(place), _) => format!("is mounted at {place}; unmount it first"),
        (None, Some(holder)) => {
            let name = holder.file_name();
            format!("is part of {}; take that down first", name.display())
        }
        (None, None) => return Ok(()),
    };
    Err(Failure::new(
        Exit::Other,
        RefusalClass::Transient,
        "InUse",
        format!("{} {user}", device.display()),
    ))
}

/// Where the device or a partition of it is mounted: `mountinfo` of proc(5), whose fields after the `-` are
/// type, source and options.
fn mounted_at<'a>(mounts: &'a str, device: &Path) -> Option<&'a str> {
    let device = device.to_str()?;
    let is_ours = |source: &str| {
        source.strip_prefix(device).is_some_and(|rest| {
            let partition = rest.strip_prefix('p').unwrap_or("x");
            rest.is_empty() || partition.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    mounts.lines().find_map(|line| {
        let (fields, more) = line.split_once(" - ")?;
        let source = more.split(' ').nth(1)?;
        is_ours(source).then(|| fields.split(' ').nth(4)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        36 22 259:3 / /mnt/a rw - ext4 /dev/nvme1n1p2 rw\n\
        37 22 259:4 / /mnt/b rw shared:7 - xfs /dev/nvme10n1 rw\n";

    #[test]
    fn a_mounted_device_or_partition_is_found() {
        let at = |device: &str| mounted_at(MOUNTS, Path::new(device));
        assert_eq!(at("/dev/nvme1n1"), Some("/mnt/a"));
        assert_eq!(at("/dev/nvme10n1"), Some("/mnt/b"));
        assert_eq!(at("/dev/vda"), Some("/"));
        for other in ["/dev/nvme1n2", "/dev/nvme10n", "/dev/nbd0", "/dev/nvme1n"] {
            assert_eq!(at(other), None, "{other}");
        }
    }

    #[test]
    fn what_nobody_uses_may_go() {
        check(Path::new("/dev/nothing-of-that-name")).unwrap();
    }
}
