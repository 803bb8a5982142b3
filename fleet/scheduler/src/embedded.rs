//! An etcd of the scheduler's own, to try a fleet on one machine: on loopback, with a CA of its own, in a directory that
//! ends with it.

mod certificates;

use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use tempfile::TempDir;

use certificates::{CA, IDENTITY, make_identity};

/// The longest time until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
/// Another program may take a port that was free a moment ago.
const TRIES: usize = 3;
/// Lines of its log that an error shows.
const TAIL_LINES: usize = 5;

/// A running etcd of one server or more. Dropping it ends it, by SIGKILL, and removes its data.
#[derive(Debug)]
pub struct EmbeddedEtcd {
    servers: Vec<Server>,
    flags: Vec<String>,
    /// Removed last.
    directory: TempDir,
}

#[derive(Debug)]
struct Server {
    addresses: Addresses,
    child: Child,
}

/// Where a server listens.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    clients: SocketAddr,
    peers: SocketAddr,
}

impl EmbeddedEtcd {
    /// Starts one server with these flags of etcd besides its own, and waits until it listens.
    ///
    /// # Errors
    /// There is no program `etcd`, or it does not start.
    pub fn start(flags: &[&str]) -> anyhow::Result<Self> {
        Self::start_servers(1, flags)
    }

    /// Starts so many servers, of one cluster.
    ///
    /// # Errors
    /// As of [`EmbeddedEtcd::start`].
    pub fn start_servers(count: usize, flags: &[&str]) -> anyhow::Result<Self> {
        if !is_on_path("etcd") {
            bail!(
                "there is no program etcd in PATH: on Debian `apt install etcd-server` brings it"
            );
        }
        let mut directory = tempfile::Builder::new();
        let of_its_own = fs::Permissions::from_mode(0o700);
        let directory = directory
            .prefix("fabricbios-etcd-")
            .permissions(of_its_own)
            .tempdir();
        let directory = directory.context("make a directory")?;
        make_identity(directory.path()).context("make its certificates")?;
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        let mut failed = None;
        for _ in 0..TRIES {
            // A server remembers where the others were.
            fs::remove_dir_all(directory.path().join(DATA)).ok();
            let all = free_addresses(count)?;
            match run_all(directory.path(), &all, &flags) {
                Ok(servers) => {
                    let clients = all[0].clients;
                    tracing::info!(%clients, directory = %directory.path().display(), "etcd runs; its data ends with it");
                    return Ok(Self {
                        servers,
                        flags,
                        directory,
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| anyhow::anyhow!("it was not tried")))
    }

    /// Ends all servers.
    pub fn kill(&mut self) {
        self.servers.iter_mut().for_each(Server::end);
    }

    /// Ends all servers, and starts them anew on the data that they have.
    ///
    /// # Errors
    /// One does not start.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        let all = self.addresses();
        // Their ports must be free.
        self.kill();
        self.servers = run_all(self.directory.path(), &all, &self.flags)?;
        Ok(())
    }

    /// Ends the server with this number, and starts it anew on the data that it has.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart_server(&mut self, at: usize) -> anyhow::Result<()> {
        let all = self.addresses();
        self.servers[at].end();
        let mut child = spawn(self.directory.path(), &all, at, &self.flags)?;
        await_listening(self.directory.path(), &all, at, &mut child)?;
        self.servers[at].child = child;
        Ok(())
    }

    fn addresses(&self) -> Vec<Addresses> {
        self.servers.iter().map(|it| it.addresses).collect()
    }

    /// Where the servers answer.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let urls = self.servers.iter();
        urls.map(|it| format!("https://{}", it.addresses.clients))
            .collect()
    }

    /// Where the first server answers.
    #[must_use]
    pub fn url(&self) -> String {
        self.urls().swap_remove(0)
    }

    /// The identity for it, which is also its own: certificate, key, and the certificate of its CA.
    #[must_use]
    pub fn identity(&self) -> PathBuf {
        self.directory.path().join(IDENTITY)
    }

    /// The certificate of its CA.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.directory.path().join(CA)
    }

    /// A command `etcdctl` with its identity, for servers at these URLs, separated by commas. The words are to be added.
    #[must_use]
    pub fn etcdctl(&self, urls: &str) -> Command {
        let mut command = Command::new("etcdctl");
        command.arg(format!("--endpoints={urls}"));
        for (flag, file) in [
            ("--cert", self.identity()),
            ("--key", self.identity()),
            ("--cacert", self.ca()),
        ] {
            command.arg(flag).arg(file);
        }
        command.env("ETCDCTL_API", "3");
        command
    }

    /// The directory of its data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.directory.path().join(DATA)
    }

    /// The processes of its servers.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.servers.iter().map(|it| it.child.id()).collect()
    }
}

impl Server {
    fn end(&mut self) {
        // SIGKILL ends a stopped process too. It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

const DATA: &str = "data";

fn log(directory: &Path, at: usize) -> PathBuf {
    directory.join(format!("etcd-{at}.log"))
}

fn run_all(directory: &Path, all: &[Addresses], flags: &[String]) -> anyhow::Result<Vec<Server>> {
    let mut servers = Vec::new();
    for (at, addresses) in all.iter().enumerate() {
        let (addresses, child) = (*addresses, spawn(directory, all, at, flags)?);
        servers.push(Server { addresses, child });
    }
    // A server may wait for the others before it listens.
    for (at, server) in servers.iter_mut().enumerate() {
        await_listening(directory, all, at, &mut server.child)?;
    }
    Ok(servers)
}

fn spawn(
    directory: &Path,
    all: &[Addresses],
    at: usize,
    flags: &[String],
) -> anyhow::Result<Child> {
    let output = File::create(log(directory, at)).context("make its log")?;
    command(directory, all, at)
        .args(flags)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("start etcd by setpriv, of util-linux")
}

fn await_listening(
    directory: &Path,
    all: &[Addresses],
    at: usize,
    child: &mut Child,
) -> anyhow::Result<()> {
    let begin = Instant::now();
    let why = loop {
        if let Some(ended) = child.try_wait()? {
            break format!("it has ended with {ended}");
        }
        if TcpStream::connect(all[at].clients).is_ok() {
            return Ok(());
        }
        if begin.elapsed() > START_TIMEOUT {
            break format!("it does not listen within {START_TIMEOUT:?}");
        }
        thread::sleep(LOOK);
    };
    child.kill().ok();
    child.wait()?;
    let told = fs::read(log(directory, at)).unwrap_or_default();
    let told = String::from_utf8_lossy(&told);
    let mut last: Vec<&str> = told.lines().rev().take(TAIL_LINES).collect();
    last.reverse();
    bail!("{why}; its last lines:\n{}", last.join("\n"))
}

/// etcd ends with this process, even if that is killed: setpriv(1) says so to the kernel and becomes etcd.
fn command(directory: &Path, all: &[Addresses], at: usize) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "etcd"]);
    command.arg(format!("--name=dev{at}"));
    command
        .arg("--data-dir")
        .arg(directory.join(DATA).join(at.to_string()));
    let Addresses { clients, peers } = all[at];
    for (of, address) in [("client", clients), ("peer", peers)] {
        command.arg(format!("--listen-{of}-urls=https://{address}"));
    }
    command.arg(format!("--advertise-client-urls=https://{clients}"));
    command.arg(format!("--initial-advertise-peer-urls=https://{peers}"));
    let members = all.iter().enumerate();
    let members = members.map(|(at, it)| format!("dev{at}=https://{}", it.peers));
    let members: Vec<String> = members.collect();
    command.arg(format!("--initial-cluster={}", members.join(",")));
    for of in ["", "peer-"] {
        for (file, name) in [
            ("cert-file", IDENTITY),
            ("key-file", IDENTITY),
            ("trusted-ca-file", CA),
        ] {
            command
                .arg(format!("--{of}{file}"))
                .arg(directory.join(name));
        }
        command.arg(format!("--{of}client-cert-auth"));
    }
    // etcd refuses flags that a variable ETCD_… contradicts.
    command.env_clear();
    if let Some(path) = env::var_os("PATH") {
        command.env("PATH", path);
    }
    if cfg!(target_arch = "aarch64") {
        // etcd 3.4 starts there only so.
        command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
    }
    command
}

/// Ports below those that the kernel gives to who asks for none, so that no other program has one while a server is dead.
fn free_addresses(servers: usize) -> anyhow::Result<Vec<Addresses>> {
    const TRIES: usize = 1_000;
    let mut listeners = Vec::new();
    for _ in 0..TRIES {
        if listeners.len() == 2 * servers {
            break;
        }
        let mut random = [0; 2];
        getrandom::fill(&mut random)
            .map_err(|error| anyhow::anyhow!("the kernel gives no randomness: {error}"))?;
        let port = 20_000 + u16::from_ne_bytes(random) % 12_000;
        listeners.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    }
    let addresses = { listeners.iter() }.map(TcpListener::local_addr);
    let addresses: Vec<SocketAddr> = addresses.collect::<Result<_, _>>()?;
    anyhow::ensure!(
        addresses.len() == 2 * servers,
        "no free TCP port of 127.0.0.1 between 20000 and 32000"
    );
    let pairs = addresses.chunks_exact(2).map(|pair| Addresses {
        clients: pair[0],
        peers: pair[1],
    });
    Ok(pairs.collect())
}

fn is_on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
