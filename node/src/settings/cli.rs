//! The command line: its subcommands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use fabricbios_fabric::FabricId;
use fabricbios_local::{DEFAULT_SOCKET, ENV_SOCKET};
use fabricbios_wire::LeaseId;

use super::Settings;
use crate::kinds::settings::STATE_DIR;

/// The fabricBIOS node daemon: leases this machine's hardware to remote clients for a limited time.
#[derive(Debug, Parser)]
#[command(name = "fabricbiosd", version = env!("FABRICBIOS_VERSION"), about, arg_required_else_help = true)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the control plane and the data planes of this node.
    ///
    /// The first start makes a fabric CA, a node identity and an operator identity in the state
    /// directory, and prints the command to try next. READY on standard output means that clients
    /// are served. SIGTERM takes every lease back, proves it and exits 0, or exits 1 and names
    /// the leases that it could not cut; with `--on-stop keep` it leaves leases as they are, and so does SIGUSR1 in any case. A second signal does not wait. SIGHUP reads the file of --config again. Logs go to standard error;
    /// log-level or RUST_LOG sets their level.
    ControlServer(Box<Settings>),
    /// Say what a start with these settings would refuse, what this machine lacks for it, and of what it would warn.
    ///
    /// Nothing is changed: no file is made and no address is opened, also beside a daemon that runs. Exit status 1: a start
    /// would fail; 2: a flag is wrong. Not tried are whether ports are free and what the vendors' libraries say of GPUs. The journal is read only
    /// after a stop in order.
    Check(Box<Settings>),
    /// Renew the certificate of the fabric CA: the node keeps its id, its leases and its pools.
    ///
    /// For a node that is stopped. The certificates of node and first operator are made anew, all for ten years at most. The
    /// CA keeps its key, and every identity that it has issued stays valid to its own end. A node that has joined a fabric of
    /// many nodes leaves it with `--new-key`.
    RenewCa(RenewCa),
    /// Print a request for a certificate of another fabric, for `fabricctl fabric sign`.
    ///
    /// The daemon may run. The request has the node's public key alone, and is no secret.
    NodeRequest(NodeRequest),
    /// Join the fabric whose CA has signed this node's request: same key, same node id; live leases stay.
    ///
    /// A daemon that runs is told over its local socket and goes on without a restart. Identities of the fabric that
    /// the node leaves keep their live leases and get no new ones. The key of the node's own CA and its admin.identity are
    /// deleted: from now on identities come from the fabric. `renew-ca --new-key` leaves the fabric again.
    NodeAccept(NodeAccept),
    /// Start a process for each call that may hang, as the daemon asks over standard input.
    #[command(hide = true)]
    Supervisor,
    /// Ask ports of NVMe targets over RDMA for connections, as each line of standard input says.
    #[command(hide = true)]
    AskRdma,
    /// Cut leases at their deadline when the daemon cannot: what it leaves behind when it dies.
    #[command(hide = true)]
    Watchdog(crate::watchdog::Arguments),
    /// Write the journal: what the daemon has a process of its own for.
    #[command(hide = true)]
    Journal(crate::journal::Arguments),
    /// Serve the session of one lease of a GPU, as the daemon orders over standard input.
    #[command(hide = true)]
    GpuWorker,
    /// Register a container with the lease whose device it gets: container engines run this before they start it.
    #[command(hide = true)]
    CdiHook(CdiHook),
}

/// Arguments of `renew-ca`.
#[derive(Args, Clone, Debug)]
pub struct RenewCa {
    /// Where identities and the journal of the node live.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Give the CA a new key, because the old one is lost or known to others: every identity issued so far is void.
    #[arg(long)]
    pub new_key: bool,
}

/// Arguments of `node-request`.
#[derive(Args, Clone, Debug)]
pub struct NodeRequest {
    /// Where identities and the journal of the node live.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
}

/// Arguments of `node-accept`.
#[derive(Args, Clone, Debug)]
pub struct NodeAccept {
    /// What `fabricctl fabric sign` has printed; - reads it from standard input.
    #[arg(value_name = "FILE")]
    pub answer: PathBuf,
    /// The fabric to join, as `fabricctl fabric init` and `fabricctl identity show` print it: the answer of another one
    /// is refused. Any is taken if not given.
    #[arg(long, value_name = "FINGERPRINT", value_parser = fingerprint)]
    pub fabric: Option<FabricId>,
    /// Where identities and the journal of the node live.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// The --local-socket of the daemon, if it runs.
    #[arg(long, value_name = "PATH", env = ENV_SOCKET, default_value = DEFAULT_SOCKET)]
    pub local_socket: PathBuf,
}

/// Arguments of the hook of container engines.
#[derive(Args, Clone, Debug)]
pub struct CdiHook {
    /// The directory of the records of the lease's kind
    #[arg(long)]
    pub records: PathBuf,
    /// The lease
    #[arg(long)]
    pub lease: LeaseId,
}

fn fingerprint(text: &str) -> Result<FabricId, &'static str> {
    let fabric = text.parse();
    fabric.map_err(
        |_unread| "a fingerprint has 32 digits of 0-9 a-f, as `fabricctl identity show` prints it",
    )
}
