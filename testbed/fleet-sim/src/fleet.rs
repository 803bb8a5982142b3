//! The fleet: a fabric, an etcd, schedulers as processes, and nodes in this one.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};
use fabricbios_client::{Error, Identity, Node};
use fabricbios_fabric::{Fabric, FabricDirectory, Member};
use fabricbios_scheduler::EmbeddedEtcd;
use fabricbios_wire::{
    IssueRequest, LeaseAllocRequest, Reply, Request, RequestToken, ResourceType, Role,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use crate::{
    Options,
    invariants::{Invariant, Invariants},
    node::{MIB, Make, SimNode},
    scheduler::{self, Scheduler},
    switch::{self, Switch},
    views::Held,
};

/// How long a scheduler may take to answer for the first time, and a node its driver.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Lines of each log that a failed run prints.
const LOG_LINES: usize = 30;
/// Nodes that get leases at once.
const NODES_AT_ONCE: usize = 64;
/// Tenants of the leases that are there from the beginning.
const TENANTS: u32 = 8;
const TERM_SECS: u32 = 3_600;
/// The longest term of one node in sixteen.
pub(crate) const LONG_TERM_SECS: u32 = 2 * TERM_SECS;

/// See the module.
#[derive(Debug)]
pub struct Fleet {
    pub(crate) schedulers: Vec<Scheduler>,
    pub(crate) all: Vec<SimNode>,
    pub(crate) etcd: EmbeddedEtcd,
    metrics: Option<SocketAddr>,
    pub(crate) invariants: Arc<Invariants>,
    switch: Arc<Switch>,
    directory: FabricDirectory,
    pub(crate) place: tempfile::TempDir,
}

impl Fleet {
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// There is no etcd or no scheduler to start, or a node cannot start.
    pub fn start(options: &Options, random: &mut fastrand::Rng) -> anyhow::Result<Self> {
        let place = place(options.nodes)?;
        let at = place.path().join("fabric");
        let directory = FabricDirectory::init(&at, SystemTime::now())?;
        let metrics = match options.figures {
            true => Some(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?),
            false => None,
        };
        let flag = metrics.map(|at| format!("--listen-metrics-urls=http://{at}"));
        let flags: Vec<&str> = flag.iter().map(String::as_str).collect();
        let etcd = EmbeddedEtcd::start_servers(options.etcd_servers as usize, &flags)?;
        let mut fleet = Self {
            schedulers: Vec::new(),
            all: Vec::new(),
            etcd,
            metrics,
            invariants: Arc::default(),
            switch: Switch::start()?,
            directory,
            place,
        };
        fleet.wait_for_etcd()?;
        for number in 0..options.schedulers as usize {
            let mut scheduler = fleet.scheduler(options, number)?;
            scheduler.start()?;
            fleet.schedulers.push(scheduler);
        }
        for number in 0..options.nodes {
            let node = fleet.new_node(number, make(number, random))?;
            fleet.all.push(node);
            fleet.start_node(number as usize)?;
        }
        Ok(fleet)
    }

    fn scheduler(&self, options: &Options, number: usize) -> anyhow::Result<Scheduler> {
        let address = scheduler::free_address()?;
        let identity = self
            .place
            .path()
            .join(format!("scheduler-{number}.identity"));
        self.directory.add_scheduler(&identity, SystemTime::now())?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log(number))?;
        // It ends with this process.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        command.arg(&options.scheduler_program);
        command.arg("--identity").arg(identity);
        command.arg(format!("--listen={address}"));
        command.arg(format!("--etcd={}", self.etcd.urls().join(",")));
        command.arg("--etcd-identity").arg(self.etcd.identity());
        // The same number, of TCP.
        let http = options.figures.then_some(address);
        if let Some(http) = http {
            command.arg(format!("--http-listen={http}"));
            let run_dir = self.run_dir(number);
            fs::create_dir(&run_dir)?;
            command.arg("--run-dir").arg(run_dir);
        }
        command.stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        Ok(Scheduler {
            command,
            child: None,
            address,
            http,
        })
    }

    /// The log of the scheduler with this number.
    fn log(&self, number: usize) -> PathBuf {
        self.place.path().join(format!("scheduler-{number}.log"))
    }

    /// Where the scheduler with this number writes the address of its page.
    fn run_dir(&self, number: usize) -> PathBuf {
        self.place.path().join(format!("scheduler-{number}.run"))
    }

    /// The address at which an operator logs in to the page of this scheduler. There is one if [`Options::figures`] is set.
    ///
    /// # Errors
    /// The scheduler has not written it.
    pub fn page_url(&self, scheduler: usize) -> anyhow::Result<String> {
        let file = self.run_dir(scheduler).join("page.url");
        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    }

    fn new_node(&self, number: u32, make: Make) -> anyhow::Result<SimNode> {
        let (state_dir, now) = (self.place.path().join("node"), SystemTime::now());
        Fabric::open_or_create(&state_dir, now)?;
        let request = Fabric::request(&state_dir)?;
        let member = Member::Node(vec![format!("rack=r{}", number % 16).parse()?]);
        let signed = self.directory.sign(&request, &member, None, now)?;
        let fabric = Fabric::accept(&state_dir, &signed.pem, now)?.fabric;
        // The identity is in memory: no node reads its directory again.
        fs::remove_dir_all(&state_dir)?;
        let ip = switch::ip(number);
        Ok(SimNode::new(number, ip, fabric, make, &self.invariants))
    }

    /// The number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.all.len()
    }

    /// Where the schedulers listen.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.schedulers.iter().map(|it| it.address).collect()
    }

    pub(crate) fn start_node(&mut self, at: usize) -> anyhow::Result<()> {
        let schedulers = self.addresses();
        self.all[at].start(&self.switch, &schedulers)
    }

    /// Where etcd tells its counters.
    pub(crate) fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    pub(crate) fn signal_scheduler(&self, at: usize, signal: Signal) {
        self.schedulers[at].signal(signal);
    }

    pub(crate) fn kill_scheduler(&mut self, at: usize) {
        if let Some(ended) = self.schedulers[at].dies() {
            let what = format!("scheduler {at} had ended with {ended}");
            self.invariants.breaks(Invariant::NobodyCrashes, what);
        }
    }

    /// At the end of a run: which schedulers and nodes have ended by themselves.
    pub(crate) fn look_for_crashes(&mut self) {
        for at in 0..self.schedulers.len() {
            let child = self.schedulers[at].child.as_mut();
            if let Some(ended) = child.and_then(|it| it.try_wait().ok().flatten()) {
                let what = format!("scheduler {at} has ended with {ended}");
                self.invariants.breaks(Invariant::NobodyCrashes, what);
            }
        }
        for at in 0..self.schedulers.len() {
            let log = fs::read(self.log(at)).unwrap_or_default();
            if String::from_utf8_lossy(&log).contains("panicked at") {
                let what = format!("a task of scheduler {at} has panicked");
                self.invariants.breaks(Invariant::NobodyCrashes, what);
            }
        }
        self.all.iter_mut().for_each(SimNode::look_for_crashes);
    }

    /// The last lines of each scheduler's log.
    pub(crate) fn print_logs(&self) {
        for at in 0..self.schedulers.len() {
            let log = fs::read(self.log(at)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            println!("the log of scheduler {at} ends with");
            for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                println!("    {line}");
            }
        }
    }

    pub(crate) fn start_scheduler(&mut self, at: usize) -> anyhow::Result<()> {
        self.schedulers[at].start()
    }

    /// What all nodes have leased, as their journals have it.
    pub(crate) fn held(&self) -> BTreeSet<Held> {
        let of_one = |node: &SimNode| {
            let (id, fabric) = (node.id, node.fabric());
            let leases = node.disk.leases().into_iter();
            leases.map(move |it| Held {
                node_id: id,
                // As its reports name it.
                tenant: fabric.tenant_in_fabric(&it.tenant),
                ..it
            })
        };
        self.all.iter().flat_map(of_one).collect()
    }

    /// An operator's client of this scheduler.
    ///
    /// # Errors
    /// It does not answer for a minute.
    pub async fn operator(&self, scheduler: usize) -> Result<Node, Error> {
        let identity = Identity::load(self.directory.admin_identity())?;
        let address = self.schedulers[scheduler].address.to_string();
        let begin = Instant::now();
        loop {
            match Node::connect_async(&address, &identity).await {
                // It starts.
                Err(Error::Unreachable { .. }) if begin.elapsed() < PATIENCE => {
                    sleep(Duration::from_millis(20)).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// A new identity of a tenant.
    pub(crate) fn tenant(&self, name: &str) -> anyhow::Result<Identity> {
        let key = rcgen::KeyPair::generate()?;
        let csr = rcgen::CertificateParams::default().serialize_request(&key)?;
        let request = IssueRequest {
            tenant: name.to_owned(),
            role: Role::Tenant,
            valid_secs: 24 * 3600,
            csr_der: csr.der().to_vec(),
        };
        let issued = self.directory.ca().issue(&request, SystemTime::now());
        let Ok(Reply::Issued {
            certificate_pem,
            ca_pem,
        }) = issued
        else {
            bail!("{issued:?}")
        };
        let path = self.place.path().join(format!("{name}.identity"));
        fs::write(
            &path,
            format!("{certificate_pem}{}{ca_pem}", key.serialize_pem()),
        )?;
        Ok(Identity::load(&path)?)
    }

    /// A client of this scheduler, once all nodes report to it.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn reported(&self, scheduler: usize) -> anyhow::Result<Node> {
        let client = self.operator(scheduler).await?;
        while client.nodes_async().await?.len() < self.nodes() {
            sleep(Duration::from_millis(50)).await;
        }
        Ok(client)
    }

    /// # Errors
    /// An invariant was broken.
    pub fn ensure_every_invariant_holds(&self) -> anyhow::Result<()> {
        match self.invariants.broken().first() {
            Some(broken) => bail!("{broken}"),
            None => Ok(()),
        }
    }

    /// Requests for leases that have reached all nodes.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.all.iter().map(SimNode::asked).sum()
    }

    /// The identity of an operator.
    #[must_use]
    pub fn admin_identity(&self) -> PathBuf {
        self.directory.admin_identity()
    }

    /// So many nodes lose their power.
    pub async fn lose(&mut self, count: usize) {
        for node in self.all.iter_mut().take(count) {
            node.dies().await;
        }
    }

    /// So many leases of each node, that last for the whole run and have so many tenths of its memory.
    ///
    /// # Errors
    /// A node refuses one.
    pub async fn fill(&self, leases: u32, tenths: u64) -> anyhow::Result<()> {
        let mut filled = stream::iter(&self.all)
            .map(|node| fill(node, leases, tenths))
            .buffer_unordered(NODES_AT_ONCE);
        while filled.try_next().await?.is_some() {}
        Ok(())
    }
}

async fn fill(node: &SimNode, leases: u32, tenths: u64) -> anyhow::Result<()> {
    let all: u64 = node.make.mem.iter().sum();
    let bytes = all / 10 * tenths / u64::from(leases.max(1));
    // The other memory may have the rest.
    let largest = node.make.mem.into_iter().max().unwrap_or(0);
    let bytes = bytes.min(largest / 2) / 4096 * 4096;
    for number in 0..leases {
        let wanted = LeaseAllocRequest {
            request_token: Some(RequestToken(fastrand::u128(1..))),
            ..LeaseAllocRequest::new(ResourceType::Mem, bytes.max(4096), TERM_SECS)
        };
        let tenant = format!("t{}@{}", number % TENANTS, node.fabric().id());
        let answer = node.ask(&tenant, Request::LeaseAlloc(wanted)).await?;
        answer.with_context(|| format!("lease {number} of node {}", node.id))?;
    }
    Ok(())
}

/// Node 0 has sixteen times as much as the others, one in sixteen allows long terms, and one in ten has a wrong clock.
fn make(number: u32, random: &mut fastrand::Rng) -> Make {
    let times = if number == 0 { 16 } else { 1 };
    let size = |random: &mut fastrand::Rng| times * random.u64(4..=16) * 64 * MIB;
    Make {
        mem: [size(random), size(random)],
        block: size(random),
        lease_secs_max: match number % 16 {
            1 => LONG_TERM_SECS,
            _ => TERM_SECS,
        },
        ahead_ms: match number % 10 {
            3 => 3_600_000,
            7 => -3_600_000,
            _ => 0,
        },
    }
}

/// A directory in memory, if there is one: thousands of identities are made, each with several syncs.
fn place(nodes: u32) -> anyhow::Result<tempfile::TempDir> {
    let in_memory = Path::new("/dev/shm");
    let place = match nodes > 100 && in_memory.is_dir() {
        true => tempfile::tempdir_in(in_memory),
        false => tempfile::tempdir(),
    };
    place.context("make a directory")
}
