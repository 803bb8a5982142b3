//! A node with fake hardware, and its operator.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_control::Membership;
use fabricbios_fabric::Fabric;
use fabricbios_helper::{InFlight, Program};
use fabricbios_node::{
    journal::past::Past,
    kinds::{gpu::GpuParts, memory},
    process::service::Service,
    settings::Settings,
};
use fabricbios_testbed::fakes::{FakeMemory, Step};
use fabricbios_wire::*;
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub(crate) const ARENA: ResourceId = ResourceId(0xa);
pub(crate) const ARENA_BYTES: u64 = 8 << 20;

/// A running node, its fake hardware, and its operator.
pub(crate) struct World {
    directory: TempDir,
    pub(crate) memory: Arc<FakeMemory>,
    pub(crate) service: Service,
    pub(crate) identity: Identity,
    pub(crate) operator: Node,
}

/// The program that the daemon runs in its processes.
fn program() -> Program {
    let own = Path::new(env!("CARGO_BIN_EXE_fabricbiosd"));
    Program::copy_of(own).expect("memory")
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(Settings::default()).await
    }

    /// A node with these settings, and its own state directory.
    pub(crate) async fn with(settings: Settings) -> Self {
        Self::on(tempfile::tempdir().expect("a directory"), settings).await
    }

    async fn on(directory: TempDir, mut settings: Settings) -> Self {
        settings.kinds.shared.state_dir = Some(directory.path().into());
        settings.kinds.shared.listen = Some("127.0.0.1:0".parse().expect("an address"));
        let settings = &settings;
        let memory = Arc::new(FakeMemory::new(ARENA, ARENA_BYTES));
        let offered = memory::offered(memory.offer(), memory.provider(), 1 << 30);
        let fabric =
            Fabric::open_or_create(settings.state_dir(), SystemTime::now()).expect("a fabric");
        let past = Past::open(&program(), settings).expect("a journal");
        let admin = fabric.admin_identity().expect("a node alone").to_owned();
        let membership = Membership::new(fabric);
        let parts = GpuParts::default();
        let service = Service::start(
            settings,
            &membership,
            past,
            vec![offered],
            parts,
            Vec::new(),
            InFlight::default(),
        )
        .expect("a node");
        let identity = Identity::load(admin).expect("an identity");
        let operator = connect(&service, &identity).await;
        Self {
            directory,
            memory,
            service,
            identity,
            operator,
        }
    }

    /// Waits until this number of leases waits for a binding.
    pub(crate) async fn until_binding(&self, count: usize) {
        loop {
            let (mut binding, mut after) = (0, Some(LeaseId(0)));
            while let Some(from) = after {
                let list = Request::LeaseList {
                    after: from,
                    ended: false,
                };
                let Ok(Reply::Leases(page)) = self.operator.call_async(list).await else {
                    panic!("no list")
                };
                let is_binding = |info: &&LeaseInfo| info.phase == LeasePhase::Binding;
                binding += page.leases.iter().filter(is_binding).count();
                after = page.next;
            }
            if binding == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn alloc(&self, bytes: u64) -> Result<LeaseInfo, Error> {
        self.operator.alloc_async(request(bytes)).await
    }

    pub(crate) async fn page(&self) -> LeaseInfo {
        self.alloc(4096).await.expect("granted")
    }

    pub(crate) async fn free(&self, id: LeaseId) -> Result<LeaseInfo, Error> {
        self.operator.lease_async(Request::LeaseFree(id)).await
    }

    pub(crate) async fn clear(&self) -> Result<Reply, Error> {
        self.operator.call_async(Request::FenceClear(ARENA)).await
    }

    pub(crate) async fn flat(&self) -> Vec<FlatEntry> {
        let asked = Request::GetInventory(InventoryForm::Flat);
        let Ok(Reply::FlatInventory(entries)) = self.operator.call_async(asked).await else {
            panic!("no inventory")
        };
        entries
    }

    /// Fences the arena by a failed cut; later cuts fail too.
    pub(crate) async fn fence(&self) -> LeaseInfo {
        let info = self.page().await;
        self.memory.fail(Step::Cut, true);
        let freed = self.free(info.lease_id).await;
        assert_eq!(refusal(freed).error, LeaseError::Fenced);
        info
    }

    pub(crate) async fn query(&self, id: LeaseId) -> LeaseInfo {
        self.operator
            .lease_async(Request::LeaseQuery(id))
            .await
            .expect("an answer")
    }

    /// Polls the lease, as a client would, until it has this phase.
    pub(crate) async fn until(&self, id: LeaseId, phase: LeasePhase) -> LeaseInfo {
        loop {
            let info = self.query(id).await;
            if info.phase == phase {
                return info;
            }
            assert!(
                !over(info.phase),
                "{id} is {:?}, expected {phase:?}",
                info.phase
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn stop(mut self) {
        self.service.drain();
        self.service.stopped().await.expect("drained");
        self.service.close().await;
    }

    /// Stops without revoking leases, as a crash would, and starts again.
    pub(crate) async fn crash(mut self) -> Self {
        self.service.halt();
        self.service.stopped().await.expect("halted");
        self.service.close().await;
        Self::on(self.directory, Settings::default()).await
    }
}

pub(crate) async fn connect(service: &Service, identity: &Identity) -> Node {
    let address = service.local_addr().to_string();
    Node::connect_async(&address, identity)
        .await
        .expect("a connection")
}

/// Requests a lease of one page, in the background.
pub(crate) fn one_page(node: &Node) -> JoinHandle<Result<LeaseInfo, Error>> {
    let node = node.clone();
    tokio::spawn(async move { node.alloc_async(request(4096)).await })
}

fn over(phase: LeasePhase) -> bool {
    !matches!(
        phase,
        LeasePhase::Binding | LeasePhase::Active | LeasePhase::Grace
    )
}

pub(crate) fn request(bytes: u64) -> LeaseAllocRequest {
    LeaseAllocRequest {
        terms: to_peer(17),
        ..LeaseAllocRequest::new(ResourceType::Mem, bytes, 60)
    }
}

pub(crate) fn to_peer(qpn: u32) -> LeaseTerms {
    let rdma_peers = vec![peer(qpn)];
    MemTerms { rdma_peers }.into()
}

pub(crate) fn peer(qpn: u32) -> RdmaPeer {
    RdmaPeer {
        qpn,
        psn: 1,
        gid: [1; 16],
        path_mtu: 0,
    }
}

pub(crate) fn rkey(info: &LeaseInfo) -> u32 {
    info.binding
        .rdma()
        .and_then(|rdma| rdma.rkey)
        .expect("a key")
}

pub(crate) fn refusal<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Refusal {
    outcome
        .expect_err("a refusal")
        .refusal()
        .expect("from the node")
        .clone()
}
