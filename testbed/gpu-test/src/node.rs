//! The daemon under test, and identities of its tenants.

use std::{
    env,
    fs::{self, Permissions},
    io::{BufRead, BufReader, ErrorKind},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use fabricbios_client::{Identity, Node};
use fabricbios_wire::{IssueRequest, LeaseId, Reply, Request, Role};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::{
        signal::{Signal, kill},
        stat::{Mode, SFlag, makedev, mknod},
    },
    unistd::Pid,
};
use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use tempfile::TempDir;

/// The subcommands of the daemon.
pub(crate) const SUBCOMMANDS: [&str; 7] = [
    "control-server",
    "supervisor",
    "ask-rdma",
    "watchdog",
    "journal",
    "gpu-worker",
    "cdi-hook",
];

/// The user of this machine who belongs to the tenant blue. No account has this number.
pub(crate) const BLUES_UID: u32 = 0x3fff_fff0;

/// A running daemon, with a state directory of its own.
pub(crate) struct Daemon {
    child: Child,
    directory: TempDir,
    /// The directory of the local socket, which users may pass.
    open: TempDir,
    /// The CDI specifications for container engines, in a tmpfs: /run is no tmpfs on every machine.
    specifications: TempDir,
    address: String,
    /// The first digits of the node's id.
    digits: String,
}

impl Daemon {
    /// Starts the daemon and waits until it is ready.
    pub(crate) fn start(share_mode: &str) -> Result<Self> {
        let directory = TempDir::new()?;
        let open = TempDir::new()?;
        fs::set_permissions(open.path(), Permissions::from_mode(0o755))?;
        let specifications = TempDir::new_in("/dev/shm")?;
        let mut command = Command::new(env::current_exe()?);
        command
            .args(["control-server", "--listen", "127.0.0.1:0", "--gpus", "all"])
            .args(["--gpu-share-mode", share_mode])
            .args(["--tenant-uid", &format!("blue={BLUES_UID}")])
            .arg("--local-socket")
            .arg(socket_in(&open))
            .arg("--cdi-dir")
            .arg(specifications.path());
        let (child, address, digits) = spawn(command, directory.path())?;
        Ok(Self {
            child,
            directory,
            open,
            specifications,
            address,
            digits,
        })
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// Waits until the process has ended. `Ok(false)`: it ended with an error.
    pub(crate) fn wait(&mut self) -> Result<bool> {
        Ok(self.child.wait()?.success())
    }

    /// How often threads of the process have slept and were woken so far.
    pub(crate) fn wakes(&self) -> Result<u64> {
        const KEY: &str = "voluntary_ctxt_switches:";
        let mut wakes = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread that has just ended counts nothing.
            let status = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
            let told = status.lines().find_map(|it| it.strip_prefix(KEY));
            wakes += told.map_or(Ok(0), |it| it.trim().parse::<u64>())?;
        }
        Ok(wakes)
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// The path of the local socket.
    pub(crate) fn local_socket(&self) -> PathBuf {
        socket_in(&self.open)
    }

    /// The specification of a lease for container engines, if the node offers programs and containers.
    pub(crate) fn specification(&self, lease: LeaseId) -> Result<Option<Value>> {
        let name = format!("fabricbios-{lease}.json");
        match fs::read(self.specifications.path().join(name)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The control group of the node's leases.
    pub(crate) fn cgroup(&self) -> Result<PathBuf> {
        let at = self.records().join("gpu/cgroup");
        let text = fs::read_to_string(&at).with_context(|| at.display().to_string())?;
        Ok(text.into())
    }

    fn records(&self) -> PathBuf {
        PathBuf::from(format!("/run/fabricbios-{}", self.digits))
    }

    /// A connection of a tenant; a new tenant gets an identity first.
    pub(crate) fn tenant(&self, name: &str) -> Result<Node> {
        let at = self.directory.path().join(format!("{name}.identity"));
        if !at.exists() {
            self.issue(name, &at)?;
        }
        Ok(Node::connect(&self.address, &Identity::load(&at)?)?)
    }

    /// A connection of the operator.
    pub(crate) fn operator(&self) -> Result<Node> {
        let at = self.directory.path().join("state").join("admin.identity");
        Ok(Node::connect(&self.address, &Identity::load(at)?)?)
    }

    fn issue(&self, tenant: &str, at: &Path) -> Result<()> {
        let key = KeyPair::generate()?;
        let csr = CertificateParams::default().serialize_request(&key)?;
        let request = IssueRequest {
            tenant: tenant.to_owned(),
            role: Role::Tenant,
            valid_secs: 0,
            csr_der: csr.der().to_vec(),
        };
        let node = self.operator()?;
        let Reply::Issued {
            certificate_pem,
            ca_pem,
        } = node.call(Request::IdentityIssue(request))?
        else {
            bail!("the node answers a request for an identity with something else");
        };
        let pem = format!("{certificate_pem}{}{ca_pem}", key.serialize_pem());
        fs::write(at, pem).with_context(|| at.display().to_string())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The test may have killed the process already.
        self.signal(Signal::SIGCONT).ok();
        self.signal(Signal::SIGTERM).ok();
        self.child.wait().ok();
        // The node has no leases any more and is not started again. Its records name the cgroup.
        if let Ok(cgroup) = self.cgroup() {
            fs::remove_dir(cgroup).ok();
        }
        fs::remove_dir_all(self.records()).ok();
    }
}

fn socket_in(open: &TempDir) -> PathBuf {
    open.path().join("local/socket")
}

fn spawn(mut command: Command, directory: &Path) -> Result<(Child, String, String)> {
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("log"))?;
    let mut child = command
        .envs(gpu_root(&directory.join("gpus"))?.map(|it| ("FABRICBIOS_GPU_ROOT", it)))
        .arg("--state-dir")
        .arg(directory.join("state"))
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()?;
    let output = child.stdout.take().context("the daemon's output")?;
    let mut lines = BufReader::new(output).lines();
    let ready = lines.find_map(|line| {
        let line = line.ok()?;
        let (node, address) = line.strip_prefix("READY node=")?.split_once(" listen=")?;
        Some((address.to_owned(), node.get(..8)?.to_owned()))
    });
    match ready {
        Some((address, digits)) => Ok((child, address, digits)),
        None => {
            child.wait()?;
            let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
            bail!("the daemon did not start:\n{log}");
        }
    }
}

/// With stand-ins, the root directory that the daemon takes for this machine: it has nodes made for the test.
fn gpu_root(at: &Path) -> Result<Option<PathBuf>> {
    if !is_on_stand_ins() {
        return Ok(None);
    }
    if !at.exists() {
        fs::create_dir_all(at.join("proc/driver/nvidia"))?;
        fs::write(at.join("proc/driver/nvidia/params"), KEPT)?;
        make_nodes(at)?;
    }
    Ok(Some(at.to_owned()))
}

/// Where NVIDIA's driver says which options it was loaded with. Its libraries read this file and then put the mode of
/// the device nodes back, or leave the nodes alone.
const PARAMETERS: &str = "/proc/driver/nvidia/params";
/// The option to leave the nodes alone.
const KEPT: &str = "ModifyDeviceFiles: 0\n";
const NONE: Option<&str> = None;

/// Has this process and its children see a driver that leaves its nodes alone, since most rented machines lack this
/// option, and nodes of their own, since any program of root on the machine (nvidia-smi) puts the mode of the machine's
/// nodes back. Returns whether the driver was loaded without the option. The process must have one thread.
pub(crate) fn keep_nodes() -> Result<bool> {
    let says = fs::read_to_string(PARAMETERS).unwrap_or_default();
    let is_kept = says
        .lines()
        .any(|it| it.replace(' ', "") == KEPT.trim().replace(' ', ""));
    if is_on_stand_ins() || says.is_empty() || is_kept {
        return Ok(false);
    }
    // The other processes of this machine go on to see the driver's file and the machine's nodes.
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    // What is mounted stays when its name goes with this directory.
    let place = TempDir::new_in("/dev")?;
    let put = |made: &Path, over: &Path| {
        let done = mount(Some(made), over, NONE, MsFlags::MS_BIND, NONE);
        done.with_context(|| over.display().to_string())
    };
    let parameters = place.path().join("params");
    fs::write(&parameters, KEPT)?;
    put(&parameters, Path::new(PARAMETERS))?;
    for entry in fs::read_dir("/dev")? {
        let node = entry?;
        let name = node.file_name();
        let minor = name.to_str().and_then(|it| it.strip_prefix("nvidia"));
        if minor.is_some_and(|it| it.parse::<u32>().is_ok()) {
            let copy = place.path().join(&name);
            let device = node.metadata()?.rdev();
            mknod(
                &copy,
                SFlag::S_IFCHR,
                Mode::from_bits_truncate(0o666),
                device,
            )?;
            put(&copy, &node.path())?;
        }
    }
    Ok(true)
}

/// Stand-ins are in the place of the vendors' libraries.
pub(crate) fn is_on_stand_ins() -> bool {
    env::var_os("FABRICBIOS_STAND_IN_DIR").is_some()
}

/// Makes device nodes that belong to no driver. The stand-ins do not open them.
fn make_nodes(at: &Path) -> Result<()> {
    let render = "sys/bus/pci/devices/f1b0:f2:00.0/drm/renderD240";
    fs::create_dir_all(at.join(render))?;
    fs::create_dir_all(at.join("dev/dri"))?;
    let names = [
        "nvidia240",
        "nvidiactl",
        "nvidia-uvm",
        "kfd",
        "dri/renderD240",
    ];
    for (minor, name) in (240..).zip(names) {
        let node = at.join("dev").join(name);
        let mode = Mode::from_bits_truncate(0o666);
        let made = mknod(&node, SFlag::S_IFCHR, mode, makedev(1, minor));
        made.with_context(|| node.display().to_string())?;
    }
    Ok(())
}
