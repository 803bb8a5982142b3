//! What the port is started with: an address, an identity, a directory for the address to log in at.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use fabricbios_scheduler::{Scheduler, Settings};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, Stream,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio::time::sleep;

use crate::world::{Fleet, get};

/// The program. It ends with the test.
struct Program(Child);

impl Program {
    /// With what its line READY says after `http=`.
    fn start(fleet: &Fleet, flags: &[&str]) -> (Self, Option<SocketAddr>) {
        let mut child = command(fleet, flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert!(line.starts_with("READY scheduler="), "{line}");
        let http = line.trim().split_once(" http=");
        (Self(child), http.map(|(_, at)| at.parse().unwrap()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().ok();
        self.0.wait().expect("gone");
    }
}

fn command(fleet: &Fleet, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricbios-scheduler"));
    command
        .arg("--identity")
        .arg(fleet.directory.scheduler_identity());
    command.arg("--listen=127.0.0.1:0").args(flags);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_where_it_serves_http_and_does_so_only_if_told() {
    let fleet = Fleet::new();
    let (_program, at) = Program::start(&fleet, &["--http-listen=127.0.0.1:0"]);
    assert_eq!(get(at.unwrap(), "/healthz").await.0, 200);
    let (_program, at) = Program::start(&fleet, &[]);
    assert_eq!(at, None);
}

/// A CA of monitors. Certificates of it are for ports and clients.
struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// The file of a port whose clients are of this CA.
    fn port_identity(&self) -> String {
        let (certificate, key) = self.issue();
        [certificate.pem(), key.serialize_pem(), self.0.pem()].concat()
    }

    /// A client of this CA's ports, with this chain and key if any.
    fn client(&self, own: Option<(rcgen::Certificate, KeyPair)>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match own {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
                config.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

fn write(path: &Path, mode: u32, text: &str) {
    let mut open = File::options();
    let file = open.write(true).create_new(true).mode(mode).open(path);
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

/// What the port answers, in small letters; nothing if it does not take the client.
fn over_tls(at: SocketAddr, client: Arc<ClientConfig>, path: &str, header: &str) -> String {
    let mut tls = ClientConnection::new(client, "127.0.0.1".try_into().unwrap()).unwrap();
    let mut tcp = TcpStream::connect(at).unwrap();
    let mut stream = Stream::new(&mut tls, &mut tcp);
    let request = format!("GET {path} HTTP/1.1\r\nHost: scheduler.example\r\n{header}\r\n");
    let mut told = Vec::new();
    // A client that is not taken gets an alert, or a reset.
    let answered = stream.write_all(request.as_bytes());
    answered.and_then(|()| stream.read_to_end(&mut told)).ok();
    String::from_utf8(told).unwrap().to_lowercase()
}

#[test]
fn with_an_identity_the_port_speaks_https_with_clients_of_its_ca_only() {
    let fleet = Fleet::new();
    let (ca, other) = (Ca::new(), Ca::new());
    let file = fleet.place.path().join("port.identity");
    write(&file, 0o600, &ca.port_identity());
    let identity = format!("--http-identity={}", file.display());
    let run_dir = format!("--run-dir={}", fleet.place.path().display());
    let flags = ["--http-listen=127.0.0.1:0", &identity, &run_dir];
    let (_program, at) = Program::start(&fleet, &flags);
    let at = at.unwrap();

    let client = ca.client(Some(ca.issue()));
    let ask = |path: &str, header: &str| over_tls(at, Arc::clone(&client), path, header);
    assert!(ask("/healthz", "").starts_with("http/1.1 200"));
    assert_eq!(over_tls(at, ca.client(None), "/healthz", ""), "");
    let of_other = ca.client(Some(other.issue()));
    assert_eq!(over_tls(at, of_other, "/healthz", ""), "");
    let mut plain = TcpStream::connect(at).unwrap();
    let mut told = Vec::new();
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    plain.read_to_end(&mut told).ok();
    assert!(!told.starts_with(b"HTTP"), "{told:?}");

    // Under any name that the certificate has, the page logs in over HTTPS only.
    let url = fs::read_to_string(fleet.place.path().join("page.url")).unwrap();
    let path = url.trim().strip_prefix(&format!("https://{at}")).unwrap();
    let head = ask(path, "");
    let cookie = head.split_once("set-cookie: ").expect("logged in").1;
    let (cookie, _) = cookie.split_once("\r\n").unwrap();
    assert!(cookie.ends_with("; secure"), "{cookie}");
    let (cookie, _) = cookie.split_once(';').unwrap();
    let page = ask("/", &format!("Cookie: {cookie}\r\n"));
    assert!(page.contains("the fullest"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_cannot_write_the_address_of_its_page_answers_all_the_same() {
    let fleet = Fleet::new();
    // Nothing can be made under the name that the file has before it is complete, as on a full disk.
    fs::create_dir(fleet.place.path().join("page.url.new")).unwrap();
    let settings = Settings {
        run_dir: Some(fleet.place.path().to_owned()),
        ..fleet.settings(Some(SocketAddr::from(([127, 0, 0, 1], 0))))
    };
    let scheduler = Scheduler::start(&settings).unwrap();
    let at = scheduler.http_addr().unwrap();
    assert_eq!(get(at, "/healthz").await.0, 200);
    assert!(!fleet.place.path().join("page.url").exists());
    scheduler.stop().await;
}

/// Nodes and clients wait for no page.
#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_whose_port_is_taken_starts_and_opens_it_once_it_is_free() {
    let fleet = Fleet::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    let scheduler = Scheduler::start(&fleet.settings(Some(taken))).unwrap();
    assert_eq!(scheduler.http_addr(), None);
    drop(other);
    while scheduler.http_addr().is_none() {
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(get(taken, "/healthz").await.0, 200);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_refused_at_the_start_and_named() {
    let fleet = Fleet::new();
    let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let none = fleet.place.path().join("none");
    let (exposed, broken) = (
        fleet.place.path().join("exposed"),
        fleet.place.path().join("broken"),
    );
    let identity = Ca::new().port_identity();
    write(&exposed, 0o644, &identity);
    let of_ca = identity.rfind("-----BEGIN").unwrap();
    write(&broken, 0o600, &identity[..of_ca]);
    let with_identity = |path: &Path| Settings {
        http_identity: Some(path.to_owned()),
        ..fleet.settings(any)
    };
    let no_directory = Settings {
        run_dir: Some(none.clone()),
        ..fleet.settings(any)
    };
    for (settings, parts) in [
        (
            no_directory,
            ["page.url".into(), none.display().to_string()],
        ),
        (
            with_identity(&none),
            ["--http-identity: ".into(), "No such file".into()],
        ),
        (
            with_identity(&exposed),
            [exposed.display().to_string(), "others can read it".into()],
        ),
        (
            with_identity(&broken),
            [
                broken.display().to_string(),
                "last the certificate of the CA of its clients".into(),
            ],
        ),
    ] {
        let refused = Scheduler::start(&settings).unwrap_err();
        let told = format!("{refused:#}");
        for part in parts {
            assert!(told.contains(&part), "{part}: {told}");
        }
    }

    let output = command(&fleet, &["--http-identity=none"]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && told.contains("--http-listen"),
        "{told}"
    );
}
