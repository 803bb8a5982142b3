//! Leases of network functions: the terms of a request (0x0410–0x0412) and the coordinates in an answer
//! (0x0401–0x0408).

mod address;

use alloc::{format, string::String};
use core::ops::RangeInclusive;

pub use address::{MacAddress, ParseMacError, PciFunction, VlanId};

use super::{Coordinates, Terms};
use crate::{
    CDI_DEVICE_BYTES_MAX, Effective, Enforcement,
    names::words,
    read::Decoded,
    structured::entry,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

words! {
    /// How the tenant gets its network function. Value of 0x0406 and 0x0412.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum HandOver: u8, "hand-over", from_byte {
        /// As a named interface in the node's own network namespace.
        #[default]
        Interface = 0, "interface";
        /// As an interface in a network namespace that the tenant gives on the node.
        Netns = 1, "netns";
        /// As a device of vfio-pci, for a virtual machine.
        Vfio = 2, "vfio";
    }
}

/// The tags of the kind.
pub(crate) mod tag {
    crate::tag::tags! {
        /// `u16` domain, `u8` bus, `u8` device and function.
        NET_PCI_FUNCTION = 0x0401, "PCI function";
        /// ASCII, 1 to 15 bytes.
        NET_INTERFACE = 0x0402, "interface name";
        /// `[u8; 6]`.
        NET_MAC = 0x0403, "MAC address";
        /// `u16`, 1 to 4094.
        NET_VLAN = 0x0404, "VLAN id";
        /// `u64`, bits per second, at least 1.
        NET_RATE = 0x0405, "transmit rate";
        /// `u8`, [`crate::HandOver`].
        NET_HAND_OVER = 0x0406, "hand-over";
        /// `u32`.
        NET_VFIO_GROUP = 0x0407, "vfio group";
        /// ASCII, 1 to 128 bytes.
        NET_CDI_DEVICE = 0x0408, "CDI device";
        /// `[u8; 6]`, of a request.
        NET_MAC_ASKED = 0x0410, "MAC address asked for";
        /// `u16`, 1 to 4094, of a request.
        NET_VLAN_ASKED = 0x0411, "VLAN id asked for";
        /// `u8`, [`crate::HandOver`], of a request.
        NET_HAND_OVER_ASKED = 0x0412, "hand-over asked for";
        /// `u8`, [`crate::Enforcement`].
        LEASE_NET_RATE = 0x090B, "enforcement of the rate";
    }
}

/// Longest name of a network interface, bytes (kernel, `IFNAMSIZ` less the final zero).
pub const INTERFACE_NAME_BYTES_MAX: usize = 15;

entry! {
    /// A network interface.
    pub struct NicInfo, "nics" {
        /// Link speed, bits per second, 0 if unknown.
        speed_bps: u64,
        /// Largest frame, bytes.
        mtu: u32,
        /// Bit 0 `NIC_SRIOV`, bit 1 `NIC_LINK_UP`.
        flags: u32,
        /// [`crate::health`].
        health: u32,
    }
}

/// `NIC_SRIOV`, bit 0 of [`NicInfo::flags`].
pub const NIC_SRIOV: u32 = 1 << 0;
/// `NIC_LINK_UP`, bit 1 of [`NicInfo::flags`].
pub const NIC_LINK_UP: u32 = 1 << 1;

/// The terms of a lease of a network function. The capacity is the transmit rate in bits per second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NetTerms {
    /// 0x0410. Absent: the node chooses an address.
    pub mac: Option<MacAddress>,
    /// 0x0411. Absent: frames are untagged.
    pub vlan: Option<VlanId>,
    /// 0x0412. Absent: [`HandOver::Interface`].
    pub hand_over: Option<HandOver>,
}

/// 0x0401–0x0408: a network function as its holder finds it on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NetBinding {
    /// 0x0401; absent if the function is not on PCI.
    pub pci_function: Option<PciFunction>,
    /// 0x0402: the interface; absent if a virtual machine gets the function.
    pub interface: Option<String>,
    /// 0x0403.
    pub mac: MacAddress,
    /// 0x0404.
    pub vlan: Option<VlanId>,
    /// 0x0405: bits per second, at least 1.
    pub rate_bps: u64,
    /// 0x0406.
    pub hand_over: HandOver,
    /// 0x0407: the number N in `/dev/vfio/N`.
    pub vfio_group: Option<u32>,
    /// 0x0408: the name for a container engine (Container Device Interface).
    pub cdi_device: Option<String>,
}

impl Terms for NetTerms {
    fn find(params: &TlvArea<'_>) -> Decoded<Self> {
        Ok(Self {
            mac: params.read(tag::NET_MAC_ASKED, read_mac)?,
            vlan: params.read(tag::NET_VLAN_ASKED, read_vlan)?,
            hand_over: params.read(tag::NET_HAND_OVER_ASKED, read_hand_over)?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.tlv_if(tag::NET_MAC_ASKED, self.mac.map(|mac| mac.0));
        w.tlv_if(
            tag::NET_VLAN_ASKED,
            self.vlan.map(|vlan| vlan.get().to_be_bytes()),
        );
        w.tlv_if(
            tag::NET_HAND_OVER_ASKED,
            self.hand_over.map(|it| [it as u8]),
        );
    }

    /// Bits per second in the largest unit that gives at least 1; with one decimal, rounded down, if the number is not
    /// whole.
    fn amount(bits: u64) -> String {
        let units = [
            (1_000_000_000, "Gbit/s"),
            (1_000_000, "Mbit/s"),
            (1_000, "kbit/s"),
        ];
        let Some((size, unit)) = units.iter().find(|(size, _)| bits >= *size) else {
            return format!("{bits} bit/s");
        };
        match (bits / size, bits % size) {
            (whole, 0) => format!("{whole} {unit}"),
            (whole, rest) => format!("{whole}.{} {unit}", rest * 10 / size),
        }
    }

    fn find_effective(area: &TlvArea<'_>, effective: &mut Effective) -> Decoded<()> {
        effective.net_rate = area.read(tag::LEASE_NET_RATE, |tlv| {
            tlv.byte_of("enforcement", "0 or 1", Enforcement::from_byte)
        })?;
        Ok(())
    }

    fn write_effective(effective: &Effective, w: &mut Writer) {
        w.tlv_if(tag::LEASE_NET_RATE, effective.net_rate.map(|it| [it as u8]));
    }
}

impl Coordinates for NetBinding {
    const TAGS: RangeInclusive<u16> = tag::NET_PCI_FUNCTION..=tag::NET_CDI_DEVICE;

    fn read(area: &TlvArea<'_>) -> Decoded<Self> {
        Ok(Self {
            pci_function: area.read(tag::NET_PCI_FUNCTION, read_pci_function)?,
            interface: area.read(tag::NET_INTERFACE, read_interface)?,
            mac: area.require(tag::NET_MAC, read_mac)?,
            vlan: area.read(tag::NET_VLAN, read_vlan)?,
            rate_bps: area.require(tag::NET_RATE, read_rate)?,
            hand_over: area.require(tag::NET_HAND_OVER, read_hand_over)?,
            vfio_group: area.read(tag::NET_VFIO_GROUP, Tlv::u32)?,
            cdi_device: area.read(tag::NET_CDI_DEVICE, |tlv| {
                tlv.word(CDI_DEVICE_BYTES_MAX).map(String::from)
            })?,
        })
    }

    fn write(&self, w: &mut Writer) {
        w.tlv_if(tag::NET_PCI_FUNCTION, self.pci_function.map(pci_value));
        if let Some(interface) = &self.interface {
            w.tlv(tag::NET_INTERFACE, interface.as_bytes());
        }
        w.tlv(tag::NET_MAC, &self.mac.0);
        w.tlv_if(
            tag::NET_VLAN,
            self.vlan.map(|vlan| vlan.get().to_be_bytes()),
        );
        w.tlv(tag::NET_RATE, &self.rate_bps.to_be_bytes());
        w.tlv(tag::NET_HAND_OVER, &[self.hand_over as u8]);
        w.tlv_if(tag::NET_VFIO_GROUP, self.vfio_group.map(u32::to_be_bytes));
        if let Some(device) = &self.cdi_device {
            w.tlv(tag::NET_CDI_DEVICE, device.as_bytes());
        }
    }
}

fn read_mac(tlv: &Tlv<'_>) -> Decoded<MacAddress> {
    let mac = MacAddress(tlv.fixed()?);
    match mac.is_of_one_interface() {
        true => Ok(mac),
        false => Err(tlv.unknown_value(0, "mac", "the address of one interface", mac)),
    }
}

fn read_vlan(tlv: &Tlv<'_>) -> Decoded<VlanId> {
    let id = u16::from_be_bytes(tlv.fixed()?);
    VlanId::new(id).ok_or_else(|| tlv.unknown_value(0, "vlan", "1 to 4094", id))
}

fn read_hand_over(tlv: &Tlv<'_>) -> Decoded<HandOver> {
    tlv.byte_of("hand-over", "0 to 2", HandOver::from_byte)
}

/// Reads a name that the kernel accepts (`dev_valid_name`) and that is no path.
fn read_interface(tlv: &Tlv<'_>) -> Decoded<String> {
    match tlv.word(INTERFACE_NAME_BYTES_MAX)? {
        name if name == "." || name == ".." || name.contains(['/', ':']) => {
            Err(tlv.unknown_value(0, "interface", "the name of an interface", "others"))
        }
        name => Ok(String::from(name)),
    }
}

/// Reads the rate. 0 is refused: for a driver it means no limit at all.
fn read_rate(tlv: &Tlv<'_>) -> Decoded<u64> {
    match u64::from_be_bytes(tlv.fixed()?) {
        0 => Err(tlv.unknown_value(0, "rate", "at least 1", 0)),
        rate => Ok(rate),
    }
}

fn read_pci_function(tlv: &Tlv<'_>) -> Decoded<PciFunction> {
    let [d0, d1, bus, devfn] = tlv.fixed()?;
    Ok(PciFunction {
        domain: u16::from_be_bytes([d0, d1]),
        bus,
        device: devfn >> 3,
        function: devfn & 7,
    })
}

fn pci_value(it: PciFunction) -> [u8; 4] {
    let [d0, d1] = it.domain.to_be_bytes();
    [d0, d1, it.bus, it.device << 3 | it.function & 7]
}
