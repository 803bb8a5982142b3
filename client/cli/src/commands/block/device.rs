//! The device of a lease: attaching and detaching.

use std::{
    path::PathBuf,
    sync::mpsc::{self, Receiver},
    thread,
};

use fabricbios_client::{BlockLease, Node};
use fabricbios_kernfs::load_module;
use fabricbios_wire::{LeaseId, LeaseInfo, RefusalClass};

use super::{
    super::block_device::NbdDevice,
    attach_paths::AttachPath,
    modules::no_driver,
    nvme_device,
    nvme_host::{NvmeHost, Target},
    nvme_keys,
};
use crate::failure::{Exit, Failure};

/// An attached device.
#[derive(Debug)]
pub(super) enum Device {
    /// A namespace over NVMe-oF.
    Nvmeof(NvmeHost, Target),
    /// An NBD device that a thread of this process serves; `None`: detached.
    Nbd(Option<NbdDevice>),
}

impl Device {
    /// Attaches the device over the first path that this machine supports, and returns its file. `bytes`: the lease's
    /// size. A failure leaves nothing behind.
    pub(super) fn attach(
        node: &Node,
        lease_id: LeaseId,
        bytes: u64,
        paths: Vec<AttachPath<'_>>,
    ) -> Result<(Self, PathBuf), Failure> {
        let mut reasons = Vec::new();
        for attach_path in paths {
            let outcome = match attach_path {
                AttachPath::Nvmeof(binding, addresses) => {
                    let host = NvmeHost::this_machine();
                    let path = nvme_device::attach(&host, binding, &addresses, bytes);
                    path.map(|path| (Self::Nvmeof(host, binding.into()), path))
                }
                AttachPath::Udp => attach_nbd(node, lease_id),
            };
            match outcome {
                Err(NotAttached::NoDriver(why)) => reasons.push(why),
                Err(NotAttached::Failed(failure)) => {
                    let more = reasons.iter().rev();
                    return Err(more.fold(failure, |failure, why| failure.and_message(why)));
                }
                Ok(attached) => return Ok(attached),
            }
        }
        Err(not_connected(&reasons))
    }

    /// Detaches the device and returns when it is gone. Detaching twice is no error. After an error the device may be gone
    /// nevertheless, see [`Device::is_gone`], and writes may be lost.
    pub(super) fn detach(&mut self) -> Result<(), Failure> {
        match self {
            Self::Nvmeof(host, target) => nvme_device::disconnect(host, target),
            Self::Nbd(device) => device.take().map_or(Ok(()), NbdDevice::detach),
        }
    }

    /// Whether the device has disappeared.
    pub(super) fn is_gone(&self) -> bool {
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
    pub(super) fn change_keys(
        &self,
        info: &LeaseInfo,
    ) -> Result<Option<Receiver<Result<(), Failure>>>, Failure> {
        let (Self::Nvmeof(host, _), Some(binding)) = (self, info.binding.nvmeof()) else {
            // The UDP client takes new keys itself.
            return Ok(None);
        };
        if !nvme_keys::differ(host, binding)? {
            return Ok(None);
        }
        let (tell, told) = mpsc::channel();
        let (host, binding) = (host.clone(), binding.clone());
        thread::spawn(move || tell.send(nvme_keys::follow(&host, &binding)).ok());
        Ok(Some(told))
    }

    /// The target to disconnect if this process is killed.
    pub(super) fn target(&self) -> Option<&Target> {
        match self {
            Self::Nvmeof(_, target) => Some(target),
            // An NBD device ends with this process.
            Self::Nbd(_) => None,
        }
    }
}

/// Why a device was not attached.
pub(super) enum NotAttached {
    /// This machine lacks the driver; another path may work.
    NoDriver(String),
    Failed(Failure),
}

impl From<Failure> for NotAttached {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<NotAttached> for Failure {
    fn from(reason: NotAttached) -> Self {
        match reason {
            NotAttached::NoDriver(why) => not_connected(&[why]),
            NotAttached::Failed(failure) => failure,
        }
    }
}

fn attach_nbd(node: &Node, lease_id: LeaseId) -> Result<(Device, PathBuf), NotAttached> {
    let lease = BlockLease::open(node, lease_id).map_err(Failure::from)?;
    let loaded = load_module("nbd");
    if !NbdDevice::has_driver() {
        return Err(NotAttached::NoDriver(no_driver(
            "NBD driver",
            "/sys/block/nbd0",
            "nbd",
            loaded,
            "use a lease over NVMe-oF, or `fabricctl block read` and `write`",
        )));
    }
    let device = NbdDevice::attach(lease)?;
    let path = device.path().to_owned();
    Ok((Device::Nbd(Some(device)), path))
}

pub(super) fn not_connected(reasons: &[String]) -> Failure {
    Failure::new(
        Exit::Other,
        RefusalClass::Permanent,
        "NotConnected",
        reasons.join("; "),
    )
}

pub(super) fn local(message: String) -> Failure {
    Failure::new(Exit::Other, RefusalClass::Permanent, "Local", message)
}

pub(super) fn failure(error: fabricbios_kernfs::Error) -> Failure {
    local(format!("cannot {error}"))
}
