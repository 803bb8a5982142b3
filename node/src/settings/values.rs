//! Values of settings: their bounds. Errors have the same words for a flag and for a line of the configuration file.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

use fabricbios_cpu::Limits;
use fabricbios_wire::Size;

/// Any number of bytes.
pub(super) const ANY: RangeInclusive<Size> = Size(0)..=Size(u64::MAX);

/// Bytes: more than any machine has.
const MOST: Size = Size(1 << 50);

/// Memory for half-sent blocks. One lease gets a 128th, which must have room for one block of the largest size.
pub(super) const HALF_SENT: RangeInclusive<Size> = Size(128 * 4096)..=MOST;

/// Memory of the worker of a GPU lease: a context does not fit into less.
pub(super) const WORKER_MEMORY: RangeInclusive<Size> = Size(64 << 20)..=MOST;

/// Memory of the processes of a CPU lease, for each CPU: no program runs with less.
pub(super) const CPU_MEMORY: RangeInclusive<Size> = Size(1 << 20)..=MOST;

/// Processes of a CPU lease, for each CPU: at most as many as Linux allows.
pub(super) const CPU_PIDS: RangeInclusive<u32> = 1..=Limits::PROCESSES_MAX;

/// Granularity of memory, bytes.
const PAGE_BYTES: u64 = 4096;

/// Reads a whole number in this range.
pub(super) fn number(
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
pub(super) fn size(
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

/// Reads a number of bytes of memory on offer, in whole pages.
pub(crate) fn pages(text: &str) -> Result<Size, String> {
    let size = size(Size(PAGE_BYTES)..=MOST, "256MiB")(text)?;
    match size.0.is_multiple_of(PAGE_BYTES) {
        true => Ok(size),
        false => Err(format!(
            "memory is offered in whole pages of {PAGE_BYTES} bytes, such as 256MiB"
        )),
    }
}

/// Reads the address of the control plane.
pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    let read = text.parse();
    read.map_err(|_no_address| "IP:PORT is expected, such as 0.0.0.0:5701 or [::]:5701".to_owned())
}

/// Reads an address that clients can reach.
pub(super) fn advertise(text: &str) -> Result<IpAddr, String> {
    let read: Option<IpAddr> = text.parse().ok();
    match read {
        Some(ip) if ip.is_unspecified() => {
            Err("nobody can dial a wildcard; give an address, such as 192.0.2.10".into())
        }
        Some(ip) => Ok(ip),
        None => Err("an IP address is expected, such as 192.0.2.10".into()),
    }
}

/// Reads a name.
pub(super) fn name(examples: &'static str) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |text| match text {
        "" => Err(format!("a name is expected, such as {examples}")),
        name => Ok(name.to_owned()),
    }
}
