//! By which ways a lease can become a device of this machine, if it can at all.

use fabricbios_wire::{
    Binding, LeaseInfo, LeasePhase, NvmeofAddress, NvmeofBinding, NvmeofTransport, RefusalClass,
    ResourceType, Transport,
};

use crate::failure::{Exit, Failure};

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
    let mut ways = Vec::new();
    if let Some(binding) = &info.binding.nvmeof {
        let fits = |address: &&NvmeofAddress| fits(wanted, road(address.transport));
        let addresses: Vec<_> = binding.addresses.iter().filter(fits).copied().collect();
        if !addresses.is_empty() {
            ways.push(Way::Nvmeof(binding, addresses));
        }
    }
    let has_udp = info.binding.dp_key.is_some() && info.binding.udp_endpoint.is_some();
    if has_udp && fits(wanted, Transport::Udp) {
        ways.push(Way::Udp);
    }
    match ways.is_empty() {
        true => Err(no_way(info, wanted)),
        false => Ok(ways),
    }
}

/// Whether a device over `road` is what was asked for.
pub(super) fn fits(wanted: Transport, road: Transport) -> bool {
    wanted == Transport::Auto || wanted == road
}

pub(super) fn road(transport: NvmeofTransport) -> Transport {
    match transport {
        NvmeofTransport::Tcp => Transport::NvmeTcp,
        NvmeofTransport::Rdma => Transport::NvmeRdma,
    }
}

fn no_way(info: &LeaseInfo, wanted: Transport) -> Failure {
    if info.binding == Binding::default() {
        return Failure::usage(
            "the node does not say where it is: it tells only the lease's tenant (--identity), and \
             nobody while the lease is being bound"
                .to_owned(),
        );
    }
    let road = info.effective.transport.map_or("none yet", Transport::name);
    let wanted = match wanted {
        Transport::Auto => "NVMe-oF or UDP".to_owned(),
        other => other.to_string(),
    };
    Failure::usage(format!(
        "it has no way over {wanted} now: its transport is {road}; leave --transport out to take what \
         there is, or ask for a lease with another --transport"
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
                format!(
                    "it is a lease of {kind}, not of block storage; `fabricctl lease list` shows what is"
                ),
            )
        }
        LeasePhase::Binding | LeasePhase::Active => Ok(()),
        LeasePhase::Grace => {
            let message = "its term is over; renew it, or ask for a new lease";
            failed(Exit::NotFound, "Expired", message.to_owned())
        }
        LeasePhase::Fenced => failed(
            Exit::Fenced,
            "Fenced",
            "it is over and fenced; ask for a new lease".to_owned(),
        ),
        phase => failed(
            Exit::NotFound,
            "Ended",
            format!("it is over: {phase}; ask for a new lease"),
        ),
    }
}
