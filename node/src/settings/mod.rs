//! The operator's settings: flags, then the configuration file, then defaults.

mod choices;
mod conflicts;
mod file;
mod values;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand, parser::ValueSource};
use fabricbios_cpu::{CpuList, Wanted};
use fabricbios_fallback_udp::FbbuConfig;
use fabricbios_wire::{LeaseId, Size};

use crate::{
    inventory::vendor::VendorResource,
    kinds::{
        block::{nvme_host::NvmeHost, nvmet_port::NvmetPort},
        gpu::WantedGpus,
        memory::MemArena,
        net::{
            macvlan::MacvlanParent,
            rights::{NetMac, NetVlan},
            sriov::SriovPf,
        },
        udp_listen::UdpListen,
    },
};

pub use crate::kinds::tenant_uid::TenantUid;
pub use choices::{CpuIsolationPolicy, GpuShareMode, OnStop, Profile, RdmaStrategy};
pub(crate) use values::pages;

/// Memory of the bare-metal profile (000, MEM): 8 slots of 8 KiB.
pub const STATIC_ARENA_BYTES: u64 = 8 * SLOT_BYTES;
/// The default state directory.
const STATE_DIR: &str = "/var/lib/fabricbios";

/// Bytes of a lease of this memory.
pub const SLOT_BYTES: u64 = 8_192;

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
    /// the leases that it could not cut; with `--on-stop keep` it leaves leases as they are. A second SIGTERM does not wait. Logs go to standard error;
    /// RUST_LOG sets their level.
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
    /// CA keeps its key, and every identity that it has issued stays valid to its own end.
    RenewCa(RenewCa),
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

/// Flags, each of which may also stand in the configuration file under the same name.
#[derive(Args, Clone, Debug, Default)]
pub struct Settings {
    /// TOML file with any of these settings; flags override it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

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

    /// What endpoints say when the node listens on a wildcard [default: the address that the client
    /// reached].
    #[arg(long, value_name = "IP", value_parser = values::advertise)]
    pub advertise: Option<IpAddr>,

    /// Memory to offer for lease: the arena mem0, such as 256MiB; whole pages of 4096 bytes
    /// [default: none].
    #[arg(long, value_name = "SIZE", value_parser = values::pages)]
    pub mem_bytes: Option<Size>,

    /// File that holds the memory on offer, such as one in tmpfs or hugetlbfs. Leases over UDP then
    /// outlive a restart of the daemon; without it memory ends with the process.
    #[arg(long, value_name = "PATH")]
    pub mem_file: Option<PathBuf>,

    /// More memory to offer for lease, as a resource of its own: NAME=SIZE, then file=PATH for a file that holds it (a path
    /// without commas), and numa-node=N for the node from which it is taken, if it has free memory, such as
    /// near=64GiB,file=/dev/shm/near,numa-node=1. Without numa-node it is near the RDMA device [repeatable; default: none].
    #[arg(long, value_name = "NAME=SIZE[,file=PATH][,numa-node=N]")]
    pub mem_arena: Vec<MemArena>,

    /// Block storage to offer for lease: a directory, or a raw block device [repeatable; default: none].
    #[arg(long, value_name = "PATH")]
    pub block_pool: Vec<PathBuf>,

    /// Start without this pool, which the last run offered and whose leases live: they end [repeatable; for one start, so never in
    /// the file].
    #[arg(long, value_name = "PATH")]
    pub without_pool: Vec<PathBuf>,

    /// A resource of a kind of its own to list in the inventory, with a capacity in a unit of its own: NAME=CAPACITY,
    /// such as fpga0=4. It is never leased [repeatable; default: none].
    #[arg(long, value_name = "NAME=CAPACITY")]
    pub advertise_vendor: Vec<VendorResource>,

    /// Where the kernel's NVMe target serves block leases: tcp:ADDR:PORT or rdma:ADDR:PORT
    /// [repeatable; default: nowhere].
    #[arg(long, value_name = "TRANSPORT:ADDR:PORT")]
    pub nvmet: Vec<NvmetPort>,

    /// Only TENANT may name the NVMe host NQN, by that or by the host id in it [repeatable; default: who
    /// names a host first has it, as long as a lease of it lives].
    #[arg(long, value_name = "NQN=TENANT")]
    pub nvme_host: Vec<NvmeHost>,

    /// Take block devices for --block-pool although they have a partition table or a file system, pools
    /// of any kind that were another node's, and pools that know of leases that are not on record here. What
    /// is on them is lost; the log says of each pool what that was. For one start, so never in the file.
    #[arg(long)]
    pub force: bool,

    /// Address of the data plane of blocks over UDP, or `none` [default: the IP of --listen, port 5703].
    #[arg(long, value_name = "IP:PORT")]
    pub fbbu_listen: Option<UdpListen>,

    /// Address of the data plane over UDP, or `none` [default: the IP of --listen, port 5702].
    #[arg(long, value_name = "IP:PORT")]
    pub fbmu_listen: Option<UdpListen>,

    /// Most requests a second of one lease over UDP; more are answered BUSY
    /// [default: 1000000].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 1_000_000))]
    pub fbmu_ops_max: Option<u32>,

    /// Most memory for blocks of which some parts have come over UDP and others not (a block of 4096 bytes takes
    /// four datagrams where the MTU is 1500): of all leases; of those of one tenant an eighth, of one lease a
    /// 128th. More are answered BUSY [default: 64MiB].
    #[arg(long, value_name = "SIZE", value_parser = values::size(values::HALF_SENT, "64MiB"))]
    pub fbbu_half_sent_max: Option<Size>,

    /// RDMA device that serves memory leases: a name, `auto` or `none` [default: auto].
    #[arg(long, value_name = "NAME", value_parser = values::name("mlx5_0, auto or none"))]
    pub rdma_device: Option<String>,

    /// How RDMA access is given out [default: auto].
    #[arg(long, value_enum)]
    pub rdma_strategy: Option<RdmaStrategy>,

    /// GPUs to offer for lease: `all`, or UUIDs as in `fabricctl inventory`, with commas between. Of a GPU that is divided
    /// into partitions (MIG) only the partitions are offered [default: none].
    #[arg(long, value_name = "LIST")]
    pub gpus: Option<WantedGpus>,

    /// Whether a GPU may be shared. `exclusive`: one lease a GPU. `fractional`: leases that name no class share it
    /// [default: exclusive].
    #[arg(long, value_enum)]
    pub gpu_share_mode: Option<GpuShareMode>,

    /// Most memory of this machine that the worker of a GPU lease takes, together with the lease's programs on the node
    /// [default: 4GiB].
    #[arg(long, value_name = "SIZE", value_parser = values::size(values::WORKER_MEMORY, "4GiB"))]
    pub gpu_worker_memory_max: Option<Size>,

    /// Logical CPUs to offer for lease: `all`, or a list such as 2-7,10 of whole cores. The core of the boot CPU is never
    /// leased. `all` leaves out CPUs that the kernel isolates since its start and, on a hybrid machine, all but the fastest
    /// type of cores [default: none].
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<Wanted>,

    /// Logical CPUs that are never leased, with their cores, besides that of the boot CPU.
    #[arg(long, value_name = "LIST")]
    pub cpu_reserve: Option<CpuList>,

    /// The cgroup in which leases of CPU cores are made; other programs must leave it alone
    /// [default: /sys/fs/cgroup/fabricbios-ID, with the first 8 digits of the node's id].
    #[arg(long, value_name = "PATH")]
    pub cpu_cgroup: Option<PathBuf>,

    /// Most memory, without swap, of the processes of a CPU lease, for each of its logical CPUs [default: the memory of the
    /// machine without --mem-bytes and --mem-arena, divided by its online CPUs].
    #[arg(long, value_name = "SIZE", value_parser = values::size(values::CPU_MEMORY, "4GiB"))]
    pub cpu_memory_max: Option<Size>,

    /// Most processes and threads of a CPU lease, for each of its logical CPUs [default: 1024].
    #[arg(long, value_name = "N", value_parser = values::number(values::CPU_PIDS, 1024))]
    pub cpu_pids_max: Option<u32>,

    /// Network interface on which macvlan interfaces are offered for lease: their rates are shaped, and their tenants are
    /// held to their addresses. MBPS: megabits per second to offer, where the driver tells no speed, or less than it tells
    /// [repeatable; default: none].
    #[arg(long, value_name = "IFNAME[=MBPS]")]
    pub macvlan_parent: Vec<MacvlanParent>,

    /// Network card whose virtual functions (SR-IOV) are offered for lease: all that it can have, or N of them with
    /// IFNAME=N. They are made at the start, unless there are some already. Each card is a resource of its own [repeatable;
    /// default: none].
    #[arg(long, value_name = "IFNAME[=N]")]
    pub sriov_pf: Vec<SriovPf>,

    /// The VLANs that TENANT may have: numbers and ranges such as 0,100-199, where 0 is the untagged network. What is not
    /// listed is refused; two tenants share a VLAN if it is listed for both [repeatable: several tenants; default: no
    /// tenant has any].
    #[arg(long, value_name = "TENANT=LIST")]
    pub net_vlan: Vec<NetVlan>,

    /// MAC addresses, with commas between them, that TENANT may ask for, and no tenant without such an entry. Any other
    /// address that a tenant asks for must be locally administered [repeatable: several tenants; default: none].
    #[arg(long, value_name = "TENANT=LIST")]
    pub net_mac: Vec<NetMac>,

    /// Where container engines look for the devices of leases (Container Device Interface); it must be a tmpfs that only
    /// root or this user can write to [default: /run/cdi].
    #[arg(long, value_name = "PATH")]
    pub cdi_dir: Option<PathBuf>,

    /// Isolation of CPU leases that ask for none [default: whole_core; best_effort with --profile bare-metal].
    #[arg(long, value_enum)]
    pub cpu_isolation_policy: Option<CpuIsolationPolicy>,

    /// Socket at which users of this machine put a process or a network namespace into a lease (`fabricctl run`,
    /// `fabricctl lease enter`); fabricctl looks for /run/fabricbios/local.sock. Its directory is made if it is missing
    /// [default: none].
    #[arg(long, value_name = "PATH")]
    pub local_socket: Option<PathBuf>,

    /// The user with this number belongs to this tenant and may enter its leases; root may enter all [repeatable:
    /// several users of a tenant, and several tenants of a user; default: root alone].
    #[arg(long, value_name = "NAME=UID")]
    pub tenant_uid: Vec<TenantUid>,

    /// Most connections to the control plane; from half of it on, and for an address from half of its own bound
    /// on, newcomers show first that their address is theirs (QUIC Retry). Operators have an eighth more, of this and
    /// of the next [default: 4096].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 4096))]
    pub connections_max: Option<u32>,

    /// Of those from one IPv4 address or one IPv6 /64; one tenant has at most half of them [default: 512].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 512))]
    pub connections_per_source_max: Option<u32>,

    /// Of those with certificates of one tenant [default: 1024].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 1024))]
    pub connections_per_tenant_max: Option<u32>,

    /// Longest term of a lease, seconds [default: 3600].
    #[arg(long, value_name = "SECS", value_parser = values::number(1..=u32::MAX, 3600))]
    pub lease_secs_max: Option<u32>,

    /// Longest grace time of a lease, seconds [default: 3600].
    #[arg(long, value_name = "SECS", value_parser = values::number(0..=u32::MAX, 3600))]
    pub grace_secs_max: Option<u32>,

    /// Most leases of one tenant; those that are over do not count [default: 16384].
    #[arg(long, value_name = "N", value_parser = values::number(1..=u32::MAX, 16_384))]
    pub leases_per_tenant_max: Option<u32>,

    /// Most memory that the leases of one tenant may hold [default: all that is on offer].
    #[arg(long, value_name = "SIZE", value_parser = values::size(values::ANY, "64GiB"))]
    pub mem_per_tenant_max: Option<Size>,

    /// Most block storage that the leases of one tenant may hold [default: all that is on offer].
    #[arg(long, value_name = "SIZE", value_parser = values::size(values::ANY, "1TiB"))]
    pub block_per_tenant_max: Option<Size>,

    /// Most CPU cores that the leases of one tenant may hold, of every class [default: all that are on offer].
    #[arg(long, value_name = "CORES", value_parser = values::number(0..=u32::MAX, 16))]
    pub cpu_per_tenant_max: Option<u32>,

    /// Highest sum of transmit rates that the leases of one tenant may hold, in megabits per second [default: all that is
    /// on offer].
    #[arg(long, value_name = "MBPS", value_parser = values::number(0..=u32::MAX, 10_000))]
    pub net_per_tenant_max: Option<u32>,

    /// Most GPU memory that the leases of one tenant may hold; a lease of a whole GPU holds all of its memory [default: all
    /// that is on offer].
    #[arg(long, value_name = "SIZE", value_parser = values::size(values::ANY, "80GiB"))]
    pub gpu_per_tenant_max: Option<Size>,

    /// Most requests of one tenant in a second; 0 for any number. Operators have no such bound [default: 20000].
    #[arg(long, value_name = "N", value_parser = values::number(0..=u32::MAX, 20_000))]
    pub requests_per_tenant_max: Option<u32>,

    /// A cut that is not proved within this time after it began fences the resource; of cuts over NVMe-oF, which
    /// wait for each other in the kernel, one where none has moved for so long. One that has not begun ten times
    /// as long after the lease ended fences too [default: 1000].
    #[arg(long, value_name = "MS", value_parser = values::number(10..=60_000, 1000))]
    pub cut_within_ms: Option<u32>,

    /// What SIGTERM and SIGINT do with leases. `end`: each is cut and over. `keep`: each that would outlive a crash of the
    /// daemon stays, and the next start adopts it [default: end].
    #[arg(long, value_enum)]
    pub on_stop: Option<OnStop>,

    /// For each setting in the configuration file, by its name: the number of its line.
    #[arg(skip)]
    pub lines: BTreeMap<String, usize>,
}

/// Settings are refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be used.
    #[error("configuration file {path}: {}", whys.join("; "))]
    File {
        /// Its path.
        path: PathBuf,
        /// The reasons: one for each bad line.
        whys: Vec<String>,
    },
    /// The settings of file and flags contradict each other.
    #[error("{0}")]
    Settings(String),
}

impl ConfigError {
    /// Splits the error into one error for each reason.
    pub(crate) fn each(self) -> Vec<Self> {
        match self {
            Self::File { path, whys } => {
                let alone = |why| Self::File {
                    path: path.clone(),
                    whys: vec![why],
                };
                whys.into_iter().map(alone).collect()
            }
            Self::Settings(_) => vec![self],
        }
    }
}

impl Settings {
    /// The flags of a subcommand that takes settings, merged over the configuration file that the flags name.
    ///
    /// # Errors
    /// The file cannot be read or has bad lines, or settings contradict each other.
    pub fn read(flags: &ArgMatches) -> Result<Self, ConfigError> {
        let invalid = |error: clap::Error| ConfigError::Settings(error.to_string());
        let mut settings = Self::from_arg_matches(flags).map_err(invalid)?;
        if let Some(path) = settings.config.take() {
            let file = file::read(&path)?;
            let is_listed = file.auto_detect;
            settings = file;
            settings.update_from_arg_matches(flags).map_err(invalid)?;
            // Without the flag its value is `false`, although the operator did not set it.
            settings.auto_detect |= is_listed;
            for argument in Self::arguments().get_arguments() {
                let id = argument.get_id().as_str();
                if flags.value_source(id) == Some(ValueSource::CommandLine) {
                    argument.get_long().map(|it| settings.lines.remove(it));
                }
            }
        }
        conflicts::check(&settings).map_err(ConfigError::Settings)?;
        Ok(settings)
    }

    /// All settings as arguments of a command line. Values of every source are parsed by these arguments.
    fn arguments() -> clap::Command {
        let command = clap::Command::new("settings").no_binary_name(true);
        Self::augment_args(command).disable_help_flag(true)
    }

    /// The setting of this name in the operator's notation: a flag, or a line of the file.
    fn named(&self, name: &str) -> String {
        match (self.lines.get(name), &self.config) {
            (Some(line), Some(path)) => format!("{name} ({}: line {line})", path.display()),
            _ => format!("--{name}"),
        }
    }

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

    /// The listen address of FBMU; `None`: not offered.
    #[must_use]
    pub fn fbmu_listen(&self) -> Option<SocketAddr> {
        self.udp_listen(self.fbmu_listen, FBMU_PORT)
    }

    /// The listen address of FBBU; `None`: not offered.
    #[must_use]
    pub fn fbbu_listen(&self) -> Option<SocketAddr> {
        self.udp_listen(self.fbbu_listen, FBBU_PORT)
    }

    fn udp_listen(&self, set: Option<UdpListen>, port: u16) -> Option<SocketAddr> {
        match set {
            Some(UdpListen::Off) => None,
            Some(UdpListen::At(address)) => Some(address),
            None => Some(SocketAddr::new(self.listen().ip(), port)),
        }
    }

    /// Most bytes for half-sent blocks.
    #[must_use]
    pub fn fbbu_half_sent_max(&self) -> usize {
        let set = self
            .fbbu_half_sent_max
            .map(|Size(bytes)| usize::try_from(bytes));
        set.map_or(FbbuConfig::HALF_SENT_MAX, |bytes| {
            bytes.unwrap_or(usize::MAX)
        })
    }

    /// Whether the node has the bare-metal profile.
    #[must_use]
    pub fn is_bare_metal(&self) -> bool {
        self.profile == Some(Profile::BareMetal)
    }

    /// All memory on offer; the arena of `--mem-bytes` comes first.
    #[must_use]
    pub fn arenas(&self) -> Vec<MemArena> {
        let bytes = match self.is_bare_metal() {
            true => Some(Size(STATIC_ARENA_BYTES)),
            false => self.mem_bytes,
        };
        let mem0 = bytes.map(|bytes| MemArena {
            name: MemArena::MEM0.into(),
            bytes,
            file: self.mem_file.clone(),
            numa_node: None,
        });
        mem0.into_iter().chain(self.mem_arena.clone()).collect()
    }

    /// The RDMA device to use: `None` for no device, `Some(None)` for the first that works.
    #[must_use]
    pub fn rdma_device(&self) -> Option<Option<String>> {
        match self.rdma_device.as_deref() {
            _ if self.is_bare_metal() => None,
            Some("none") => None,
            None | Some("auto") => Some(None),
            Some(name) => Some(Some(name.to_owned())),
        }
    }
}

/// The control plane's port (published facts §3).
pub const DEFAULT_PORT: u16 = 5701;

/// The port of FBMU (published facts §3).
pub const FBMU_PORT: u16 = 5702;

/// The port of FBBU (published facts §3).
pub const FBBU_PORT: u16 = 5703;

#[cfg(test)]
mod tests;
