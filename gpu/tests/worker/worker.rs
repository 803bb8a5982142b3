//! A worker process, with a device for it.

use std::{
    env,
    fs::{self, File},
    os::{
        fd::AsFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixListener, UnixStream},
            process::ExitStatusExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio, exit},
    sync::{Arc, Mutex},
    time::Duration,
};

use fabricbios_channel::Channel;
use fabricbios_gpu::{
    Device, Health, Libraries,
    worker::{WorkerOrder, worker_main},
};
use fabricbios_wire::{GpuReply, GpuRequest, GpuVendor, LeaseId};
use nix::{
    sys::{
        signal::{Signal, kill},
        socket::MsgFlags,
    },
    unistd::{Pid, dup2_stdout},
};
use stand_in_device::{Directory, Identity, Knob, Module, VARIABLE, Vendor};
use tempfile::TempDir;

use crate::{client::Client, vendors};

/// The variable with the path of the file that gets the number of a wiped session.
pub(crate) const MARK: &str = "FABRICBIOS_TEST_WORKER";

pub(crate) const LEASE: LeaseId = LeaseId(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
pub(crate) const SESSION: u64 = 0x0102_0304_8506_0708;
/// Memory of the device, bytes.
pub(crate) const DEVICE_BYTES: u64 = 32 << 20;
const PAGE: usize = 4096;
/// Memory cap of a session, bytes.
pub(crate) const VRAM: u64 = 16 << 20;
/// No account of the machine has this user id.
const UID: u32 = 0x6fff_0001;
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const FILL: &str = include_str!("../../../testbed/stand-ins/ptx/fill.ptx");
pub(crate) const VECTOR_ADD: &str = include_str!("../../../testbed/stand-ins/ptx/vector_add.ptx");
pub(crate) const MATMUL: &str = include_str!("../../../testbed/stand-ins/ptx/matmul_tiled.ptx");
pub(crate) const SPIN: &str = include_str!("../../../testbed/stand-ins/ptx/spin.ptx");
pub(crate) const FAULT: &str = include_str!("../../../testbed/stand-ins/ptx/fault.ptx");

/// A stand-in device of one test.
#[derive(Clone, Debug)]
pub(crate) struct Lab {
    pub(crate) vendor: GpuVendor,
    pub(crate) directory: Directory,
    _place: Arc<TempDir>,
}

impl Lab {
    pub(crate) fn new(vendor: GpuVendor) -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let directory = Directory::at(place.path().join("state")).unwrap();
        directory
            .set(Knob::Memory, &DEVICE_BYTES.to_string())
            .unwrap();
        Self {
            vendor,
            directory,
            _place: Arc::new(place),
        }
    }

    /// A lab of one vendor, for tests of vendor-independent behaviour. `None`: the crate was built for no vendor.
    pub(crate) fn any() -> Option<Self> {
        vendors().first().map(|vendor| Self::new(*vendor))
    }

    /// Waits until the memory of dead workers is free.
    pub(crate) fn settle(&self) {
        self.directory.settle(self.side()).unwrap();
    }

    fn side(&self) -> Vendor {
        match self.vendor {
            GpuVendor::Nvidia => Vendor::Nvidia,
            GpuVendor::Amd => Vendor::Amd,
        }
    }

    /// The bytes of the device's memory.
    fn memory(&self) -> Vec<u8> {
        self.directory.memory_of(self.side()).unwrap()
    }

    /// True if a part of the device's memory has this pattern. The pattern must not be all zeroes.
    pub(crate) fn has(&self, pattern: &[u8]) -> bool {
        let memory = self.memory();
        let used = (0..memory.len())
            .step_by(PAGE)
            .filter(|at| memory[*at..][..PAGE] != [0; PAGE]);
        used.into_iter().any(|at| {
            let end = memory.len().min(at + PAGE + pattern.len());
            memory[at.saturating_sub(pattern.len())..end]
                .windows(pattern.len())
                .any(|it| it == pattern)
        })
    }

    /// True if all of the device's memory is zero.
    pub(crate) fn is_clean(&self) -> bool {
        self.memory()
            .chunks_exact(PAGE)
            .all(|page| page == [0; PAGE])
    }

    /// A module with the kernels of a PTX text.
    pub(crate) fn module(&self, text: &str) -> Vec<u8> {
        match self.vendor {
            GpuVendor::Nvidia => text.into(),
            GpuVendor::Amd => Module::code_object(text),
        }
    }

    pub(crate) fn order(&self) -> WorkerOrder {
        let identity = Identity::whole(self.side());
        WorkerOrder {
            lease_id: LEASE,
            session: SESSION,
            device: Device {
                uuid: identity.uuid(),
                vendor: self.vendor,
                name: identity.name(),
                pci: None,
                vram_bytes: DEVICE_BYTES,
                compute_units: 1,
                compute_slices: 7,
                partition_of: None,
                has_partitions: false,
                nodes: Vec::new(),
                visible: identity.uuid(),
                health: Health::Good,
            },
            libraries: libraries(),
            vram_bytes: VRAM,
            one_shot: false,
            scrub_at_close: false,
            uid: UID,
            gids: vec![UID + 1],
        }
    }

    pub(crate) fn start(&self, order: &WorkerOrder) -> Worker {
        let (worker, answer) = Worker::start(self, order);
        answer.unwrap();
        worker
    }

    /// Starts a worker with the default order.
    pub(crate) fn worker(&self) -> Worker {
        self.start(&self.order())
    }
}

/// The stand-ins, in the directory of this program.
pub(crate) fn libraries() -> Libraries {
    let beside = |name: &str| vec![env::current_exe().unwrap().with_file_name(name)];
    Libraries {
        nvml: Vec::new(),
        cuda: beside("libstand_in_cuda.so"),
        hip: beside("libstand_in_hip.so"),
    }
}

/// A worker process. A drop kills it.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Mutex<Child>,
    place: TempDir,
    pub(crate) pid: Pid,
}

impl Worker {
    /// Starts a worker. Returns it with its answer to the order.
    pub(crate) fn start(lab: &Lab, order: &WorkerOrder) -> (Self, Result<Vec<String>, String>) {
        let place = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(socket(place.path())).unwrap();
        let (mut channel, its) = Channel::pair(WorkerOrder::CHANNEL).unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "worker_process",
                "--include-ignored",
                "--nocapture",
            ])
            .env(MARK, mark(place.path()))
            .env(VARIABLE, lab.directory.path())
            .stdin(its)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let sent = channel.send(order, Some(listener.as_fd()), MsgFlags::empty());
        sent.unwrap();
        let answer = channel.receive_within(PATIENCE).unwrap();
        let answer = answer.expect("the worker ended without an answer");
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        let worker = Self {
            child: Mutex::new(child),
            place,
            pid,
        };
        (worker, answer)
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(UnixStream::connect(socket(self.place.path())).unwrap())
    }

    /// A stream that has opened the session.
    pub(crate) fn open(&self) -> Client {
        let mut client = self.connect();
        let opened = client.ask(&GpuRequest::Open {
            lease_id: LEASE,
            session: 0,
        });
        assert!(matches!(opened, Ok(GpuReply::Opened(_))), "{opened:?}");
        client
    }

    /// Waits for the end of the process. Returns its exit status; `None` if a signal ended it.
    pub(crate) fn ended(&self) -> Option<i32> {
        let status = self.child.lock().unwrap().wait().unwrap();
        assert!(
            status.core_dumped() || status.code().is_some() || status.signal() == Some(9),
            "{status}"
        );
        status.code()
    }

    pub(crate) fn is_there(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_none()
    }

    /// The number of the session that the worker reports as wiped.
    pub(crate) fn wiped(&self) -> String {
        fs::read_to_string(mark(self.place.path())).unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        if child.try_wait().unwrap().is_none() {
            kill(self.pid, Signal::SIGKILL).unwrap();
            child.wait().unwrap();
        }
    }
}

fn socket(place: &Path) -> PathBuf {
    place.join("socket")
}

fn mark(place: &Path) -> PathBuf {
    place.join("wiped")
}

/// Runs the worker in this process.
pub(crate) fn be_one() {
    let mark = File::create(env::var_os(MARK).unwrap()).unwrap();
    dup2_stdout(mark).unwrap();
    let code = worker_main();
    exit(i32::from(
        format!("{code:?}") != format!("{:?}", ExitCode::SUCCESS),
    ));
}
