//! The names of the objects. All objects of a lease contain the lease id, so that a later process finds them and a
//! client sees the same disk after a restart.

use fabricbios_wire::{HostId, LeaseId, NodeId, Nqn};

use super::host_records::record_key;

/// Prefix of all names of all nodes; 16 digits of the node id and the lease id follow. Objects in configfs with other
/// names are not touched.
const PREFIX: &str = "nqn.2026-11.org.fabricbios:";

/// Part of the mark of a host; the key of the host's record follows.
const MARK: &str = "host-";

/// The model of the disk, as clients see it.
pub(super) const MODEL: &str = "fabricBIOS";

/// The namespace of every subsystem.
pub(super) const NAMESPACE: u32 = 1;

/// Digits of a serial number that the kernel takes (`NVMET_SN_MAX_SIZE`).
const SERIAL_DIGITS: usize = 20;

/// The names of one node's objects.
#[derive(Clone, Debug)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    pub(super) fn new(node_id: NodeId) -> Self {
        let mut node = node_id.to_string();
        node.truncate(16);
        Self {
            prefix: format!("{PREFIX}{node}:"),
        }
    }

    /// The name of the subsystem that keeps the ports listening.
    pub(super) fn anchor(&self) -> String {
        format!("{}anchor", self.prefix)
    }

    pub(super) fn subsystem(&self, lease: LeaseId) -> String {
        format!("{}{lease}", self.prefix)
    }

    /// The name of the subsystem that marks a host as made by this node, since a client chooses the name of the host
    /// itself. The mark is made before the host and removed after it. It has no namespace, allows no host and is linked
    /// to no port.
    pub(super) fn host_mark(&self, host: &Nqn) -> String {
        format!("{}{MARK}{:032x}", self.prefix, record_key(host))
    }

    /// The host that a subsystem marks, as the key of the host's record.
    pub(super) fn marked_host(&self, subsystem: &str) -> Option<u128> {
        let digits = subsystem.strip_prefix(&self.prefix)?.strip_prefix(MARK)?;
        u128::from_str_radix(digits, 16).ok()
    }

    /// The lease of a subsystem; `None`: the subsystem belongs to no lease of this node.
    pub(super) fn lease_of(&self, subsystem: &str) -> Option<LeaseId> {
        let lease = subsystem.strip_prefix(&self.prefix)?.parse().ok()?;
        // Another spelling of the id is the name of another object.
        (self.subsystem(lease) == subsystem).then_some(lease)
    }
}

/// Whether a subsystem belongs to the node: it has a lease of the node, is its anchor, or marks a host.
#[must_use]
pub fn belongs_to(subsystem: &str, node_id: NodeId) -> bool {
    subsystem.starts_with(&Names::new(node_id).prefix)
}

/// The node and the lease in the name of a subsystem; `None`: the name has no lease of any node.
#[must_use]
pub fn maker_of(subsystem: &str) -> Option<(NodeId, LeaseId)> {
    let (node, _) = subsystem.strip_prefix(PREFIX)?.split_once(':')?;
    let beginning = u64::from_str_radix(node, 16).ok()?.to_be_bytes();
    let mut node_id = [0; 32];
    node_id[..8].copy_from_slice(&beginning);
    let node_id = NodeId(node_id);
    let lease_id = Names::new(node_id).lease_of(subsystem)?;
    Some((node_id, lease_id))
}

/// The serial number of a lease's disk: the beginning of its id, which is random.
pub(super) fn serial(lease: LeaseId) -> String {
    let mut digits = lease.to_string();
    digits.truncate(SERIAL_DIGITS);
    digits
}

/// The UUID of a lease's namespace, and its NGUID: the lease's id.
pub(super) fn uuid(lease: LeaseId) -> String {
    HostId(lease.0.to_be_bytes()).to_string()
}

pub(super) fn subsystem_path(subsystem: &str) -> String {
    format!("subsystems/{subsystem}")
}

pub(super) fn namespace_path(subsystem: &str) -> String {
    format!("subsystems/{subsystem}/namespaces/{NAMESPACE}")
}

pub(super) fn host_path(host: &str) -> String {
    format!("hosts/{host}")
}

pub(super) fn allowed_host_path(subsystem: &str, host: &str) -> String {
    format!("subsystems/{subsystem}/allowed_hosts/{host}")
}

pub(super) fn port_path(port: u16) -> String {
    format!("ports/{port}")
}

pub(super) fn port_link_path(port: u16, subsystem: &str) -> String {
    format!("ports/{port}/subsystems/{subsystem}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_of_a_subsystem_is_told_by_its_name() {
        let lease = "00000000000000aa:00000000000000000000000000001234";
        let (node_id, lease_id) = maker_of(&format!("{PREFIX}{lease}")).unwrap();
        assert_eq!((node_id.0[7], lease_id), (0xAA, LeaseId(0x1234)));
        for name in [
            "nqn.2020-01.org:x",
            "nqn.2026-11.org.fabricbios:00000000000000aa:anchor",
            "nqn.2026-11.org.fabricbios:aa:00000000000000000000000000001234",
            "nqn.2026-11.org.fabricbios:00000000000000AA:00000000000000000000000000001234",
            "nqn.2026-11.org.fabricbios:00000000000000aa:00000000000000000000000000000ABC",
        ] {
            assert_eq!(maker_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_lease_is_found_by_its_subsystem_and_nobody_elses_is() {
        let names = Names::new(NodeId([0xAB; 32]));
        let lease = LeaseId(0x1234);
        let subsystem = names.subsystem(lease);
        assert_eq!(
            subsystem,
            "nqn.2026-11.org.fabricbios:abababababababab:00000000000000000000000000001234"
        );
        assert!(subsystem.parse::<fabricbios_wire::Nqn>().is_ok());
        assert_eq!(names.lease_of(&subsystem), Some(lease));
        let other = Names::new(NodeId([0xAC; 32]));
        for foreign in [
            names.anchor(),
            names.host_mark(&"nqn.2020-01.com.example:client".parse().unwrap()),
            other.subsystem(lease),
            format!("{subsystem}0"),
            "nqn.2014-08.org.nvmexpress.discovery".to_owned(),
        ] {
            assert_eq!(names.lease_of(&foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_disk_of_a_lease_looks_the_same_after_a_restart() {
        let lease = LeaseId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!(serial(lease), "0123456789abcdef0123");
        assert_eq!(uuid(lease), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
