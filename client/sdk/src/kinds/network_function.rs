//! Network functions.

use fabricbios_wire::{
    Binding, Effective, Enforcement, HandOver, InventoryExtension, LeaseInfo, MacAddress,
    NetBinding, NetTerms, ResourceInventory, ResourceType, VlanId,
};

use super::{Kind as _, sealed::Sealed};
use crate::{
    Builder, Error, Lease,
    inventory::{Entries, Resource},
    json::{Field, Object, field},
    unmet::Missing,
};

/// A network function of the node, with a transmit rate.
#[derive(Clone, Copy, Debug)]
pub enum NetworkFunction {}

/// Requests a lease of a network function.
///
/// ```compile_fail,E0599
/// fabricbios_client::NetBuilder::new().grace_secs(1);
/// ```
pub type NetBuilder = Builder<NetworkFunction>;

/// A lease of a network function.
pub type NetLease = Lease<NetworkFunction>;

/// The virtual functions of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualFunctions {
    /// Number of functions that can be leased.
    pub total: u32,
    /// Number of free functions.
    pub free: u32,
}

impl Sealed for NetworkFunction {
    type Terms = NetTerms;
    const SIZED_BY: &'static str = "mbps()";

    fn check(terms: &NetTerms) -> Result<(), Error> {
        match terms.mac {
            Some(mac) if !mac.is_of_one_interface() => Err(Error::Usage(format!(
                "no interface has the MAC address {mac}: it is zero or multicast"
            ))),
            _ => Ok(()),
        }
    }

    /// The binding has the settings that were applied. A rate that is only best-effort is no reason to give the lease
    /// back.
    fn unmet(terms: &NetTerms, rate_bps: u64, info: &LeaseInfo, missing: &mut Missing) {
        let net = info.binding.net();
        let amount = ResourceType::Net.amount(rate_bps);
        missing.need(
            net.is_some_and(|net| net.rate_bps >= rate_bps),
            format!("rate {amount}"),
        );
        missing.asked("MAC address", terms.mac, |mac| {
            net.is_some_and(|net| net.mac == mac)
        });
        missing.asked("VLAN", terms.vlan.map(u16::from), |vlan| {
            net.and_then(|net| net.vlan)
                .is_some_and(|got| got.get() == vlan)
        });
        missing.asked("hand-over", terms.hand_over, |hand_over| {
            net.is_some_and(|net| net.hand_over == hand_over)
        });
    }

    fn entries(structured: &ResourceInventory, entries: &mut Entries) {
        for nic in &structured.nics {
            let entry = (nic.resource_id, nic.speed_bps, nic.health);
            entries.add(Self::TYPE, entry, |it| it.nic = Some(*nic));
        }
    }

    fn extend(resource: &mut Resource, extension: &InventoryExtension) {
        if let InventoryExtension::VirtualFunctions { total, free, .. } = *extension {
            resource.virtual_functions = Some(VirtualFunctions { total, free });
        }
    }

    fn terms_json(effective: &Effective) -> Vec<Field<'static>> {
        vec![field("net_rate", effective.net_rate.map(Enforcement::name))]
    }

    fn binding_json(binding: &Binding) -> Vec<Field<'_>> {
        vec![field("net", binding.net().map(json))]
    }
}

impl NetBuilder {
    /// Sets the transmit rate in megabits (10^6 bits) per second. Required.
    pub fn mbps(mut self, megabits: u32) -> Self {
        self.request.capacity = u64::from(megabits) * 1_000_000;
        self
    }

    /// Sets the VLAN. By default frames are untagged.
    ///
    /// # Errors
    /// [`Error::Usage`] if the id is not 1 to 4094.
    pub fn vlan(mut self, id: u16) -> Result<Self, Error> {
        let vlan = VlanId::try_from(id).map_err(|why| Error::Usage(format!("VLAN {id}: {why}")))?;
        self.terms.vlan = Some(vlan);
        Ok(self)
    }

    /// Sets the MAC address. By default the node makes one.
    pub fn mac(mut self, mac: MacAddress) -> Self {
        self.terms.mac = Some(mac);
        self
    }

    /// Sets how the function is handed over on the node; as a named interface by default.
    pub fn hand_over(mut self, hand_over: HandOver) -> Self {
        self.terms.hand_over = Some(hand_over);
        self
    }
}

impl NetLease {
    /// Whether the node proves the transmit rate. If not, it has set the rate and does not know that the device keeps it.
    pub fn rate_is_enforced(&self) -> bool {
        self.shared.info().effective.net_rate == Some(Enforcement::Enforced)
    }
}

fn json(binding: &NetBinding) -> Object<'_> {
    Object::from([
        field("pci_bdf", binding.pci_function.map(|it| it.to_string())),
        field("ifname", binding.interface.as_deref()),
        field("mac", binding.mac.to_string()),
        field("vlan", binding.vlan.map(u16::from)),
        field("max_tx_mbps", binding.rate_bps / 1_000_000),
        field("hand_over", binding.hand_over.name()),
        field("vfio_group", binding.vfio_group),
        field("cdi_device", binding.cdi_device.as_deref()),
    ])
}
