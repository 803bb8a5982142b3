//! Where the data plane over UDP listens: an address, or `none` for not at all.

use std::{fmt, net::SocketAddr, str::FromStr};

/// An address, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpListen {
    /// There is no such road on this node.
    Off,
    /// There.
    At(SocketAddr),
}

/// Text that is neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadListen(String);

impl fmt::Display for BadListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is neither IP:PORT nor `none`", self.0)
    }
}

impl std::error::Error for BadListen {}

impl FromStr for UdpListen {
    type Err = BadListen;

    fn from_str(text: &str) -> Result<Self, BadListen> {
        match text {
            "none" => Ok(Self::Off),
            _ => text
                .parse()
                .map(Self::At)
                .ok()
                .ok_or_else(|| BadListen(text.into())),
        }
    }
}

impl<'de> serde::Deserialize<'de> for UdpListen {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
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
