//! The listen address of a data plane over UDP, or `none`.

use std::{net::SocketAddr, str::FromStr};

/// An address, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpListen {
    /// The node does not offer the transport.
    Off,
    /// Listen on this address.
    At(SocketAddr),
}

/// Text that is neither an address nor `none`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither IP:PORT, such as 192.0.2.10:5702 or [::]:5702, nor `none`")]
pub struct BadListen(String);

impl FromStr for UdpListen {
    type Err = BadListen;

    fn from_str(text: &str) -> Result<Self, BadListen> {
        match text {
            "none" => Ok(Self::Off),
            _ => text.parse().map_or_else(
                |_no_address| Err(BadListen(text.into())),
                |at| Ok(Self::At(at)),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_none() {
        assert_eq!("none".parse(), Ok(UdpListen::Off));
        let at = SocketAddr::from(([127, 0, 0, 1], 5702));
        assert_eq!("127.0.0.1:5702".parse(), Ok(UdpListen::At(at)));
        for text in ["", "off", "5702", "localhost:5702", "[::1]"] {
            assert!(text.parse::<UdpListen>().is_err(), "{text}");
        }
    }
}
