//! The listen address of a data plane over UDP, or `none`.

use std::{net::SocketAddr, str::FromStr};

use super::values::BadValue;

/// An address, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpListen {
    /// The node does not offer the transport.
    Off,
    /// Listen on this address.
    At(SocketAddr),
}

const FORM: &str = "neither IP:PORT, such as 192.0.2.10:5702 or [::]:5702, nor `none`";

impl FromStr for UdpListen {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        match text {
            "none" => Ok(Self::Off),
            _ => text.parse().map_or_else(
                |_no_address| Err(BadValue::Other(text.to_owned(), FORM)),
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
