//! A namespace over NVMe-oF as a device: connecting and disconnecting.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use fabricbios_kernfs::Error;
use fabricbios_wire::{NvmeofAddress, NvmeofBinding};

use super::{
    device::{NotAttached, failure, local, not_connected},
    log::log_failure,
    nvme_connect::{NotConnected, OtherConnections, connect},
    nvme_host::{NvmeHost, Target},
    nvme_keys,
    uevents::wait_for,
};
use crate::failure::Failure;

/// How long the kernel may take to list the namespace after connecting.
const APPEARS_WITHIN: Duration = Duration::from_secs(20);
/// How long a removed controller may stay listed.
const VANISHES_WITHIN: Duration = Duration::from_secs(30);

/// Connects, unless this machine is connected already, waits for the device, and returns its file. A device of another size
/// than `bytes`, that of the lease, is not attached.
pub(super) fn attach(
    host: &NvmeHost,
    binding: &NvmeofBinding,
    addresses: &[NvmeofAddress],
    bytes: u64,
) -> Result<PathBuf, NotAttached> {
    let target = Target::from(binding);
    match host.controllers(&target).map_err(failure)?.is_empty() {
        true => connect_to_one(host, binding, addresses, OtherConnections::Refused)?,
        // An earlier daemon was killed, and the keys may have changed since then. A working device stays attached even
        // with the old keys.
        false => log_failure(
            "the lease's new keys are not the connection's",
            &nvme_keys::follow(host, binding),
        ),
    }
    let appeared = wait_for(APPEARS_WITHIN, || host.device(&target)).map_err(failure);
    let checked = appeared.and_then(|path| match path {
        Some(path) => check_size(host, &path, bytes).map(|()| Some(path)),
        None => Ok(None),
    });
    match checked {
        Ok(Some(path)) => Ok(path),
        outcome => {
            let undone = disconnect(host, &target);
            let failure = outcome.err().unwrap_or_else(|| {
                local(format!(
                    "connected, but no block device came in {} s; see the kernel's log",
                    APPEARS_WITHIN.as_secs()
                ))
            });
            Err(NotAttached::Failed(match undone {
                Ok(()) => failure,
                Err(why) => failure.and_message(&format!("still connected: {}", why.message())),
            }))
        }
    }
}

fn check_size(host: &NvmeHost, path: &Path, bytes: u64) -> Result<(), Failure> {
    let found = host.bytes(path).map_err(failure)?;
    match found == bytes {
        true => Ok(()),
        false => Err(local(format!(
            "{} has {found} bytes and the lease {bytes}: the node does not serve the lease's blocks; its operator finds why \
             in its log",
            path.display()
        ))),
    }
}

/// Connects to the first address that works, the best first.
pub(super) fn connect_to_one(
    host: &NvmeHost,
    binding: &NvmeofBinding,
    addresses: &[NvmeofAddress],
    others: OtherConnections,
) -> Result<(), NotAttached> {
    let (mut reasons, mut has_driver) = (Vec::new(), false);
    for address in addresses {
        match connect(host, binding, address, others) {
            Ok(()) => return Ok(()),
            Err(NotConnected::NoDriver(why)) => reasons.push(why),
            Err(NotConnected::Refused(why)) => {
                has_driver = true;
                reasons.push(why);
            }
        }
    }
    match has_driver {
        true => Err(not_connected(&reasons).into()),
        false => Err(NotAttached::NoDriver(reasons.join("; "))),
    }
}

/// Ends every connection to a target and returns when all are gone. The kernel refuses to delete a controller that is being
/// connected; it is deleted again later.
pub(super) fn disconnect(host: &NvmeHost, target: &Target) -> Result<(), Failure> {
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
    match wait_for(VANISHES_WITHIN, gone).map_err(failure)? {
        Some(()) => Ok(()),
        None => Err(local(format!(
            "the kernel still has a connection to {} after {} s; see its log",
            target.subnqn,
            VANISHES_WITHIN.as_secs()
        ))),
    }
}

/// The answer of `nvme_sysfs_delete` (drivers/nvme/host/sysfs.c) until the controller was live once.
fn is_busy(error: &Error) -> bool {
    error.errno() == Some(nix::libc::EBUSY)
}

#[cfg(test)]
mod tests {
    use super::{super::nvme_host::tests::machine, *};

    #[test]
    fn a_device_of_no_bytes_or_another_size_is_not_the_leases() {
        for (sectors, fits) in [("2048\n", true), ("0\n", false), ("2047\n", false)] {
            let (_dir, host) = machine(&[("class/block/nvme3n1/size", sectors)]);
            let checked = check_size(&host, Path::new("/dev/nvme3n1"), 1 << 20);
            assert_eq!(checked.is_ok(), fits, "{sectors}");
            if let Err(failure) = checked {
                let message = failure.message();
                assert!(message.contains("and the lease 1048576"), "{message}");
            }
        }
        let (_dir, host) = machine(&[]);
        assert!(check_size(&host, Path::new("/dev/nvme3n1"), 1 << 20).is_err());
    }
}
