//! A target on the lab's kernel, volumes that can be made to hang, and nvme-cli as the client.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_helper::{Program, Supervisor};
use fabricbios_lease::{BindingId, StepError};
use fabricbios_nvmet::{Export, HostRecords, PortSetting, Target, TargetConfig};
use fabricbios_wire::{
    BlockTerms, Generation, LeaseId, NodeId, NvmeofBinding, NvmeofTransport, ResourceId, Transport,
};
use zeroize::Zeroizing;

pub(crate) mod client;
mod suite;

pub(crate) const CONFIGFS: &str = "/sys/kernel/config/nvmet";
pub(crate) const NODE_ID: NodeId = NodeId([0x5A; 32]);

/// The kernel has only one target, so one test runs at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Whether this run may change the kernel's target.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("FABRICBIOS_LAB").is_some_and(|value| value == "1")
}

/// Runs a program. Returns its output, or its error text.
pub(crate) fn run(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!(
            "{line}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        ))
    }
}

pub(crate) fn must(line: &str) -> String {
    run(line).unwrap()
}

/// A supervisor. Supervisors with the same directory find the processes of each other's calls.
pub(crate) fn supervisor(place: &Path) -> Supervisor {
    let program = Path::new(env!("CARGO_BIN_EXE_fabricbios-nvmet-calls"));
    let program = Program::copy_of(program).unwrap();
    let mut lock = fs::OpenOptions::new();
    let lock = lock
        .create(true)
        .append(true)
        .open(place.join("calls.lock"));
    Supervisor::start(&program, "supervisor", lock.unwrap()).unwrap()
}

/// All paths below the directory of the target, links with their destinations.
pub(crate) fn picture() -> String {
    must(&format!("find {CONFIGFS} -mindepth 2 -printf %P_%l\\n"))
        .lines()
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .fold(String::new(), |mut all, line| {
            writeln!(all, "{line}").unwrap();
            all
        })
}

pub(crate) struct Lab {
    pub(crate) place: tempfile::TempDir,
    before: String,
    _turn: MutexGuard<'static, ()>,
}

pub(crate) fn tcp(address: &str) -> PortSetting {
    PortSetting {
        transport: NvmeofTransport::Tcp,
        address: address.parse().unwrap(),
    }
}

/// A port for each transport of the guest.
pub(crate) fn ports() -> Vec<PortSetting> {
    let mut ports = vec![tcp("127.0.0.1:4420"), tcp("[::1]:4420")];
    if Path::new("/sys/class/infiniband/rxe0").exists() {
        let address: SocketAddr = "10.77.0.1:4421".parse().unwrap();
        ports.push(PortSetting {
            transport: NvmeofTransport::Rdma,
            address,
        });
    }
    ports
}

impl Lab {
    pub(crate) fn open() -> Self {
        assert!(
            is_wanted(),
            "needs the lab: FABRICBIOS_LAB=1, nvmet and root"
        );
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        for module in [
            "loop",
            "dm_mod",
            "nvmet",
            "nvmet-tcp",
            "nvmet-rdma",
            "nvme-tcp",
            "nvme-rdma",
        ] {
            must(&format!("modprobe {module}"));
        }
        if !Path::new(CONFIGFS).exists() {
            must("mount -t configfs none /sys/kernel/config");
        }
        // Clients of an earlier test may still try to reconnect to a lease with this name.
        must("nvme disconnect-all");
        Self {
            place: tempfile::tempdir_in("/run").unwrap(),
            before: picture(),
            _turn: turn,
        }
    }

    pub(crate) fn config(&self, ports: &[PortSetting]) -> TargetConfig {
        let files = self.host_records();
        TargetConfig {
            configfs: CONFIGFS.into(),
            ports: ports.to_vec(),
            hosts: files.read(),
            host_records: Arc::new(files),
            node_id: NODE_ID,
            supervisor: supervisor(self.place.path()),
        }
    }

    pub(crate) fn host_records(&self) -> HostFiles {
        HostFiles::in_place(self.place.path())
    }

    pub(crate) fn target(&self) -> Target {
        Target::open(self.config(&ports())).unwrap()
    }

    pub(crate) fn volume(&self, name: &str) -> Volume {
        Volume::make(self.place.path(), name)
    }

    /// Checks that everything is as before the test.
    pub(crate) fn close(self, target: Target) {
        assert_eq!(target.leases().unwrap(), []);
        target.close().unwrap();
        assert_eq!(picture(), self.before);
    }
}

/// Records of hosts that outlive a process: one file each.
#[derive(Debug)]
pub(crate) struct HostFiles(PathBuf);

impl HostFiles {
    pub(crate) fn in_place(place: &Path) -> Self {
        let directory = place.join("hosts");
        fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    pub(crate) fn read(&self) -> Vec<Zeroizing<Vec<u8>>> {
        let files = fs::read_dir(&self.0).unwrap();
        files
            .map(|file| fs::read(file.unwrap().path()).unwrap().into())
            .collect()
    }
}

impl HostRecords for HostFiles {
    fn write(&self, host: u128, record: Option<Zeroizing<Vec<u8>>>) {
        let at = self.0.join(host.to_string());
        match record {
            Some(record) => fs::write(at, record).unwrap(),
            None => fs::remove_file(at).unwrap(),
        }
    }

    fn submit(&self) -> u64 {
        0
    }

    fn wait(&self, _: u64) -> Result<(), StepError> {
        Ok(())
    }
}

/// A device over a file in memory; a test can suspend the device.
pub(crate) struct Volume {
    name: String,
    under: String,
    pub(crate) path: PathBuf,
}

impl Volume {
    fn make(place: &Path, name: &str) -> Self {
        let file = place.join(name);
        fs::File::create(&file).unwrap().set_len(32 << 20).unwrap();
        let under = must(&format!("losetup --find --show {}", file.display()));
        let under = under.trim().to_owned();
        let table = format!("0 65536 linear {under} 0");
        let made = Command::new("dmsetup")
            .args(["create", "--noudevsync", name, "--table", &table])
            .status();
        assert!(made.unwrap().success());
        must("dmsetup mknodes");
        Self {
            name: name.to_owned(),
            under,
            path: format!("/dev/mapper/{name}").into(),
        }
    }

    pub(crate) fn suspend(&self) {
        must(&format!(
            "dmsetup suspend --nolockfs --noflush {}",
            self.name
        ));
    }

    pub(crate) fn resume(&self) {
        must(&format!("dmsetup resume {}", self.name));
    }

    /// Removes the volume. Fails if it is still open.
    pub(crate) fn remove(self) {
        must(&format!("dmsetup remove --noudevsync {}", self.name));
        must(&format!("losetup --detach {}", self.under));
    }
}

pub(crate) fn binding_id(lease: u128, generation: u32) -> BindingId {
    BindingId {
        lease_id: LeaseId(lease),
        generation: Generation(generation),
        resource_id: ResourceId(7),
    }
}

pub(crate) fn export(lease: u128, volume: &Volume) -> Export {
    Export {
        binding_id: binding_id(lease, 1),
        tenant: "ann".into(),
        terms: BlockTerms::default(),
        volume: volume.path.clone(),
        block_bytes: 512,
        transport: Transport::Both,
        grace: Duration::ZERO,
    }
}

pub(crate) fn end(target: &Target, lease: u128) -> String {
    let proof = target.cut(binding_id(lease, 1)).unwrap().to_string();
    println!("lease {lease}: {proof}");
    target.remove(LeaseId(lease), &|| ()).unwrap();
    proof
}

/// The index of the address with this transport and IP version in the binding.
pub(crate) fn transport(binding: &NvmeofBinding, transport: NvmeofTransport, v6: bool) -> usize {
    let is_it = |address: &fabricbios_wire::NvmeofAddress| {
        let place = SocketAddr::from(address.endpoint);
        address.transport == transport && place.is_ipv6() == v6
    };
    binding.addresses.iter().position(is_it).unwrap()
}
