//! A whole node with fake hardware. The SDK sends requests over real QUIC.
#![allow(clippy::expect_used, reason = "a test that cannot go on says why")]

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_control::Fabric;
use fabricbios_helper::Program;
use fabricbios_node::{
    journal::past::Past,
    kinds::{gpu::GpuParts, memory},
    process::{clock, service::Service},
    settings::Settings,
};
use fabricbios_testbed::fakes::{FakeMemory, Step, UNREACHABLE_QPN};
use fabricbios_wire::*;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const ARENA: ResourceId = ResourceId(0xa);
const ARENA_BYTES: u64 = 8 << 20;

/// A running node, its fake hardware, and its operator.
struct World {
    directory: TempDir,
    memory: Arc<FakeMemory>,
    service: Service,
    identity: Identity,
    operator: Node,
}

/// The program that the daemon runs in its processes.
fn program() -> Program {
    let own = Path::new(env!("CARGO_BIN_EXE_fabricbiosd"));
    Program::copy_of(own).expect("memory")
}

impl World {
    async fn start() -> Self {
        Self::with(Settings::default()).await
    }

    /// A node with these settings, and its own state directory.
    async fn with(settings: Settings) -> Self {
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
        let service = Service::start(settings, &fabric, past, vec![offered], GpuParts::default())
            .expect("a node");
        let identity = Identity::load(fabric.admin_identity()).expect("an identity");
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
    async fn until_binding(&self, count: usize) {
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

    async fn alloc(&self, bytes: u64) -> Result<LeaseInfo, Error> {
        self.operator.alloc_async(request(bytes)).await
    }

    async fn page(&self) -> LeaseInfo {
        self.alloc(4096).await.expect("granted")
    }

    async fn free(&self, id: LeaseId) -> Result<LeaseInfo, Error> {
        self.operator.lease_async(Request::LeaseFree(id)).await
    }

    async fn clear(&self) -> Result<Reply, Error> {
        self.operator.call_async(Request::FenceClear(ARENA)).await
    }

    async fn flat(&self) -> Vec<FlatEntry> {
        let asked = Request::GetInventory(InventoryForm::Flat);
        let Ok(Reply::FlatInventory(entries)) = self.operator.call_async(asked).await else {
            panic!("no inventory")
        };
        entries
    }

    /// Fences the arena by a failed cut; later cuts fail too.
    async fn fence(&self) -> LeaseInfo {
        let info = self.page().await;
        self.memory.fail(Step::Cut, true);
        let freed = self.free(info.lease_id).await;
        assert_eq!(refusal(freed).error, LeaseError::Fenced);
        info
    }

    async fn query(&self, id: LeaseId) -> LeaseInfo {
        self.operator
            .lease_async(Request::LeaseQuery(id))
            .await
            .expect("an answer")
    }

    /// Polls the lease, as a client would, until it has this phase.
    async fn until(&self, id: LeaseId, phase: LeasePhase) -> LeaseInfo {
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

    async fn stop(mut self) {
        self.service.drain();
        self.service.stopped().await.expect("drained");
        self.service.close().await;
    }

    /// Stops without revoking leases, as a crash would, and starts again.
    async fn crash(mut self) -> Self {
        self.service.halt();
        self.service.stopped().await.expect("halted");
        self.service.close().await;
        Self::on(self.directory, Settings::default()).await
    }
}

async fn connect(service: &Service, identity: &Identity) -> Node {
    let address = service.local_addr().to_string();
    Node::connect_async(&address, identity)
        .await
        .expect("a connection")
}

/// Requests a lease of one page, in the background.
fn one_page(node: &Node) -> JoinHandle<Result<LeaseInfo, Error>> {
    let node = node.clone();
    tokio::spawn(async move { node.alloc_async(request(4096)).await })
}

fn over(phase: LeasePhase) -> bool {
    !matches!(
        phase,
        LeasePhase::Binding | LeasePhase::Active | LeasePhase::Grace
    )
}

fn request(bytes: u64) -> LeaseAllocRequest {
    LeaseAllocRequest {
        terms: to_peer(17),
        ..LeaseAllocRequest::new(ResourceType::Mem, bytes, 60)
    }
}

fn to_peer(qpn: u32) -> LeaseTerms {
    let rdma_peers = vec![peer(qpn)];
    MemTerms { rdma_peers }.into()
}

fn peer(qpn: u32) -> RdmaPeer {
    RdmaPeer {
        qpn,
        psn: 1,
        gid: [1; 16],
        path_mtu: 0,
    }
}

fn rkey(info: &LeaseInfo) -> u32 {
    info.binding
        .rdma()
        .and_then(|rdma| rdma.rkey)
        .expect("a key")
}

fn refusal<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Refusal {
    outcome
        .expect_err("a refusal")
        .refusal()
        .expect("from the node")
        .clone()
}

#[tokio::test]
async fn a_lease_opens_and_its_end_is_told_after_access_is_gone() {
    let world = World::start().await;
    let asked = LeaseAllocRequest {
        lease_secs: 1,
        ..request(8192)
    };
    let info = world.operator.alloc_async(asked).await.expect("granted");
    assert!(world.memory.opens(rkey(&info)));
    let ended = world.until(info.lease_id, LeasePhase::Expired).await;
    assert!(!world.memory.opens(rkey(&info)));
    assert!(
        clock::now().unix_ms >= ended.expires_at_unix_ms,
        "not a moment early"
    );
    world.stop().await;
}

#[tokio::test]
async fn a_free_is_answered_when_the_cut_is_proved() {
    let world = World::start().await;
    let info = world.page().await;
    let freed = world.free(info.lease_id).await.expect("freed");
    assert_eq!(freed.phase, LeasePhase::Freed);
    assert!(!world.memory.opens(rkey(&info)));
    world.stop().await;
}

#[tokio::test]
async fn cuts_do_not_queue_behind_binds() {
    let world = World::start().await;
    let info = world.page().await;
    world.memory.hold(Step::Bind);
    let stuck: Vec<_> = (0..32).map(|_| one_page(&world.operator)).collect();
    let memory = world.memory.clone();
    tokio::task::spawn_blocking(move || memory.wait_for(Step::Bind, 33))
        .await
        .expect("begun");
    world.free(info.lease_id).await.expect("freed meanwhile");
    assert!(!world.memory.opens(rkey(&info)));
    world.memory.let_go(Step::Bind);
    for bind in stuck {
        bind.await.expect("no panic").expect("granted in the end");
    }
    world.stop().await;
}

#[tokio::test]
async fn many_allocations_of_one_tenant_wait_for_their_turn_and_none_is_refused() {
    let world = World::start().await;
    world.memory.hold(Step::Bind);
    let asked: Vec<_> = (0..100).map(|_| one_page(&world.operator)).collect();
    world.until_binding(100).await;
    world.memory.let_go(Step::Bind);
    for granted in asked {
        granted.await.expect("no panic").expect("granted");
    }
    world.stop().await;
}

/// One tenant sends 1,100 requests, of which 1,024 may wait at the node; a connection has at most 128 requests at once.
#[tokio::test]
async fn what_has_no_place_to_wait_at_the_node_waits_in_the_sdk() {
    let world = World::start().await;
    world.memory.hold(Step::Bind);
    let mut asked = Vec::new();
    for _ in 0..11 {
        let connection = connect(&world.service, &world.identity).await;
        let patient = connection.patient(Duration::from_secs(120));
        asked.extend((0..100).map(|_| one_page(&patient)));
    }
    world.until_binding(1_024).await;
    let refused = refusal(world.alloc(4096).await);
    assert_eq!(
        (refused.error, refused.class),
        (LeaseError::ResourceBusy, RefusalClass::Transient)
    );
    world.memory.let_go(Step::Bind);
    for granted in asked {
        granted.await.expect("no panic").expect("granted");
    }
    world.stop().await;
}

/// The scrub takes as long as the test wants.
#[tokio::test]
async fn space_that_is_being_scrubbed_is_waited_for_by_a_client_with_patience() {
    let world = World::start().await;
    let first = world.alloc(ARENA_BYTES).await.expect("granted");
    world.memory.hold(Step::Release);
    world.free(first.lease_id).await.expect("freed");
    let refused = refusal(world.alloc(ARENA_BYTES).await);
    assert_eq!(
        (refused.error, refused.class),
        (LeaseError::ResourceBusy, RefusalClass::Transient),
        "{refused}"
    );
    assert!(refused.retry_after_ms.is_some(), "{refused}");
    let too_much = refusal(world.alloc(ARENA_BYTES + 1).await);
    assert_eq!(
        (too_much.error, too_much.class),
        (LeaseError::CapacityExceeded, RefusalClass::Permanent)
    );
    let patient = world.operator.patient(Duration::from_secs(120));
    let asked = tokio::spawn(async move { patient.alloc_async(request(ARENA_BYTES)).await });
    world.memory.let_go(Step::Release);
    asked.await.expect("no panic").expect("granted when clean");
    world.stop().await;
}

#[tokio::test]
async fn a_cut_that_fails_fences_until_a_remediation_verifies() {
    let world = World::start().await;
    world.fence().await;
    assert_eq!(refusal(world.alloc(4096).await).error, LeaseError::Fenced);
    let entries = world.flat().await;
    assert_eq!(
        (entries[0].flags, entries[0].available),
        (resource_flags::FENCED, 0)
    );
    let cleared = world.clear().await;
    assert_eq!(
        refusal(cleared).error,
        LeaseError::Fenced,
        "what does not verify stays fenced"
    );
    world.memory.fail(Step::Cut, false);
    let cleared = world.clear().await.expect("verified");
    assert_eq!(cleared, Reply::FenceCleared);
    world.page().await;
    world.stop().await;
}

#[tokio::test]
async fn what_was_alive_in_a_crash_is_revoked_and_what_had_ended_stays_so() {
    let world = World::start().await;
    let (alive, freed) = (world.page().await.lease_id, world.page().await.lease_id);
    world.free(freed).await.expect("freed");
    let world = world.crash().await;
    let told = world.query(alive).await;
    assert_eq!(
        (told.status, told.phase),
        (LeaseStatus::Revoked, LeasePhase::Revoked)
    );
    assert_eq!(world.query(freed).await.phase, LeasePhase::Freed);
    let Ok(Reply::Identity(identity)) = world.operator.call_async(Request::GetIdentity).await
    else {
        panic!("no identity")
    };
    assert_eq!(identity.epoch, Epoch(2));
    world.stop().await;
}

#[tokio::test]
async fn a_fence_outlives_the_daemon() {
    let world = World::start().await;
    let info = world.fence().await;
    let world = world.crash().await;
    let Ok(Reply::Fences(fences)) = world.operator.call_async(Request::FenceList).await else {
        panic!("no list")
    };
    assert_eq!(fences.len(), 1);
    assert_eq!(
        (fences[0].resource_id, fences[0].lease_id),
        (ARENA, info.lease_id)
    );
    assert_eq!(refusal(world.alloc(4096).await).error, LeaseError::Fenced);
    world.stop().await;
}

#[tokio::test]
async fn a_second_fence_outlives_the_daemon_like_the_first() {
    let world = World::start().await;
    world.fence().await;
    world.memory.fail(Step::Cut, false);
    let cleared = world.clear().await;
    assert_eq!(cleared.expect("verified"), Reply::FenceCleared);
    let world = world.crash().await;
    world.fence().await;
    let world = world.crash().await;
    assert_eq!(refusal(world.alloc(4096).await).error, LeaseError::Fenced);
    world.stop().await;
}

#[tokio::test]
async fn a_drain_cuts_what_is_alive_before_the_node_is_gone() {
    let world = World::start().await;
    let asked = LeaseAllocRequest {
        grace_secs: 30,
        ..request(4096)
    };
    let info = world.operator.alloc_async(asked).await.expect("granted");
    let memory = world.memory.clone();
    world.stop().await;
    assert!(!memory.opens(rkey(&info)));
}

#[tokio::test]
async fn an_address_that_does_not_resolve_is_refused_and_costs_nothing() {
    let world = World::start().await;
    let mut wanted = request(4096);
    wanted.terms = to_peer(UNREACHABLE_QPN);
    let refused = refusal(world.operator.alloc_async(wanted).await);
    assert_eq!(refused.error, LeaseError::InvalidArgs);
    world
        .alloc(ARENA_BYTES)
        .await
        .expect("all of the arena is there");
    world.stop().await;
}

#[tokio::test]
async fn a_queue_pair_that_cannot_be_bound_takes_nothing_from_the_one_that_is() {
    let world = World::start().await;
    let info = world.page().await;
    let lease_id = info.lease_id;
    let bind = |qpn| {
        world.operator.lease_async(Request::LeaseBind {
            lease_id,
            peers: vec![peer(qpn)],
        })
    };
    let refused = refusal(bind(UNREACHABLE_QPN).await);
    assert_eq!(refused.error, LeaseError::InvalidArgs, "{refused}");
    world.memory.fail(Step::Bind, true);
    let failed = refusal(bind(18).await);
    assert_eq!(failed.error, LeaseError::Unavailable, "{failed}");
    world.memory.fail(Step::Bind, false);
    let told = world.query(lease_id).await;
    assert_eq!(
        (&told.binding, told.generation),
        (&info.binding, info.generation)
    );
    assert!(world.memory.opens(rkey(&info)));
    let bound = bind(18).await.expect("bound");
    assert!(world.memory.opens(rkey(&bound)) && !world.memory.opens(rkey(&info)));
    world.stop().await;
}

#[tokio::test]
async fn a_kind_that_is_not_there_is_not_the_operators_choice() {
    // The inventory lists at least this machine's processors.
    let mut settings = Settings::default();
    settings.kinds.shared.auto_detect = true;
    let world = World::with(settings).await;
    let chosen = (RefusalClass::Policy, true);
    let never = (RefusalClass::Permanent, false);
    for (kind, expected) in [(ResourceType::Cpu, chosen), (ResourceType::Gpu, never)] {
        let asked = world
            .operator
            .alloc_async(LeaseAllocRequest::new(kind, 1, 9));
        let refusal = refusal(asked.await);
        let told = (refusal.class, refusal.message.contains("operator"));
        assert_eq!(told, expected, "{refusal}");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_vendors_resource_is_listed_and_never_leased() {
    let mut settings = Settings::default();
    settings.kinds.vendor.advertise_vendor = vec!["fpga0=4".parse().expect("a resource")];
    let world = World::with(settings).await;
    let entries = world.flat().await;
    let is_vendor = |it: &&FlatEntry| it.resource_type == ResourceType::Vendor;
    let listed: Vec<_> = entries.iter().filter(is_vendor).collect();
    let [fpga] = listed[..] else {
        panic!("{entries:?}")
    };
    assert_eq!((fpga.capacity, fpga.available), (4, 0));
    let Ok(Reply::Inventory(inventory)) = world
        .operator
        .call_async(Request::GetInventory(InventoryForm::Structured))
        .await
    else {
        panic!("no inventory")
    };
    let name = InventoryExtension::Name(fpga.resource_id, "fpga0".into());
    assert!(inventory.extensions.contains(&name), "{inventory:?}");
    for resource_id in [None, Some(fpga.resource_id)] {
        let asked = LeaseAllocRequest {
            resource_id,
            ..LeaseAllocRequest::new(ResourceType::Vendor, 1, 60)
        };
        let refusal = refusal(world.operator.alloc_async(asked).await);
        assert_eq!(refusal.error, LeaseError::InvalidArgs);
        assert!(refusal.message.contains("never leased"), "{refusal}");
    }
    world.stop().await;
}
