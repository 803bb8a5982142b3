//! The JSON of the NVMe-oF binding of a lease, with the names of nvme-cli.

use std::net::SocketAddr;

use fabricbios_client::connect_line;
use fabricbios_wire::{DhchapSecret, NvmeofAddress, NvmeofBinding};
use serde::Serialize;
use zeroize::Zeroizing;

#[derive(Serialize)]
pub(crate) struct NvmeofJson<'a> {
    /// The first of `paths`.
    #[serde(flatten)]
    first: Option<PathJson>,
    subnqn: &'a str,
    nsid: u32,
    hostnqn: &'a str,
    hostid: String,
    dhchap_secret: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dhchap_ctrl_secret: Option<&'a str>,
    ctrl_loss_tmo: u32,
    block_size: u32,
    paths: Vec<PathJson>,
    /// The complete command, for a root shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    connect: Option<Zeroizing<String>>,
}

#[derive(Serialize)]
struct PathJson {
    trtype: &'static str,
    traddr: String,
    trsvcid: String,
}

impl<'a> From<&'a NvmeofBinding> for NvmeofJson<'a> {
    fn from(binding: &'a NvmeofBinding) -> Self {
        let ctrl_secret = binding.dhchap_ctrl_secret.as_ref();
        Self {
            first: binding.addresses.first().map(PathJson::from),
            subnqn: binding.subsystem.as_str(),
            nsid: binding.nsid,
            hostnqn: binding.host_nqn.as_str(),
            hostid: binding.host_id.to_string(),
            dhchap_secret: binding.dhchap_secret.reveal(),
            dhchap_ctrl_secret: ctrl_secret.map(DhchapSecret::reveal),
            ctrl_loss_tmo: binding.ctrl_loss_secs,
            block_size: binding.block_bytes,
            paths: binding.addresses.iter().map(PathJson::from).collect(),
            connect: connect_line(binding),
        }
    }
}

impl From<&NvmeofAddress> for PathJson {
    fn from(address: &NvmeofAddress) -> Self {
        let at = SocketAddr::from(address.endpoint);
        Self {
            trtype: address.transport.name(),
            traddr: at.ip().to_string(),
            trsvcid: at.port().to_string(),
        }
    }
}
