//! Physical network interfaces: `/sys/class/net`. A virtual function is not listed if its physical function is on this
//! machine too.

use fabricbios_kernfs::Tree;

use super::Warnings;

/// A physical network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicFound {
    /// Such as `eth0`.
    pub name: String,
    /// Bits per second; 0 if unknown, as without a link.
    pub speed_bps: u64,
    /// Bytes, 0 if unknown.
    pub mtu: u32,
    /// Whether it can carry frames now.
    pub link_up: bool,
    /// Most virtual functions; 0 without SR-IOV.
    pub vfs_max: u32,
    /// A property could not be read.
    pub degraded: bool,
}

pub(super) fn detect(sys: &Tree, warnings: &mut Warnings) -> Vec<NicFound> {
    let names = warnings.names(sys, "class/net", "network interfaces");
    names
        .into_iter()
        .filter(|name| is_listed(sys, name))
        .map(|n| nic(sys, n, warnings))
        .collect()
}

fn is_listed(sys: &Tree, name: &str) -> bool {
    let has = |file: &str| {
        sys.exists(format!("class/net/{name}/{file}"))
            .unwrap_or(false)
    };
    has("device") && !has("device/physfn")
}

pub(super) fn nic(sys: &Tree, name: String, warnings: &mut Warnings) -> NicFound {
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
