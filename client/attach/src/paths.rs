//! The paths over which a lease can become a device of this machine.

use fabricbios_wire::{
    LeaseInfo, LeasePhase, NvmeofAddress, NvmeofBinding, NvmeofTransport, ResourceType, Transport,
};

use crate::error::AttachError;

/// A path over which a lease becomes a device.
#[derive(Debug)]
pub(crate) enum AttachPath<'a> {
    /// NVMe-oF, at one of these addresses.
    Nvmeof(&'a NvmeofBinding, Vec<NvmeofAddress>),
    /// UDP: this process serves the NBD driver of the kernel.
    Udp,
}

/// The paths over the wanted transport, or all paths, the best first; at least one.
pub(crate) fn attach_paths(
    info: &LeaseInfo,
    wanted: Transport,
) -> Result<Vec<AttachPath<'_>>, AttachError> {
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
pub(crate) fn fits(wanted: Transport, transport: Transport) -> bool {
    wanted == Transport::Auto || wanted == transport
}

pub(crate) fn transport_of(transport: NvmeofTransport) -> Transport {
    match transport {
        NvmeofTransport::Tcp => Transport::NvmeTcp,
        NvmeofTransport::Rdma => Transport::NvmeRdma,
    }
}

fn no_path(info: &LeaseInfo, wanted: Transport) -> AttachError {
    match info.binding.is_plain() {
        true => AttachError::NoAddress,
        false => AttachError::NoPath {
            wanted,
            has: info.effective.transport,
        },
    }
}

/// Checks that the lease can become a device.
fn check(info: &LeaseInfo) -> Result<(), AttachError> {
    let kind = info.resource_type();
    match info.phase {
        LeasePhase::Binding | LeasePhase::Active if kind != ResourceType::Block => {
            Err(AttachError::NotBlock(kind))
        }
        LeasePhase::Binding | LeasePhase::Active => Ok(()),
        LeasePhase::Grace => Err(AttachError::Expired),
        LeasePhase::Fenced => Err(AttachError::Fenced),
        phase => Err(AttachError::Ended(phase)),
    }
}
