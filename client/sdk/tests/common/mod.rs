//! A node with a real control plane and scripted answers.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up should fail loudly"
)]
#![allow(dead_code, reason = "not every test needs everything")]

pub(crate) mod fleet;
pub(crate) mod gpu;
pub(crate) mod memory;
pub(crate) mod path;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use fabricbios_control::{Limits, Membership, OnRequest, PeerRequest, Server};
use fabricbios_fabric::{Ca, Fabric};
use fabricbios_wire::{
    Answer, Binding, CpuBinding, CpuIsolationClass, CpuPartition, CpuQuota, CpuRange, CpuTerms,
    Effective, Endpoint, Enforcement, Generation, GpuBinding, GpuExclusivityClass, GpuTerms,
    GpuVendor, HandOver, IssueRequest, KindBinding, LeaseAllocRequest, LeaseError, LeaseId,
    LeaseInfo, LeasePhase, LeaseStatus, LeaseTerms, MacAddress, NetBinding, NetTerms, NodeId,
    PciFunction, RdmaBinding, RdmaStrategy, Refusal, RefusalClass, Reply, Request, RequestToken,
    ResourceId, ResourceType, Role,
};
use tokio::runtime::{Builder, Runtime};

pub(crate) const LEASE: LeaseId = LeaseId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
pub(crate) const RESOURCE: ResourceId = ResourceId(0xfeed);

type Mind = Arc<Mutex<dyn FnMut(&Request) -> Answer + Send>>;
/// Sends a message when the next request, which stays unanswered, arrives.
type Silence = Arc<Mutex<Option<std::sync::mpsc::Sender<()>>>>;

pub(crate) struct FakeNode {
    dir: tempfile::TempDir,
    membership: Membership,
    admin: PathBuf,
    addr: SocketAddr,
    limits: Limits,
    mind: Mind,
    log: Arc<Mutex<Vec<Request>>>,
    silence: Silence,
    gpu: gpu::FakeGpu,
    running: Option<(Runtime, Server)>,
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        if let Some((runtime, server)) = self.running.take() {
            runtime.shutdown_background();
            drop(server);
        }
    }
}

/// An address below the ports that the kernel gives to who asks for none, and of this process: no other program has it while
/// the node is dead.
fn own_address() -> SocketAddr {
    const OF_PROCESS: u32 = 16;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed) % OF_PROCESS;
    let port = 20_000 + std::process::id() % 750 * OF_PROCESS + next;
    SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()))
}

impl FakeNode {
    pub(crate) fn start(mind: impl FnMut(&Request) -> Answer + Send + 'static) -> Self {
        Self::limited(Limits::default(), mind)
    }

    pub(crate) fn limited(
        limits: Limits,
        mind: impl FnMut(&Request) -> Answer + Send + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fabric = Fabric::open_or_create(dir.path(), SystemTime::now()).unwrap();
        let admin = fabric.admin_identity().unwrap().to_owned();
        Self::of(dir, fabric, admin, limits, mind)
    }

    /// `dir`: its directory. `admin`: the identity of an operator of its fabric.
    pub(crate) fn of(
        dir: tempfile::TempDir,
        fabric: Fabric,
        admin: PathBuf,
        limits: Limits,
        mind: impl FnMut(&Request) -> Answer + Send + 'static,
    ) -> Self {
        let membership = Membership::new(fabric);
        let mind: Mind = Arc::new(Mutex::new(mind));
        let log = Arc::default();
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut node = Self {
            dir,
            membership,
            admin,
            addr,
            limits,
            mind,
            log,
            silence: Silence::default(),
            gpu: gpu::FakeGpu::default(),
            running: None,
        };
        node.serve();
        node
    }

    pub(crate) fn serve(&mut self) {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let start = |addr| {
            let _guard = runtime.enter();
            let (limits, gpu) = (self.limits.clone(), Arc::new(self.gpu.clone()));
            Server::start(addr, &self.membership, limits, self.on_request(), gpu)
        };
        let server = match self.addr.port() {
            // Another program may have some.
            0 => (0..100).find_map(|_| start(own_address()).ok()),
            _ => start(self.addr).ok(),
        };
        let server = server.expect("an address is free");
        self.addr = server.local_addr();
        self.running = Some((runtime, server));
    }

    fn on_request(&self) -> OnRequest {
        let (mind, log) = (Arc::clone(&self.mind), Arc::clone(&self.log));
        let (silence, unanswered) = (Arc::clone(&self.silence), Mutex::default());
        Arc::new(move |PeerRequest { request, reply, .. }| {
            // The SDK asks so whether a node is there.
            if let Request::Ping(number) = request {
                reply.send(Ok(Reply::Pong(number))).ok();
                return;
            }
            log.lock().unwrap().push(request.clone());
            if let Some(arrived) = silence.lock().unwrap().take() {
                let mut unanswered = unanswered.lock().unwrap();
                Vec::push(&mut unanswered, reply);
                arrived.send(()).ok();
                return;
            }
            let answer = (mind.lock().unwrap())(&request);
            reply.send(answer).ok();
        })
    }

    /// Leaves the next request unanswered; the receiver gets a message when the request has arrived.
    pub(crate) fn ignore_next(&self) -> std::sync::mpsc::Receiver<()> {
        let (sender, receiver) = std::sync::mpsc::channel();
        *self.silence.lock().unwrap() = Some(sender);
        receiver
    }

    /// Ends without closing its connections.
    pub(crate) fn crash(&mut self) {
        let (runtime, server) = self.running.take().unwrap();
        runtime.shutdown_timeout(Duration::from_secs(60));
        drop(server);
    }

    /// Ends without closing its connections and starts again at the same address.
    pub(crate) fn crash_and_restart(&mut self) {
        self.crash();
        self.serve();
    }

    /// After [`FakeNode::crash`]: another node of the same fabric starts at the same address.
    pub(crate) fn serve_as_another(&mut self) {
        let state_dir = self.dir.path().join("another");
        std::fs::create_dir(&state_dir).unwrap();
        std::fs::copy(
            self.dir.path().join("ca-key.pem"),
            state_dir.join("ca-key.pem"),
        )
        .unwrap();
        self.serve_as(&state_dir);
    }

    /// After [`FakeNode::crash`]: the first node starts again.
    pub(crate) fn serve_as_itself(&mut self) {
        let state_dir = self.dir.path().to_owned();
        self.serve_as(&state_dir);
    }

    fn serve_as(&mut self, state_dir: &Path) {
        self.serve_with(Fabric::open_or_create(state_dir, SystemTime::now()).unwrap());
    }

    /// After [`FakeNode::crash`]: whoever has this identity starts at the same address.
    pub(crate) fn serve_with(&mut self, identity: Fabric) {
        self.membership = Membership::new(identity);
        self.serve();
    }

    pub(crate) fn id(&self) -> NodeId {
        self.membership.now().node_id()
    }

    pub(crate) fn addr(&self) -> String {
        self.addr.to_string()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.addr.into()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn admin(&self) -> PathBuf {
        self.admin.clone()
    }

    /// The workers of sessions; they outlive the node's daemon.
    pub(crate) fn gpu(&self) -> &gpu::FakeGpu {
        &self.gpu
    }

    /// The requests so far, without their tokens, which are random.
    pub(crate) fn asked(&self) -> Vec<Request> {
        let mut asked = self.log.lock().unwrap().clone();
        for request in &mut asked {
            if let Request::LeaseAlloc(request) = request {
                request.request_token = None;
            }
        }
        asked
    }

    /// The tokens of the requests for leases so far.
    pub(crate) fn tokens(&self) -> Vec<Option<RequestToken>> {
        let log = self.log.lock().unwrap();
        let token = |it: &Request| match it {
            Request::LeaseAlloc(asked) => Some(asked.request_token),
            _ => None,
        };
        log.iter().filter_map(token).collect()
    }

    /// Answers IDENTITY_ISSUE as a daemon does.
    pub(crate) fn issuer(&self) -> Arc<Ca> {
        Arc::clone(self.membership.now().ca().unwrap())
    }

    /// An identity file that expired a day ago.
    pub(crate) fn expired_identity(&self) -> PathBuf {
        let key = rcgen::KeyPair::generate().unwrap();
        let csr = rcgen::CertificateParams::default()
            .serialize_request(&key)
            .unwrap();
        let request = IssueRequest {
            tenant: "late".into(),
            role: Role::Tenant,
            valid_secs: 60,
            csr_der: csr.der().to_vec(),
        };
        let yesterday = SystemTime::now() - Duration::from_secs(86_400);
        let issued = self.issuer().issue(&request, yesterday).unwrap();
        let Reply::Issued {
            certificate_pem,
            ca_pem,
        } = issued
        else {
            panic!("not issued")
        };
        let path = self.dir.path().join("late.identity");
        std::fs::write(
            &path,
            format!("{certificate_pem}{}{ca_pem}", key.serialize_pem()),
        )
        .unwrap();
        path
    }
}

pub(crate) fn refuse(error: LeaseError, class: RefusalClass, message: &str) -> Answer {
    Err(Refusal::new(error, class, message))
}

/// A lease as a node would grant it.
pub(crate) fn lease(remaining_ms: u64) -> LeaseInfo {
    LeaseInfo {
        lease_id: LEASE,
        resource_id: RESOURCE,
        status: LeaseStatus::Active,
        phase: LeasePhase::Active,
        generation: Generation(1),
        capacity: 1 << 20,
        granted_at_unix_ms: 1_800_000_000_000,
        expires_at_unix_ms: 1_800_000_000_000 + remaining_ms,
        renewable_at_unix_ms: 1_800_000_000_000 + remaining_ms * 4 / 5,
        grace_ends_unix_ms: 0,
        remaining_ms,
        effective: Effective::default(),
        binding: Binding {
            kind: KindBinding::Mem(Some(rdma())),
            ..Binding::plain(ResourceType::Mem)
        },
        tenant: None,
        end: None,
        intent: None,
        request_token: None,
    }
}

pub(crate) fn rdma() -> RdmaBinding {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&[10, 0, 0, 1]);
    RdmaBinding {
        rkey: Some(0x1234),
        remote_addr: 0x7f00_0000_1000,
        qp_num: 17,
        gid,
        port: 1,
        psn: 99,
        path_mtu: 1_024,
        strategy: RdmaStrategy::Window,
        previous: None,
        max_rd_atomic: 16,
        atomics: true,
        further: Vec::new(),
        prepared_rkey: None,
        attach: None,
    }
}

/// The lease that an honest node grants.
pub(crate) fn granted(request: &LeaseAllocRequest) -> LeaseInfo {
    let kind = match &request.terms {
        LeaseTerms::Mem(_) => lease(0).binding.kind,
        LeaseTerms::Cpu(terms) => KindBinding::Cpu(Some(Box::new(cores(terms)))),
        LeaseTerms::Net(terms) => {
            KindBinding::Net(Some(Box::new(function(terms, request.capacity))))
        }
        LeaseTerms::Gpu(terms) => KindBinding::Gpu(Some(Box::new(device(terms, request.capacity)))),
        other => Binding::plain(other.resource_type()).kind,
    };
    let intent = Some(request.intent.clone()).filter(|intent| !intent.is_empty());
    LeaseInfo {
        capacity: request.capacity,
        effective: honest(request),
        binding: Binding {
            kind,
            ..Binding::plain(request.resource_type())
        },
        intent: intent.map(Box::new),
        ..lease(60_000)
    }
}

/// Two cores with siblings, or half of the time of two CPUs.
pub(crate) fn cores(terms: &CpuTerms) -> CpuBinding {
    let is_shared = terms.isolation == Some(CpuIsolationClass::BestEffort);
    CpuBinding {
        cpus: CpuRange::of([2, 3, 6]),
        cgroup: "/sys/fs/cgroup/fabricbios.slice/lease-1".into(),
        partition: match is_shared {
            true => CpuPartition::Member,
            false => terms.partition.unwrap_or(CpuPartition::Root),
        },
        memory_nodes: CpuRange::of([0]),
        quota: is_shared.then_some(CpuQuota {
            quota_us: 100_000,
            period_us: 100_000,
        }),
    }
}

/// A virtual function, as requested.
pub(crate) fn function(terms: &NetTerms, rate_bps: u64) -> NetBinding {
    let hand_over = terms.hand_over.unwrap_or_default();
    let is_vfio = hand_over == HandOver::Vfio;
    NetBinding {
        pci_function: PciFunction::parse("0000:01:10.1"),
        interface: (!is_vfio).then(|| "fb0".to_owned()),
        mac: terms.mac.unwrap_or(MacAddress([2, 0, 0, 0, 0, 1])),
        vlan: terms.vlan,
        rate_bps,
        hand_over,
        vfio_group: is_vfio.then_some(12),
        cdi_device: is_vfio.then(|| "fabricbios.dev/net=lease-1".to_owned()),
    }
}

/// Part of a GPU, or all of it.
pub(crate) fn device(terms: &GpuTerms, vram_bytes: u64) -> GpuBinding {
    let is_alone = terms.exclusivity != Some(GpuExclusivityClass::Shared);
    GpuBinding {
        uuid: gpu::UUID.into(),
        vendor: GpuVendor::Nvidia,
        vram_bytes,
        session_endpoint: Some(SocketAddr::from(([10, 0, 0, 1], 5701)).into()),
        cdi_device: is_alone.then(|| "fabricbios.dev/gpu=lease-1".to_owned()),
        compute_slices: Some(terms.compute_slices.unwrap_or(7)),
        queue_slots: 4,
    }
}

/// The echo of an honest node.
pub(crate) fn honest(request: &LeaseAllocRequest) -> Effective {
    let block = request.terms.block().cloned().unwrap_or_default();
    let cpu = request.terms.cpu().cloned().unwrap_or_default();
    let gpu = request.terms.gpu().cloned().unwrap_or_default();
    let has_no_transport = matches!(
        request.terms,
        LeaseTerms::Cpu(_) | LeaseTerms::Net(_) | LeaseTerms::Gpu(_)
    );
    Effective {
        cpu_isolation: cpu.isolation,
        gpu_exclusivity: gpu.exclusivity,
        gpu_execution_mode: gpu.execution_mode,
        gpu_compute_slices: gpu.compute_slices,
        transport: (!has_no_transport).then_some(request.transport),
        rotate_on_renew: request.rotate_on_renew,
        read_only: block.read_only,
        mutual_auth: block.mutual_auth,
        cpu_execution_mode: cpu.execution_mode,
        cpu_execution_width: cpu.execution_width,
        cpu_partition: cpu.partition,
        net_rate: request.terms.net().map(|_| Enforcement::Enforced),
    }
}
