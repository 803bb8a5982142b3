//! Chooses the device, port and GID.
//!
//! libibverbs lists the devices, their limits and the GIDs of their ports.

use std::{fs, net::Ipv6Addr, path::Path, sync::Arc};

use fabricbios_lease::StepError;

use super::{
    no_device::{Flaw, NoDevice, PortFlaw},
    restrack,
};
use fabricbios_verbs::{Context, DeviceLimits, DeviceList, Gid, PortState};

const SYSFS: &str = "/sys/class/infiniband";

/// A device with a port that can carry leases.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    /// The kernel's index of the device, for netlink.
    pub(crate) index: u32,
    pub(crate) limits: DeviceLimits,
    pub(crate) port: u8,
    pub(crate) state: PortState,
    pub(crate) gid: Gid,
}

/// The result of the search for a device.
#[derive(Debug)]
pub(crate) enum Found {
    Device(Box<Device>),
    Nothing(NoDevice),
}

impl Device {
    /// Opens the named device, or the first one that can carry leases. Without a name, it is no error if no device is
    /// found.
    pub(crate) fn find(name: Option<&str>, needs_windows: bool) -> Result<Found, StepError> {
        match (search(name, needs_windows), name) {
            (Ok(device), _) => Ok(Found::Device(Box::new(device))),
            (Err(reason), None) => Ok(Found::Nothing(reason)),
            (Err(reason), Some(name)) => Err(StepError::new(
                "open RDMA device",
                format_args!("{name}: {reason}"),
            )),
        }
    }

    /// Name of the device, for errors and inventories.
    pub(crate) fn name(&self) -> &str {
        self.context.name()
    }

    /// Name and address of the device, for errors.
    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.name(), Ipv6Addr::from(self.gid.bytes))
    }
}

fn search(wanted: Option<&str>, needs_windows: bool) -> Result<Device, NoDevice> {
    let list = DeviceList::get().map_err(NoDevice::NotListed)?;
    let names = list.names();
    let mut flaws = Vec::new();
    for name in names
        .iter()
        .filter(|name| wanted.is_none_or(|wanted| wanted == *name))
    {
        match consider(&list, name, needs_windows) {
            Ok(device) => return Ok(device),
            Err(flaw) => flaws.push((name.clone(), flaw)),
        }
    }
    Err(match (names.is_empty(), flaws.is_empty()) {
        (true, _) => NoDevice::None,
        (false, true) => NoDevice::Unknown(names),
        (false, false) => NoDevice::Flawed(flaws),
    })
}

fn consider(list: &DeviceList, name: &str, needs_windows: bool) -> Result<Device, Flaw> {
    let context = list.open(name).map_err(Flaw::NotOpened)?;
    let index = restrack::device_index(name).map_err(Flaw::Untracked);
    match index.and_then(|index| Ok((index, usable_port(&context, needs_windows)?))) {
        Ok((index, (limits, port, state, gid))) => Ok(Device {
            context,
            index,
            limits,
            port,
            state,
            gid,
        }),
        Err(flaw) => {
            close_unused(context);
            Err(flaw)
        }
    }
}

fn usable_port(
    context: &Context,
    needs_windows: bool,
) -> Result<(DeviceLimits, u8, PortState, Gid), Flaw> {
    let limits = context.limits().map_err(Flaw::Unlimited)?;
    if needs_windows && !limits.has_type_2b {
        return Err(Flaw::NoWindows);
    }
    let mut flaws = Vec::new();
    for port in 1..=limits.ports {
        match port_and_gid(context, port) {
            Ok((state, gid)) => return Ok((limits, port, state, gid)),
            Err(flaw) => flaws.push((port, flaw)),
        }
    }
    Err(Flaw::Ports(flaws))
}

fn port_and_gid(context: &Context, port: u8) -> Result<(PortState, Gid), PortFlaw> {
    let state = context.port(port).map_err(PortFlaw::Silent)?;
    if !state.active {
        return Err(PortFlaw::Inactive);
    }
    let table = context.gids(port).map_err(PortFlaw::NoTable)?;
    let gid = choose_gid(&table).ok_or(PortFlaw::NoGid)?;
    Ok((state, gid))
}

/// Closes a device, unless another object still uses it.
pub(crate) fn close(context: Arc<Context>) -> Result<(), StepError> {
    match Arc::into_inner(context).map(Context::close) {
        Some(Err((context, errno))) => {
            let detail = format_args!("{}: {errno}", context.name());
            Err(StepError::new("close_device", detail).with_errno(errno as i32))
        }
        _ => Ok(()),
    }
}

/// The NUMA node of the named device, or of the first one that can carry leases. `None`: there is no such device, or
/// sysfs has no node for it.
pub fn numa_node(device: Option<&str>) -> Option<u32> {
    let Ok(Found::Device(device)) = Device::find(device, false) else {
        return None;
    };
    let node = node_of(Path::new(SYSFS), device.name());
    close_unused(device.context);
    node
}

/// The NUMA node of a device, from sysfs. The kernel writes -1 if there is none.
fn node_of(root: &Path, device: &str) -> Option<u32> {
    let text = fs::read_to_string(root.join(device).join("device/numa_node")).ok()?;
    text.trim().parse().ok()
}

fn close_unused(context: Arc<Context>) {
    if let Err(error) = close(context) {
        tracing::warn!(%error, "unused RDMA device was not closed");
    }
}

/// The RoCE v2 entry that most peers can reach: IPv4-mapped, else global IPv6, else link-local.
fn choose_gid(table: &[Gid]) -> Option<Gid> {
    let rank = |gid: &&Gid| match Ipv6Addr::from(gid.bytes) {
        address if address.to_ipv4_mapped().is_some() => 0,
        address if address.is_unicast_link_local() => 2,
        _ => 1,
    };
    table
        .iter()
        .filter(|gid| gid.is_roce_v2 && gid.bytes != [0; 16])
        .min_by_key(rank)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, text: &str) -> Gid {
        Gid {
            index,
            bytes: text.parse::<Ipv6Addr>().unwrap().octets(),
            is_roce_v2: true,
        }
    }

    #[test]
    fn ipv4_is_preferred_to_global_and_global_to_link_local() {
        let link_local = gid(0, "fe80::1");
        let global = gid(1, "2001:db8::1");
        let ipv4 = gid(2, "::ffff:10.77.0.1");
        assert_eq!(choose_gid(&[link_local, global, ipv4]), Some(ipv4));
        assert_eq!(choose_gid(&[link_local, global]), Some(global));
        assert_eq!(choose_gid(&[link_local]), Some(link_local));
    }

    #[test]
    fn an_empty_entry_is_not_an_address() {
        assert_eq!(choose_gid(&[gid(0, "::")]), None);
    }

    #[test]
    fn the_lowest_index_wins_among_equals() {
        let first = gid(1, "::ffff:10.0.0.1");
        assert_eq!(choose_gid(&[first, gid(3, "::ffff:10.0.0.2")]), Some(first));
    }

    #[test]
    fn a_device_without_a_node_has_none() {
        let root = tempfile::tempdir().unwrap();
        for (device, text) in [("near", "1\n"), ("nowhere", "-1\n")] {
            let directory = root.path().join(device).join("device");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("numa_node"), text).unwrap();
        }
        assert_eq!(node_of(root.path(), "near"), Some(1));
        assert_eq!(node_of(root.path(), "nowhere"), None);
        assert_eq!(node_of(root.path(), "absent"), None);
    }

    #[test]
    fn only_roce_v2_entries_are_chosen() {
        let older = Gid {
            is_roce_v2: false,
            ..gid(0, "::ffff:10.77.0.1")
        };
        assert_eq!(choose_gid(&[older]), None);
        let link_local = gid(1, "fe80::1");
        assert_eq!(choose_gid(&[older, link_local]), Some(link_local));
    }
}
