//! A fabric with an etcd, schedulers, and nodes that only report.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant, SystemTime},
};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_control::Caller;
use fabricbios_fabric::{Fabric, FabricDirectory, Member};
use fabricbios_scheduler::{EmbeddedEtcd, EtcdSettings, Policy, Scheduler, Settings};
use fabricbios_wire::{
    Answer, Epoch, InventoryExtension, LeaseAllocRequest, LeaseReport, MemArena, NodeId,
    NodeReport, RefusalClass, Reply, ReportPart, Request, ResourceId, ResourceInventory,
    ResourceType, Role, Transport, health,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// How long something may take that takes a moment.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct World {
    pub(crate) etcd: EmbeddedEtcd,
    pub(crate) directory: FabricDirectory,
    place: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// With more flags of etcd.
    pub(crate) fn with(flags: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("fabric");
        Self {
            etcd: EmbeddedEtcd::start(flags).unwrap(),
            directory: FabricDirectory::init(&at, SystemTime::now()).unwrap(),
            place,
        }
    }

    pub(crate) fn scheduler(&self) -> Scheduler {
        self.scheduler_with(vec![self.etcd.url()])
    }

    /// A scheduler with these servers.
    pub(crate) fn scheduler_with(&self, etcd: Vec<String>) -> Scheduler {
        self.scheduler_that_waits(etcd, Duration::ZERO)
    }

    /// One that refuses nothing for good so long after its first look into etcd.
    pub(crate) fn scheduler_that_waits(
        &self,
        etcd: Vec<String>,
        settles_after: Duration,
    ) -> Scheduler {
        let settings = Settings {
            identity: self.directory.scheduler_identity(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            http_listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            http_identity: None,
            run_dir: Some(self.place.path().to_owned()),
            policy: Policy::default(),
            announce: Vec::new(),
        };
        let etcd = EtcdSettings {
            etcd,
            etcd_identity: Some(self.etcd.identity()),
            settles_after: Some(settles_after),
        };
        Scheduler::start_with(&settings, &etcd).unwrap()
    }

    pub(crate) fn node(&self, label: &str) -> Reporting {
        let state_dir = self.place.path().join(label);
        let now = SystemTime::now();
        Fabric::open_or_create(&state_dir, now).unwrap();
        let request = Fabric::request(&state_dir).unwrap();
        let member = Member::Node(vec![label.parse().unwrap()]);
        let signed = self.directory.sign(&request, &member, None, now).unwrap();
        Reporting(Fabric::accept(&state_dir, &signed.pem, now).unwrap().fabric)
    }

    pub(crate) async fn client(&self, scheduler: &Scheduler) -> Node {
        self.client_at(&scheduler.local_addr().to_string()).await
    }

    pub(crate) async fn client_at(&self, scheduler: &str) -> Node {
        let identity = Identity::load(self.directory.admin_identity()).unwrap();
        Node::connect_async(scheduler, &identity).await.unwrap()
    }

    /// A directory. The address to log in at the page of the last scheduler that was started is in its `page.url`.
    pub(crate) fn place(&self) -> &Path {
        self.place.path()
    }

    pub(crate) fn prefix(&self, of: &str) -> String {
        format!("/fabricbios/v1/{}/{of}", self.directory.id())
    }

    pub(crate) fn key(&self, node: &Reporting) -> String {
        self.key_of(node.id())
    }

    pub(crate) fn key_of(&self, id: NodeId) -> String {
        self.prefix(&format!("nodes/{id}"))
    }

    /// `None`: no such key, or no etcd.
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.get_at(&self.etcd.url(), key)
    }

    /// The same at this server.
    pub(crate) fn get_at(&self, url: &str, key: &str) -> Option<String> {
        let told = done(self.run_etcdctl(url, &["get", "--print-value-only", key]))?;
        let text = told.strip_suffix('\n')?;
        Some(text.to_owned())
    }

    /// Whether there are keys that begin so; `None`: no answer.
    pub(crate) fn has_keys(&self, prefix: &str) -> Option<bool> {
        let told = self.try_etcdctl(&["get", "--prefix", "--keys-only", prefix])?;
        Some(told.lines().any(|it| !it.is_empty()))
    }

    /// Fills etcd up to its quota.
    pub(crate) fn fill(&self) {
        let much = "x".repeat(100_000);
        for _ in 0..1000 {
            let told = self.run_etcdctl(&self.etcd.url(), &["put", "/other", &much]);
            if String::from_utf8_lossy(&told.stderr).contains("space exceeded") {
                return;
            }
        }
        panic!("etcd has no quota");
    }

    /// Lets the certificate of etcd's clients read and no more. Returns what lets it write again.
    pub(crate) fn read_only(&self) -> impl Fn() {
        // The name in that certificate.
        const NAME: &str = "fabricBIOS embedded etcd";
        let grant = |right: &str| {
            let root = ["--user=root:pass", "role", "grant-permission"];
            let words = ["--prefix", "clients", right, "/fabricbios/"];
            self.etcdctl(&[&root[..], &words].concat());
        };
        for words in [
            &["user", "add", "root:pass"][..],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "clients"],
            &["user", "add", &format!("{NAME}:pass")],
            &["user", "grant-role", NAME, "clients"],
            &[
                "role",
                "grant-permission",
                "--prefix",
                "clients",
                "read",
                "/fabricbios/",
            ],
            &["auth", "enable"],
        ] {
            self.etcdctl(words);
        }
        move || grant("readwrite")
    }

    /// The program, with this etcd.
    pub(crate) fn program(&self) -> Command {
        let mut program = Command::new(env!("CARGO_BIN_EXE_fabricbios-scheduler"));
        program
            .arg("--identity")
            .arg(self.directory.scheduler_identity())
            .args(["--listen=127.0.0.1:0", "--etcd", &self.etcd.url()])
            .arg("--etcd-identity")
            .arg(self.etcd.identity())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        program
    }

    pub(crate) fn etcdctl(&self, words: &[&str]) -> String {
        let told = self.try_etcdctl(words);
        told.unwrap_or_else(|| panic!("etcdctl {words:?}"))
    }

    pub(crate) fn try_etcdctl(&self, words: &[&str]) -> Option<String> {
        done(self.run_etcdctl(&self.etcd.url(), words))
    }

    fn run_etcdctl(&self, url: &str, words: &[&str]) -> Output {
        self.command(url, words)
            .output()
            .expect("etcdctl: on Debian `apt install etcd-client` brings it")
    }

    fn command(&self, url: &str, words: &[&str]) -> Command {
        let mut command = self.etcd.etcdctl(url);
        command.args(words);
        command
    }

    /// Puts and deletes, each as etcdctl writes it: as many in one transaction as etcd takes.
    pub(crate) fn change(&self, operations: &[String]) {
        for some in operations.chunks(128) {
            let mut etcdctl = self.command(&self.etcd.url(), &["txn"]);
            etcdctl.stdin(Stdio::piped()).stdout(Stdio::null());
            let mut etcdctl = etcdctl.spawn().unwrap();
            // Nothing is compared, so all is done.
            let text = format!("\n{}\n\n\n", some.join("\n"));
            let mut input = etcdctl.stdin.take().unwrap();
            input.write_all(text.as_bytes()).unwrap();
            drop(input);
            assert!(etcdctl.wait().unwrap().success());
        }
    }

    /// Drops what etcd remembers of the past.
    pub(crate) fn compact(&self) {
        let status = self.etcdctl(&["endpoint", "status", "--write-out=json"]);
        let (_, revision) = status.split_once(r#""revision":"#).unwrap();
        let (revision, _) = revision.split_once(',').unwrap();
        self.etcdctl(&["compact", "--physical", revision]);
    }

    /// Ends etcd and starts it anew on what `etcdctl snapshot save` has written into this file.
    pub(crate) fn restore(&mut self, snapshot: &Path) {
        self.signal(Signal::SIGKILL);
        while self.state_of_etcd() != 'Z' {
            std::thread::yield_now();
        }
        let data = self.etcd.data();
        fs::remove_dir_all(&data).unwrap();
        let of_member = Command::new("etcdctl")
            .args(["snapshot", "restore"])
            .arg(snapshot)
            .arg("--data-dir")
            .arg(data.join("0"))
            .env("ETCDCTL_API", "3")
            .output()
            .unwrap();
        assert!(of_member.status.success(), "{of_member:?}");
        self.etcd.restart().unwrap();
    }

    /// What an operator does with a full etcd.
    pub(crate) fn make_room(&self) {
        self.compact();
        self.etcdctl(&["defrag"]);
        self.etcdctl(&["alarm", "disarm"]);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.etcd.pids()[0]).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// The state of its process, of proc_pid_stat(5).
    pub(crate) fn state_of_etcd(&self) -> char {
        let stat = PathBuf::from(format!("/proc/{}/stat", self.etcd.pids()[0]));
        let stat = fs::read_to_string(stat).unwrap();
        stat.rsplit(')')
            .next()
            .unwrap()
            .trim()
            .chars()
            .next()
            .unwrap()
    }
}

/// A record as another scheduler has written it.
pub(crate) fn record(endpoint: &str, label: &str, seen_unix_ms: u64) -> String {
    format!(
        r#"{{"version":1,"endpoint":"{endpoint}","labels":["{label}"],"first_seen_unix_ms":{seen_unix_ms},"last_seen_unix_ms":{seen_unix_ms}}}"#
    )
}

fn done(told: Output) -> Option<String> {
    let is_done = told.status.success();
    is_done.then(|| String::from_utf8(told.stdout).unwrap())
}

/// A node that reports one arena, and grants nothing.
pub(crate) struct Reporting(Fabric);

impl Reporting {
    pub(crate) fn id(&self) -> NodeId {
        self.0.node_id()
    }

    /// Reports until the connection is dropped.
    pub(crate) async fn report_to(&self, scheduler: &Scheduler) -> Caller {
        let caller = self.connect(scheduler).await;
        assert_eq!(self.begin(&caller).await, Ok(Reply::Reported));
        caller
    }

    pub(crate) async fn connect(&self, scheduler: &Scheduler) -> Caller {
        self.connect_at(&scheduler.local_addr().to_string()).await
    }

    pub(crate) async fn connect_at(&self, scheduler: &str) -> Caller {
        let caller = Caller::connect(scheduler, &self.0, Role::Scheduler).await;
        caller.unwrap()
    }

    /// Its first report over a connection, whose ever that is.
    pub(crate) async fn begin(&self, over: &Caller) -> Answer {
        let answer = over.call(&Request::NodeReport(self.report())).await;
        answer.unwrap()
    }

    /// Reports all that decides about a lease, and that it has none.
    pub(crate) async fn say_all(&self, over: &Caller) {
        let mut report = self.report();
        report.sequence = 2;
        report.inventory.extensions.extend([
            InventoryExtension::Limits {
                lease_secs_max: 3600,
                grace_secs_max: 3600,
                bare_metal: false,
            },
            InventoryExtension::Admission {
                resource_id: ResourceId(1),
                flags: 0,
                forbidden: Vec::new(),
                most: vec![(0, 1 << 30, 1 << 30)],
            },
        ]);
        let leases = LeaseReport {
            sequence: 3,
            part: ReportPart::Whole,
            leases: Vec::new(),
            gone: Vec::new(),
        };
        for report in [Request::NodeReport(report), Request::NodeLeases(leases)] {
            assert_eq!(over.call(&report).await.unwrap(), Ok(Reply::Reported));
        }
    }

    /// Its first report: memory, without all that decides about a lease.
    pub(crate) fn report(&self) -> NodeReport {
        let resource_id = ResourceId(1);
        NodeReport {
            sequence: 1,
            endpoint: SocketAddr::from(([192, 0, 2, 1], 5701)).into(),
            inventory: ResourceInventory {
                node_id: self.id(),
                epoch: Epoch(1),
                health: health::OK,
                mem_arenas: vec![MemArena {
                    resource_id,
                    base: 0,
                    len: 1 << 30,
                    align: 4096,
                    max_read: 0,
                    max_write: 0,
                    health: health::OK,
                }],
                block_devs: Vec::new(),
                cpu_caps: Vec::new(),
                nics: Vec::new(),
                gpus: Vec::new(),
                extensions: vec![
                    InventoryExtension::Available(resource_id, 1 << 30),
                    InventoryExtension::Transports(resource_id, vec![Transport::Udp]),
                ],
            },
        }
    }
}

/// The nodes to which a request is redirected; or the refusal.
pub(crate) async fn placed(client: &Node) -> Result<Vec<NodeId>, String> {
    let wanted = LeaseAllocRequest {
        follows_redirect: true,
        ..LeaseAllocRequest::new(ResourceType::Mem, 4096, 60)
    };
    match client.call_async(Request::LeaseAlloc(wanted)).await {
        Ok(Reply::Redirect(candidates)) => Ok(candidates.iter().map(|it| it.node_id).collect()),
        Err(Error::Refused(refusal)) => Err(refusal.message),
        other => panic!("{other:?}"),
    }
}

/// The class in which a request for a GPU, which no node has, is refused.
pub(crate) async fn refused(client: &Node) -> RefusalClass {
    let wanted = LeaseAllocRequest {
        follows_redirect: true,
        ..LeaseAllocRequest::new(ResourceType::Gpu, 4096, 60)
    };
    match client.call_async(Request::LeaseAlloc(wanted)).await {
        Err(Error::Refused(refusal)) => refusal.class,
        other => panic!("{other:?}"),
    }
}

/// Waits until it is refused in this class.
pub(crate) async fn until_refused(client: &Node, class: RefusalClass) {
    let is_refused = async || (refused(client).await == class).then_some(());
    until_async("another class of refusal", is_refused).await;
}

/// The members that are away, each with its address.
pub(crate) async fn away(client: &Node) -> BTreeMap<NodeId, SocketAddr> {
    let members = client.members_async().await.unwrap();
    let away = members.away.iter().map(|it| (it.id, it.address));
    away.collect()
}

/// Waits until these members are away.
pub(crate) async fn until_away(client: &Node, expected: &BTreeMap<NodeId, SocketAddr>) {
    let are_away = async || (away(client).await == *expected).then_some(());
    until_async("other members are away", are_away).await;
}

/// Waits for a refusal with this beginning and this end.
pub(crate) async fn told(client: &Node, begin: &str, end: &str) {
    let what = format!("{begin} … {end}");
    let is_told = async || {
        let refusal = placed(client).await.err()?;
        (refusal.starts_with(begin) && refusal.ends_with(end)).then_some(())
    };
    until_async(&what, is_told).await;
}

/// Waits until a request is redirected to these nodes.
pub(crate) async fn until_placed(client: &Node, nodes: &[NodeId]) {
    let is_placed = async || (placed(client).await.as_deref() == Ok(nodes)).then_some(());
    until_async("other candidates", is_placed).await;
}

/// Waits until `it` returns a value; fails after [`PATIENCE`], with the name `what`.
pub(crate) async fn until<T>(what: &str, mut it: impl FnMut() -> Option<T>) -> T {
    until_async(what, async || it()).await
}

pub(crate) async fn until_async<T>(what: &str, mut it: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = it().await {
            return found;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
