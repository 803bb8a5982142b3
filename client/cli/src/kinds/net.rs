//! Network functions.

use clap::Args;
use fabricbios_client::{Node, Resource};
use fabricbios_wire::{
    Effective, Enforcement, HandOver, LeaseAllocRequest, LeaseInfo, MacAddress, NIC_LINK_UP,
    NIC_SRIOV, NetBinding, NetTerms, ResourceType, VlanId,
};

use super::{Face, words};
use crate::{
    args::{NoGrace, Term},
    commands::request_of,
    failure::Failure,
    json::{Field, Object, field},
    lease_text::row,
    output::one_line,
    values::{self, BadValue},
};

/// A network function of the node, for processes and virtual machines there
#[derive(Args, Debug)]
pub(crate) struct Alloc {
    /// Transmit rate in megabits (10^6 bits) per second
    #[arg(long, value_name = "N", value_parser = values::megabits)]
    mbps: u64,
    #[command(flatten)]
    term: Term,
    /// VLAN id, 1 to 4094; untagged if not given
    #[arg(long, value_name = "N", value_parser = vlan)]
    vlan: Option<VlanId>,
    /// MAC address, such as 02:00:00:00:00:01; the node makes one if not given
    #[arg(long, value_name = "MAC")]
    mac: Option<MacAddress>,
    /// interface: a named interface of the node; netns: for the namespace that `fabricctl lease
    /// enter` gives there; vfio: for a virtual machine. interface if not given
    #[arg(long, value_name = "FORM")]
    hand_over: Option<HandOver>,
    #[command(flatten)]
    no_grace: NoGrace,
}

impl Alloc {
    pub(super) fn request(self, node: &Node) -> Result<LeaseAllocRequest, Failure> {
        let terms = NetTerms {
            mac: self.mac,
            vlan: self.vlan,
            hand_over: self.hand_over,
        };
        request_of(node, terms, self.mbps, self.term)
    }
}

fn vlan(text: &str) -> Result<VlanId, BadValue> {
    let id = text.parse().ok().and_then(VlanId::new);
    id.ok_or_else(|| "write a VLAN id from 1 to 4094; leave --vlan out for untagged frames".into())
}

pub(super) struct Net;

impl Face for Net {
    fn enforced(&self, effective: &Effective) -> Vec<Option<String>> {
        let is_enforced = effective.net_rate == Some(Enforcement::Enforced);
        vec![is_enforced.then(|| "transmit rate".to_owned())]
    }

    fn best_effort(&self, effective: &Effective) -> Option<&'static str> {
        let is_best_effort = effective.net_rate == Some(Enforcement::BestEffort);
        is_best_effort.then_some(
            "transmit rate: the node has set it and does not prove that the device keeps it",
        )
    }

    fn rows(&self, info: &LeaseInfo) -> Vec<Vec<String>> {
        info.binding.net().map_or_else(Vec::new, rows)
    }

    fn how_to_use(&self, info: &LeaseInfo) -> Option<String> {
        let (lease_id, net) = (info.lease_id, info.binding.net()?);
        Some(match (net.hand_over, net.vfio_group, &net.cdi_device) {
            (HandOver::Netns, ..) => {
                format!(
                    "on the node, if it has a local socket: `fabricctl lease enter {lease_id} --netns PATH`"
                )
            }
            (HandOver::Interface, ..) => "on the node, by the name of the interface".to_owned(),
            (HandOver::Vfio, Some(group), None) => format!("on the node, /dev/vfio/{group}"),
            (HandOver::Vfio, Some(group), Some(device)) => {
                let device = one_line(device);
                format!(
                    "on the node, /dev/vfio/{group}; in a container, `podman run --device {device} …`"
                )
            }
            (HandOver::Vfio, None, _) => return None,
        })
    }

    fn instead_of_run(&self) -> Option<&'static str> {
        Some("`fabricctl lease enter` hands the lease over to a network namespace")
    }

    fn flags(&self, resource: &Resource) -> Vec<&'static str> {
        words(
            resource.nic.map_or(0, |nic| nic.flags),
            &[(NIC_SRIOV, "sr-iov")],
        )
    }

    fn capacity(&self, resource: &Resource) -> Vec<String> {
        let Some(nic) = resource.nic else {
            return Vec::new();
        };
        let is_up = nic.flags & NIC_LINK_UP != 0;
        vec![
            format!("link {}", if is_up { "up" } else { "down" }),
            format!("MTU {}", nic.mtu),
        ]
    }

    /// The speed of a port whose link is down is unknown.
    fn is_unknown(&self, resource: &Resource) -> bool {
        resource.capacity == 0
    }

    fn lines(&self, resource: &Resource) -> Vec<(&'static str, String)> {
        let Some(functions) = resource.virtual_functions else {
            return Vec::new();
        };
        let (free, total) = (functions.free, functions.total);
        vec![(
            "functions",
            format!("{free} of {total} virtual functions free"),
        )]
    }

    fn resource_json(&self, resource: &Resource) -> Vec<Field<'static>> {
        let nic = resource.nic.map(|nic| {
            let is_up = nic.flags & NIC_LINK_UP != 0;
            Object::from([field("mtu", nic.mtu), field("link_up", is_up)])
        });
        let functions = resource.virtual_functions;
        let functions =
            functions.map(|it| Object::from([field("total", it.total), field("free", it.free)]));
        vec![field("nic", nic), field("virtual_functions", functions)]
    }
}

fn rows(net: &NetBinding) -> Vec<Vec<String>> {
    let interface = net
        .interface
        .as_deref()
        .map(|name| format!("interface {}", one_line(name)));
    let function = net.pci_function.map(|it| format!("PCI function {it}"));
    let parts: Vec<String> = interface.into_iter().chain(function).collect();
    let vlan = net
        .vlan
        .map_or("untagged".to_owned(), |vlan| format!("VLAN {}", vlan.get()));
    let rate = ResourceType::Net.amount(net.rate_bps);
    let mut rows = vec![
        row("net", parts.join(", ")),
        row("", format!("MAC address {}, {vlan}, {rate}", net.mac)),
    ];
    let device = net.cdi_device.as_deref();
    rows.extend(device.map(|device| row("cdi device", one_line(device))));
    rows
}
