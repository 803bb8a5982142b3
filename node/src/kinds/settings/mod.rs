//! The operator's settings of the kinds: those of each, which are in its folder, and those that several of them share.

mod conflict;
mod tenant_uid;
mod udp_listen;
pub(crate) mod values;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use fabricbios_fallback_udp::FbmuConfig;

use super::KINDS;

pub use super::KindSettings;
pub use conflict::{Conflict, Conflicts};
pub(crate) use conflict::{has_double, real_path};
pub use tenant_uid::TenantUid;
pub use udp_listen::UdpListen;

/// The default state directory.
pub(crate) const STATE_DIR: &str = "/var/lib/fabricbios";

/// The control plane's port (published facts §3).
const DEFAULT_PORT: u16 = 5701;

/// Settings that several kinds share.
#[derive(Args, Clone, Debug, Default)]
pub struct SharedSettings {
    /// Whose rules of admission apply [default: linux].
    #[arg(long, value_enum)]
    pub profile: Option<Profile>,

    /// List in the inventory what the machine has. Nothing is leasable until it is named by one of
    /// the flags below.
    #[arg(long)]
    pub auto_detect: bool,

    /// Where identities and the journal live [default: /var/lib/fabricbios].
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Address of the control plane (QUIC) [default: all addresses, port 5701].
    #[arg(long, value_name = "IP:PORT", value_parser = values::listen)]
    pub listen: Option<SocketAddr>,

    /// Most requests a second of one lease over UDP; more are answered BUSY
    /// [default: 1000000].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 1_000_000))]
    pub fbmu_ops_max: Option<u32>,

    /// Where container engines look for the devices of leases (Container Device Interface); it must be a tmpfs that only
    /// root or this user can write to [default: /run/cdi].
    #[arg(long, value_name = "PATH")]
    pub cdi_dir: Option<PathBuf>,

    /// Socket at which users of this machine put a process or a network namespace into a lease (`fabricctl run`,
    /// `fabricctl lease enter`); fabricctl looks for /run/fabricbios/local.sock. Its directory is made if it is missing
    /// [default: none].
    #[arg(long, value_name = "PATH")]
    pub local_socket: Option<PathBuf>,

    /// The user with this number belongs to this tenant and may enter its leases; root may enter all [repeatable:
    /// several users of a tenant, and several tenants of a user; default: root alone].
    #[arg(long, value_name = "NAME=UID")]
    pub tenant_uid: Vec<TenantUid>,
}

/// The kind of node, for its rules of admission (004).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// A CPU lease may have more cores than threads.
    #[default]
    Linux,
    /// A CPU lease has exactly as many cores as its execution width.
    BareMetal,
}

impl From<Profile> for fabricbios_lease::Profile {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Linux => Self::Linux,
            Profile::BareMetal => Self::BareMetal,
        }
    }
}

impl KindSettings {
    /// Refuses settings that contradict each other, and settings that have no effect without another.
    pub(crate) fn check(&self, conflicts: &mut Conflicts<'_>) {
        KINDS
            .iter()
            .for_each(|kind| (kind.conflicts)(self, conflicts));
        conflicts.needs(
            &[("cdi-dir", self.shared.cdi_dir.is_some())],
            self.gpu.gpus.is_some() || !self.net.sriov_pf.is_empty(),
            "--gpus LIST or --sriov-pf IFNAME",
            "no lease has a device for a container",
        );
        let has_blocks = !self.block.block_pool.is_empty();
        conflicts.needs(
            &[("fbmu-ops-max", self.shared.fbmu_ops_max.is_some())],
            has_blocks || !self.memory.arenas(&self.shared).is_empty(),
            "--mem-bytes SIZE, --mem-arena NAME=SIZE or --block-pool PATH",
            "nothing is leased over UDP",
        );
        conflicts.needs(
            &[("tenant-uid", !self.shared.tenant_uid.is_empty())],
            self.shared.local_socket.is_some(),
            "--local-socket PATH",
            "users have no socket at which to enter leases",
        );
    }

    /// The addresses of UDP sockets, each with its setting.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        KINDS.iter().filter_map(|kind| (kind.datagrams)(self))
    }
}

impl SharedSettings {
    /// The state directory.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        self.state_dir.as_deref().unwrap_or(Path::new(STATE_DIR))
    }

    /// The listen address of the control plane.
    #[must_use]
    pub fn listen(&self) -> SocketAddr {
        self.listen
            .unwrap_or_else(|| SocketAddr::from(([0; 8], DEFAULT_PORT)))
    }

    /// The listen address of a data plane over UDP: `set`, or this port where the control plane listens. `None`: not
    /// offered.
    pub(crate) fn udp_listen(&self, set: Option<UdpListen>, port: u16) -> Option<SocketAddr> {
        match set {
            Some(UdpListen::Off) => None,
            Some(UdpListen::At(address)) => Some(address),
            None => Some(SocketAddr::new(self.listen().ip(), port)),
        }
    }

    /// Most requests a second of one lease over UDP.
    pub(crate) fn ops_per_second(&self) -> u32 {
        self.fbmu_ops_max.unwrap_or(FbmuConfig::OPS_PER_SECOND)
    }

    /// Whether the node has the bare-metal profile.
    #[must_use]
    pub fn is_bare_metal(&self) -> bool {
        self.profile == Some(Profile::BareMetal)
    }
}

#[cfg(test)]
pub(crate) mod tests;
