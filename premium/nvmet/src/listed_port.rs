//! The ports of the kernel's target, of any owner, and the choice of a number for a port of this node.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::NvmeofTransport;
use sha2::{Digest, Sha256};

use super::{PortSetting, names::port_path, objects::failed};

/// A port in configfs, of any owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedPort {
    pub(super) number: u16,
    /// `addr_trtype`, `addr_adrfam`, `addr_traddr`, `addr_trsvcid`.
    attributes: [String; 4],
    pub(super) subsystems: Vec<String>,
}

impl ListedPort {
    /// Its address, if it is for TCP or RDMA.
    pub(super) fn listens_at(&self) -> Option<(NvmeofTransport, SocketAddr)> {
        let [kind, _, address, service] = &self.attributes;
        let transport = match kind.as_str() {
            "tcp" => NvmeofTransport::Tcp,
            "rdma" => NvmeofTransport::Rdma,
            _ => return None,
        };
        let address: IpAddr = address.parse().ok()?;
        Some((transport, SocketAddr::new(address, service.parse().ok()?)))
    }

    fn is_at(&self, setting: PortSetting) -> bool {
        let [kind, _, address, service] = &self.attributes;
        let [wanted_kind, _, _, wanted_service] = setting.attributes();
        let same_ip = address.parse() == Ok(setting.address.ip());
        (kind, service) == (&wanted_kind, &wanted_service) && same_ip
    }

    /// Whether the port is half made: its maker died, or is still making it.
    fn is_unfinished(&self) -> bool {
        self.subsystems.is_empty() && self.attributes[2..].iter().any(String::is_empty)
    }
}

impl fmt::Display for ListedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, _, address, service] = &self.attributes;
        write!(f, "ports/{} ({kind} {address} {service})", self.number)
    }
}

/// All ports of the kernel's target.
pub(super) fn list_ports(tree: &Tree) -> Result<Vec<ListedPort>, StepError> {
    let failed = |error| failed("look at ports", error);
    let numbers = tree.list("ports").map_err(failed)?;
    let numbers = numbers.iter().filter_map(|name| name.parse().ok());
    let listed = numbers.filter_map(|number| match look(tree, number) {
        // Another process has removed the port meanwhile.
        Err(error) if error.is_absent() => None,
        listed => Some(listed.map_err(failed)),
    });
    listed.collect()
}

fn look(tree: &Tree, number: u16) -> Result<ListedPort, fabricbios_kernfs::Error> {
    let base = port_path(number);
    let read = |name: &str| tree.read(format!("{base}/{name}"));
    Ok(ListedPort {
        number,
        attributes: [
            read("addr_trtype")?,
            read("addr_adrfam")?,
            read("addr_traddr")?,
            read("addr_trsvcid")?,
        ],
        subsystems: tree.list(format!("{base}/subsystems"))?,
    })
}

/// The number that is tried first for an address. It depends only on the names, so that a later run finds a half-made
/// port again.
fn first_number(anchor: &str, setting: PortSetting) -> u16 {
    let mut hash = Sha256::new_with_prefix(anchor);
    setting.attributes().iter().for_each(|text| {
        hash.update(text);
        hash.update([0]);
    });
    let digest = hash.finalize();
    u16::from_be_bytes([digest[0], digest[1]]).max(1)
}

/// Why an address gets no port.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPort {
    #[error(
        "ports/{number} of the kernel's target has that address and is not this node's; linked to it: [{}]: \
         give --nvmet another address, or remove that port",
        .subsystems.join(", ")
    )]
    Taken {
        number: u16,
        subsystems: Vec<String>,
    },
    #[error("the kernel's target has no number left")]
    NoNumber,
}

/// The number of the port for this setting, existing or new.
pub(super) fn choose_number(
    listed: &[ListedPort],
    anchor: &str,
    setting: PortSetting,
) -> Result<u16, NoPort> {
    let first = first_number(anchor, setting);
    let is_free = |number: u16| match listed.iter().find(|port| port.number == number) {
        None => true,
        Some(port) => number == first && port.is_unfinished(),
    };
    match listed.iter().find(|port| port.is_at(setting)) {
        Some(port) if port.subsystems.iter().any(|name| name == anchor) => Ok(port.number),
        Some(port) if port.subsystems.is_empty() && port.number == first => Ok(port.number),
        Some(port) => Err(NoPort::Taken {
            number: port.number,
            subsystems: port.subsystems.clone(),
        }),
        None => (first..=u16::MAX)
            .chain(1..first)
            .find(|number| is_free(*number))
            .ok_or(NoPort::NoNumber),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANCHOR: &str = "nqn.2026-11.org.fabricbios:0011223344556677:anchor";

    fn setting(address: &str) -> PortSetting {
        PortSetting {
            transport: NvmeofTransport::Tcp,
            address: address.parse().unwrap(),
        }
    }

    fn listed(number: u16, setting: PortSetting, subsystems: &[&str]) -> ListedPort {
        ListedPort {
            number,
            attributes: setting.attributes(),
            subsystems: subsystems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn our_port_is_found_again_whatever_its_number() {
        let wanted = setting("[fd00::1]:4420");
        let mut port = listed(7, wanted, &[ANCHOR, "nqn.2020-01.org:lease"]);
        port.attributes[2] = "fd00:0:0:0:0:0:0:1".to_owned();
        assert_eq!(choose_number(&[port], ANCHOR, wanted), Ok(7));
    }

    #[test]
    fn a_port_of_somebody_else_is_named_and_left_alone() {
        let wanted = setting("10.0.0.1:4420");
        let other = listed(3, wanted, &["nqn.2020-01.org:other"]);
        let error = choose_number(&[other], ANCHOR, wanted).unwrap_err();
        let taken = NoPort::Taken {
            number: 3,
            subsystems: vec!["nqn.2020-01.org:other".to_owned()],
        };
        assert_eq!(error, taken);
        let empty = listed(3, wanted, &[]);
        assert!(choose_number(&[empty], ANCHOR, wanted).is_err());
    }

    #[test]
    fn a_new_port_takes_a_free_number_and_finishes_what_was_begun() {
        let wanted = setting("10.0.0.1:4420");
        let first = choose_number(&[], ANCHOR, wanted).unwrap();
        let taken = listed(first, setting("10.0.0.2:4420"), &[]);
        assert_ne!(choose_number(&[taken], ANCHOR, wanted), Ok(first));
        for begun in 2..4 {
            let mut half = listed(first, wanted, &[]);
            half.attributes[begun..].iter_mut().for_each(String::clear);
            assert_eq!(choose_number(&[half], ANCHOR, wanted), Ok(first));
        }
        assert_eq!(
            choose_number(&[listed(first, wanted, &[])], ANCHOR, wanted),
            Ok(first)
        );
    }
}
