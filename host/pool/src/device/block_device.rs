//! The properties and the users of a block device, as the kernel reports them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fabricbios_kernfs::{Mount, Tree, mounts};
use sha2::{Digest, Sha256};

use super::dm::DeviceNumber;
use crate::error::{At, Error};

/// The unit of sizes in sysfs, whatever the block size of the device.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// A disk, or a partition of one.
#[derive(Clone, Debug)]
pub(crate) struct BlockDevice {
    pub(crate) path: PathBuf,
    pub(crate) number: DeviceNumber,
    /// Name in the kernel, such as `sda1`.
    pub(crate) name: String,
    /// The directory of the device in sysfs.
    own: Tree,
    /// The directory of its disk in sysfs; differs from `own` only for a partition.
    disk: Tree,
}

impl BlockDevice {
    pub(crate) fn find(path: PathBuf) -> Result<Self, Error> {
        let metadata = fs::metadata(&path)?;
        let number = DeviceNumber::of(metadata.rdev());
        let link = format!("/sys/dev/block/{number}");
        let directory = fs::canonicalize(&link).at(&link)?;
        let own = Tree::new(&directory);
        let is_partition = own.exists("partition")?;
        let disk = directory.parent().filter(|_| is_partition);
        Ok(Self {
            disk: disk.map_or_else(|| own.clone(), Tree::new),
            name: file_name(&directory),
            own,
            path,
            number,
        })
    }

    /// Current size in bytes.
    pub(crate) fn bytes(&self) -> Result<u64, Error> {
        let sectors: u64 = self.own.read_as("size")?;
        Ok(sectors.saturating_mul(SECTOR_BYTES))
    }

    /// Checks that the name still belongs to this device.
    pub(crate) fn is_there(&self) -> Result<(), Error> {
        let metadata = fs::metadata(&self.path)?;
        if DeviceNumber::of(metadata.rdev()) != self.number {
            return Err(Error::Changed("another device has its name now".into()));
        }
        match self.bytes()? {
            0 => Err(Error::Changed("it has no medium any more".into())),
            _ => Ok(()),
        }
    }

    /// Block size in bytes.
    pub(crate) fn logical_block_bytes(&self) -> Result<u32, Error> {
        Ok(self.disk.read_as("queue/logical_block_size")?)
    }

    pub(crate) fn read_only(&self) -> Result<bool, Error> {
        let flag: u8 = self.own.read_as("ro")?;
        Ok(flag != 0)
    }

    pub(crate) fn removable(&self) -> bool {
        self.disk
            .read_as::<u8>("removable")
            .is_ok_and(|flag| flag != 0)
    }

    /// Partitions of the device.
    pub(crate) fn partitions(&self) -> Vec<String> {
        let names = self.own.list("").unwrap_or_default().into_iter();
        let is_partition = |name: &String| self.own.exists(format!("{name}/partition"));
        names
            .filter(|name| is_partition(name).unwrap_or(false))
            .collect()
    }

    /// Devices on top of the device, each with its device-mapper UUID if it has one.
    pub(crate) fn holders(&self) -> Vec<(String, Option<String>)> {
        let names = self.own.list("holders").unwrap_or_default().into_iter();
        let uuid = |name: &String| {
            Tree::new("/sys/class/block")
                .read(format!("{name}/dm/uuid"))
                .ok()
        };
        names.map(|name| (name.clone(), uuid(&name))).collect()
    }

    /// How the device is used, as a mount or as swap space, and what to do; `None`: neither.
    pub(crate) fn used_as(&self) -> Option<String> {
        let swaps = Tree::new("/proc").read("swaps").unwrap_or_default();
        let mount = mounted_at(&mounts(), self.number, &self.path);
        let mount = mount.map(|place| format!("mounted on {}: `umount` it first", place.display()));
        mount.or_else(|| {
            is_swap(&swaps, &self.path).then(|| "used as swap space: `swapoff` it first".to_owned())
        })
    }

    /// An identity made from the device's serial name, so that it is the same wherever the device is attached. For
    /// read-only devices.
    pub(crate) fn fingerprint(&self) -> [u8; 16] {
        let words = [
            "wwid",
            "device/wwid",
            "device/serial",
            "serial",
            "dm/uuid",
            "loop/backing_file",
        ];
        let told = words.map(|word| self.disk.read(word).unwrap_or_default());
        let partition = self.own.read("partition").unwrap_or_default();
        let nameless = told
            .iter()
            .all(String::is_empty)
            .then(|| self.number.to_string());
        let bytes = self.bytes().unwrap_or(0);
        let text = format!("{told:?} {partition} {nameless:?} {bytes}");
        let sum = Sha256::digest(text.as_bytes());
        std::array::from_fn(|index| sum[index])
    }
}

/// Compares the name too: some file systems use other device numbers.
fn mounted_at(mounts: &[Mount], number: DeviceNumber, path: &Path) -> Option<PathBuf> {
    let number = number.to_string();
    let is_it = |mount: &&Mount| mount.number == *number || mount.source == path;
    mounts.iter().find(is_it).map(|mount| mount.place.clone())
}

fn is_swap(swaps: &str, path: &Path) -> bool {
    let names = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    names.map(Path::new).any(|name| name == path)
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricbios_kernfs::parse_mounts;

    const MOUNTS: &[u8] = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                          30 22 0:40 /sub /mnt/b rw - btrfs /dev/sdb rw,ssd\n\
                          31 22 0:5 / /proc rw - proc proc rw\nnonsense\n";

    #[test]
    fn a_mount_is_found_by_number_or_by_name() {
        let number = |major, minor| DeviceNumber { major, minor };
        let mounts = parse_mounts(MOUNTS);
        let at = |major, minor, path| mounted_at(&mounts, number(major, minor), Path::new(path));
        assert_eq!(at(8, 1, "/dev/disk/by-id/x").unwrap(), Path::new("/"));
        assert_eq!(at(8, 16, "/dev/sdb").unwrap(), Path::new("/mnt/b"));
        assert_eq!(at(8, 32, "/dev/sdc"), None);
    }

    #[test]
    fn swap_is_found_by_name() {
        let swaps = "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n";
        assert!(is_swap(swaps, Path::new("/dev/sda2")));
        assert!(!is_swap(swaps, Path::new("/dev/sda")));
    }
}
