//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use fabricbios_client::{DEFAULT_NODE, ENV_IDENTITY, ENV_NODE, Road};
use fabricbios_wire::{
    CpuIsolationClass, GpuExclusivityClass, HostId, KvCacheIntent, LeaseId, Nqn, RdmaPeer,
    ResourceId, Role, Transport,
};

use crate::values;

const AFTER_HELP: &str = "\
Exit status:
  0  done
  2  usage: wrong arguments, or an identity file that cannot be used
  3  refused by policy or capacity: InvalidIntent, InvalidArgs, CapacityExceeded, ResourceBusy,
     NotPermitted, RenewTooEarly, Unsupported; a grant that enforces less than was asked for;
     an identity that the node does not accept
  4  not found or over: NotFound, Expired, Revoked
  5  fenced: Fenced
  6  cannot reach the node, or it is busy or stopping: Unavailable
  1  anything else: Malformed, Internal, a node of another fabric

With --json a failure is one object on standard error: error, reason.class, reason.code, message.";

/// Lease hardware from a fabricBIOS node.
#[derive(Debug, Parser)]
#[command(name = "fabricctl", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Args {
    /// Which node: HOST, HOST:PORT or `[IPV6]:PORT`
    #[arg(long, global = true, env = ENV_NODE, default_value = DEFAULT_NODE, value_name = "ADDR")]
    pub(crate) node: String,
    /// As whom: an identity file; the daemon writes the first one to STATE_DIR/admin.identity
    #[arg(long, global = true, env = ENV_IDENTITY, value_name = "PATH")]
    pub(crate) identity: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Is the node there
    Ping,
    /// What the node has
    Inventory,
    /// Ask for, use and give back leases
    #[command(subcommand)]
    Lease(Lease),
    /// Read and write leased memory
    #[command(subcommand)]
    Mem(Mem),
    /// Use leased block storage, as a device or without one
    #[command(subcommand)]
    Block(Block),
    /// Resources that were taken out of service
    #[command(subcommand)]
    Fence(Fence),
    /// Who may ask
    #[command(subcommand)]
    Identity(Identity),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Lease {
    /// Ask for a lease
    #[command(subcommand)]
    Alloc(Alloc),
    /// Connect a lease to a queue pair, or again after an access fault
    Bind {
        /// Which lease
        id: LeaseId,
        /// The client's queue pair; again for each of several, 8 at most
        #[arg(long, required = true, value_parser = values::rdma_peer, value_name = PEER)]
        rdma_peer: Vec<RdmaPeer>,
    },
    /// Another term, from the last fifth of the current one on
    Renew {
        /// Which lease
        id: LeaseId,
        /// Length of the new term, from now; the last one's if not given
        #[arg(long, value_name = "N", value_parser = values::secs)]
        secs: Option<u32>,
    },
    /// A new key
    Rotate {
        /// Which lease
        id: LeaseId,
        /// Milliseconds for which the old key goes on working
        #[arg(long, value_name = "N", default_value_t = 0,
              value_parser = values::number::<0, 60_000>)]
        overlap_ms: u32,
    },
    /// How a lease is
    Query {
        /// Which lease
        id: LeaseId,
    },
    /// Give a lease back
    Free {
        /// Which lease
        id: LeaseId,
    },
    /// Your leases; an operator's: everybody's
    List {
        /// Also those that ended and are still on record
        #[arg(long)]
        all: bool,
    },
    /// Take a lease back from its holder (operator)
    Revoke {
        /// Which lease
        id: LeaseId,
    },
    /// Print each change of a lease until it ends
    Watch {
        /// Which lease
        id: LeaseId,
        /// How often to look between known deadlines
        #[arg(long, value_name = "N", default_value_t = 1_000,
              value_parser = values::number::<10, 60_000>)]
        poll_ms: u32,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Mem {
    /// Bytes of a lease to standard output, as they are, also with --json
    Read {
        #[command(flatten)]
        place: Place,
        /// How much; to the end of the lease if not given
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        len: Option<u64>,
    },
    /// Standard input into a lease, to its last byte
    Write {
        #[command(flatten)]
        place: Place,
    },
}

/// Where to read or write, and over which road.
#[derive(Debug, ClapArgs)]
pub(crate) struct Place {
    /// Which lease
    pub(crate) id: LeaseId,
    /// Where to begin, counted from the start of the lease: plain bytes, or with B, KiB, MiB, GiB
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::offset)]
    pub(crate) offset: u64,
    /// auto, rdma or udp; auto is RDMA where the lease has it and this machine can, unless another
    /// program's queue pair is connected to the lease. rdma takes the lease from that one
    #[arg(long, value_name = "ROAD", default_value = "auto", value_parser = values::road)]
    pub(crate) road: RoadChoice,
    /// Over UDP: authenticate every byte and not only the requests
    #[arg(long)]
    pub(crate) payload_mac: bool,
}

/// A road that was named; none: whichever is best.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoadChoice(pub(crate) Option<Road>);

#[derive(Debug, Subcommand)]
pub(crate) enum Block {
    /// Blocks of a lease over UDP to standard output, as they are, also with --json
    Read {
        #[command(flatten)]
        place: BlockPlace,
        /// How much, in whole blocks; to the end of the lease if not given
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        len: Option<u64>,
    },
    /// Standard input into the blocks of a lease over UDP, to its last byte
    Write {
        #[command(flatten)]
        place: BlockPlace,
    },
    /// Make a lease a block device and print its path (root). It goes by itself shortly before the
    /// lease ends
    Attach(AttachPlace),
    /// Take the block device of a lease away again (root)
    Detach(Kept),
    /// The process that `attach` leaves behind
    #[command(hide = true)]
    Keep(AttachPlace),
}

/// Where to read or write blocks.
#[derive(Debug, ClapArgs)]
pub(crate) struct BlockPlace {
    /// Which lease
    pub(crate) id: LeaseId,
    /// Where to begin, counted in bytes from the start of the lease, in whole blocks: plain bytes, or
    /// with B, KiB, MiB, GiB
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::offset)]
    pub(crate) offset: u64,
    /// Authenticate every byte and not only the requests
    #[arg(long)]
    pub(crate) payload_mac: bool,
}

/// Which lease, and how.
#[derive(Debug, ClapArgs)]
pub(crate) struct AttachPlace {
    #[command(flatten)]
    pub(crate) kept: Kept,
    /// Over which road: auto, nvme-tcp, nvme-rdma or udp; auto is NVMe-oF where the lease has it
    #[arg(long, value_name = "ROAD", default_value_t = Transport::Auto,
          value_parser = values::attach_road)]
    pub(crate) transport: Transport,
}

/// Which lease, and where it is kept what became of it.
#[derive(Debug, ClapArgs)]
pub(crate) struct Kept {
    /// Which lease
    pub(crate) id: LeaseId,
    /// Where it is recorded what is attached, with a log for each lease
    #[arg(long, value_name = "DIR", default_value = "/run/fabricbios/attach")]
    pub(crate) attach_dir: PathBuf,
}

const PEER: &str = "qpn=N,gid=G,psn=N[,mtu=N]";

#[derive(Debug, Subcommand)]
pub(crate) enum Alloc {
    /// Memory
    Mem {
        /// How much: plain bytes, or with B, KiB, MiB, GiB, TiB
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        bytes: u64,
        #[command(flatten)]
        term: Term,
        /// Over which road: auto, rdma, udp, both
        #[arg(long, value_name = "ROAD", default_value_t = Transport::Auto)]
        transport: Transport,
        /// The client's queue pair, again for each of several; numbers decimal or 0x, gid as IPv6,
        /// IPv4 or raw bytes
        #[arg(long, value_parser = values::rdma_peer, value_name = PEER)]
        rdma_peer: Vec<RdmaPeer>,
        /// What a KV cache wants: hot, warm or cold, and its block size
        #[arg(long, value_parser = values::kv_cache, value_name = "TIER[,block=SIZE]")]
        intent_kv_cache: Option<KvCacheIntent>,
        /// Renewal changes the key; for clients that follow key changes
        #[arg(long)]
        rotate_on_renew: bool,
    },
    /// Block storage
    Block {
        /// How much: plain bytes, or with B, KiB, MiB, GiB, TiB
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        bytes: u64,
        #[command(flatten)]
        term: Term,
        /// Over which road: auto, nvme-tcp, nvme-rdma, udp, both
        #[arg(long, value_name = "ROAD", default_value_t = Transport::Auto,
              value_parser = values::block_road)]
        transport: Transport,
        #[command(flatten)]
        host: BlockHost,
        /// Nothing can be written
        #[arg(long)]
        read_only: bool,
        /// Renewal changes the keys, for the next connection; for clients that follow key changes
        #[arg(long)]
        rotate_on_renew: bool,
    },
    /// A network interface
    Net {
        /// Megabits per second
        #[arg(long, value_name = "N", value_parser = values::megabits)]
        mbps: u64,
        #[command(flatten)]
        term: Term,
    },
    /// CPU cores
    Cpu {
        /// How many
        #[arg(long, value_name = "N", value_parser = values::count)]
        cores: u64,
        #[command(flatten)]
        term: Term,
        /// best_effort, whole_core or strict_isolated
        #[arg(long, value_name = "CLASS")]
        isolation: Option<CpuIsolationClass>,
    },
    /// A GPU or part of one
    Gpu {
        /// Memory of it: plain bytes, or with B, KiB, MiB, GiB, TiB
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        vram: u64,
        #[command(flatten)]
        term: Term,
        /// shared, session, device or partition
        #[arg(long, value_name = "CLASS")]
        exclusivity: Option<GpuExclusivityClass>,
    },
}

/// Who will connect over NVMe-oF.
#[derive(Debug, ClapArgs)]
pub(crate) struct BlockHost {
    /// The host that will connect, such as the one in /etc/nvme/hostnqn; the node makes one for this
    /// lease if not given
    #[arg(long, value_name = "NQN")]
    pub(crate) hostnqn: Option<Nqn>,
    /// Its identifier, such as the one in /etc/nvme/hostid; the name's own UUID, or one that the node
    /// makes, if not given
    #[arg(long, value_name = "UUID", requires = "hostnqn")]
    pub(crate) hostid: Option<HostId>,
    /// The node, too, has to prove who it is
    #[arg(long)]
    pub(crate) mutual_auth: bool,
}

/// What every lease has.
#[derive(Debug, ClapArgs)]
pub(crate) struct Term {
    /// For how long
    #[arg(long, value_name = "N", value_parser = values::secs)]
    pub(crate) secs: u32,
    /// For how long contents are kept after the end, without access
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = values::number::<0, { u32::MAX }>)]
    pub(crate) grace_secs: u32,
    /// Of which resource; any of the kind if not given
    #[arg(long, value_name = "ID")]
    pub(crate) resource: Option<ResourceId>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Fence {
    /// What is fenced, since when, and why
    List,
    /// Clean a resource, verify, and only then return it to service (operator)
    Clear {
        /// Which resource
        resource: ResourceId,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Identity {
    /// Who the node thinks you are, and who it is
    Show,
    /// Make a key here and have the node sign it (operator)
    Issue {
        /// For whom: 1 to 64 of a-z 0-9 - _ .
        #[arg(long, value_name = "NAME", value_parser = values::tenant)]
        tenant: String,
        /// tenant or operator
        #[arg(long, value_name = "ROLE", default_value_t = Role::Tenant)]
        role: Role,
        /// Validity in days; the node's default if not given
        #[arg(long, value_name = "N", value_parser = values::number::<1, 36_500>)]
        days: Option<u32>,
        /// The new identity file; an existing one is not overwritten
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}
