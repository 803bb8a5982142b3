//! Values of settings: their bounds. Errors have the same words for a flag and for a line of the configuration file.

use std::{net::SocketAddr, ops::RangeInclusive};

use fabricbios_wire::Size;

/// Any number of bytes.
pub(crate) const ANY: RangeInclusive<Size> = Size(0)..=Size(u64::MAX);

/// Bytes: more than any machine has.
pub(crate) const MOST: Size = Size(1 << 50);

/// Reads a whole number in this range.
pub(crate) fn number(
    range: RangeInclusive<u32>,
    example: u32,
) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let read = text.parse().ok().filter(|it| range.contains(it));
        let (least, most) = (range.start(), range.end());
        read.ok_or_else(|| {
            format!("a whole number from {least} to {most} is expected, such as {example}")
        })
    }
}

/// Reads a number of bytes in this range.
pub(crate) fn size(
    range: RangeInclusive<Size>,
    example: &'static str,
) -> impl Fn(&str) -> Result<Size, String> + Clone {
    move |text| {
        let size: Size = (text.parse()).map_err(|error| format!("{error}; such as {example}"))?;
        let (least, most) = (range.start(), range.end());
        match range.contains(&size) {
            true => Ok(size),
            false => Err(format!("{least} to {most} are possible, such as {example}")),
        }
    }
}

/// Reads the address of the control plane.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    let read = text.parse();
    read.map_err(|_no_address| "IP:PORT is expected, such as 0.0.0.0:5701 or [::]:5701".to_owned())
}

/// Reads a name.
pub(crate) fn name(examples: &'static str) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |text| match text {
        "" => Err(format!("a name is expected, such as {examples}")),
        name => Ok(name.to_owned()),
    }
}
