//! An etcd of the scheduler's own, to try a fleet on one machine: on loopback, with a CA of its own, in a directory that
//! ends with it.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;
use zeroize::Zeroizing;

/// The longest time until it listens.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
/// Another program may take a port that was free a moment ago.
const TRIES: usize = 3;
/// Lines of its log that an error shows.
const TAIL_LINES: usize = 5;

/// A running etcd. Dropping it ends it, by SIGKILL, and removes its data.
#[derive(Debug)]
pub struct EmbeddedEtcd {
    child: Child,
    clients: SocketAddr,
    peers: SocketAddr,
    flags: Vec<String>,
    /// Removed last.
    directory: TempDir,
}

impl EmbeddedEtcd {
    /// Starts it with these flags of etcd besides its own, and waits until it listens.
    ///
    /// # Errors
    /// There is no program `etcd`, or it does not start.
    pub fn start(flags: &[&str]) -> anyhow::Result<Self> {
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
            let [clients, peers] = free_addresses()?;
            match run(directory.path(), clients, peers, &flags) {
                Ok(child) => {
                    tracing::info!(%clients, directory = %directory.path().display(), "etcd runs; its data ends with it");
                    return Ok(Self {
                        child,
                        clients,
                        peers,
                        flags,
                        directory,
                    });
                }
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| anyhow::anyhow!("it was not tried")))
    }

    /// Ends it, and starts it anew on the data that it has.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.end();
        self.child = run(self.directory.path(), self.clients, self.peers, &self.flags)?;
        Ok(())
    }

    /// Where it answers.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.clients)
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

    /// The directory of its data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        data(self.directory.path())
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn end(&mut self) {
        // SIGKILL ends a stopped process too. It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for EmbeddedEtcd {
    fn drop(&mut self) {
        self.end();
    }
}

const IDENTITY: &str = "etcd.identity";
const CA: &str = "ca.pem";

fn data(directory: &Path) -> PathBuf {
    directory.join("data")
}

fn run(
    directory: &Path,
    clients: SocketAddr,
    peers: SocketAddr,
    flags: &[String],
) -> anyhow::Result<Child> {
    let log = directory.join("etcd.log");
    let output = File::create(&log).context("make its log")?;
    let mut child = command(directory, clients, peers)
        .args(flags)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("start etcd by setpriv, of util-linux")?;
    let begin = Instant::now();
    let why = loop {
        if let Some(ended) = child.try_wait()? {
            break format!("it has ended with {ended}");
        }
        if TcpStream::connect(clients).is_ok() {
            return Ok(child);
        }
        if begin.elapsed() > START_TIMEOUT {
            break format!("it does not listen within {START_TIMEOUT:?}");
        }
        thread::sleep(LOOK);
    };
    child.kill().ok();
    child.wait()?;
    let told = fs::read(&log).unwrap_or_default();
    let told = String::from_utf8_lossy(&told);
    let mut last: Vec<&str> = told.lines().rev().take(TAIL_LINES).collect();
    last.reverse();
    bail!("{why}; its last lines:\n{}", last.join("\n"))
}

/// etcd ends with this process, even if that is killed: setpriv(1) says so to the kernel and becomes etcd.
fn command(directory: &Path, clients: SocketAddr, peers: SocketAddr) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "etcd", "--name=dev"]);
    command.arg("--data-dir").arg(data(directory));
    for (of, address) in [("client", clients), ("peer", peers)] {
        command.arg(format!("--listen-{of}-urls=https://{address}"));
    }
    command.arg(format!("--advertise-client-urls=https://{clients}"));
    command.arg(format!("--initial-advertise-peer-urls=https://{peers}"));
    command.arg(format!("--initial-cluster=dev=https://{peers}"));
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

/// Makes a CA, and one certificate for etcd and its client. The key of the CA is forgotten.
fn make_identity(directory: &Path) -> anyhow::Result<()> {
    let mut of_ca = CertificateParams::default();
    of_ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    of_ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    of_ca
        .distinguished_name
        .push(DnType::CommonName, "fabricBIOS embedded etcd CA");
    let ca = CertifiedIssuer::self_signed(of_ca, KeyPair::generate()?)?;
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    params
        .distinguished_name
        .push(DnType::CommonName, "fabricBIOS embedded etcd");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &ca)?;
    let key = Zeroizing::new(key.serialize_pem());
    let ca = ca.pem();
    write_private(&directory.join(CA), &[&ca])?;
    write_private(&directory.join(IDENTITY), &[&certificate.pem(), &key, &ca])?;
    Ok(())
}

fn write_private(path: &Path, parts: &[&str]) -> io::Result<()> {
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    parts
        .iter()
        .try_for_each(|part| file.write_all(part.as_bytes()))
}

fn free_addresses() -> anyhow::Result<[SocketAddr; 2]> {
    let listen = || TcpListener::bind("127.0.0.1:0").context("find a free port");
    let [one, other] = [listen()?, listen()?];
    Ok([one.local_addr()?, other.local_addr()?])
}

fn is_on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
