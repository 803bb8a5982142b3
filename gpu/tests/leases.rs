//! Store and path without a node, on stand-ins: in this process, and again with each behind a socket.

#![cfg(all(feature = "gpu-cuda", feature = "gpu-hip"))]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

#[path = "management/lab.rs"]
#[allow(
    dead_code,
    reason = "the tests of the management libraries use all of it"
)]
mod lab;

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use fabricbios_contract::{
    DataPath, EndByName, Guard, Provider, Store,
    remote::{RemotePath, RemoteStore, serve_path, serve_store},
};
use fabricbios_gpu::{Device, GpuConfig, GpuEnd, GpuPath, GpuStore, Gpus, Node};
use fabricbios_helper::Program;
use fabricbios_lease::{
    BindError, BindOrder, BindingId, BootTime, Linger, Placement, Proof, StepError,
};
use fabricbios_wire::{
    Generation, GpuBinding, GpuExclusivityClass, GpuReply, GpuRequest, GpuTerms, HEADER_LEN,
    Header, LeaseError, LeaseId, Refusal, ResourceId, Transport, decode_gpu_answer,
    encode_gpu_request,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use stand_in_device::{Knob, Vendor};

use lab::{Lab, MEMORY, MIB};

const GPU: ResourceId = ResourceId(5);
const FOR_EVER: BootTime = BootTime(u64::MAX);
const PATTERN: [u8; 4096] = [0xa7; 4096];

/// A watchdog that is there.
#[derive(Debug)]
struct Watches;

impl Guard for Watches {
    fn watches(&self) -> bool {
        true
    }

    fn extend(&self, _binding_id: BindingId, _deadline: BootTime) {}

    fn over(&self, _binding_id: BindingId) {}
}

/// Workers have the environment of this process, and that names one state directory of the stand-ins.
static TURN: Mutex<()> = Mutex::new(());

struct World {
    lab: Lab,
    /// Held until the test is over.
    turn: MutexGuard<'static, ()>,
    device: Device,
    /// The path itself, for what does not go over a socket.
    here: Arc<GpuPath>,
    store: Arc<dyn Store>,
    provider: Provider,
}

impl World {
    fn new(apart: bool) -> Self {
        Self::on(Lab::new(), Self::turn(), apart)
    }

    fn turn() -> MutexGuard<'static, ()> {
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on(lab: Lab, turn: MutexGuard<'static, ()>, apart: bool) -> Self {
        let device = lab.device(Vendor::Nvidia);
        Self::of(device, lab, turn, apart)
    }

    fn of(device: Device, lab: Lab, turn: MutexGuard<'static, ()>, apart: bool) -> Self {
        let program = env!("CARGO_BIN_EXE_fabricbios-gpu-calls").as_ref();
        let config = GpuConfig {
            records: lab.place.path().join("records"),
            cgroup: None,
            cdi: lab.place.path().join("cdi"),
            supervisor: lab.supervisor.clone(),
            program: Program::copy_of(program).unwrap(),
            libraries: lab.libraries.clone(),
        };
        let gpus = Arc::new(Gpus::open(config).unwrap());
        let here = GpuPath::new(gpus.clone(), vec![device.clone()], Arc::new(Watches));
        let here = Arc::new(here);
        let mut store: Arc<dyn Store> = Arc::new(GpuStore::new(gpus, device.clone()));
        let mut path: Arc<dyn DataPath> = here.clone();
        if apart {
            let (near, far) = UnixStream::pair().unwrap();
            thread::spawn(move || serve_store(far, &store));
            store = Arc::new(RemoteStore::new(near).unwrap());
            let (near, far) = UnixStream::pair().unwrap();
            thread::spawn(move || serve_path(far, &path));
            path = Arc::new(RemotePath::new(near).unwrap());
        }
        let transports = [Transport::Auto];
        let provider =
            Provider::new()
                .with_store(GPU, store.clone())
                .with_path("gpu", &transports, path);
        Self {
            lab,
            turn,
            device,
            here,
            store,
            provider,
        }
    }

    fn both() -> impl Iterator<Item = Self> {
        [false, true].into_iter().map(Self::new)
    }

    /// A lease that its tenant can use.
    fn bound(&self, order: &BindOrder) -> GpuBinding {
        let binding = self.provider.bind(order).unwrap();
        self.provider.extend(order.binding_id, FOR_EVER).unwrap();
        binding.gpu().unwrap().clone()
    }

    fn cut(&self, order: &BindOrder) -> Proof {
        self.provider.cut(order.binding_id, Linger::None).unwrap()
    }

    fn release(&self, order: &BindOrder) -> Result<(), StepError> {
        let placement = order.placement.clone();
        self.provider.release(order.binding_id, placement, &|| ())
    }

    /// Leaves the pattern in memory of the lease's session.
    fn filled(&self, lease: LeaseId) -> Session {
        let mut session = self.session(lease).unwrap();
        let Ok(GpuReply::Memory { memory, .. }) =
            session.ask(&GpuRequest::MemAlloc { bytes: MIB }, &[])
        else {
            panic!("no memory")
        };
        let length = u32::try_from(PATTERN.len()).unwrap();
        let write = GpuRequest::MemWrite {
            memory,
            offset: 0,
            length,
        };
        session.ask(&write, &PATTERN).unwrap();
        assert!(self.has_pattern());
        session
    }

    fn session(&self, lease: LeaseId) -> Result<Session, Refusal> {
        let stream = self.here.connect(lease, "red", 0)?;
        let mut session = Session { stream, number: 0 };
        match session.ask(
            &GpuRequest::Open {
                lease_id: lease,
                session: 0,
            },
            &[],
        )? {
            GpuReply::Opened(opened) => session.number = opened.session,
            other => panic!("{other:?}"),
        }
        Ok(session)
    }

    fn memory(&self) -> Vec<u8> {
        self.lab.directory.memory_of(Vendor::Nvidia).unwrap()
    }

    fn has_pattern(&self) -> bool {
        self.memory().chunks(PATTERN.len()).any(|it| it == PATTERN)
    }
}

struct Session {
    stream: UnixStream,
    number: u64,
}

impl Session {
    fn ask(&mut self, request: &GpuRequest, data: &[u8]) -> Result<GpuReply, Refusal> {
        let frame = encode_gpu_request(1, 0, request);
        self.stream.write_all(&frame).unwrap();
        self.stream.write_all(data).unwrap();
        let mut answer = vec![0; HEADER_LEN];
        self.stream.read_exact(&mut answer).unwrap();
        let length = header(&answer).payload_len.try_into().unwrap();
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).unwrap();
        answer.extend(payload);
        decode_gpu_answer(&header(&frame), &answer).unwrap()
    }

    /// Whether the worker has ended.
    fn is_over(&mut self) -> bool {
        !matches!(self.stream.read(&mut [0]), Ok(1..))
    }
}

fn header(frame: &[u8]) -> Header {
    Header::parse(frame[..HEADER_LEN].try_into().unwrap()).unwrap()
}

fn order(lease: u128, vram_bytes: u64, exclusivity: GpuExclusivityClass) -> BindOrder {
    let binding_id = BindingId {
        lease_id: LeaseId(lease),
        generation: Generation(1),
        resource_id: GPU,
    };
    let terms = GpuTerms {
        exclusivity: Some(exclusivity),
        ..GpuTerms::default()
    };
    BindOrder {
        tenant: "red".into(),
        terms: terms.into(),
        ..BindOrder::new(binding_id, Placement::Amount(vram_bytes), Transport::Auto)
    }
}

fn whole(lease: u128) -> BindOrder {
    order(lease, MEMORY, GpuExclusivityClass::DeviceExclusive)
}

fn part(lease: u128) -> BindOrder {
    order(lease, 8 * MIB, GpuExclusivityClass::Shared)
}

#[test]
fn a_cut_ends_the_session_and_the_release_leaves_no_byte() {
    for world in World::both() {
        let lease = whole(1);
        let binding = world.bound(&lease);
        assert_eq!(binding.uuid, world.device.uuid);
        assert_eq!(binding.vram_bytes, MEMORY);
        let stranger = world.here.connect(LeaseId(1), "blue", 0).unwrap_err();
        assert_eq!(stranger.error, LeaseError::NotFound);
        let mut session = world.filled(LeaseId(1));
        let again = world.session(LeaseId(1)).unwrap();
        assert_eq!(again.number, session.number);
        let proof = world.cut(&lease);
        assert!(session.is_over());
        let steps: Vec<&str> = proof.steps().iter().map(|it| it.step.as_str()).collect();
        assert_eq!(steps, ["kill worker", "look for processes"]);
        let refused = world.session(LeaseId(1)).err().unwrap();
        assert_eq!(refused.error, LeaseError::Expired);
        assert!(world.has_pattern());
        world.release(&lease).unwrap();
        assert!(!world.has_pattern());
        assert_eq!(world.store.leases().unwrap(), []);
        assert!(matches!(
            world.provider.bind(&lease),
            Err(BindError::Cancelled)
        ));
    }
}

#[test]
fn nothing_connects_after_the_deadline() {
    let world = World::new(false);
    let lease = whole(1);
    world.bound(&lease);
    world
        .provider
        .extend(lease.binding_id, BootTime(1))
        .unwrap();
    let refused = world.session(LeaseId(1)).err().unwrap();
    assert_eq!(refused.error, LeaseError::Expired);
    assert!(refused.message.contains("deadline"), "{refused:?}");
}

#[test]
fn a_shared_lease_wipes_its_own_memory_beside_its_neighbour() {
    for world in World::both() {
        let [one, two] = [part(1), part(2)];
        world.bound(&one);
        world.bound(&two);
        let _leaves = world.filled(LeaseId(1));
        let mut stays = world.session(LeaseId(2)).unwrap();
        world.cut(&one);
        world.release(&one).unwrap();
        assert!(!world.has_pattern());
        stays
            .ask(&GpuRequest::MemAlloc { bytes: MIB }, &[])
            .unwrap();
        let too_much = stays.ask(&GpuRequest::MemAlloc { bytes: 8 * MIB }, &[]);
        assert_eq!(too_much.unwrap_err().error, LeaseError::CapacityExceeded);
        world.cut(&two);
        world.release(&two).unwrap();
    }
}

/// Its tenant may hold all queues of the session: it is closed in order nevertheless.
#[test]
fn a_shared_lease_with_all_queues_in_use_is_wiped() {
    let world = World::new(false);
    let [one, two] = [part(1), part(2)];
    world.bound(&one);
    world.bound(&two);
    let _first = world.filled(LeaseId(1));
    let _others: Vec<Session> = (1..)
        .map_while(|_| world.session(LeaseId(1)).ok())
        .collect();
    world.cut(&one);
    world.release(&one).unwrap();
    assert!(!world.has_pattern());
}

#[test]
fn a_device_that_cannot_be_wiped_is_reset_by_the_next_release() {
    let world = World::new(false);
    let lease = whole(1);
    world.bound(&lease);
    let _leaves = world.filled(LeaseId(1));
    world.cut(&lease);
    let knobs = &world.lab.directory;
    knobs.set(Knob::ShortScrub, &MEMORY.to_string()).unwrap();
    let knob = knobs.path().join("short-scrub");
    let reset = format!("rm {}", knob.display());
    world.lab.script("nvidia-smi", &reset);
    let why = world.release(&lease).unwrap_err();
    assert!(why.detail.contains("could be wiped"), "{why}");
    assert!(knob.exists());
    world.release(&lease).unwrap();
    assert!(!world.has_pattern());
}

#[test]
fn a_worker_that_was_killed_keeps_the_device_until_all_of_it_is_wiped() {
    for world in World::both() {
        let [one, two] = [part(1), part(2)];
        world.bound(&one);
        world.bound(&two);
        let _leaves = world.filled(LeaseId(1));
        let mut stays = world.session(LeaseId(2)).unwrap();
        signal_worker(&world, LeaseId(1), Signal::SIGSTOP);
        world.cut(&one);
        let why = world.release(&one).unwrap_err();
        assert!(why.detail.contains("had to be killed"), "{why}");
        stays
            .ask(&GpuRequest::MemAlloc { bytes: MIB }, &[])
            .unwrap();
        world.cut(&two);
        world.release(&two).unwrap();
        world.release(&one).unwrap();
        assert!(!world.has_pattern());
    }
}

/// The session of one lease dies beside a neighbour's, before anybody has ended the lease.
#[test]
fn the_memory_of_a_session_that_died_is_read_by_nobody() {
    for world in World::both() {
        let [one, two] = [part(1), part(2)];
        world.bound(&one);
        world.bound(&two);
        let mut died = world.filled(LeaseId(1));
        let mut stays = world.session(LeaseId(2)).unwrap();
        let worker = signal_worker(&world, LeaseId(1), Signal::SIGKILL);
        assert!(died.is_over());
        // The path waits for its child.
        while kill(worker, None).is_ok() {
            thread::yield_now();
        }
        assert!(world.has_pattern());
        let Err(BindError::Failed(why)) = world.provider.bind(&part(3)) else {
            panic!("a device with bytes of a tenant was leased");
        };
        assert!(why.detail.contains("without wiping"), "{why}");
        // The stand-in gives the lowest address that is free; the look at the device for the third lease has freed it.
        stays
            .ask(&GpuRequest::MemAlloc { bytes: 4 * MIB }, &[])
            .unwrap();
        assert!(!world.has_pattern());
        for lease in [&one, &two] {
            world.cut(lease);
        }
        world.release(&two).unwrap();
        world.release(&one).unwrap();
    }
}

/// `/dev/full` is the device's node: alone, or as one that programs on other devices open too.
#[test]
fn only_a_holder_of_the_device_itself_fences_it() {
    for is_shared in [true, false] {
        let lab = Lab::new();
        let full = Node {
            path: "/dev/full".into(),
            major: 1,
            minor: 7,
            is_shared,
        };
        let device = Device {
            nodes: vec![full],
            ..lab.device(Vendor::Nvidia)
        };
        let world = World::of(device, lab, World::turn(), false);
        let lease = whole(1);
        world.bound(&lease);
        let other = fs::File::open("/dev/full").unwrap();
        world.cut(&lease);
        let released = world.release(&lease);
        assert_eq!(released.is_ok(), is_shared, "{released:?}");
        drop(other);
        world.release(&lease).unwrap();
    }
}

fn signal_worker(world: &World, lease: LeaseId, signal: Signal) -> Pid {
    let record = world
        .lab
        .place
        .path()
        .join("records")
        .join(format!("{lease}.gpu"));
    let record: serde_json::Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    let pid = record["worker"]["process"]["pid"].as_i64().unwrap();
    let worker = Pid::from_raw(pid.try_into().unwrap());
    kill(worker, signal).unwrap();
    worker
}

#[test]
fn a_session_outlives_the_daemon_and_ends_by_name_without_one() {
    let world = World::new(false);
    let lease = whole(1);
    world.bound(&lease);
    let mut session = world.filled(LeaseId(1));
    let next = World::on(world.lab, world.turn, false);
    assert_eq!(next.store.leases().unwrap(), [LeaseId(1)]);
    let adopted = BindOrder {
        adopts: true,
        ..whole(1)
    };
    next.bound(&adopted);
    assert_eq!(next.session(LeaseId(1)).unwrap().number, session.number);
    assert!(next.has_pattern());
    let end = GpuEnd::at(&next.lab.place.path().join("records")).unwrap();
    end.end(LeaseId(1)).unwrap();
    assert!(session.is_over());
    end.end(LeaseId(1)).unwrap();
    end.end(LeaseId(2)).unwrap();
    next.cut(&adopted);
    next.release(&adopted).unwrap();
    assert!(!next.has_pattern());
}
