//! Leases of network functions: the terms of a request (0x0410–0x0412) and the coordinates in an answer
//! (0x0401–0x0408).

use alloc::string::{String, ToString};
use core::{fmt, str::FromStr};

use crate::{
    CDI_DEVICE_BYTES_MAX, DecodeError, INTERFACE_NAME_BYTES_MAX,
    readable::readable,
    tag,
    tlv::{Tlv, TlvArea},
    write::Writer,
};

/// How the tenant gets its network function. Value of 0x0406 and 0x0412.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum HandOver {
    /// As a named interface in the node's own network namespace.
    #[default]
    Interface = 0,
    /// As an interface in a network namespace that the tenant gives on the node.
    Netns = 1,
    /// As a device of vfio-pci, for a virtual machine.
    Vfio = 2,
}

/// A MAC address of one interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

readable!(MacAddress, [u8; 6], |it| it.0, |it| Some(Self(it)));

impl MacAddress {
    /// Whether the address is one of a single interface: neither zero nor a group address (IEEE 802, I/G bit).
    #[must_use]
    pub fn is_of_one_interface(self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }

    /// Whether the address is not from a manufacturer (IEEE 802, U/L bit).
    #[must_use]
    pub fn is_locally_administered(self) -> bool {
        self.0[0] & 2 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error of a text that is no MAC address of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseMacError;

impl fmt::Display for ParseMacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("six bytes in hex with colons expected, such as 02:00:00:00:00:01, not zero and not multicast")
    }
}

impl core::error::Error for ParseMacError {}

impl FromStr for MacAddress {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut bytes = [0; 6];
        let mut words = text.split(':');
        for byte in &mut bytes {
            let word = words.next().ok_or(ParseMacError)?;
            let is_hex = word.len() == 2 && word.bytes().all(|it| it.is_ascii_hexdigit());
            let parsed = u8::from_str_radix(word, 16).ok().filter(|_| is_hex);
            *byte = parsed.ok_or(ParseMacError)?;
        }
        let mac = Self(bytes);
        match words.next() {
            None if mac.is_of_one_interface() => Ok(mac),
            _ => Err(ParseMacError),
        }
    }
}

/// A VLAN id from 1 to 4094 (IEEE 802.1Q; 0 and 4095 are reserved).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u16", into = "u16"))]
pub struct VlanId(u16);

impl VlanId {
    /// A VLAN id; `None` unless `id` is from 1 to 4094.
    #[must_use]
    pub fn new(id: u16) -> Option<Self> {
        (1..=4094).contains(&id).then_some(Self(id))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for VlanId {
    type Error = &'static str;

    fn try_from(id: u16) -> Result<Self, Self::Error> {
        Self::new(id).ok_or("a VLAN id is 1 to 4094")
    }
}

impl From<VlanId> for u16 {
    fn from(id: VlanId) -> Self {
        id.0
    }
}

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

/// The address of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PciFunction {
    /// The domain.
    pub domain: u16,
    /// The bus.
    pub bus: u8,
    /// The device, 0 to 31.
    pub device: u8,
    /// The function, 0 to 7.
    pub function: u8,
}

impl fmt::Display for PciFunction {
    /// The form of sysfs: `0000:01:10.1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl PciFunction {
    /// Reads the name of a directory in sysfs, `0000:01:10.1`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let parsed = Self {
            domain: u16::from_str_radix(domain, 16).ok()?,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok()?,
            function: u8::from_str_radix(function, 16).ok()?,
        };
        let is_a_function = parsed.device < 32 && parsed.function < 8;
        // sysfs writes no number with a sign or with another width.
        (is_a_function && parsed.to_string() == text).then_some(parsed)
    }
}

pub(crate) fn find_terms(params: &TlvArea<'_>) -> Result<NetTerms, DecodeError> {
    Ok(NetTerms {
        mac: params.read(tag::NET_MAC_ASKED, read_mac)?,
        vlan: params.read(tag::NET_VLAN_ASKED, read_vlan)?,
        hand_over: params.read(tag::NET_HAND_OVER_ASKED, read_hand_over)?,
    })
}

pub(crate) fn write_terms(w: &mut Writer, terms: &NetTerms) {
    w.tlv_if(tag::NET_MAC_ASKED, terms.mac.map(|mac| mac.0));
    w.tlv_if(
        tag::NET_VLAN_ASKED,
        terms.vlan.map(|vlan| vlan.get().to_be_bytes()),
    );
    w.tlv_if(
        tag::NET_HAND_OVER_ASKED,
        terms.hand_over.map(|it| [it as u8]),
    );
}

pub(crate) fn has_binding(area: &TlvArea<'_>) -> bool {
    area.iter()
        .any(|tlv| (tag::NET_PCI_FUNCTION..=tag::NET_CDI_DEVICE).contains(&tlv.tag))
}

pub(crate) fn read_binding(area: &TlvArea<'_>) -> Result<NetBinding, DecodeError> {
    Ok(NetBinding {
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

fn read_mac(tlv: &Tlv<'_>) -> Result<MacAddress, DecodeError> {
    let mac = MacAddress(tlv.fixed()?);
    match mac.is_of_one_interface() {
        true => Ok(mac),
        false => Err(tlv.unknown_value(0, "mac", "the address of one interface", mac)),
    }
}

fn read_vlan(tlv: &Tlv<'_>) -> Result<VlanId, DecodeError> {
    let id = u16::from_be_bytes(tlv.fixed()?);
    VlanId::new(id).ok_or_else(|| tlv.unknown_value(0, "vlan", "1 to 4094", id))
}

fn read_hand_over(tlv: &Tlv<'_>) -> Result<HandOver, DecodeError> {
    tlv.byte_of("hand-over", "0 to 2", HandOver::from_byte)
}

/// Reads a name that the kernel accepts (`dev_valid_name`) and that is no path.
fn read_interface(tlv: &Tlv<'_>) -> Result<String, DecodeError> {
    match tlv.word(INTERFACE_NAME_BYTES_MAX)? {
        name if name == "." || name == ".." || name.contains(['/', ':']) => {
            Err(tlv.unknown_value(0, "interface", "the name of an interface", "others"))
        }
        name => Ok(String::from(name)),
    }
}

/// Reads the rate. 0 is refused: for a driver it means no limit at all.
fn read_rate(tlv: &Tlv<'_>) -> Result<u64, DecodeError> {
    match u64::from_be_bytes(tlv.fixed()?) {
        0 => Err(tlv.unknown_value(0, "rate", "at least 1", 0)),
        rate => Ok(rate),
    }
}

fn read_pci_function(tlv: &Tlv<'_>) -> Result<PciFunction, DecodeError> {
    let [d0, d1, bus, devfn] = tlv.fixed()?;
    Ok(PciFunction {
        domain: u16::from_be_bytes([d0, d1]),
        bus,
        device: devfn >> 3,
        function: devfn & 7,
    })
}

pub(crate) fn write_binding(w: &mut Writer, net: &NetBinding) {
    w.tlv_if(tag::NET_PCI_FUNCTION, net.pci_function.map(pci_value));
    if let Some(interface) = &net.interface {
        w.tlv(tag::NET_INTERFACE, interface.as_bytes());
    }
    w.tlv(tag::NET_MAC, &net.mac.0);
    w.tlv_if(tag::NET_VLAN, net.vlan.map(|vlan| vlan.get().to_be_bytes()));
    w.tlv(tag::NET_RATE, &net.rate_bps.to_be_bytes());
    w.tlv(tag::NET_HAND_OVER, &[net.hand_over as u8]);
    w.tlv_if(tag::NET_VFIO_GROUP, net.vfio_group.map(u32::to_be_bytes));
    if let Some(device) = &net.cdi_device {
        w.tlv(tag::NET_CDI_DEVICE, device.as_bytes());
    }
}

fn pci_value(it: PciFunction) -> [u8; 4] {
    let [d0, d1] = it.domain.to_be_bytes();
    [d0, d1, it.bus, it.device << 3 | it.function & 7]
}
