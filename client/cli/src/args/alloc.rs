//! `lease alloc …`: what can be asked for.

use std::convert::Infallible;

use clap::{Args, Subcommand};
use fabricbios_wire::{
    Affinity, CpuExecutionMode, CpuIsolationClass, CpuPartition, HandOver, HostId, KvCacheIntent,
    MacAddress, Nqn, RdmaPeer, Transport, VlanId,
};

use super::gpu::GpuClass;
use crate::values::{self, Named};

/// The form of a queue pair.
pub(super) const PEER: &str = "qpn=N,gid=G,psn=N[,mtu=N]";

#[derive(Debug, Subcommand)]
pub(crate) enum Alloc {
    /// Memory
    Mem {
        /// The size: bytes, or with K, M, G, T (KiB, MiB, GiB, TiB: 1024 each) or KB, MB, GB, TB (1000
        /// each)
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        bytes: u64,
        #[command(flatten)]
        term: Term,
        #[command(flatten)]
        grace: Grace,
        /// The transport: auto, rdma, udp, both
        #[arg(long, value_name = "TRANSPORT", default_value_t = Transport::Auto)]
        transport: Transport,
        /// The client's queue pair; repeat the flag for each of several; numbers decimal or 0x, gid as eight
        /// groups, IPv6, IPv4 or raw bytes
        #[arg(long, value_parser = values::rdma_peer, value_name = PEER)]
        rdma_peer: Vec<RdmaPeer>,
        /// The intent of a KV cache: hot, warm or cold, and the block size
        #[arg(long, value_parser = values::kv_cache, value_name = "TIER[,block=SIZE]")]
        intent_kv_cache: Option<KvCacheIntent>,
        /// Renewal changes the key; for clients that follow key changes
        #[arg(long)]
        rotate_on_renew: bool,
    },
    /// Block storage
    Block {
        /// The size: bytes, or with K, M, G, T (KiB, MiB, GiB, TiB: 1024 each) or KB, MB, GB, TB (1000
        /// each)
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        bytes: u64,
        #[command(flatten)]
        term: Term,
        #[command(flatten)]
        grace: Grace,
        /// The transport: auto, nvme-tcp, nvme-rdma, udp, both
        #[arg(long, value_name = "TRANSPORT", default_value_t = Transport::Auto,
              value_parser = values::block_transport)]
        transport: Transport,
        #[command(flatten)]
        host: BlockHost,
        /// Make the lease read-only
        #[arg(long)]
        read_only: bool,
        /// Renewal changes the keys, for the next connection; for clients that follow key changes
        #[arg(long)]
        rotate_on_renew: bool,
    },
    /// A network function of the node, for processes and virtual machines there
    Net {
        /// Transmit rate in megabits (10^6 bits) per second
        #[arg(long, value_name = "N", value_parser = values::megabits)]
        mbps: u64,
        #[command(flatten)]
        term: Term,
        /// VLAN id, 1 to 4094; untagged if not given
        #[arg(long, value_name = "N", value_parser = values::vlan)]
        vlan: Option<VlanId>,
        /// MAC address, such as 02:00:00:00:00:01; the node makes one if not given
        #[arg(long, value_name = "MAC")]
        mac: Option<MacAddress>,
        /// interface: a named interface of the node; netns: for the namespace that `fabricctl lease
        /// enter` gives there; vfio: for a virtual machine. interface if not given
        #[arg(long, value_name = "FORM")]
        hand_over: Option<HandOver>,
        #[command(flatten)]
        no_grace: NoGrace,
    },
    /// CPU cores of the node, for processes there
    Cpu {
        /// The number of cores. For undisturbed cores ask for --isolation and not for more cores
        #[arg(long, value_name = "N", value_parser = values::count)]
        cores: u16,
        #[command(flatten)]
        term: Term,
        /// best_effort: shares CPUs; whole_core: physical cores of its own; strict_isolated: physical
        /// cores of one NUMA node, with memory of that node, on a machine without SMT. The node's policy if not given, see
        /// `fabricctl inventory`
        #[arg(long, value_name = "CLASS")]
        isolation: Option<CpuIsolationClass>,
        /// single_threaded or shared_memory
        #[arg(long, value_name = "MODE")]
        execution_mode: Option<CpuExecutionMode>,
        /// Threads that run at once, 1 if not given; on a bare-metal node, the number of cores
        #[arg(long, value_name = "N", value_parser = values::count)]
        execution_width: Option<u16>,
        /// root: the kernel balances load over the cores; isolated: each thread stays on its core.
        /// The node chooses if not given
        #[arg(long, value_name = "PARTITION", value_parser = values::partition)]
        partition: Option<CpuPartition>,
        #[command(flatten)]
        no_grace: NoGrace,
    },
    /// A GPU or part of one
    Gpu {
        /// The memory: bytes, or with K, M, G, T (1024 each) or KB, MB, GB, TB (1000 each)
        #[arg(long, value_name = "SIZE", value_parser = values::size)]
        vram: u64,
        #[command(flatten)]
        term: Term,
        #[command(flatten)]
        class: GpuClass,
        #[command(flatten)]
        no_grace: NoGrace,
    },
}

/// Who will connect over NVMe-oF.
#[derive(Debug, Args)]
pub(crate) struct BlockHost {
    /// The NQN of the host that will connect, such as that in /etc/nvme/hostnqn; the node makes one for this
    /// lease if not given
    #[arg(long, value_name = "NQN")]
    pub(crate) hostnqn: Option<Nqn>,
    /// The identifier of that host, such as that in /etc/nvme/hostid; if not given, the UUID in the
    /// NQN, or one that the node makes
    #[arg(long, value_name = "UUID", requires = "hostnqn")]
    pub(crate) hostid: Option<HostId>,
    /// The node authenticates itself to the host, too
    #[arg(long)]
    pub(crate) mutual_auth: bool,
}

/// What every lease has.
#[derive(Debug, Args)]
pub(crate) struct Term {
    /// The term, in seconds
    #[arg(long, value_name = "SECS", value_parser = values::secs)]
    pub(crate) secs: u32,
    /// The resource, by name or id as `fabricctl inventory` shows them; any of the kind if not
    /// given
    #[arg(long, value_name = "NAME|ID", value_parser = values::resource)]
    pub(crate) resource: Option<Named>,
    /// What the lease should be near to or far from: required, preferred or avoid; then resource, node,
    /// rack, tenant or data; then a name or an id. Repeat the flag for each of several. The
    /// node keeps affinities with the lease and does not act on them
    #[arg(long, value_name = "STRENGTH:CATEGORY=TARGET", value_parser = values::affinity)]
    pub(crate) affinity: Vec<Affinity>,
}

/// What leases with contents have.
#[derive(Debug, Args)]
pub(crate) struct Grace {
    /// How long the contents are kept after the end, without access, in seconds
    #[arg(long, value_name = "SECS", default_value_t = 0,
          value_parser = values::number::<0, { u32::MAX }>)]
    pub(crate) grace_secs: u32,
}

/// Refuses the grace time of a lease without contents, instead of a tip to use another flag.
#[derive(Debug, Args)]
pub(crate) struct NoGrace {
    #[arg(long, hide = true, value_parser = values::no_grace)]
    grace_secs: Option<Infallible>,
}
