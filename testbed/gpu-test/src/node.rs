//! The daemon under test, and identities of its tenants.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use fabricbios_client::{Identity, Node};
use fabricbios_wire::{IssueRequest, Reply, Request, Role};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

/// The subcommands of the daemon.
pub(crate) const SUBCOMMANDS: [&str; 6] = [
    "control-server",
    "supervisor",
    "ask-rdma",
    "watchdog",
    "journal",
    "gpu-worker",
];

/// A running daemon, with a state directory of its own.
pub(crate) struct Daemon {
    child: Child,
    directory: TempDir,
    address: String,
    /// The first digits of the node's id.
    digits: String,
}

impl Daemon {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(share_mode: &str) -> Result<Self> {
        let directory = TempDir::new()?;
        let (child, address, digits) = spawn(directory.path(), share_mode)?;
        Ok(Self {
            child,
            directory,
            address,
            digits,
        })
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        Ok(kill(Pid::from_raw(pid), signal)?)
    }

    /// Waits until the process has ended. `Ok(false)`: with an error.
    pub(crate) fn wait(&mut self) -> Result<bool> {
        Ok(self.child.wait()?.success())
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// The path of the local socket.
    pub(crate) fn local_socket(&self) -> PathBuf {
        self.directory.path().join("local").join("socket")
    }

    /// A connection of a tenant, whose identity is made if it is new.
    pub(crate) fn tenant(&self, name: &str) -> Result<Node> {
        let at = self.directory.path().join(format!("{name}.identity"));
        if !at.exists() {
            self.issue(name, &at)?;
        }
        Ok(Node::connect_blocking(
            &self.address,
            &Identity::load(&at)?,
        )?)
    }

    /// A connection of the operator.
    pub(crate) fn operator(&self) -> Result<Node> {
        let at = self.directory.path().join("state").join("admin.identity");
        Ok(Node::connect_blocking(&self.address, &Identity::load(at)?)?)
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
        } = node.call_blocking(Request::IdentityIssue(request))?
        else {
            bail!("the node answers a request for an identity with something else");
        };
        let pem = format!("{certificate_pem}{}{ca_pem}", key.serialize_pem());
        fs::write(at, pem).with_context(|| at.display().to_string())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have been killed by the test.
        self.signal(Signal::SIGCONT).ok();
        self.signal(Signal::SIGTERM).ok();
        self.child.wait().ok();
        // The node has no leases any more, and does not come back. Its records name the cgroup.
        let records = PathBuf::from(format!("/run/fabricbios-{}", self.digits));
        if let Ok(cgroup) = fs::read_to_string(records.join("gpu/cgroup")) {
            fs::remove_dir(cgroup).ok();
        }
        fs::remove_dir_all(records).ok();
    }
}

fn spawn(directory: &Path, share_mode: &str) -> Result<(Child, String, String)> {
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join("log"))?;
    let mut child = Command::new(env::current_exe()?)
        .args(["control-server", "--listen", "127.0.0.1:0", "--gpus", "all"])
        .args(["--gpu-share-mode", share_mode])
        .arg("--state-dir")
        .arg(directory.join("state"))
        .arg("--local-socket")
        .arg(directory.join("local").join("socket"))
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
