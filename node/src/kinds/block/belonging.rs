//! Finds out from sysfs whether a volume that the kernel serves belongs to a pool.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use fabricbios_kernfs::Tree;
use fabricbios_pool::Facts;

/// True if the volume belongs to the pool.
pub(super) fn is_of(volume: &Path, pool: &Path, facts: &Facts) -> bool {
    match &facts.device {
        Some(device) => is_on_device(volume, device, facts.identity),
        None => is_in_directory(&behind_loop(volume), pool),
    }
}

fn is_in_directory(volume: &Path, pool: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_volume = volume.extension().is_some_and(|it| it == "volume");
    is_volume && volume.parent().is_some_and(|it| real(it) == real(pool))
}

/// The file behind a loop device; any other path is returned unchanged.
fn behind_loop(volume: &Path) -> PathBuf {
    let file = block_device(volume).and_then(|it| it.read("loop/backing_file").ok());
    file.map_or_else(|| volume.to_owned(), PathBuf::from)
}

fn is_on_device(volume: &Path, device: &str, identity: [u8; 16]) -> bool {
    let Some(its) = block_device(volume) else {
        return false;
    };
    let slice = format!("FABRICBIOS-{:032x}-", u128::from_be_bytes(identity));
    let is_slice = its
        .read("dm/uuid")
        .is_ok_and(|uuid| uuid.starts_with(&slice));
    let below = its.list("slaves").unwrap_or_default();
    is_slice || below.iter().any(|name| name == device)
}

/// A block device in sysfs; `None`: not a block device.
fn block_device(path: &Path) -> Option<Tree> {
    let number = fs::metadata(path).ok()?.rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    (number != 0).then(|| Tree::new(format!("/sys/dev/block/{major}:{minor}")))
}
