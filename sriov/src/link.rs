//! The state of an interface's link, from sysfs. Reading it waits for no lock that a tenant can keep busy.

use fabricbios_kernfs::Tree;

/// Why no frame passes. The texts are for people.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The operator has not set the interface up, or has set it down.
    Down(String),
    /// The other end of the link is down or absent.
    NoCarrier(String),
}

/// `IFF_UP` of `netdevice(7)`.
const UP: u32 = 1;

/// The trouble of a link. `None`: the link is up, or the kernel does not report its state.
pub(crate) fn trouble(sys: &Tree, name: &str) -> Option<Trouble> {
    let read = |file: &str| sys.read(format!("class/net/{name}/{file}")).ok();
    let flags = read("flags")?;
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
    if flags & UP == 0 {
        return Some(Trouble::Down(format!(
            "interface {name} is down: ip link set {name} up"
        )));
    }
    // An interface without a carrier is `down`, one above another `lowerlayerdown`.
    matches!(&*read("operstate")?, "down" | "lowerlayerdown").then(|| {
        Trouble::NoCarrier(format!(
            "interface {name} has no carrier: its leases reach nothing until its link is back"
        ))
    })
}
