//! The paths over which a lease can become a device of this machine.

use fabricbios_wire::{
    LeaseInfo, LeasePhase, NvmeofAddress, NvmeofBinding, NvmeofTransport, RefusalClass,
    ResourceType, Transport,
};

use crate::failure::{Exit, Failure};

/// A path over which a lease becomes a device.
#[derive(Debug)]
pub(super) enum AttachPath<'a> {
    /// NVMe-oF, at one of these addresses.
    Nvmeof(&'a NvmeofBinding, Vec<NvmeofAddress>),
    /// UDP: this process serves the NBD driver of the kernel.
    Udp,
}

/// The paths over the wanted transport, or all paths, the best first; at least one.
pub(super) fn attach_paths(
    info: &LeaseInfo,
    wanted: Transport,
) -> Result<Vec<AttachPath<'_>>, Failure> {
    check(info)?;
    let mut paths = Vec::new();
    if let Some(binding) = info.binding.nvmeof() {
        let fits = |address: &&NvmeofAddress| fits(wanted, transport_of(address.transport));
        let addresses: Vec<_> = binding.addresses.iter().filter(fits).copied().collect();
        if !addresses.is_empty() {
            paths.push(AttachPath::Nvmeof(binding, addresses));
        }
    }
    let has_udp = info.binding.dp_key.is_some() && info.binding.udp_endpoint.is_some();
    if has_udp && fits(wanted, Transport::Udp) {
        paths.push(AttachPath::Udp);
    }
    match paths.is_empty() {
        true => Err(no_path(info, wanted)),
        false => Ok(paths),
    }
}

/// Whether `transport` is the wanted one.
pub(super) fn fits(wanted: Transport, transport: Transport) -> bool {
    wanted == Transport::Auto || wanted == transport
}

pub(super) fn transport_of(transport: NvmeofTransport) -> Transport {
    match transport {
        NvmeofTransport::Tcp => Transport::NvmeTcp,
        NvmeofTransport::Rdma => Transport::NvmeRdma,
    }
}

fn no_path(info: &LeaseInfo, wanted: Transport) -> Failure {
    if info.binding.is_plain() {
        return Failure::usage(
            "the node does not say where it is: it tells only the lease's tenant (--identity), and \
             nobody while the lease is being bound"
                .to_owned(),
        );
    }
    let transport = info.effective.transport.map_or("none yet", Transport::name);
    let wanted = match wanted {
        Transport::Auto => "NVMe-oF or UDP".to_owned(),
        other => other.to_string(),
    };
    Failure::usage(format!(
        "it has no way over {wanted} now: its transport is {transport}; leave --transport out to take what \
         there is, or ask for a lease with another --transport"
    ))
}

/// Checks that the lease can become a device.
fn check(info: &LeaseInfo) -> Result<(), Failure> {
    let failed = |exit, code: &str, message: String| {
        Err(Failure::new(exit, RefusalClass::Permanent, code, message))
    };
    match info.phase {
        LeasePhase::Binding | LeasePhase::Active if info.resource_type() != ResourceType::Block => {
            let kind = info.resource_type();
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
