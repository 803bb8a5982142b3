//! Physical network interfaces: `/sys/class/net`. A virtual function is not listed if its physical function is on this
//! machine too.

use fabricbios_kernfs::Tree;
use fabricbios_wire::{
    InventoryExtension, NIC_LINK_UP, NIC_SRIOV, NicInfo, ResourceId, ResourceInventory,
    ResourceType,
};

use crate::{
    inventory::{
        detection::Found,
        hardware::{Hardware, Row, Warnings, health_of},
    },
    kinds::detect::Looking,
};

/// A physical network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NicFound {
    /// Such as `eth0`.
    pub(crate) name: String,
    /// Bits per second; 0 if unknown, as without a link.
    pub(crate) speed_bps: u64,
    /// Bytes, 0 if unknown.
    pub(crate) mtu: u32,
    /// Whether it can carry frames now.
    pub(crate) link_up: bool,
    /// Most virtual functions; 0 without SR-IOV.
    pub(crate) vfs_max: u32,
    /// A property could not be read.
    pub(crate) degraded: bool,
}

impl NicFound {
    /// Its entry in inventories.
    pub(super) fn info(&self, resource_id: ResourceId) -> NicInfo {
        let sriov = if self.vfs_max > 0 { NIC_SRIOV } else { 0 };
        let link = if self.link_up { NIC_LINK_UP } else { 0 };
        NicInfo {
            resource_id,
            speed_bps: self.speed_bps,
            mtu: self.mtu,
            flags: sriov | link,
            health: health_of(self.degraded),
        }
    }
}

impl Hardware for NicFound {
    fn row(&self) -> Row<'_> {
        Row {
            kind: ResourceType::Net,
            name: &self.name,
            capacity: self.speed_bps,
            degraded: self.degraded,
        }
    }

    fn add_to(&self, inventory: &mut ResourceInventory, resource_id: ResourceId) {
        inventory.nics.push(self.info(resource_id));
        if self.vfs_max > 0 {
            // The virtual functions that the card could have.
            let functions = InventoryExtension::VirtualFunctions {
                resource_id,
                total: self.vfs_max,
                free: 0,
            };
            inventory.extensions.push(functions);
        }
    }
}

/// See [`crate::kinds::Kind::detect`]. An interface on offer need not be physical.
pub(super) fn detect(looking: &Looking<'_>, found: &mut Found) {
    let sys = &looking.sources.sys;
    if looking.lists() {
        let names = found.warnings.names(sys, "class/net", "network interfaces");
        for name in names.into_iter().filter(|name| is_listed(sys, name)) {
            let nic = nic(sys, name, &mut found.warnings);
            found.list(nic);
        }
    }
    for name in looking.settings.net.interfaces() {
        if interface(found, name).is_none() {
            found.offer(nic(sys, name.clone(), &mut Warnings::default()));
        }
    }
}

/// The interface of this name.
pub(super) fn interface<'a>(found: &'a Found, name: &str) -> Option<&'a NicFound> {
    found.of::<NicFound>().find(|it| it.name == name)
}

fn is_listed(sys: &Tree, name: &str) -> bool {
    let has = |file: &str| {
        sys.exists(format!("class/net/{name}/{file}"))
            .unwrap_or(false)
    };
    has("device") && !has("device/physfn")
}

fn nic(sys: &Tree, name: String, warnings: &mut Warnings) -> NicFound {
    let path = |file: &str| format!("class/net/{name}/{file}");
    let mtu = warnings.keep(&name, "mtu unknown", sys.read_as(path("mtu")));
    let state = warnings.keep(&name, "link state unknown", sys.read(path("operstate")));
    let vfs_max = vfs_max(sys, &name, warnings);
    NicFound {
        speed_bps: speed_bps(sys, &path("speed")),
        degraded: mtu.is_none() || state.is_none() || vfs_max.is_none(),
        mtu: mtu.unwrap_or(0),
        // Drivers that do not report a state return `unknown`; then the carrier decides.
        link_up: match state.as_deref() {
            Some("up") => true,
            Some("unknown") => sys
                .read(path("carrier"))
                .is_ok_and(|carrier| carrier == "1"),
            _ => false,
        },
        vfs_max: vfs_max.unwrap_or(0),
        name,
    }
}

/// The speed in bits per second, from a file in megabits. Reading fails with EINVAL while the link is down, and some
/// drivers return -1.
fn speed_bps(sys: &Tree, path: &str) -> u64 {
    let mbps = sys
        .read_as::<i64>(path)
        .ok()
        .and_then(|mbps| u64::try_from(mbps).ok());
    mbps.unwrap_or(0).saturating_mul(1_000_000)
}

/// `None`: the file exists and cannot be parsed.
fn vfs_max(sys: &Tree, name: &str, warnings: &mut Warnings) -> Option<u32> {
    match sys.read_as(format!("class/net/{name}/device/sriov_totalvfs")) {
        Err(e) if e.is_absent() => Some(0),
        read => warnings.keep(name, "SR-IOV unknown", read),
    }
}
