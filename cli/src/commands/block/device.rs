//! The device of a lease: how it comes and how it goes.

use std::{path::PathBuf, time::Duration};

use fabricbios_wire::{
    LeaseInfo, LeasePhase, NvmeofAddress, NvmeofBinding, NvmeofTransport, RefusalClass,
    ResourceType, Transport,
};

use super::{
    nvme_connect::{NotConnected, connect},
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
}

/// The way that was asked for, or the best; `Auto` is NVMe-oF where the lease has it.
pub(super) fn way(info: &LeaseInfo, wanted: Transport) -> Result<Way<'_>, Failure> {
    check(info)?;
    let addresses = |binding: &NvmeofBinding| -> Vec<NvmeofAddress> {
        let fits = |address: &&NvmeofAddress| match wanted {
            Transport::NvmeTcp => address.transport == NvmeofTransport::Tcp,
            Transport::NvmeRdma => address.transport == NvmeofTransport::Rdma,
            _ => true,
        };
        binding.addresses.iter().filter(fits).copied().collect()
    };
    let found = info
        .binding
        .nvmeof
        .as_ref()
        .filter(|_| wanted != Transport::Udp)
        .map(|binding| Way::Nvmeof(binding, addresses(binding)));
    match found {
        Some(Way::Nvmeof(_, addresses)) if addresses.is_empty() => Err(no_way(info, wanted)),
        Some(way) => Ok(way),
        None => Err(no_way(info, wanted)),
    }
}

fn no_way(info: &LeaseInfo, wanted: Transport) -> Failure {
    let road = info.effective.transport.map_or("none yet", Transport::name);
    let wanted = match wanted {
        Transport::Auto => "NVMe-oF or UDP".to_owned(),
        other => other.to_string(),
    };
    Failure::usage(format!(
        "it has no way over {wanted}: its transport is {road}; `fabricctl block read` and `write` need none"
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
}

impl Device {
    /// Makes the device; where it is. A failure leaves nothing behind.
    pub(super) fn attach(way: Way<'_>) -> Result<(Self, PathBuf), Failure> {
        let Way::Nvmeof(binding, addresses) = way;
        let host = NvmeHost::this_machine();
        let target = Target::from(binding);
        if host.controllers(&target).map_err(failure)?.is_empty() {
            connect_to_one(&host, binding, &addresses)?;
        }
        match wait_for(APPEARS_WITHIN, || host.device(&target)).map_err(failure) {
            Ok(Some(path)) => Ok((Self::Nvmeof(host, target), path)),
            outcome => {
                let undone = disconnect(&host, &target);
                let failure = outcome.err().unwrap_or_else(no_device);
                Err(match undone {
                    Ok(()) => failure,
                    Err(why) => failure.loudly(&format!("and it is still connected: {why:?}")),
                })
            }
        }
    }

    /// Takes the device away; returns when it is gone. Once more is no error.
    pub(super) fn detach(&self) -> Result<(), Failure> {
        let Self::Nvmeof(host, target) = self;
        disconnect(host, target)
    }

    /// What to disconnect if nobody is left who keeps it.
    pub(super) fn target(&self) -> Option<&Target> {
        let Self::Nvmeof(_, target) = self;
        Some(target)
    }
}

/// The first address that answers, best first.
fn connect_to_one(
    host: &NvmeHost,
    binding: &NvmeofBinding,
    addresses: &[NvmeofAddress],
) -> Result<(), Failure> {
    let mut reasons = Vec::new();
    for address in addresses {
        match connect(host, binding, address) {
            Ok(()) => return Ok(()),
            Err(NotConnected::NoDriver(why) | NotConnected::Refused(why)) => reasons.push(why),
        }
    }
    Err(Failure::new(
        Exit::Other,
        RefusalClass::Permanent,
        "NotConnected",
        reasons.join("; "),
    ))
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
