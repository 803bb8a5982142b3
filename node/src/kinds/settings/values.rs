//! Values of settings: their bounds. Errors have the same words for a flag and for a line of the configuration file.

use std::{net::SocketAddr, ops::RangeInclusive};

use fabricbios_wire::{ParseSizeError, Size};

/// Any number of bytes.
pub(crate) const ANY: RangeInclusive<Size> = Size(0)..=Size(u64::MAX);

/// Bytes: more than any machine has.
pub(crate) const MOST: Size = Size(1 << 50);

/// A value that a setting does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadValue {
    /// No number, or one out of bounds.
    #[error("a whole number from {least} to {most} is expected, such as {example}")]
    Number {
        /// The smallest that the setting takes.
        least: u32,
        /// The largest.
        most: u32,
        /// One that it takes.
        example: u32,
    },
    /// No number of bytes, and an example of one.
    #[error("{0}; such as {1}")]
    NoSize(ParseSizeError, &'static str),
    /// A number of bytes out of bounds.
    #[error("{least} to {most} are possible, such as {example}")]
    Size {
        /// The smallest that the setting takes.
        least: Size,
        /// The largest.
        most: Size,
        /// One that it takes.
        example: &'static str,
    },
    /// A text of another form: what the setting takes, and examples.
    #[error("{0}, such as {1}")]
    Form(&'static str, &'static str),
    /// A text of another form, and which it is not.
    #[error("`{0}` is {1}")]
    Other(String, &'static str),
}

/// Reads a whole number in this range.
pub(crate) fn number(
    range: RangeInclusive<u32>,
    example: u32,
) -> impl Fn(&str) -> Result<u32, BadValue> + Clone {
    move |text| {
        let read = text.parse().ok().filter(|it| range.contains(it));
        let (&least, &most) = (range.start(), range.end());
        read.ok_or(BadValue::Number {
            least,
            most,
            example,
        })
    }
}

/// Reads a number of bytes in this range.
pub(crate) fn size(
    range: RangeInclusive<Size>,
    example: &'static str,
) -> impl Fn(&str) -> Result<Size, BadValue> + Clone {
    move |text| {
        let size: Size = (text.parse()).map_err(|error| BadValue::NoSize(error, example))?;
        let (&least, &most) = (range.start(), range.end());
        match range.contains(&size) {
            true => Ok(size),
            false => Err(BadValue::Size {
                least,
                most,
                example,
            }),
        }
    }
}

/// Reads the address of the control plane.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, BadValue> {
    let bad = BadValue::Form("IP:PORT is expected", "0.0.0.0:5701 or [::]:5701");
    text.parse().map_err(|_no_address| bad)
}

/// Reads the address of the HTTP port.
pub(crate) fn http_listen(text: &str) -> Result<SocketAddr, BadValue> {
    let bad = BadValue::Form("IP:PORT is expected", "127.0.0.1:5780 or [::1]:5780");
    text.parse().map_err(|_no_address| bad)
}

/// Reads the address of a listener that clients are told.
pub(crate) fn listen_at(text: &str) -> Result<SocketAddr, BadValue> {
    let read: Option<SocketAddr> = text.parse().ok();
    let is_one = |it: &SocketAddr| !it.ip().is_unspecified() && it.port() != 0;
    // The kernel takes no link-local address without its interface.
    let has_interface = |it: &SocketAddr| match it {
        SocketAddr::V6(it) => !it.ip().is_unicast_link_local() || it.scope_id() != 0,
        SocketAddr::V4(_) => true,
    };
    let read = read.filter(|it| is_one(it) && has_interface(it));
    read.ok_or(BadValue::Form(
        "an address of this machine and a port are expected; a link-local address has the number of its interface (see `ip link`)",
        "192.0.2.10:7471 or [fe80::1%2]:7471",
    ))
}

/// Reads a name.
pub(crate) fn name(examples: &'static str) -> impl Fn(&str) -> Result<String, BadValue> + Clone {
    move |text| match text {
        "" => Err(BadValue::Form("a name is expected", examples)),
        name => Ok(name.to_owned()),
    }
}
