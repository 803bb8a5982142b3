//! The daemon as users run it: a separate process, used over loopback. Its processor time comes from /proc.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fabricbios_client::{Identity, Node};
use fabricbios_kernfs::Tree;
use fabricbios_wire::{IssueRequest, Reply, Request, Role};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, SysconfVar, sysconf},
};

/// Validity of the identities of tenants, seconds.
const IDENTITY_SECS: u32 = 24 * 3600;

/// A running program; dropping it ends the program.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn();
        Ok(Self(child.with_context(|| format!("start {program}"))?))
    }

    /// Processor time of the program and of the processes that it started, so far.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Duration> {
        Ok(self.cpu_times()?.all)
    }

    /// The same, with its parts.
    pub(crate) fn cpu_times(&self) -> anyhow::Result<CpuTime> {
        // A process or thread that has just ended counts nothing.
        let (mut all, mut runtime) = (0, 0);
        for pid in self.processes()? {
            all += ticks(&format!("{pid}/stat")).map_or(0, |(_, ticks)| ticks);
            for task in fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
            {
                let task = task?.file_name();
                let of = ticks(&format!("{pid}/task/{}/stat", task.to_string_lossy()));
                runtime += of.map_or(0, |(name, ticks)| match name.starts_with(RUNTIME) {
                    true => ticks,
                    false => 0,
                });
            }
        }
        let a_second = sysconf(SysconfVar::CLK_TCK)?.context("no clock ticks")? as f64;
        let seconds = |ticks: u64| Duration::from_secs_f64(ticks as f64 / a_second);
        Ok(CpuTime {
            all: seconds(all),
            outside: seconds(all.saturating_sub(runtime)),
        })
    }

    /// The program and the processes that it started.
    pub(crate) fn processes(&self) -> anyhow::Result<Vec<u32>> {
        processes(self.0.id())
    }
}

/// How the names of the threads of the daemon's runtime for connections begin (tokio's own name).
const RUNTIME: &str = "tokio-r";

/// Processor time of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTime {
    pub(crate) all: Duration,
    /// Of it, what threads outside the runtime for connections took.
    pub(crate) outside: Duration,
}

impl CpuTime {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            all: self.all.saturating_sub(before.all),
            outside: self.outside.saturating_sub(before.outside),
        }
    }
}

/// The name of a process or thread, and its clock ticks in user and kernel mode; proc_pid_stat(5), fields 14 and 15.
fn ticks(stat: &str) -> anyhow::Result<(String, u64)> {
    let stat = Tree::new("/proc").read(stat)?;
    let (before, after) = stat.rsplit_once(')').context("a stat without a name")?;
    let (_, name) = before.split_once('(').context("a stat without a name")?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let own = |index: usize| -> anyhow::Result<u64> { Ok(fields[index].parse()?) };
    Ok((name.to_owned(), own(11)? + own(12)?))
}

/// This process and its descendants.
fn processes(pid: u32) -> anyhow::Result<Vec<u32>> {
    let mut all = vec![pid];
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
    {
        let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            all.extend(processes(child.parse()?)?);
        }
    }
    Ok(all)
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).map(Pid::from_raw);
        let ended = pid.map(|pid| kill(pid, Signal::SIGTERM));
        if matches!(ended, Ok(Ok(()))) {
            drop(self.0.wait());
        }
    }
}

/// A daemon that leases memory over UDP, and its operator.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) running: Running,
    pub(crate) operator: Node,
    /// From the start of the program to its line that it is ready.
    pub(crate) ready_after: Duration,
    address: String,
    state_dir: PathBuf,
}

impl Daemon {
    /// Starts the `fabricbiosd` in this program's directory, with its state in `place`. `arguments` is one
    /// string.
    pub(crate) fn start(place: &Path, arguments: &str) -> anyhow::Result<Self> {
        Self::start_as(place, arguments, None)
    }

    /// The same; this is the operator's identity, if it is not the node's own.
    pub(crate) fn start_as(
        place: &Path,
        arguments: &str,
        operator: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let beside = std::env::current_exe()?.with_file_name("fabricbiosd");
        if !beside.is_file() {
            bail!(
                "{} is not there: cargo build --release -p fabricbios-node",
                beside.display()
            );
        }
        Self::start_program(&beside, place, arguments, operator)
    }

    /// The same, with the `fabricbiosd` at `program`.
    pub(crate) fn start_program(
        program: &Path,
        place: &Path,
        arguments: &str,
        operator: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let state_dir = place.join("state");
        let log = fs::File::create(place.join("log"))?;
        let mut command = Command::new(program);
        command
            .arg("control-server")
            .arg("--state-dir")
            .arg(&state_dir);
        command.args(["--listen=127.0.0.1:0", "--fbmu-listen=127.0.0.1:0"]);
        command.arg("--rdma-device=none");
        if !arguments.contains("--fbbu-listen") {
            command.arg("--fbbu-listen=none");
        }
        command.args(arguments.split_whitespace());
        command.stdout(Stdio::piped()).stderr(log);
        let began = Instant::now();
        let mut running = Running::start(&mut command)?;
        let stdout = running.0.stdout.take().context("a daemon without output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let ready_after = began.elapsed();
        let told = line.split_once("listen=").map(|(_, rest)| rest.trim());
        let Some(told) = told else {
            let log = fs::read_to_string(place.join("log"))?;
            bail!("fabricbiosd is not ready: {log}");
        };
        let address = told.split_once(' ').map_or(told, |(address, _)| address);
        let own = state_dir.join("admin.identity");
        let identity = Identity::load(operator.unwrap_or(&own))?;
        Ok(Self {
            operator: Node::connect(address, &identity)?,
            address: address.to_owned(),
            running,
            ready_after,
            state_dir,
        })
    }

    /// The address of the control plane.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The address at which an operator logs in to its pages.
    pub(crate) fn page_url(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.state_dir.join("page.url"))?)
    }

    /// The identity file of a tenant from [`Daemon::tenant`].
    pub(crate) fn identity(&self, name: &str) -> PathBuf {
        self.state_dir.join(format!("{name}.identity"))
    }

    /// A new tenant's connection.
    pub(crate) fn tenant(&self, name: &str) -> anyhow::Result<Node> {
        let key = rcgen::KeyPair::generate()?;
        let request = rcgen::CertificateParams::default().serialize_request(&key)?;
        let reply = self.operator.call(Request::IdentityIssue(IssueRequest {
            tenant: name.to_owned(),
            role: Role::Tenant,
            valid_secs: IDENTITY_SECS,
            csr_der: request.der().to_vec(),
        }))?;
        let Reply::Issued {
            certificate_pem,
            ca_pem,
        } = reply
        else {
            return Err(self.operator.unexpected("an identity", &reply).into());
        };
        let path = self.identity(name);
        let pem = format!("{certificate_pem}{}{ca_pem}", key.serialize_pem());
        fs::write(&path, pem)?;
        let identity = Identity::load(path)?;
        Ok(Node::connect(&self.address, &identity)?)
    }
}
