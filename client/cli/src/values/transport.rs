//! Transports on the command line.

use fabricbios_client::DataTransport;
use fabricbios_wire::Transport;

use super::BadValue;
use crate::args::TransportChoice;

/// `auto`, `rdma` or `udp`.
pub(crate) fn transport(text: &str) -> Result<TransportChoice, BadValue> {
    match text {
        "auto" => Ok(TransportChoice(None)),
        "rdma" => Ok(TransportChoice(Some(DataTransport::Rdma))),
        "udp" => Ok(TransportChoice(Some(DataTransport::Udp))),
        _ => Err("write auto, rdma or udp".into()),
    }
}

/// A transport of block storage.
pub(crate) fn block_transport(text: &str) -> Result<Transport, BadValue> {
    let transport = text
        .parse()
        .ok()
        .filter(|transport| *transport != Transport::Rdma);
    transport.ok_or_else(|| "write auto, nvme-tcp, nvme-rdma, udp or both".into())
}

/// A transport over which to attach a lease.
pub(crate) fn attach_transport(text: &str) -> Result<Transport, BadValue> {
    let transport = block_transport(text)
        .ok()
        .filter(|transport| *transport != Transport::Both);
    transport.ok_or_else(|| "write auto, nvme-tcp, nvme-rdma or udp".into())
}
