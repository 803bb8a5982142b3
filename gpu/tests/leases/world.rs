//! A store and a path with stand-ins for the vendors' libraries, and a tenant.

use std::{
    fs,
    io::{Read, Write},
    ops::Deref,
    os::unix::{fs::FileExt, net::UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::{
    Caller, EndByName, Given, Store,
    testing::{self, EndedByName, Entered, Fixture, Watching, user_of},
};
use fabricbios_gpu::{Device, GpuConfig, GpuEnd, GpuPath, GpuStore, Gpus};
use fabricbios_helper::Program;
use fabricbios_lease::{BindOrder, Placement, Proof};
use fabricbios_wire::{
    GpuBinding, GpuExclusivityClass, GpuReply, GpuRequest, GpuTerms, HEADER_LEN, Header, LeaseId,
    Refusal, ResourceId, Transport, decode_gpu_answer, encode_gpu_request,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use stand_in_device::{Knob, Vendor};

use crate::lab::{Lab, MEMORY, MIB};

const GPU: ResourceId = ResourceId(5);
const PATTERN: [u8; 4096] = [0xa7; 4096];

/// Held during a test. Workers have the environment of this process, which names one state directory of the stand-ins.
static TURN: Mutex<()> = Mutex::new(());

/// A machine with one device.
pub(crate) struct Machine {
    pub(crate) lab: Lab,
    /// Held until the end of the test.
    _turn: MutexGuard<'static, ()>,
    pub(crate) device: Device,
}

impl Fixture for Machine {
    type Store = GpuStore;
    type Path = GpuPath;
    type Client = Session;

    fn new() -> Self {
        let (turn, lab) = (World::turn(), Lab::new());
        let device = lab.device(Vendor::Nvidia);
        Self {
            lab,
            _turn: turn,
            device,
        }
    }

    fn start(&self, guard: Arc<Watching>) -> (Arc<GpuStore>, Arc<GpuPath>) {
        let lab = &self.lab;
        let is_root = geteuid().is_root();
        assert!(
            is_root,
            "a worker has a user of its own: only root runs this test"
        );
        let program: &Path = env!("CARGO_BIN_EXE_fabricbios-gpu-calls").as_ref();
        let config = GpuConfig {
            records: lab.place.path().join("records"),
            cgroup: None,
            worker_memory_max: 1 << 30,
            cdi: lab.place.path().join("cdi"),
            tenants: [("red".to_owned(), [0x5000_0001].into())].into(),
            hook: program.to_owned(),
            supervisor: lab.supervisor.clone(),
            program: Program::copy_of(program).unwrap(),
            libraries: lab.libraries.clone(),
        };
        let gpus = Arc::new(Gpus::open(config).unwrap());
        let path = GpuPath::new(gpus.clone(), vec![self.device.clone()], guard);
        (
            Arc::new(GpuStore::new(gpus, self.device.clone())),
            Arc::new(path),
        )
    }

    /// The device has no room for more than one exclusive lease.
    fn order(lease: u128) -> BindOrder {
        part(lease)
    }

    fn client(world: &testing::World<Self>, lease: LeaseId) -> Option<Session> {
        Session::open(&world.path, lease).ok()
    }

    fn has_access(&self, session: &mut Session) -> bool {
        session.answers()
    }

    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.lab.place.path().join("records")).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
        let is_of_lease = |it: &String| it.contains('.') && !it.contains(&self.device.uuid);
        names.filter(is_of_lease).collect()
    }
}

impl EndedByName for Machine {
    fn watchdog(&self) -> Box<dyn EndByName> {
        let records = self.lab.place.path().join("records");
        Box::new(GpuEnd::at(&records, self.lab.supervisor.clone()).unwrap())
    }
}

impl Entered for Machine {
    fn caller(&self, tenant: &str) -> (Caller, Given) {
        let given = fs::File::open("/proc/self/ns/net").unwrap();
        (user_of(tenant), Given::NetworkNamespace(given.into()))
    }
}

pub(crate) struct World(pub(crate) testing::World<Machine>);

impl Deref for World {
    type Target = testing::World<Machine>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self(testing::World::new())
    }

    pub(crate) fn turn() -> MutexGuard<'static, ()> {
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(device: Device, lab: Lab, turn: MutexGuard<'static, ()>) -> Self {
        Self(testing::World::on(Machine {
            lab,
            _turn: turn,
            device,
        }))
    }

    /// Binds a lease, so that its tenant can use it.
    pub(crate) fn bound(&self, order: &BindOrder) -> GpuBinding {
        self.0.bound(order).gpu().unwrap().clone()
    }

    /// Binds a lease while another program has 4 MiB of the device, as much as [`World::filled`] leaves behind. So the
    /// device seems complete before the lease's memory is back.
    pub(crate) fn bound_beside_another(&self, order: &BindOrder) {
        let knobs = &self.machine.lab.directory;
        knobs.set(Knob::Foreign, &(4 * MIB).to_string()).unwrap();
        self.bound(order);
        knobs.clear(Knob::Foreign).unwrap();
    }

    /// Prepares and binds a lease.
    pub(crate) fn prepared(&self, order: &BindOrder) -> Result<GpuBinding, String> {
        let prepared = self.store.prepare(order, &|| ());
        prepared.map_err(|error| error.to_string())?;
        Ok(self.bound(order))
    }

    fn record(&self, lease: LeaseId) -> PathBuf {
        let records = self.machine.lab.place.path().join("records");
        records.join(format!("{lease}.gpu"))
    }

    /// Lets a lease have programs on this machine, as if it had a control group.
    pub(crate) fn admit_programs(&self, lease: LeaseId) {
        let at = self.record(lease);
        let mut record: serde_json::Value =
            serde_json::from_slice(&fs::read(&at).unwrap()).unwrap();
        record["nodes"] = serde_json::to_value(&self.machine.device.nodes).unwrap();
        fs::write(at, record.to_string()).unwrap();
    }

    pub(crate) fn cut(&self, order: &BindOrder) -> Proof {
        self.0.cut(order).unwrap()
    }

    /// Writes the pattern into memory of the lease's session.
    pub(crate) fn filled(&self, lease: LeaseId) -> Session {
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

    pub(crate) fn session(&self, lease: LeaseId) -> Result<Session, Refusal> {
        Session::open(&self.path, lease)
    }

    fn memory(&self) -> Vec<u8> {
        self.machine
            .lab
            .directory
            .memory_of(Vendor::Nvidia)
            .unwrap()
    }

    /// Waits until the memory of dead processes is free.
    pub(crate) fn settle(&self) {
        self.machine.lab.directory.settle(Vendor::Nvidia).unwrap();
    }

    /// Writes the pattern into memory that no process has.
    pub(crate) fn write_pattern_at_the_end(&self) {
        let memory = self
            .machine
            .lab
            .directory
            .path()
            .join(Vendor::Nvidia.memory_file());
        let memory = fs::File::options().write(true).open(memory).unwrap();
        let end = memory.metadata().unwrap().len() - PATTERN.len() as u64;
        memory.write_all_at(&PATTERN, end).unwrap();
    }

    pub(crate) fn has_pattern_at_the_end(&self) -> bool {
        self.memory().ends_with(&PATTERN)
    }

    pub(crate) fn has_pattern(&self) -> bool {
        self.memory().chunks(PATTERN.len()).any(|it| it == PATTERN)
    }
}

pub(crate) struct Session {
    stream: UnixStream,
    pub(crate) number: u64,
}

impl Session {
    fn open(path: &GpuPath, lease: LeaseId) -> Result<Self, Refusal> {
        let stream = path.connect(lease, "red", 0)?;
        let mut session = Self { stream, number: 0 };
        let open = GpuRequest::Open {
            lease_id: lease,
            session: 0,
        };
        match session.ask(&open, &[])? {
            GpuReply::Opened(opened) => session.number = opened.session,
            other => panic!("{other:?}"),
        }
        Ok(session)
    }

    /// Whether the worker answers a request.
    fn answers(&mut self) -> bool {
        let request = GpuRequest::Sync {
            whole_session: false,
        };
        let frame = encode_gpu_request(1, 0, &request);
        let mut answer = [0; HEADER_LEN];
        // An answer to this request is a header alone.
        let asked = self.stream.write_all(&frame);
        asked
            .and_then(|()| self.stream.read_exact(&mut answer))
            .is_ok()
    }

    pub(crate) fn ask(&mut self, request: &GpuRequest, data: &[u8]) -> Result<GpuReply, Refusal> {
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
    pub(crate) fn is_over(&mut self) -> bool {
        !matches!(self.stream.read(&mut [0]), Ok(1..))
    }
}

fn header(frame: &[u8]) -> Header {
    Header::parse(frame[..HEADER_LEN].try_into().unwrap()).unwrap()
}

fn order(lease: u128, vram_bytes: u64, exclusivity: GpuExclusivityClass) -> BindOrder {
    let binding_id = testing::binding_id(lease_id(lease), 1, GPU);
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

pub(crate) fn whole(lease: u128) -> BindOrder {
    order(lease, MEMORY, GpuExclusivityClass::DeviceExclusive)
}

pub(crate) fn part(lease: u128) -> BindOrder {
    order(lease, 8 * MIB, GpuExclusivityClass::Shared)
}

/// A lease id that no other test process uses at the same time: tests run side by side, and the id determines the
/// worker's user.
pub(crate) fn lease_id(number: u128) -> LeaseId {
    LeaseId(u128::from(std::process::id() << 8) | number)
}

/// The user of a lease's worker.
pub(crate) fn worker_user(number: u128) -> u32 {
    0x4000_0000 | u32::try_from(lease_id(number).0).unwrap()
}

pub(crate) fn signal_worker(world: &World, lease: LeaseId, signal: Signal) -> Pid {
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(world.record(lease)).unwrap()).unwrap();
    let pid = record["worker"]["process"]["pid"].as_i64().unwrap();
    let worker = Pid::from_raw(pid.try_into().unwrap());
    kill(worker, signal).unwrap();
    worker
}
