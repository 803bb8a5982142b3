//! The command line.

mod alloc;
mod block;
mod debug_bundle;
mod fabric;
mod gpu;
mod lease;
mod local;
mod mem;
mod mooncake;
#[cfg(test)]
mod pages;
mod perftest;

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Arg, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind, parser::ValueSource,
};
use fabricbios_client::{DEFAULT_NODE, ENV_IDENTITY, ENV_NODE, ENV_NODE_ID, NodeId};
use fabricbios_wire::Role;

pub(crate) use self::{
    alloc::{Grace, NoGrace, PEER, Term},
    block::{AttachPlace, Block, BlockPlace, RecordedLease},
    debug_bundle::DebugBundle,
    fabric::{Fabric, MemberRole, Sign},
    gpu::{Gpu, GpuClose, GpuPlace, GpuRun},
    lease::Lease,
    local::{End, Enter, Run, RunWatch},
    mem::{Mem, Place, TransportChoice},
    mooncake::Mooncake,
    perftest::Perftest,
};
use crate::values::{self, Named};

const AFTER_HELP: &str = "\
Exit status:
  0  done
  2  usage: wrong arguments, or an identity file that cannot be used
  3  refused by policy or capacity: InvalidIntent, InvalidArgs, CapacityExceeded, ResourceBusy,
     NotPermitted, RenewTooEarly, Unsupported; a grant that enforces less than was asked for;
     an identity that the node does not accept
  4  not found or over: NotFound, Expired, Revoked, Ended, SessionEnded; no block device of the
     lease here: NotAttached
  5  fenced: Fenced
  6  cannot reach the node: Unreachable; or the node is busy or stopping: Unavailable
  126, 127  `run`: the command cannot be executed: NotExecutable; or does not exist: NoCommand
  1  anything else: Malformed, Internal, UntrustedNode, Protocol, Local, WritesLost; bytes of a GPU
     that came back wrong: Changed; of a device of this machine: NotRoot, NotConnected,
     AttachedOtherwise, NotDetached, InUse, Busy

With --json a failure is one object on standard error: error, reason.class, reason.code, message.";

/// Heading of the flags that say how to reach a node. Every help lists them apart from the command's own flags.
const NODE: &str = "Node";

/// Flags without a use in `lease enter`, which asks the node of this machine as the user who runs the command.
const REMOTE: [&str; 4] = ["node", "node_id", "identity", "patience_secs"];

/// The command line. A command's help lists the flags of `REMOTE` only if the command uses them.
pub fn command() -> clap::Command {
    let all = Args::command();
    let is_remote = |arg: &&Arg| REMOTE.contains(&arg.get_id().as_str());
    let remote = all.get_arguments().filter(is_remote).cloned();
    let hidden: Vec<Arg> = remote.map(|arg| arg.hide(true)).collect();
    let hide = |command: clap::Command| command.args(&hidden);
    let all = all.clone();
    all.mut_subcommand("lease", |lease| lease.mut_subcommand("enter", hide))
}

/// Parses the words of a command line; the first word is the program.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Args, clap::Error> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(words)?;
    let args = Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    if !matches!(args.command, Command::Lease(Lease::Enter(_))) {
        return Ok(args);
    }
    // Settings from the environment are allowed for all commands.
    let is_given = |id: &&&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let Some(id) = REMOTE.iter().find(is_given) else {
        return Ok(args);
    };
    let flag = id.replace('_', "-");
    let why = format!(
        "--{flag}: `fabricctl lease enter` works on the node only, over its --local-socket and without an identity; leave \
         --{flag} out"
    );
    Err(command.error(ErrorKind::ArgumentConflict, why))
}

/// Lease hardware from a fabricBIOS node.
#[derive(Debug, Parser)]
#[command(name = "fabricctl", version = env!("FABRICBIOS_VERSION"), after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Args {
    /// The node, or a scheduler, which names the node to ask: HOST, HOST:PORT or `[IPV6]:PORT`; or
    /// discover:IFACE: a scheduler of your fabric that announces itself on the link of this interface
    #[arg(long, global = true, env = ENV_NODE, default_value = DEFAULT_NODE, value_name = "ADDR",
          help_heading = NODE)]
    pub(crate) node: String,
    /// The id of the node, as `fabricctl identity show` prints it: another node that answers at the
    /// address is refused
    #[arg(long, global = true, env = ENV_NODE_ID, value_name = "HEX", value_parser = values::node_id,
          help_heading = NODE)]
    pub(crate) node_id: Option<NodeId>,
    /// The identity file; the daemon writes the first one to STATE_DIR/admin.identity
    #[arg(long, global = true, env = ENV_IDENTITY, value_name = "PATH", help_heading = NODE)]
    pub(crate) identity: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// How long to ask again while the node is busy (ResourceBusy, Unavailable) or was lost, and to
    /// go on with a transfer over UDP that gets no answer, in seconds; 0: ask once, but a transfer over
    /// UDP waits 5 s for data, and then 5 s for an answer of the node
    #[arg(long, global = true, env = "FABRICBIOS_PATIENCE_SECS", value_name = "SECS",
          default_value_t = 10, value_parser = values::number::<0, 3_600>, help_heading = NODE)]
    pub(crate) patience_secs: u32,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask the node whether it answers, and for its health
    Ping,
    /// Say whether the node and its resources are well, for monitors: exits with 0 if they are, with 1 if something is not,
    /// which it names, and with 2 if the node cannot be asked
    Health,
    /// Show the resources of the node
    Inventory,
    /// Ask for, use and give back leases
    #[command(subcommand)]
    Lease(Lease),
    /// Read and write leased memory
    #[command(subcommand)]
    Mem(Mem),
    /// Serve a lease of memory to clients of Mooncake's Transfer Engine, as a segment: print its name, and serve until
    /// the lease ends, or until SIGINT or SIGTERM, which gives the lease back
    Mooncake(Mooncake),
    /// Use leased block storage, as a device or without one
    #[command(subcommand)]
    Block(Block),
    /// Use leased GPUs, from anywhere
    #[command(subcommand)]
    Gpu(Gpu),
    /// Run a command in a lease of CPU cores or of a GPU, on the node itself: as you, with your environment and the
    /// command's exit status. With an identity, `run` can renew the lease, and reports exactly why the lease ended
    Run(Run),
    /// The process that `run` leaves behind
    #[command(hide = true)]
    RunWatch(RunWatch),
    Perftest(Perftest),
    /// Find the schedulers and nodes of your fabric on the links of this machine, as far as they announce themselves, with
    /// what the nodes have available: at most 64 of each, and of more than 20 nodes 10 more each second
    Discover(Discover),
    DebugBundle(DebugBundle),
    /// Show the nodes of a fabric; --node names a scheduler of it
    #[command(subcommand)]
    Node(FleetNode),
    /// Print the address at which a browser on this machine sees all of the page of the node that runs here, leases and
    /// tenants too; as the user of the daemon. Each start of the node makes a new one
    Page(Page),
    /// Show and clear fences: resources that were taken out of service
    #[command(subcommand)]
    Fence(Fence),
    /// Show and issue identities
    #[command(subcommand)]
    Identity(Identity),
    /// Make a fabric of many nodes and sign its nodes, on this machine alone
    #[command(subcommand)]
    Fabric(Fabric),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Discover {
    /// An interface to ask on; may repeat [default: all that are up and have multicast]
    #[arg(long, value_name = "IFACE")]
    pub(crate) interface: Vec<String>,
    /// How long answers are waited for, in seconds
    #[arg(long, value_name = "SECS", default_value_t = 3, value_parser = values::number::<1, 3_600>)]
    pub(crate) wait: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Page {
    /// The state directory of the daemon, which serves the page where its metrics-listen says
    #[arg(long, value_name = "DIR", default_value = "/var/lib/fabricbios")]
    pub(crate) state_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FleetNode {
    /// Show the nodes that report to the scheduler, with the amounts that they have available, and the members that are away
    List,
    /// Show the resources of one of them, as the node itself tells them
    Show {
        /// The id of the node, or its first digits, as `fabricctl node list` shows them
        #[arg(value_name = "ID", value_parser = values::node_prefix)]
        id: String,
    },
    /// Forget a member that is away and will not come back (operator): etcd has it no more, and refusals miss it no more
    Forget {
        /// The id of the node, or at least its first 8 digits, as `fabricctl node list` shows them
        #[arg(value_name = "ID", value_parser = values::node_prefix)]
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Fence {
    /// Show what is fenced, since when, and why
    List,
    /// Clean a resource, verify that it is clean, and only then return it to service (operator)
    Clear {
        /// The resource, by name or id as `fabricctl inventory` shows them
        #[arg(value_parser = values::resource)]
        resource: Named,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Identity {
    /// Show your name and role, as the node sees them, the id of the node, and the fingerprint of your fabric
    Show,
    /// Make a key here and have the node sign it (operator), or the CA in --fabric-dir
    Issue {
        /// The tenant: 1 to 64 of a-z 0-9 . - _
        #[arg(long, value_name = "NAME", value_parser = values::tenant)]
        tenant: String,
        /// The role: tenant or operator
        #[arg(long, value_name = "ROLE", default_value_t = Role::Tenant, value_parser = values::person)]
        role: Role,
        /// Validity in days; the node's default if not given
        #[arg(long, value_name = "N", value_parser = values::number::<1, 36_500>)]
        days: Option<u32>,
        /// The new identity file; an existing one is not overwritten
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Sign here with the key in the directory of a fabric (`fabricctl fabric init`), and ask no node
        #[arg(long, value_name = "DIR")]
        fabric_dir: Option<PathBuf>,
    },
}
