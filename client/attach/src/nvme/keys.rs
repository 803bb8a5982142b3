//! The keys of a connection in the kernel, which it needs to connect again.

use std::time::Duration;

use fabricbios_kernfs::Error;
use fabricbios_wire::{DhchapSecret, NvmeofAddress, NvmeofBinding};

use super::{
    connect::{OtherConnections, connect_to_one},
    host::{CONTROLLERS, NvmeHost, Target, is_gone},
};
use crate::{error::AttachError, paths::transport_of, wait::wait_for};

/// How long the kernel may take to list the namespace after connecting.
const PATH_WITHIN: Duration = Duration::from_secs(20);

/// Whether a connection to the target has other secrets than the lease has now.
pub(crate) fn differ(host: &NvmeHost, binding: &NvmeofBinding) -> Result<bool, AttachError> {
    let (_, stale) = split_by_keys(host, &Target::from(binding), binding)?;
    Ok(!stale.is_empty())
}

/// Replaces the connections to a target whose secrets differ from those of the lease: connects once more with the secrets of
/// the lease, then ends the old connections. The device stays, and its I/O takes any connection (NVMe multipath).
///
/// Writing new secrets to a live controller in sysfs does not work if there are two of them: the kernel authenticates again
/// after each write, after the first one with one old and one new secret. The node then ends the connection, and the
/// second authentication, already in progress, can keep the controller `resetting` for ever
/// (`drivers/nvme/host/auth.c`; seen with Linux 6.12).
pub(crate) fn follow(host: &NvmeHost, binding: &NvmeofBinding) -> Result<(), AttachError> {
    let target = Target::from(binding);
    let (fresh, stale) = split_by_keys(host, &target, binding)?;
    if stale.is_empty() {
        return Ok(());
    }
    for name in &stale {
        if host.has_own_disk(name, target.nsid)? {
            return Err(AttachError::NoMultipath);
        }
    }
    if fresh.is_empty() {
        connect_to_one(
            host,
            binding,
            &same_transport(host, binding)?,
            OtherConnections::Allowed,
        )?;
    }
    wait_for_path(host, &target, binding)?;
    Ok(stale.iter().try_for_each(|name| host.delete(name))?)
}

/// The connections with the secrets of the lease, and the others.
fn split_by_keys(
    host: &NvmeHost,
    target: &Target,
    binding: &NvmeofBinding,
) -> Result<(Vec<String>, Vec<String>), Error> {
    let (mut fresh, mut stale) = (Vec::new(), Vec::new());
    for name in host.controllers(target)? {
        match has_keys(host, &name, binding)? {
            true => fresh.push(name),
            false => stale.push(name),
        }
    }
    Ok((fresh, stale))
}

/// Whether a controller has the secrets of the lease; a controller that has just gone counts as having them.
fn has_keys(host: &NvmeHost, controller: &str, binding: &NvmeofBinding) -> Result<bool, Error> {
    let holds = |attribute: &str, secret: &DhchapSecret| {
        let path = format!("{CONTROLLERS}/{controller}/{attribute}");
        match host.sys.holds_secret(path, secret.reveal()) {
            Err(error) if is_gone(&error) => Ok(true),
            held => held,
        }
    };
    let ctrl_secret = binding.dhchap_ctrl_secret.as_ref();
    Ok(holds("dhchap_secret", &binding.dhchap_secret)?
        && ctrl_secret.map_or(Ok(true), |secret| holds("dhchap_ctrl_secret", secret))?)
}

/// The addresses of the transport over which the device is attached.
fn same_transport(
    host: &NvmeHost,
    binding: &NvmeofBinding,
) -> Result<Vec<NvmeofAddress>, AttachError> {
    let taken = host.transport(&Target::from(binding))?;
    let fits = |address: &&NvmeofAddress| taken == Some(transport_of(address.transport));
    let addresses: Vec<_> = binding.addresses.iter().filter(fits).copied().collect();
    match addresses.is_empty() {
        true => Err(AttachError::Disconnected),
        false => Ok(addresses),
    }
}

/// Waits until a new connection is a path to the namespace: the device ends with its last path.
fn wait_for_path(
    host: &NvmeHost,
    target: &Target,
    binding: &NvmeofBinding,
) -> Result<(), AttachError> {
    let leads = || -> Result<Option<()>, Error> {
        for name in split_by_keys(host, target, binding)?.0 {
            if host.is_live(&name)? && host.has_path(&name, target.nsid)? {
                return Ok(Some(()));
            }
        }
        Ok(None)
    };
    wait_for(PATH_WITHIN, leads)?.ok_or(AttachError::NoNamespace(PATH_WITHIN.as_secs()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use fabricbios_wire::HostId;

    use super::{
        super::host::tests::{CONTROLLER, HEAD, machine, target},
        *,
    };

    const OLD: &str = "DHHC-1:00:AAEC:";
    const NEW: &str = "DHHC-1:00:BBED:";
    const CTRL: &str = "DHHC-1:00:CCEE:";

    fn binding(secret: &str, ctrl_secret: Option<&str>) -> NvmeofBinding {
        NvmeofBinding {
            addresses: Vec::new(),
            subsystem: target().subnqn.parse().unwrap(),
            nsid: 1,
            host_nqn: target().hostnqn.parse().unwrap(),
            host_id: HostId::new([7; 16]).unwrap(),
            dhchap_secret: DhchapSecret::new(secret).unwrap(),
            dhchap_ctrl_secret: ctrl_secret.and_then(DhchapSecret::new),
            ctrl_loss_secs: 5,
            block_bytes: 512,
        }
    }

    /// The second connection, made since, with the new secrets.
    const ANOTHER: [(&str, &str); 6] = [
        (
            "class/nvme/nvme4/subsysnqn",
            "nqn.2025-01.io.example:lease\n",
        ),
        ("class/nvme/nvme4/hostnqn", "nqn.2025-01.io.example:host\n"),
        ("class/nvme/nvme4/dhchap_secret", "DHHC-1:00:BBED:\n"),
        ("class/nvme/nvme4/dhchap_ctrl_secret", "DHHC-1:00:CCEE:\n"),
        ("class/nvme/nvme4/state", "live\n"),
        ("class/nvme/nvme4/nvme3c4n1/nsid", "1\n"),
    ];
    const KEYS: [(&str, &str); 3] = [
        ("class/nvme/nvme3/dhchap_secret", "DHHC-1:00:AAEC:\n"),
        ("class/nvme/nvme3/dhchap_ctrl_secret", "none\n"),
        ("class/nvme/nvme3/delete_controller", ""),
    ];

    #[test]
    fn a_connection_with_the_keys_of_the_lease_is_left_alone() {
        let (_dir, host) = machine(&[&CONTROLLER[..], &KEYS].concat());
        assert!(!differ(&host, &binding(OLD, None)).unwrap());
        assert!(differ(&host, &binding(NEW, None)).unwrap());
        assert!(differ(&host, &binding(OLD, Some(CTRL))).unwrap());
    }

    #[test]
    fn one_with_others_ends_once_another_leads_to_the_namespace() {
        let (dir, host) = machine(&[&CONTROLLER[..], &HEAD, &KEYS, &ANOTHER].concat());
        follow(&host, &binding(NEW, Some(CTRL))).unwrap();
        let deleted = dir.path().join("class/nvme/nvme3/delete_controller");
        assert_eq!(fs::read_to_string(deleted).unwrap(), "1");
        assert!(
            !dir.path()
                .join("class/nvme/nvme4/delete_controller")
                .exists()
        );
    }

    #[test]
    fn without_multipath_nothing_is_touched() {
        let alone = [("class/nvme/nvme3/nvme3n1/nsid", "1\n")];
        let (dir, host) = machine(&[&CONTROLLER[..2], &alone, &KEYS, &ANOTHER].concat());
        let error = follow(&host, &binding(NEW, Some(CTRL))).unwrap_err();
        assert!(error.to_string().contains("multipath=N"), "{error}");
        let deleted = dir.path().join("class/nvme/nvme3/delete_controller");
        assert_eq!(fs::read_to_string(deleted).unwrap(), "");
    }

    #[test]
    fn what_fails_names_the_place_and_no_secret() {
        let (dir, host) = machine(&[&CONTROLLER[..], &KEYS].concat());
        let place = dir.path().join(KEYS[0].0);
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        let error = follow(&host, &binding(NEW, None)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("nvme3/dhchap_secret") && !text.contains("DHHC"),
            "{text}"
        );
    }
}
