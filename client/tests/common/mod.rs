//! A node with a real control plane and a scripted mind.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up should fail loudly"
)]
#![allow(dead_code, reason = "not every test needs everything")]

pub(crate) mod memory;
pub(crate) mod path;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use fabricbios_control::{Fabric, Limits, PeerRequest, Server};
use fabricbios_wire::{
    Answer, Binding, Effective, Generation, IssueRequest, KindBinding, LeaseAllocRequest,
    LeaseError, LeaseId, LeaseInfo, LeasePhase, LeaseStatus, RdmaBinding, RdmaStrategy, Refusal,
    RefusalClass, Reply, Request, ResourceId, ResourceType, Role,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
};

pub(crate) const LEASE: LeaseId = LeaseId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
pub(crate) const RESOURCE: ResourceId = ResourceId(0xfeed);

type Mind = Arc<Mutex<dyn FnMut(&Request) -> Answer + Send>>;

pub(crate) struct FakeNode {
    dir: tempfile::TempDir,
    fabric: Fabric,
    addr: SocketAddr,
    limits: Limits,
    mind: Mind,
    log: Arc<Mutex<Vec<Request>>>,
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
        let mind: Mind = Arc::new(Mutex::new(mind));
        let log = Arc::default();
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut node = Self {
            dir,
            fabric,
            addr,
            limits,
            mind,
            log,
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
        let (sender, receiver) = mpsc::channel(64);
        let server = {
            let _guard = runtime.enter();
            Server::start(self.addr, &self.fabric, self.limits.clone(), sender).unwrap()
        };
        self.addr = server.local_addr();
        runtime.spawn(answer(
            receiver,
            Arc::clone(&self.mind),
            Arc::clone(&self.log),
        ));
        self.running = Some((runtime, server));
    }

    /// Dies without a goodbye.
    pub(crate) fn crash(&mut self) {
        let (runtime, server) = self.running.take().unwrap();
        runtime.shutdown_timeout(Duration::from_secs(60));
        drop(server);
    }

    /// Dies without a goodbye and comes back at the same address.
    pub(crate) fn crash_and_restart(&mut self) {
        self.crash();
        self.serve();
    }

    pub(crate) fn addr(&self) -> String {
        self.addr.to_string()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn admin(&self) -> PathBuf {
        self.fabric.admin_identity().to_owned()
    }

    /// The requests so far.
    pub(crate) fn asked(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// Answers IDENTITY_ISSUE as a daemon does.
    pub(crate) fn issuer(&self) -> Arc<fabricbios_control::Ca> {
        self.fabric.ca()
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
        let issued = self.fabric.ca().issue(&request, yesterday).unwrap();
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

async fn answer(
    mut receiver: mpsc::Receiver<PeerRequest>,
    mind: Mind,
    log: Arc<Mutex<Vec<Request>>>,
) {
    while let Some(PeerRequest { request, reply, .. }) = receiver.recv().await {
        log.lock().unwrap().push(request.clone());
        let answer = (mind.lock().unwrap())(&request);
        reply.send(answer).ok();
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
    }
}

/// The echo of an honest node.
pub(crate) fn honest(request: &LeaseAllocRequest) -> Effective {
    let block = request.terms.block().cloned().unwrap_or_default();
    Effective {
        cpu_isolation: request.terms.cpu().and_then(|cpu| cpu.isolation),
        gpu_exclusivity: request.terms.gpu().and_then(|gpu| gpu.exclusivity),
        transport: Some(request.transport),
        rotate_on_renew: request.rotate_on_renew,
        read_only: block.read_only,
        mutual_auth: block.mutual_auth,
        ..Effective::default()
    }
}
