//! Why no RDMA device can carry leases.

use std::fmt::Display;

use fabricbios_lease::StepError;
use nix::errno::Errno;

/// Why no device was found. The machine's or its operator's fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoDevice {
    #[error("{}", not_listed(*.0))]
    NotListed(Errno),
    #[error("this host has no RDMA device")]
    None,
    /// The wanted device is not among these.
    #[error("no such device; there are: {}", .0.join(", "))]
    Unknown(Vec<String>),
    #[error("{}", each(.0, "; ", |name, flaw| format!("{name}: {flaw}")))]
    Flawed(Vec<(String, Flaw)>),
}

/// Why a device cannot carry leases.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Flaw {
    #[error("cannot be opened: {0}")]
    NotOpened(Errno),
    #[error("{0}")]
    Untracked(StepError),
    #[error("does not say what it can: {0}")]
    Unlimited(Errno),
    #[error("has no memory windows of type 2B; the strategies `auto` and `region` do without")]
    NoWindows,
    #[error("{}", each(.0, ", ", |port, flaw| format!("port {port} {flaw}")))]
    Ports(Vec<(u8, PortFlaw)>),
}

/// Why a port cannot carry leases.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortFlaw {
    #[error("does not answer: {0}")]
    Silent(Errno),
    #[error("is not active (is its link up?)")]
    Inactive,
    #[error("has no readable GID table: {0} (libibverbs of rdma-core 32 or newer is needed)")]
    NoTable(Errno),
    #[error("has no RoCE v2 GID (has its interface an address?)")]
    NoGid,
}

fn not_listed(errno: Errno) -> String {
    match errno {
        Errno::ENOSYS | Errno::EOPNOTSUPP => {
            "no RDMA: libibverbs is not installed or the kernel has no ib_uverbs".into()
        }
        errno => format!("RDMA devices cannot be listed: {errno}"),
    }
}

fn each<N: Display, F: Display>(
    flaws: &[(N, F)],
    between: &str,
    text: impl Fn(&N, &F) -> String,
) -> String {
    let texts: Vec<String> = flaws.iter().map(|(name, flaw)| text(name, flaw)).collect();
    texts.join(between)
}
