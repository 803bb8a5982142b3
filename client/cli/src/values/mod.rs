//! Parsers of the values on the command line. Every error says the problem and the right form.

mod kernel;
mod kv_cache;
mod rdma_peer;
mod transport;

use std::{convert::Infallible, error::Error, fmt, net::SocketAddr};

use fabricbios_wire::{Affinity, LeaseId, NodeId, ResourceId, Role, Size, is_tenant_name};

pub(crate) use self::{
    kernel::{KernelArgument, dimensions, kernel_argument},
    kv_cache::kv_cache,
    rdma_peer::{path_mtu, rdma_peer},
    transport::{attach_transport, block_transport, transport},
};

/// What is wrong with a value, and what to write instead. clap adds the value and its argument.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadValue(String);

impl<T: Into<String>> From<T> for BadValue {
    fn from(why: T) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for BadValue {}

/// A size in bytes, not zero.
pub(crate) fn size(text: &str) -> Result<u64, BadValue> {
    match offset(text)? {
        0 => Err("zero bytes; ask for at least one".into()),
        bytes => Ok(bytes),
    }
}

/// An offset in bytes.
pub(crate) fn offset(text: &str) -> Result<u64, BadValue> {
    let size: Result<Size, _> = text.parse();
    size.map(|Size(bytes)| bytes)
        .map_err(|error| error.to_string().into())
}

/// An address of this machine to listen on.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, BadValue> {
    text.parse().map_err(|_not_one| {
        "write ADDR:PORT, such as 127.0.0.1:18515 or [::1]:0 (0: any free port)".into()
    })
}

/// What a lease should be near to or far from.
pub(crate) fn affinity(text: &str) -> Result<Affinity, BadValue> {
    fabricbios_client::affinity(text).map_err(BadValue)
}

/// The id of a lease.
pub(crate) fn lease_id(text: &str) -> Result<LeaseId, BadValue> {
    let hint = "name a lease by its id, as `fabricctl lease list` shows it";
    match text.parse() {
        Ok(LeaseId(0)) => Err(format!("no lease has an id of zeros; {hint}").into()),
        Ok(id) => Ok(id),
        Err(error) => Err(format!("{error}; {hint}").into()),
    }
}

/// The first digits of the id of a node.
pub(crate) fn node_prefix(text: &str) -> Result<String, BadValue> {
    let is_digits = text.chars().all(|it| it.is_ascii_hexdigit());
    match (1..=64).contains(&text.len()) && is_digits {
        true => Ok(text.to_ascii_lowercase()),
        false => {
            Err("write 1 to 64 hexadecimal digits, as `fabricctl node list` shows them".into())
        }
    }
}

/// The id of a node.
pub(crate) fn node_id(text: &str) -> Result<NodeId, BadValue> {
    let hint = "write the id that `fabricctl identity show` prints, or leave it out";
    text.parse()
        .map_err(|error| format!("{error}; {hint}").into())
}

/// The id of a node of a fabric.
pub(crate) fn avoided(text: &str) -> Result<NodeId, BadValue> {
    let hint = "write the whole id, as `fabricctl --json node list` shows it";
    text.parse()
        .map_err(|error| format!("{error}; {hint}").into())
}

/// A resource on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Id(ResourceId),
    /// The name, to be found in the inventory of the node.
    Name(String),
}

/// Parses 32 hexadecimal digits as an id, and everything else as a name.
pub(crate) fn resource(text: &str) -> Result<Named, BadValue> {
    match text.parse() {
        _ if text.is_empty() => {
            Err("name a resource by its name or id, as `fabricctl inventory` shows them".into())
        }
        Ok(ResourceId(0)) => {
            Err("no resource has an id of zeros; see `fabricctl inventory`".into())
        }
        Ok(id) => Ok(Named::Id(id)),
        Err(_) => Ok(Named::Name(text.to_owned())),
    }
}

/// A term in seconds, not zero.
pub(crate) fn secs(text: &str) -> Result<u32, BadValue> {
    match text.parse() {
        Ok(0) => Err("a term lasts at least 1 second".into()),
        Ok(secs) => Ok(secs),
        Err(_) => Err(format!("write whole seconds, at most {}", u32::MAX).into()),
    }
}

/// Megabits per second, as bits per second.
pub(crate) fn megabits(text: &str) -> Result<u64, BadValue> {
    let megabits: u64 = whole(text, (1, u64::MAX / 1_000_000))?;
    Ok(megabits * 1_000_000)
}

/// A whole number of at least `MIN` and at most `MAX`.
pub(crate) fn number<const MIN: u32, const MAX: u32>(text: &str) -> Result<u32, BadValue> {
    let number = whole(text, (MIN.into(), MAX.into()))?;
    u32::try_from(number).map_err(|e| format!("{e}; at most {MAX}").into())
}

/// A number of cores, threads or slices, not zero.
pub(crate) fn count(text: &str) -> Result<u16, BadValue> {
    let number = whole(text, (1, u16::MAX.into()))?;
    u16::try_from(number).map_err(|e| e.to_string().into())
}

/// No grace time is accepted.
pub(crate) fn no_grace(_text: &str) -> Result<Infallible, BadValue> {
    Err("a lease of this kind keeps no contents after its end; leave --grace-secs out".into())
}

fn whole(text: &str, (min, max): (u64, u64)) -> Result<u64, BadValue> {
    let number = text.parse().ok();
    number
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| format!("write a whole number from {min} to {max}").into())
}

/// A tenant's name.
pub(crate) fn tenant(text: &str) -> Result<String, BadValue> {
    if is_tenant_name(text) {
        return Ok(text.to_owned());
    }
    Err("a tenant's name is 1 to 64 of a-z 0-9 - _ .".into())
}

/// A role that an identity can have.
pub(crate) fn person(text: &str) -> Result<Role, BadValue> {
    match text.parse() {
        Ok(role @ (Role::Tenant | Role::Operator)) => Ok(role),
        Ok(Role::Node | Role::Scheduler) => {
            Err("`fabricctl fabric sign` certifies nodes and schedulers".into())
        }
        Err(_no_role) => Err("tenant or operator is expected".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_are_told_what_would_be_one() {
        assert_eq!(number::<0, 60_000>("60000"), Ok(60_000));
        assert_eq!(megabits("100"), Ok(100_000_000));
        let wrong = ["x", "", "-1", "60001", "99999999999999999999", "1.5"];
        for text in wrong {
            let error = number::<0, 60_000>(text).unwrap_err();
            assert!(error.0.contains("from 0 to 60000"), "{text}: {error}");
        }
        for text in ["x", "0", "99999999999999999999"] {
            for error in [megabits(text).unwrap_err(), count(text).unwrap_err()] {
                assert!(error.0.contains("whole number from 1"), "{text}: {error}");
            }
        }
        assert!(
            secs("99999999999")
                .unwrap_err()
                .0
                .contains("at most 4294967295")
        );
    }
}
