//! The kinds of resource that this daemon leases: each has a folder, and a line in `kinds!`. docs/adding-a-kind.md
//! explains how to add one.

pub mod block;
mod cdi;
pub mod cpu;
pub mod detect;
mod end;
pub mod gpu;
pub(crate) mod local_socket;
pub mod memory;
pub mod net;
mod offered;
pub mod settings;
pub mod vendor;

use std::{env, fmt, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Args;
use fabricbios_contract::LocalAccess;
use fabricbios_fallback_udp::Counters;
use fabricbios_helper::{Handler, Program, Supervisor};
use fabricbios_lease::StepError;
use fabricbios_wire::{NodeId, ResourceType};

use crate::{
    inventory::detection::Found,
    journal::past::Past,
    process::{
        check::{Checking, Findings},
        service_manager,
    },
    watchdog::Watchdog,
};

pub(crate) use end::ends;
pub use end::{Ending, MakeEnd};
pub(crate) use offered::watch_over;
pub use offered::{Continuity, Offered, OfferedResource, Ready};

use detect::Looking;
use gpu::GpuParts;
use settings::{Conflicts, SharedSettings};

/// The kinds and the settings of each.
macro_rules! kinds {
    ($($kind:ident: $settings:ident,)*) => {
        /// Every kind that this daemon knows, in the order in which they are opened.
        pub const KINDS: &[Kind] = &[$($kind::KIND),*];

        /// The settings of every kind.
        #[derive(Args, Clone, Debug, Default)]
        pub struct KindSettings {
            /// Those that several kinds share.
            #[command(flatten)]
            pub shared: SharedSettings,
            $(
                /// Those of this kind.
                #[command(flatten)]
                pub $kind: $kind::$settings,
            )*
        }
    };
}

kinds! {
    memory: MemorySettings,
    block: BlockSettings,
    cpu: CpuSettings,
    net: NetSettings,
    gpu: GpuSettings,
    vendor: VendorSettings,
}

/// A kind of resource.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its code and name.
    pub resource_type: ResourceType,
    /// Refuses settings of the kind that contradict each other, or have no effect without another.
    pub conflicts: fn(&KindSettings, &mut Conflicts<'_>),
    /// The address of the kind's UDP socket, with its setting; `None`: it opens none.
    pub datagrams: fn(&KindSettings) -> Option<(&'static str, SocketAddr)>,
    /// The most that the leases of one tenant may hold, in the unit of the kind; `None`: all that is on offer.
    pub per_tenant_max: fn(&KindSettings) -> Option<u64>,
    /// The calls of the kind that may hang.
    pub calls: fn() -> Vec<Handler>,
    /// Opens the stores and paths that the settings ask for, and decides by the journal whether leases of an earlier
    /// run go on. A failed call leaves nothing behind.
    pub open: fn(&Opening<'_>) -> anyhow::Result<Opened>,
    /// Reports what `open` would refuse, lack or warn of. Changes nothing.
    pub check: fn(&Checking<'_>, &mut Findings),
    /// Looks for the hardware of the kind that inventories list or that is on offer. The kernel may block this call.
    pub detect: fn(&Looking<'_>, &mut Found),
    /// Makes the end of leases by name, in the watchdog's process, from the argument of
    /// [`crate::watchdog::Watchdog::ends`]; `None`: access ends with the daemon's process.
    pub end: Option<MakeEnd>,
    /// What the tests of all settings need to know of the kind's.
    #[cfg(test)]
    pub(crate) examples: &'static settings::tests::Examples,
}

/// The arguments of [`Kind::open`].
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The operator's settings.
    pub settings: &'a KindSettings,
    /// The node that has the resources.
    pub node_id: NodeId,
    /// The journal, and what the earlier runs left in it.
    pub past: &'a Past,
    /// Ends access when this process cannot.
    pub watchdog: &'a Watchdog,
    /// Makes calls that may hang.
    pub supervisor: &'a Supervisor,
    /// The program of this process, for processes that outlive this one.
    pub program: &'a Program,
}

/// The records of leases of this kind in the memory of the node; a reboot empties the directory.
pub(crate) fn records(node_id: &NodeId, kind: ResourceType) -> PathBuf {
    PathBuf::from(format!("/run/fabricbios-{}/{kind}", digits(node_id)))
}

/// The first 8 digits of the node's id, for names.
pub(crate) fn digits(node_id: &NodeId) -> String {
    node_id.to_string().chars().take(8).collect()
}

/// The file of this program, which container engines run. A newer version may have replaced it since the start.
///
/// # Errors
/// The path of the running program cannot be read.
pub(crate) fn own_program() -> anyhow::Result<PathBuf> {
    env::current_exe().context("find the file of this program")
}

/// See [`Opened::reread`].
pub type Reread = dyn Fn(&KindSettings) + Send;

/// An open kind.
pub struct Opened {
    /// The resources on offer; `None`: there are none of the kind.
    pub offered: Option<Offered>,
    /// Operations of local users on leases of the kind; `None`: there are none.
    pub local: Option<Arc<dyn LocalAccess>>,
    /// The node's GPUs and their sessions; the default for other kinds.
    pub gpus: GpuParts,
    /// The counters of its path over UDP; `None`: it has none.
    pub datagrams: Option<Arc<Counters>>,
    /// Takes over those settings of the kind that can change while it is open. Never blocks.
    pub reread: Box<Reread>,
    /// Closes devices, ports and sockets after the node has stopped.
    pub close: Box<dyn FnOnce()>,
}

impl Opened {
    /// A kind without resources on offer.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            offered: None,
            local: None,
            gpus: GpuParts::default(),
            datagrams: None,
            reread: Box::new(|_| ()),
            close: Box::new(|| ()),
        }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("offered", &self.offered)
            .finish_non_exhaustive()
    }
}

/// Closes a path, if it was opened and nothing else uses it.
pub(crate) fn close<T>(
    opened: Option<Arc<T>>,
    what: &str,
    close: impl FnOnce(T) -> Result<(), StepError>,
) {
    let Some(opened) = opened else { return };
    match Arc::into_inner(opened).map(close) {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::warn!(%error, "the {what} could not be given back"),
        // A call that is stuck in the kernel still holds the path; the end of the process closes it.
        None => tracing::warn!("the {what} is still in use; it is left to the end of the process"),
    }
}

/// Opens every kind.
///
/// # Errors
/// The settings ask for something that a kind cannot open.
pub fn open_all(opening: &Opening<'_>) -> anyhow::Result<Vec<Opened>> {
    let open = |kind: &Kind| {
        service_manager::starts(format_args!("opening {}", kind.resource_type));
        (kind.open)(opening)
    };
    KINDS.iter().map(open).collect()
}
