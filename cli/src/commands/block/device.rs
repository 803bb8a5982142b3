//! The device of a lease: how it comes and how it goes.

use std::{path::PathBuf, time::Duration};

use fabricbios_client::{BlockLease, Node};
use fabricbios_wire::{
    LeaseId, LeaseInfo, LeasePhase, NvmeofAddress, NvmeofBinding, NvmeofTransport, RefusalClass,
    ResourceType, Transport,
};

use super::{
    super::block_device::NbdDevice,
    nvme_connect::{NotConnected, connect, load_module},
    nvme_host::{NvmeHost, Target},
    uevents::wait_for,
};
use crate::failure::{Exit, Failure};

/// The kernel looks for namespaces by itself once it is connected.
const APPEARS_WITHIN: Duration = Duration::from_secs(20);
/// What is gone for the kernel may still be seen for a moment.
const VANISHES_WITHIN: Duration = Duration::from_secs(30);

/// How a lease becomes a device.
#[derive(Debug)]
pub(super) enum Way<'a> {
    /// Over NVMe-oF, at one of these addresses.
    Nvmeof(&'a NvmeofBinding, Vec<NvmeofAddress>),
    /// Over UDP, served by this process through the kernel's NBD driver.
    Udp,
}

/// The way that was asked for, or all that there are, best first; there is one at least.
pub(super) fn ways(info: &LeaseInfo, wanted: Transport) -> Result<Vec<Way<'_>>, Failure> {
    check(info)?;
    let fits = |address: &&NvmeofAddress| match wanted {
        Transport::NvmeTcp => address.transport == NvmeofTransport::Tcp,
        Transport::NvmeRdma => address.transport == NvmeofTransport::Rdma,
        other => other == Transport::Auto,
    };
    let mut ways = Vec::new();
    if let Some(binding) = &info.binding.nvmeof {
        let addresses: Vec<_> = binding.addresses.iter().filter(fits).copied().collect();
        if !addresses.is_empty() {
            ways.push(Way::Nvmeof(binding, addresses));
        }
    }
    let has_udp = info.binding.dp_key.is_some() && info.binding.udp_endpoint.is_some();
    if has_udp && matches!(wanted, Transport::Auto | Transport::Udp) {
        ways.push(Way::Udp);
    }
    match ways.is_empty() {
        true => Err(no_way(info, wanted)),
        false => Ok(ways),
    }
}

fn no_way(info: &LeaseInfo, wanted: Transport) -> Failure {
    let road = info.effective.transport.map_or("none yet", Transport::name);
    let wanted = match wanted {
        Transport::Auto => "NVMe-oF or UDP".to_owned(),
        other => other.to_string(),
    };
    Failure::usage(format!(
        "it has no way over {wanted} now: its transport is {road}"
    ))
}

/// Whether there is a device to be had at all.
fn check(info: &LeaseInfo) -> Result<(), Failure> {
    let failed = |exit, code: &str, message: String| {
        Err(Failure::new(exit, RefusalClass::Permanent, code, message))
    };
    match info.phase {
        LeasePhase::Binding | LeasePhase::Active if info.resource_type != ResourceType::Block => {
            let kind = info.resource_type;
            failed(
                Exit::Usage,
                "Usage",
                format!("it is a lease of {kind}, not of block storage"),
            )
        }
        LeasePhase::Binding | LeasePhase::Active => Ok(()),
        LeasePhase::Grace => {
            let message = "its term is over; renew it, or ask for a new lease";
            failed(Exit::NotFound, "Expired", message.to_owned())
        }
        LeasePhase::Fenced => failed(Exit::Fenced, "Fenced", "it is over and fenced".to_owned()),
        phase => failed(
            Exit::NotFound,
            "Ended",
            format!("it is over: {phase}; ask for a new lease"),
        ),
    }
}

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
                Way::Nvmeof(binding, addresses) => attach_nvmeof(binding, &addresses),
                Way::Udp => attach_nbd(node, lease_id),
            };
            match outcome {
                Err(NotAttached::NoDriver(why)) => reasons.push(why),
                Err(NotAttached::Failed(failure)) => return Err(failure),
                Ok(attached) => return Ok(attached),
            }
        }
        Err(not_connected(&reasons))
    }

    /// Takes the device away; returns when it is gone. Once more is no error. On an error it may be gone all
    /// the same, see [`Device::is_gone`], and something that was written not be there.
    pub(super) fn detach(&mut self) -> Result<(), Failure> {
        match self {
            Self::Nvmeof(host, target) => disconnect(host, target),
            Self::Nbd(device) => device.take().map_or(Ok(()), NbdDevice::detach),
        }
    }

    /// Whether it went by itself.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            // A connection that is lost may come back, and the kernel decides when it may not.
            Self::Nvmeof(..) => false,
            Self::Nbd(device) => device.as_ref().is_none_or(NbdDevice::is_gone),
        }
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

enum NotAttached {
    /// Another way may do.
    NoDriver(String),
    Failed(Failure),
}

impl From<Failure> for NotAttached {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn attach_nbd(node: &Node, lease_id: LeaseId) -> Result<(Device, PathBuf), NotAttached> {
    let lease = BlockLease::open(node, lease_id).map_err(Failure::from)?;
    // It may be there without, and who needs it says what is missing.
    load_module("nbd").ok();
    let device = NbdDevice::attach(lease)?;
    let path = device.path().to_owned();
    Ok((Device::Nbd(Some(device)), path))
}

fn attach_nvmeof(
    binding: &NvmeofBinding,
    addresses: &[NvmeofAddress],
) -> Result<(Device, PathBuf), NotAttached> {
    let host = NvmeHost::this_machine();
    let target = Target::from(binding);
    if host.controllers(&target).map_err(failure)?.is_empty() {
        connect_to_one(&host, binding, addresses)?;
    }
    match wait_for(APPEARS_WITHIN, || host.device(&target)).map_err(failure) {
        Ok(Some(path)) => Ok((Device::Nvmeof(host, target), path)),
        outcome => {
            let undone = disconnect(&host, &target);
            let failure = outcome.err().unwrap_or_else(no_device);
            Err(NotAttached::Failed(match undone {
                Ok(()) => failure,
                Err(why) => failure.loudly(&format!("still connected: {}", why.message())),
            }))
        }
    }
}

/// The first address that answers, best first.
fn connect_to_one(
    host: &NvmeHost,
    binding: &NvmeofBinding,
    addresses: &[NvmeofAddress],
) -> Result<(), NotAttached> {
    let (mut reasons, mut has_driver) = (Vec::new(), false);
    for address in addresses {
        match connect(host, binding, address) {
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

fn not_connected(reasons: &[String]) -> Failure {
    Failure::new(
        Exit::Other,
        RefusalClass::Permanent,
        "NotConnected",
        reasons.join("; "),
    )
}

/// Ends every connection to a target; returns when they are gone.
pub(super) fn disconnect(host: &NvmeHost, target: &Target) -> Result<(), Failure> {
    for controller in host.controllers(target).map_err(failure)? {
        host.delete(&controller).map_err(failure)?;
    }
    let gone = || Ok(host.controllers(target)?.is_empty().then_some(()));
    match wait_for(VANISHES_WITHIN, gone).map_err(failure)? {
        Some(()) => Ok(()),
        None => Err(local(format!(
            "the kernel still has a connection to {} after {} s; see its log",
            target.subnqn,
            VANISHES_WITHIN.as_secs()
        ))),
    }
}

fn no_device() -> Failure {
    local(format!(
        "connected, but no block device came in {} s; see the kernel's log",
        APPEARS_WITHIN.as_secs()
    ))
}

fn local(message: String) -> Failure {
    Failure::new(Exit::Other, RefusalClass::Permanent, "Local", message)
}

fn failure(error: fabricbios_kernfs::Error) -> Failure {
    local(format!("cannot {error}"))
}
