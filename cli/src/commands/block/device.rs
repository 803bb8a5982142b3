//! The device of a lease: how it comes and how it goes.

use std::{
    path::PathBuf,
    sync::mpsc::{self, Receiver},
    thread,
};

use fabricbios_client::{BlockLease, Node};
use fabricbios_wire::{LeaseId, LeaseInfo, RefusalClass};

use super::{
    super::block_device::NbdDevice,
    modules::{load_module, no_driver},
    nvme_device,
    nvme_host::{NvmeHost, Target},
    nvme_keys,
    ways::Way,
};
use crate::failure::{Exit, Failure};

/// A device that is there.
#[derive(Debug)]
pub(super) enum Device {
    /// A namespace of NVMe-oF.
    Nvmeof(NvmeHost, Target),
    /// Served by a thread of this process; `None`: not any more.
    Nbd(Option<NbdDevice>),
}

impl Device {
    /// Makes the device by the first way that this machine has; where it is. A failure leaves nothing
    /// behind.
    pub(super) fn attach(
        node: &Node,
        lease_id: LeaseId,
        ways: Vec<Way<'_>>,
    ) -> Result<(Self, PathBuf), Failure> {
        let mut reasons = Vec::new();
        for way in ways {
            let outcome = match way {
                Way::Nvmeof(binding, addresses) => {
                    let host = NvmeHost::this_machine();
                    let path = nvme_device::attach(&host, binding, &addresses);
                    path.map(|path| (Self::Nvmeof(host, binding.into()), path))
                }
                Way::Udp => attach_nbd(node, lease_id),
            };
            match outcome {
                Err(NotAttached::NoDriver(why)) => reasons.push(why),
                Err(NotAttached::Failed(failure)) => {
                    let more = reasons.iter().rev();
                    return Err(more.fold(failure, |failure, why| failure.loudly(why)));
                }
                Ok(attached) => return Ok(attached),
            }
        }
        Err(not_connected(&reasons))
    }

    /// Takes the device away; returns when it is gone. Once more is no error. On an error it may be gone all
    /// the same, see [`Device::is_gone`], and something that was written not be there.
    pub(super) fn detach(&mut self) -> Result<(), Failure> {
        match self {
            Self::Nvmeof(host, target) => nvme_device::disconnect(host, target),
            Self::Nbd(device) => device.take().map_or(Ok(()), NbdDevice::detach),
        }
    }

    /// Whether it went by itself.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            // One that is lost is still listed for as long as it may come back: that is the kernel's to decide.
            Self::Nvmeof(host, target) => host
                .controllers(target)
                .is_ok_and(|controllers| controllers.is_empty()),
            Self::Nbd(device) => device.as_ref().is_none_or(NbdDevice::is_gone),
        }
    }

    /// Where the kernel has other keys than the lease now, gives it those, for when it has to connect again; on a
    /// thread, which tells when it is done: whom it connects to may be silent for a minute.
    pub(super) fn change_keys(
        &self,
        info: &LeaseInfo,
    ) -> Result<Option<Receiver<Result<(), Failure>>>, Failure> {
        let (Self::Nvmeof(host, _), Some(binding)) = (self, &info.binding.nvmeof) else {
            // The lease's own client follows them.
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

    /// What to disconnect if nobody is left who keeps it.
    pub(super) fn target(&self) -> Option<&Target> {
        match self {
            Self::Nvmeof(_, target) => Some(target),
            // It ends with its process.
            Self::Nbd(_) => None,
        }
    }
}

/// Why there is no device.
pub(super) enum NotAttached {
    /// Another way may do.
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
