//! `--nvmet`: a port of the kernel's NVMe target.

use std::{net::SocketAddr, str::FromStr};

use fabricbios_nvmet::PortSetting;
use fabricbios_wire::NvmeofTransport;

use crate::kinds::settings::values::BadValue;

/// A transport and an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmetPort(pub PortSetting);

fn parse(text: &str) -> Option<PortSetting> {
    let (transport, address) = text.split_once(':')?;
    let transport: NvmeofTransport = transport.parse().ok()?;
    let address: SocketAddr = address.parse().ok()?;
    let is_place = !address.ip().is_unspecified() && address.port() != 0;
    is_place.then_some(PortSetting { transport, address })
}

const FORM: &str = "neither tcp:ADDR:PORT nor rdma:ADDR:PORT, such as tcp:10.0.0.1:4420 or \
     tcp:[2001:db8::1]:4420; a wildcard is no address that a client could connect to";

impl FromStr for NvmetPort {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        parse(text)
            .map(Self)
            .ok_or_else(|| BadValue::Other(text.to_owned(), FORM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_and_a_place() {
        let port: NvmetPort = "tcp:[::1]:4420".parse().unwrap();
        assert_eq!(port.0.transport, NvmeofTransport::Tcp);
        assert_eq!(port.0.address, "[::1]:4420".parse().unwrap());
        let port: NvmetPort = "rdma:10.0.0.1:4421".parse().unwrap();
        assert_eq!(port.0.transport, NvmeofTransport::Rdma);
        for text in [
            "",
            "tcp",
            "tcp:4420",
            "tcp:10.0.0.1",
            "udp:10.0.0.1:4420",
            "tcp:0.0.0.0:4420",
            "tcp:10.0.0.1:0",
            "tcp:host:4420",
        ] {
            assert!(text.parse::<NvmetPort>().is_err(), "{text}");
        }
    }
}
