//! Roads that can be named.

use fabricbios_client::Road;
use fabricbios_wire::Transport;

use crate::args::RoadChoice;

/// `auto`, `rdma` or `udp`.
pub(crate) fn road(text: &str) -> Result<RoadChoice, String> {
    match text {
        "auto" => Ok(RoadChoice(None)),
        "rdma" => Ok(RoadChoice(Some(Road::Rdma))),
        "udp" => Ok(RoadChoice(Some(Road::Udp))),
        _ => Err("write auto, rdma or udp".into()),
    }
}

/// A road to block storage.
pub(crate) fn block_road(text: &str) -> Result<Transport, String> {
    let road = text.parse().ok().filter(|road| *road != Transport::Rdma);
    road.ok_or_else(|| "write auto, nvme-tcp, nvme-rdma, udp or both".into())
}

/// A road to the blocks of one lease.
pub(crate) fn attach_road(text: &str) -> Result<Transport, String> {
    let road = block_road(text)
        .ok()
        .filter(|road| *road != Transport::Both);
    road.ok_or_else(|| "write auto, nvme-tcp, nvme-rdma or udp".into())
}
