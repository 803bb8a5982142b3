//! The device of a lease: attaching and detaching.

use std::{
    path::PathBuf,
    sync::mpsc::{self, Receiver},
    thread,
};

use fabricbios_client::{BlockLease, Node};
use fabricbios_kernfs::load_module;
use fabricbios_wire::{LeaseId, LeaseInfo};

use crate::{
    error::AttachError,
    nbd::NbdDevice,
    nvme::{self, NvmeHost, Target},
    paths::AttachPath,
};

/// An attached device.
#[derive(Debug)]
pub(crate) enum AttachedDevice {
    /// A namespace over NVMe-oF.
    Nvmeof(NvmeHost, Target),
    /// An NBD device that a thread of this process serves; `None`: detached.
    Nbd(Option<NbdDevice>),
}

impl AttachedDevice {
    /// Attaches the device over the first path that this machine supports, and returns its file. `bytes`: the lease's
    /// size. A failure leaves nothing behind.
    pub(crate) fn attach(
        node: &Node,
        lease_id: LeaseId,
        bytes: u64,
        paths: Vec<AttachPath<'_>>,
    ) -> Result<(Self, PathBuf), AttachError> {
        let mut reasons = Vec::new();
        for attach_path in paths {
            let outcome = match attach_path {
                AttachPath::Nvmeof(binding, addresses) => {
                    let host = NvmeHost::this_machine();
                    let path = nvme::attach(&host, binding, &addresses, bytes);
                    path.map(|path| (Self::Nvmeof(host, binding.into()), path))
                }
                AttachPath::Udp => attach_nbd(node, lease_id),
            };
            match outcome {
                Err(AttachError::NoDriver(why)) => reasons.push(why),
                Err(error) => return Err(reasons.into_iter().rev().fold(error, AttachError::also)),
                Ok(attached) => return Ok(attached),
            }
        }
        Err(AttachError::NoDriver(reasons.join("; ")))
    }

    /// Detaches the device and returns when it is gone. Detaching twice is no error. After an error the device may be gone
    /// nevertheless, see [`AttachedDevice::is_gone`], and writes may be lost.
    pub(crate) fn detach(&mut self) -> Result<(), AttachError> {
        match self {
            Self::Nvmeof(host, target) => nvme::disconnect(host, target),
            Self::Nbd(device) => device.take().map_or(Ok(()), NbdDevice::detach),
        }
    }

    /// Whether the device has disappeared.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            // A lost connection stays listed as long as the kernel tries to connect again.
            Self::Nvmeof(host, target) => host
                .controllers(target)
                .is_ok_and(|controllers| controllers.is_empty()),
            Self::Nbd(device) => device.as_ref().is_none_or(NbdDevice::is_gone),
        }
    }

    /// Gives the kernel the keys of the lease for its next connect, if they differ from those that the kernel has. A
    /// thread does the work and reports the result, since the node may take a minute to answer.
    pub(crate) fn change_keys(
        &self,
        info: &LeaseInfo,
    ) -> Result<Option<Receiver<Result<(), AttachError>>>, AttachError> {
        let (Self::Nvmeof(host, _), Some(binding)) = (self, info.binding.nvmeof()) else {
            // The UDP client takes new keys itself.
            return Ok(None);
        };
        if !nvme::differ(host, binding)? {
            return Ok(None);
        }
        let (result, received) = mpsc::channel();
        let (host, binding) = (host.clone(), binding.clone());
        thread::spawn(move || result.send(nvme::follow(&host, &binding)).ok());
        Ok(Some(received))
    }

    /// The target to disconnect if this process is killed.
    pub(crate) fn target(&self) -> Option<&Target> {
        match self {
            Self::Nvmeof(_, target) => Some(target),
            // An NBD device ends with this process.
            Self::Nbd(_) => None,
        }
    }
}

fn attach_nbd(node: &Node, lease_id: LeaseId) -> Result<(AttachedDevice, PathBuf), AttachError> {
    let lease = BlockLease::open(node, lease_id)?;
    let loaded = load_module("nbd");
    if !NbdDevice::has_driver() {
        return Err(AttachError::no_driver(
            "NBD driver",
            "/sys/block/nbd0",
            "nbd",
            loaded,
            "use a lease over NVMe-oF, or `fabricctl block read` and `write`",
        ));
    }
    let device = NbdDevice::attach(lease)?;
    let path = device.path().to_owned();
    Ok((AttachedDevice::Nbd(Some(device)), path))
}
