//! The JSON of the binding of a network function.

use fabricbios_wire::NetBinding;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct NetJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pci_bdf: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ifname: Option<&'a str>,
    mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    max_tx_mbps: u64,
    hand_over: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vfio_group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cdi_device: Option<&'a str>,
}

impl<'a> From<&'a NetBinding> for NetJson<'a> {
    fn from(binding: &'a NetBinding) -> Self {
        Self {
            pci_bdf: binding.pci_function.map(|it| it.to_string()),
            ifname: binding.interface.as_deref(),
            mac: binding.mac.to_string(),
            vlan: binding.vlan.map(u16::from),
            max_tx_mbps: binding.rate_bps / 1_000_000,
            hand_over: binding.hand_over.name(),
            vfio_group: binding.vfio_group,
            cdi_device: binding.cdi_device.as_deref(),
        }
    }
}
