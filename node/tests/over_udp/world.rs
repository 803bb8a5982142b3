//! A node, and clients of it.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_control::Membership;
use fabricbios_fabric::Fabric;
use fabricbios_fallback_udp::{ClientError, ClientOptions, Coordinates, MemoryClient};
use fabricbios_helper::{InFlight, Program, Supervisor};
use fabricbios_lease::{BindingId, Extent};
use fabricbios_node::{
    journal::past::Past,
    kinds::{Opened, Opening, gpu::GpuParts, memory, settings::UdpListen},
    process::service::Service,
    settings::Settings,
    watchdog::Watchdog,
};
use fabricbios_wire::*;

pub(crate) const ARENA_BYTES: u64 = 1 << 20;
pub(crate) const LEASE_BYTES: u64 = 64 << 10;

/// A process of this program writes the journal.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_fabricbiosd");

/// How long a client waits where the test expects no answer.
const SILENCE: Duration = Duration::from_millis(300);

/// A running node and its operator.
pub(crate) struct World {
    pub(crate) directory: PathBuf,
    pub(crate) service: Service,
    pub(crate) close: Box<dyn FnOnce()>,
    pub(crate) operator: Node,
}

pub(crate) fn settings(directory: &Path) -> Settings {
    let anywhere: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut settings = Settings::default();
    settings.kinds.shared.state_dir = Some(directory.join("state"));
    settings.kinds.shared.listen = Some(anywhere);
    let memory = &mut settings.kinds.memory;
    memory.fbmu_listen = Some(UdpListen::At(anywhere));
    memory.mem_bytes = Some(Size(ARENA_BYTES));
    memory.rdma_device = Some("none".into());
    settings
}

/// The program that the daemon runs in its processes.
pub(crate) fn program() -> Program {
    Program::copy_of(Path::new(PROGRAM)).expect("memory")
}

/// Settings with memory that outlives the daemon.
pub(crate) fn with_file(directory: &Path) -> Settings {
    let mut settings = settings(directory);
    settings.kinds.memory.mem_file = Some(directory.join("arena"));
    settings
}

/// Opens the memory of a node that does not serve yet.
pub(crate) fn open(settings: &Settings, node_id: NodeId, past: &Past) -> anyhow::Result<Opened> {
    memory::open(&Opening {
        settings: &settings.kinds,
        node_id,
        past,
        watchdog: &Watchdog::new(&program(), settings.state_dir())?,
        supervisor: &Supervisor::of_threads(Vec::new()),
        program: &program(),
    })
}

fn begin(settings: &Settings) -> (Fabric, Past, Opened) {
    let fabric = Fabric::open_or_create(settings.state_dir(), SystemTime::now());
    let fabric = fabric.expect("a fabric");
    let past = Past::open(&program(), settings).expect("a journal");
    let opened = open(settings, fabric.node_id(), &past).expect("memory");
    (fabric, past, opened)
}

/// A start that ends before it serves, after it has scrubbed everything outside `left`.
pub(crate) fn start_in_vain(settings: &Settings, left: &[Extent]) {
    let (_, past, opened) = begin(settings);
    let offered = opened.offered.expect("memory on offer");
    let binding_id = BindingId {
        lease_id: LeaseId(1),
        generation: Generation(1),
        resource_id: offered.resources[0].offer.resource_id,
    };
    let held: Vec<_> = left.iter().map(|&it| (binding_id, it.into())).collect();
    (offered.ready)(&held).expect("scrubbed");
    drop(past);
    (opened.close)();
}

impl World {
    pub(crate) async fn start(settings: Settings) -> Self {
        let (fabric, past, opened) = begin(&settings);
        Self::serve(&settings, fabric, past, opened).await
    }

    pub(crate) async fn serve(
        settings: &Settings,
        fabric: Fabric,
        past: Past,
        opened: Opened,
    ) -> Self {
        let Opened { offered, close, .. } = opened;
        let admin = fabric.admin_identity().expect("a node alone").to_owned();
        let service = Service::start(
            settings,
            &Membership::new(fabric),
            past,
            offered.into_iter().collect(),
            GpuParts::default(),
            Vec::new(),
            InFlight::default(),
        );
        let service = service.expect("a node");
        let identity = Identity::load(admin).expect("an identity");
        let address = service.local_addr().to_string();
        let operator = Node::connect_async(&address, &identity)
            .await
            .expect("connected");
        Self {
            directory: settings.state_dir().to_owned(),
            service,
            close,
            operator,
        }
    }

    /// The connection of another tenant.
    pub(crate) async fn tenant(&self, name: &str) -> Node {
        let key = rcgen::KeyPair::generate().expect("a key");
        let csr = rcgen::CertificateParams::default().serialize_request(&key);
        let request = Request::IdentityIssue(IssueRequest {
            tenant: name.into(),
            role: Role::Tenant,
            valid_secs: 600,
            csr_der: csr.expect("a request").der().to_vec(),
        });
        let Ok(Reply::Issued {
            certificate_pem,
            ca_pem,
        }) = self.operator.call_async(request).await
        else {
            panic!("no identity")
        };
        let path = self.directory.join(format!("{name}.identity"));
        let pem = format!("{certificate_pem}{}{ca_pem}", key.serialize_pem());
        fs::write(&path, pem).expect("written");
        let identity = Identity::load(path).expect("an identity");
        let address = self.service.local_addr().to_string();
        Node::connect_async(&address, &identity)
            .await
            .expect("connected")
    }

    pub(crate) async fn alloc(&self, secs: u32) -> LeaseInfo {
        self.grant(request(secs)).await
    }

    pub(crate) async fn grant(&self, request: LeaseAllocRequest) -> LeaseInfo {
        let granted = self.operator.alloc_async(request).await;
        granted.expect("granted")
    }

    pub(crate) async fn inventory(&self) -> ResourceInventory {
        let request = Request::GetInventory(InventoryForm::Structured);
        let Ok(Reply::Inventory(inventory)) = self.operator.call_async(request).await else {
            panic!("no inventory")
        };
        inventory
    }

    pub(crate) async fn flat_inventory(&self) -> Vec<FlatEntry> {
        let request = Request::GetInventory(InventoryForm::Flat);
        let Ok(Reply::FlatInventory(entries)) = self.operator.call_async(request).await else {
            panic!("no inventory")
        };
        entries
    }

    pub(crate) async fn lease(&self, request: Request) -> LeaseInfo {
        self.operator.lease_async(request).await.expect("an answer")
    }

    pub(crate) async fn query(&self, id: LeaseId) -> LeaseInfo {
        self.lease(Request::LeaseQuery(id)).await
    }

    /// Polls the lease until it has this phase; time or another thread must change it.
    pub(crate) async fn until(&self, id: LeaseId, phase: LeasePhase) -> LeaseInfo {
        loop {
            let info = self.query(id).await;
            if info.phase == phase && (phase != LeasePhase::Active || has_key(&info)) {
                return info;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn stop(mut self) {
        self.service.drain();
        self.service.stopped().await.expect("drained");
        self.service.close().await;
        (self.close)();
    }

    /// Stops without revoking leases, as a crash would.
    pub(crate) async fn crash(mut self) {
        self.service.halt();
        self.service.stopped().await.expect("halted");
        self.service.close().await;
        (self.close)();
    }
}

pub(crate) fn request(secs: u32) -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, LEASE_BYTES, secs)
}

/// The refusal of a request.
pub(crate) fn refusal<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Refusal {
    let error = outcome.expect_err("a refusal");
    error.refusal().expect("from the node").clone()
}

pub(crate) fn has_key(info: &LeaseInfo) -> bool {
    info.binding.dp_key.is_some()
}

pub(crate) fn coordinates(info: &LeaseInfo) -> Coordinates {
    Coordinates {
        lease_id: info.lease_id,
        dp_key: info.binding.dp_key.clone().expect("a key"),
        endpoint: info.binding.udp_endpoint.expect("an endpoint").into(),
    }
}

/// Runs `work` with a new client that has these coordinates.
pub(crate) async fn client<T: Send + 'static>(
    info: &LeaseInfo,
    work: impl FnOnce(&mut MemoryClient) -> Result<T, ClientError> + Send + 'static,
) -> Result<T, ClientError> {
    client_with(ClientOptions::default(), info, work).await
}

async fn client_with<T: Send + 'static>(
    options: ClientOptions,
    info: &LeaseInfo,
    work: impl FnOnce(&mut MemoryClient) -> Result<T, ClientError> + Send + 'static,
) -> Result<T, ClientError> {
    let coordinates = coordinates(info);
    let working = tokio::task::spawn_blocking(move || {
        let mut client = MemoryClient::connect(coordinates, options, None)?;
        work(&mut client)
    });
    working.await.expect("no panic")
}

pub(crate) async fn write(
    info: &LeaseInfo,
    offset: u64,
    bytes: &'static [u8],
) -> Result<(), ClientError> {
    client(info, move |client| client.write(offset, bytes, &mut |_| ())).await
}

/// The first bytes of the lease.
pub(crate) async fn first(info: &LeaseInfo) -> Result<[u8; 5], ClientError> {
    client(info, |client| {
        let mut bytes = [0; 5];
        client.read(0, &mut bytes, &mut |_| ())?;
        Ok(bytes)
    })
    .await
}

pub(crate) fn is_over<T: std::fmt::Debug>(outcome: &Result<T, ClientError>) -> bool {
    matches!(outcome, Err(ClientError::NoLease { .. }))
}

/// Fails if the node answers a client with these coordinates.
pub(crate) async fn no_answer_to(info: &LeaseInfo) {
    let options = ClientOptions {
        give_up: SILENCE,
        ..ClientOptions::default()
    };
    let outcome = client_with(options, info, |_| Ok(())).await;
    assert!(
        matches!(outcome, Err(ClientError::Unreachable { .. })),
        "{outcome:?}"
    );
}
