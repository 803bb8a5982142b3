//! A namespace over NVMe-oF as a device: connecting and disconnecting.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use fabricbios_kernfs::Error;
use fabricbios_wire::{NvmeofAddress, NvmeofBinding};

use super::{
    connect::{OtherConnections, connect_to_one},
    host::{NvmeHost, Target},
    keys,
};
use crate::{error::AttachError, log::log_error, wait::wait_for};

/// How long the kernel may take to list the namespace after connecting.
const APPEARS_WITHIN: Duration = Duration::from_secs(20);
/// How long a removed controller may stay listed.
const VANISHES_WITHIN: Duration = Duration::from_secs(30);

/// Connects, unless this machine is connected already, waits for the device, and returns its file. A device of another size
/// than `bytes`, that of the lease, is not attached.
pub(crate) fn attach(
    host: &NvmeHost,
    binding: &NvmeofBinding,
    addresses: &[NvmeofAddress],
    bytes: u64,
) -> Result<PathBuf, AttachError> {
    let target = Target::from(binding);
    match host.controllers(&target)?.is_empty() {
        true => connect_to_one(host, binding, addresses, OtherConnections::Refused)?,
        // An earlier daemon was killed, and the keys may have changed since then. A working device stays attached even
        // with the old keys.
        false => log_error(
            "the lease's new keys are not the connection's",
            &keys::follow(host, binding),
        ),
    }
    appeared(host, &target, bytes).map_err(|error| match disconnect(host, &target) {
        Ok(()) => error,
        Err(why) => error.also(format!("still connected: {why}")),
    })
}

/// Waits for the device of a connection.
fn appeared(host: &NvmeHost, target: &Target, bytes: u64) -> Result<PathBuf, AttachError> {
    let path = wait_for(APPEARS_WITHIN, || host.device(target))?;
    let path = path.ok_or(AttachError::NoDevice(APPEARS_WITHIN.as_secs()))?;
    check_size(host, &path, bytes)?;
    Ok(path)
}

fn check_size(host: &NvmeHost, device: &Path, lease_bytes: u64) -> Result<(), AttachError> {
    let bytes = host.bytes(device)?;
    match bytes == lease_bytes {
        true => Ok(()),
        false => Err(AttachError::WrongSize {
            device: device.to_owned(),
            bytes,
            lease_bytes,
        }),
    }
}

/// Ends every connection to a target and returns when all are gone. The kernel refuses to delete a controller that is being
/// connected; it is deleted again later.
pub(crate) fn disconnect(host: &NvmeHost, target: &Target) -> Result<(), AttachError> {
    let gone = || {
        let left = host.controllers(target)?;
        let deleted: Vec<_> = left.iter().map(|name| host.delete(name)).collect();
        match deleted
            .into_iter()
            .find_map(|deleted| deleted.err().filter(|error| !is_busy(error)))
        {
            Some(error) => Err(error),
            None => Ok(host.controllers(target)?.is_empty().then_some(())),
        }
    };
    wait_for(VANISHES_WITHIN, gone)?.ok_or_else(|| AttachError::StillConnected {
        subnqn: target.subnqn.clone(),
        secs: VANISHES_WITHIN.as_secs(),
    })
}

/// The answer of `nvme_sysfs_delete` (drivers/nvme/host/sysfs.c) until the controller was live once.
fn is_busy(error: &Error) -> bool {
    error.errno() == Some(nix::libc::EBUSY)
}

#[cfg(test)]
mod tests {
    use super::{super::host::tests::machine, *};

    #[test]
    fn a_device_of_no_bytes_or_another_size_is_not_the_leases() {
        for (sectors, fits) in [("2048\n", true), ("0\n", false), ("2047\n", false)] {
            let (_dir, host) = machine(&[("class/block/nvme3n1/size", sectors)]);
            let checked = check_size(&host, Path::new("/dev/nvme3n1"), 1 << 20);
            assert_eq!(checked.is_ok(), fits, "{sectors}");
            if let Err(error) = checked {
                let message = error.to_string();
                assert!(message.contains("and the lease 1048576"), "{message}");
            }
        }
        let (_dir, host) = machine(&[]);
        assert!(check_size(&host, Path::new("/dev/nvme3n1"), 1 << 20).is_err());
    }
}
