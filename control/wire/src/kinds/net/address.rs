//! Addresses of a network function: on the wire, in a VLAN and on PCI.

use alloc::string::ToString;
use core::{fmt, str::FromStr};

use crate::readable::readable;

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
