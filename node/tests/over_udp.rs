//! A whole node that leases memory over UDP: asked by the SDK over real QUIC, its memory read and
//! written over real UDP.
#![allow(clippy::expect_used, reason = "a test that cannot go on says why")]

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use fabricbios_arena::{Arena, Source};
use fabricbios_client::{Error, Identity, Node};
use fabricbios_control::Fabric;
use fabricbios_fallback_udp::{
    ClientError, ClientOptions, Coordinates, FbmuBackend, FbmuConfig, MemoryClient,
};
use fabricbios_node::{
    config::Settings,
    memory::{self, OfferedMemory, OpenRoads},
    roads::Roads,
    service::Service,
    size::Size,
    udp_listen::UdpListen,
};
use fabricbios_testbed::fakes::{FakeMemory, Step, UNREACHABLE_QPN};
use fabricbios_wire::*;

const ARENA_BYTES: u64 = 1 << 20;
const LEASE_BYTES: u64 = 64 << 10;

/// How long a client waits where no answer is what is expected.
const SILENCE: Duration = Duration::from_millis(300);

/// A running node and its operator.
struct World {
    directory: PathBuf,
    service: Service,
    roads: OpenRoads,
    operator: Node,
}

fn settings(directory: &Path) -> Settings {
    let anywhere: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    Settings {
        state_dir: Some(directory.join("state")),
        listen: Some(anywhere),
        fbmu_listen: Some(UdpListen::At(anywhere)),
        mem_bytes: Some(Size(ARENA_BYTES)),
        rdma_device: Some("none".into()),
        ..Settings::default()
    }
}

/// With bytes that outlive the daemon.
fn with_file(directory: &Path) -> Settings {
    Settings {
        mem_file: Some(directory.join("arena")),
        ..settings(directory)
    }
}

impl World {
    async fn start(settings: Settings) -> Self {
        let directory = settings.state_dir().to_owned();
        let fabric = Fabric::open_or_create(&directory, SystemTime::now()).expect("a fabric");
        let (memory, roads) = memory::open(&settings, fabric.node_id()).expect("memory");
        Self::serve(&settings, &fabric, memory, roads).await
    }

    async fn serve(
        settings: &Settings,
        fabric: &Fabric,
        memory: Option<OfferedMemory>,
        roads: OpenRoads,
    ) -> Self {
        let service = Service::start(settings, fabric, memory).expect("a node");
        let identity = Identity::load(fabric.admin_identity()).expect("an identity");
        let address = service.local_addr().to_string();
        let operator = Node::connect(&address, &identity).await.expect("connected");
        Self {
            directory: settings.state_dir().to_owned(),
            service,
            roads,
            operator,
        }
    }

    /// Another tenant's connection.
    async fn tenant(&self, name: &str) -> Node {
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
        }) = self.operator.call(request).await
        else {
            panic!("no identity")
        };
        let path = self.directory.join(format!("{name}.identity"));
        let pem = format!("{certificate_pem}{}{ca_pem}", key.serialize_pem());
        fs::write(&path, pem).expect("written");
        let identity = Identity::load(path).expect("an identity");
        let address = self.service.local_addr().to_string();
        Node::connect(&address, &identity).await.expect("connected")
    }

    async fn alloc(&self, secs: u32) -> LeaseInfo {
        self.operator.alloc(request(secs)).await.expect("granted")
    }

    async fn lease(&self, request: Request) -> LeaseInfo {
        self.operator.lease(request).await.expect("an answer")
    }

    async fn query(&self, id: LeaseId) -> LeaseInfo {
        self.lease(Request::LeaseQuery(id)).await
    }

    /// Waits for what only time or another thread brings.
    async fn until(&self, id: LeaseId, phase: LeasePhase) -> LeaseInfo {
        loop {
            let info = self.query(id).await;
            if info.phase == phase && (phase != LeasePhase::Active || has_key(&info)) {
                return info;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop(mut self) {
        self.service.drain();
        self.service.stopped().await.expect("drained");
        self.service.close().await;
        self.roads.close();
    }

    /// As a crash would: nothing is taken back.
    async fn crash(mut self) {
        self.service.halt();
        self.service.stopped().await.expect("halted");
        self.service.close().await;
        self.roads.close();
    }
}

fn request(secs: u32) -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, LEASE_BYTES, secs)
}

fn has_key(info: &LeaseInfo) -> bool {
    info.binding.dp_key.is_some()
}

fn coordinates(info: &LeaseInfo) -> Coordinates {
    Coordinates {
        lease_id: info.lease_id,
        dp_key: info.binding.dp_key.clone().expect("a key"),
        endpoint: info.binding.udp_endpoint.expect("an endpoint").into(),
    }
}

/// A new client with these coordinates does something.
async fn client<T: Send + 'static>(
    info: &LeaseInfo,
    work: impl FnOnce(&mut MemoryClient) -> Result<T, ClientError> + Send + 'static,
) -> Result<T, ClientError> {
    let coordinates = coordinates(info);
    let options = ClientOptions {
        give_up: SILENCE,
        ..ClientOptions::default()
    };
    let working = tokio::task::spawn_blocking(move || {
        let mut client = MemoryClient::connect(coordinates, options)?;
        work(&mut client)
    });
    working.await.expect("no panic")
}

async fn write(info: &LeaseInfo, offset: u64, bytes: &'static [u8]) -> Result<(), ClientError> {
    client(info, move |client| client.write(offset, bytes, &mut |_| ())).await
}

/// The first bytes of the lease.
async fn first(info: &LeaseInfo) -> Result<[u8; 5], ClientError> {
    client(info, |client| {
        let mut bytes = [0; 5];
        client.read(0, &mut bytes, &mut |_| ())?;
        Ok(bytes)
    })
    .await
}

fn is_over<T: std::fmt::Debug>(outcome: &Result<T, ClientError>) -> bool {
    matches!(outcome, Err(ClientError::NoLease { .. }))
}

fn is_silent<T: std::fmt::Debug>(outcome: &Result<T, ClientError>) -> bool {
    matches!(outcome, Err(ClientError::Unreachable { .. }))
}

#[tokio::test]
async fn memory_is_leased_without_any_rdma_device() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let Ok(Reply::Inventory(inventory)) = world
        .operator
        .call(Request::GetInventory(InventoryForm::Structured))
        .await
    else {
        panic!("no inventory")
    };
    let roads = |extension: &InventoryExtension| matches!(extension, InventoryExtension::Transports(_, roads) if roads == &[Transport::Udp]);
    assert!(inventory.extensions.iter().any(roads), "{inventory:?}");
    let info = world.alloc(60).await;
    assert_eq!(info.effective.transport, Some(Transport::Udp));
    assert!(info.binding.rdma.is_none());
    write(&info, LEASE_BYTES - 5, b"bytes")
        .await
        .expect("written");
    let back = client(&info, |client| {
        let mut all = vec![0xee; usize::try_from(LEASE_BYTES).unwrap_or(0)];
        client.read(0, &mut all, &mut |_| ())?;
        Ok(all)
    });
    let back = back.await.expect("read");
    let (zeros, last) = back.split_at(back.len() - 5);
    assert!(zeros.iter().all(|byte| *byte == 0) && last == b"bytes");
    let outside = write(&info, LEASE_BYTES - 1, b"xx").await;
    assert!(matches!(outside, Err(ClientError::OutOfRange { .. })));
    world.stop().await;
}

#[tokio::test]
async fn however_a_lease_ends_nothing_is_served_and_nothing_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let ends: [fn(LeaseId) -> Option<Request>; 3] = [
        |_| None,
        |id| Some(Request::LeaseFree(id)),
        |id| Some(Request::LeaseRevoke(id)),
    ];
    for end in ends {
        let info = world
            .alloc(if end(LeaseId(0)).is_some() { 60 } else { 1 })
            .await;
        // A lease of a second may be over before it was written on a slow machine: it still ends.
        let written = write(&info, 0, b"mine!").await;
        match end(info.lease_id) {
            Some(request) => {
                written.expect("written");
                world.operator.call(request).await.expect("ended");
            }
            None => drop(world.until(info.lease_id, LeasePhase::Expired).await),
        }
        let outcome = first(&info).await;
        assert!(is_over(&outcome), "{outcome:?}");
        let next = world.alloc(60).await;
        assert_eq!(first(&next).await.expect("read"), [0; 5]);
        world.lease(Request::LeaseFree(next.lease_id)).await;
    }
    world.stop().await;
}

#[tokio::test]
async fn a_renewal_is_known_to_the_data_plane_before_it_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let info = world.alloc(2).await;
    let granted = Instant::now();
    let renew = Request::LeaseRenew {
        lease_id: info.lease_id,
        lease_secs: 60,
    };
    while let Err(error) = world.operator.lease(renew.clone()).await {
        let refusal = error.refusal().expect("from the node").clone();
        assert_eq!(refusal.error, LeaseError::RenewTooEarly, "{refusal}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let served = client(&info, move |client| {
        while granted.elapsed() < Duration::from_millis(2_200) {
            client.read(0, &mut [0; 5], &mut |_| ())?;
        }
        Ok(())
    });
    served.await.expect("served through the old deadline");
    world.stop().await;
}

#[tokio::test]
async fn a_rotation_ends_the_old_key_at_once_or_after_its_overlap() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let rotate = |lease_id, overlap_ms| Request::LeaseRotate {
        lease_id,
        overlap_ms,
    };
    let old = world.alloc(60).await;
    write(&old, 0, b"stays").await.expect("written");
    let new = world.lease(rotate(old.lease_id, 0)).await;
    assert_ne!(new.binding.dp_key, old.binding.dp_key);
    assert_eq!(first(&new).await.expect("read"), *b"stays");
    let outcome = first(&old).await;
    assert!(is_silent(&outcome), "{outcome:?}");
    let newer = world.lease(rotate(old.lease_id, 60_000)).await;
    for info in [&new, &newer] {
        assert_eq!(first(info).await.expect("both work"), *b"stays");
    }
    world.stop().await;
}

#[tokio::test]
async fn nobody_gets_the_key_of_another() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let (blue, red) = (world.tenant("blue").await, world.tenant("red").await);
    let info = blue.alloc(request(60)).await.expect("granted");
    assert!(has_key(&info));
    let asked = red.lease(Request::LeaseQuery(info.lease_id)).await;
    let error = asked.expect_err("not theirs");
    assert_eq!(
        error.refusal().map(|it| it.error),
        Some(LeaseError::NotFound)
    );
    let seen = world.query(info.lease_id).await;
    assert_eq!(seen.binding, Binding::default(), "an operator sees no key");
    let Ok(Reply::Leases(page)) = blue
        .call(Request::LeaseList {
            after: LeaseId(0),
            ended: false,
        })
        .await
    else {
        panic!("no list")
    };
    assert!(page.leases.iter().all(|lease| !has_key(lease)));
    let other = red.alloc(request(60)).await.expect("granted");
    write(&info, 0, b"blue!").await.expect("written");
    assert_eq!(first(&other).await.expect("read"), [0; 5]);
    let forged = LeaseInfo {
        lease_id: info.lease_id,
        ..other
    };
    assert!(is_silent(&first(&forged).await));
    world.stop().await;
}

#[tokio::test]
async fn a_restart_adopts_leases_whose_bytes_are_in_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(with_file(directory.path())).await;
    let gone = world.alloc(60).await;
    let kept = world.alloc(60).await;
    write(&gone, 0, b"freed").await.expect("written");
    world.lease(Request::LeaseFree(gone.lease_id)).await;
    write(&kept, 0, b"stays").await.expect("written");
    world.crash().await;
    // Something that no lease holds, left by whatever.
    let file = fs::OpenOptions::new()
        .write(true)
        .open(directory.path().join("arena"));
    file.expect("the arena")
        .write_all_at(b"left", 0)
        .expect("written");

    let world = World::start(with_file(directory.path())).await;
    let now = world.until(kept.lease_id, LeasePhase::Active).await;
    assert_eq!(first(&now).await.expect("read"), *b"stays");
    assert_ne!(now.binding.dp_key, kept.binding.dp_key);
    assert_eq!(now.expires_at_unix_ms, kept.expires_at_unix_ms);
    let with_old_key = LeaseInfo {
        binding: Binding {
            dp_key: kept.binding.dp_key.clone(),
            ..now.binding.clone()
        },
        ..now.clone()
    };
    assert!(is_silent(&first(&with_old_key).await));
    let fresh = world.alloc(60).await;
    assert_eq!(
        first(&fresh).await.expect("read"),
        [0; 5],
        "it was scrubbed"
    );
    assert_eq!(world.query(gone.lease_id).await.phase, LeasePhase::Freed);
    world.stop().await;
    let arena = fs::read(directory.path().join("arena")).expect("the arena");
    assert!(
        arena.iter().all(|byte| *byte == 0),
        "a drain leaves nothing"
    );
}

#[tokio::test]
async fn a_restart_without_a_file_revokes() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::start(settings(directory.path())).await;
    let info = world.alloc(60).await;
    world.crash().await;
    let world = World::start(settings(directory.path())).await;
    assert_eq!(world.query(info.lease_id).await.phase, LeasePhase::Revoked);
    world.stop().await;
}

#[tokio::test]
async fn a_wildcard_is_told_as_what_was_reached_or_advertised() {
    let directory = tempfile::tempdir().expect("a directory");
    let anywhere = Some(UdpListen::At("[::]:0".parse().expect("an address")));
    for (advertise, told) in [(None, "127.0.0.1"), (Some("127.0.0.7"), "127.0.0.7")] {
        let world = World::start(Settings {
            fbmu_listen: anywhere,
            advertise: advertise.map(|ip| ip.parse().expect("an address")),
            ..settings(directory.path())
        })
        .await;
        let info = world.alloc(60).await;
        assert_eq!(coordinates(&info).endpoint.ip().to_string(), told);
        assert_eq!(first(&info).await.expect("it is served there"), [0; 5]);
        world.stop().await;
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_told_with_its_flag() {
    let directory = tempfile::tempdir().expect("a directory");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = taken.local_addr().expect("an address");
    let settings = Settings {
        fbmu_listen: Some(UdpListen::At(address)),
        ..settings(directory.path())
    };
    let error = memory::open(&settings, NodeId([1; 32])).expect_err("taken");
    let error = format!("{error:#}");
    assert!(
        error.contains("--fbmu-listen") && error.contains(&address.to_string()),
        "{error}"
    );
}

/// A node with a fake RDMA road beside the real one over UDP.
async fn with_both(directory: &Path) -> (World, Arc<FakeMemory>) {
    const ARENA: ResourceId = ResourceId(0xa);
    let settings = settings(directory);
    let fabric = Fabric::open_or_create(settings.state_dir(), SystemTime::now());
    let arena = Arena::open(&Source::default(), ARENA_BYTES).expect("an arena");
    let udp = FbmuBackend::open(FbmuConfig {
        listen: "127.0.0.1:0".parse().expect("an address"),
        workers: None,
        resource_id: ARENA,
        arena: Arc::new(arena),
        ops_per_second: FbmuConfig::OPS_PER_SECOND,
    });
    let rdma = Arc::new(FakeMemory::new(ARENA, ARENA_BYTES));
    let roads = Roads::new(rdma.clone(), Arc::new(udp.expect("a road")));
    let offered = OfferedMemory::of(Arc::new(roads), 1 << 30).expect("an offer");
    let (fabric, roads) = (fabric.expect("a fabric"), OpenRoads::default());
    let world = World::serve(&settings, &fabric, Some(offered), roads).await;
    (world, rdma)
}

fn over_both() -> LeaseAllocRequest {
    LeaseAllocRequest {
        transport: Transport::Both,
        rdma_peers: [17, 18]
            .map(|qpn| RdmaPeer {
                qpn,
                psn: 1,
                gid: [1; 16],
                path_mtu: 0,
            })
            .to_vec(),
        ..request(60)
    }
}

#[tokio::test]
async fn a_lease_over_both_roads_ends_on_both() {
    let directory = tempfile::tempdir().expect("a directory");
    let (world, rdma) = with_both(directory.path()).await;
    let info = world.operator.alloc(over_both()).await.expect("granted");
    let binding = info.binding.rdma.clone().expect("RDMA");
    let keys = [binding.rkey, binding.further.first().map(|pair| pair.rkey)];
    let keys = keys.map(|key| key.expect("a key of each queue pair"));
    assert!(keys.iter().all(|key| rdma.opens(*key)));
    write(&info, 0, b"hello").await.expect("written");
    world.lease(Request::LeaseFree(info.lease_id)).await;
    assert!(!keys.iter().any(|key| rdma.opens(*key)));
    assert!(is_over(&first(&info).await));
    world.stop().await;
}

#[tokio::test]
async fn a_queue_pair_that_cannot_be_reached_does_not_cost_the_other_road() {
    let directory = tempfile::tempdir().expect("a directory");
    let (world, rdma) = with_both(directory.path()).await;
    let wanted = LeaseAllocRequest {
        rdma_peers: Vec::new(),
        ..over_both()
    };
    let info = world.operator.alloc(wanted).await.expect("granted");
    write(&info, 0, b"stays").await.expect("written");
    let mut peers = over_both().rdma_peers;
    peers[0].qpn = UNREACHABLE_QPN;
    let lease_id = info.lease_id;
    let bound = world
        .operator
        .lease(Request::LeaseBind { lease_id, peers })
        .await;
    assert!(matches!(bound, Err(Error::Refused(_))), "{bound:?}");
    assert!(is_over(&first(&info).await), "the old binding is cut");
    let again = world.lease(Request::LeaseRotate {
        lease_id,
        overlap_ms: 0,
    });
    let again = again.await;
    assert_eq!(first(&again).await.expect("read"), *b"stays");
    let rkey = again.binding.rdma.expect("still prepared").rkey;
    assert!(rkey.is_none_or(|rkey| !rdma.opens(rkey)));
    world.stop().await;
}

#[tokio::test]
async fn a_cut_that_fails_on_one_road_is_told_on_the_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let (world, rdma) = with_both(directory.path()).await;
    let info = world.operator.alloc(over_both()).await.expect("granted");
    rdma.fail(Step::Cut, true);
    let freed = world
        .operator
        .lease(Request::LeaseFree(info.lease_id))
        .await;
    let Err(Error::Refused(refusal)) = freed else {
        panic!("{freed:?}")
    };
    assert_eq!(refusal.error, LeaseError::Fenced);
    let outcome = first(&info).await;
    assert!(
        matches!(outcome, Err(ClientError::Fenced { .. })),
        "{outcome:?}"
    );
    rdma.fail(Step::Cut, false);
    let resource_id = info.resource_id;
    let cleared = world.operator.call(Request::FenceClear(resource_id)).await;
    assert_eq!(cleared.expect("verified"), Reply::FenceCleared);
    world.stop().await;
}
