//! An address and a port: 16 bytes of IPv6 (IPv4 as v4-mapped) and a `u16`. A wildcard is refused: a client cannot send
//! to it.

use alloc::borrow::Cow;
use core::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use crate::{
    Endpoint,
    read::{Decoded, Reader, invalid_args},
    tlv::Tlv,
};

/// Bytes of an endpoint.
pub(crate) const ENDPOINT_LEN: usize = 18;

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self {
            addr: ip.octets(),
            port: address.port(),
        }
    }
}

impl From<Endpoint> for SocketAddr {
    /// Turns a v4-mapped address into IPv4 again.
    fn from(endpoint: Endpoint) -> Self {
        Self::new(Ipv6Addr::from(endpoint.addr).to_canonical(), endpoint.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::from(*self).fmt(f)
    }
}

impl Endpoint {
    /// Whether the address is a wildcard or the port is 0.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        SocketAddr::from(*self).ip().is_unspecified() || self.port == 0
    }

    pub(crate) fn bytes(&self) -> [u8; ENDPOINT_LEN] {
        let mut out = [0; ENDPOINT_LEN];
        out[..16].copy_from_slice(&self.addr);
        out[16..].copy_from_slice(&self.port.to_be_bytes());
        out
    }

    pub(crate) fn from_bytes(bytes: [u8; ENDPOINT_LEN]) -> Option<Self> {
        let (addr, port) = bytes.split_first_chunk::<16>()?;
        let port = u16::from_be_bytes(port.try_into().ok()?);
        Some(Self { addr: *addr, port }).filter(|endpoint| !endpoint.is_wildcard())
    }
}

pub(crate) fn read(r: &mut Reader<'_>) -> Decoded<Endpoint> {
    let at = r.offset();
    Endpoint::from_bytes(r.array("endpoint")?).ok_or_else(|| {
        invalid_args(
            at,
            "endpoint",
            EXPECTED,
            Cow::Borrowed("a wildcard or port 0"),
        )
    })
}

/// The text of errors for the expected endpoint.
pub(crate) const EXPECTED: &str = "an address and a port that can be reached";

pub(crate) fn read_tlv(tlv: &Tlv<'_>) -> Decoded<Endpoint> {
    Endpoint::from_bytes(tlv.fixed()?)
        .ok_or_else(|| tlv.unknown_value(0, "endpoint", EXPECTED, "a wildcard"))
}
