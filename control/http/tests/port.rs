//! A real port and real clients over TCP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use fabricbios_fabric::PortTls;
use fabricbios_http::{Answer, Content, Http, Incoming, Request, Site, StatusCode, answer, text};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::{ClientConfig, RootCertStore, pki_types::PrivateKeyDer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, Semaphore},
};
use tokio_rustls::TlsConnector;

/// A page, one that waits until it is let go, one that watches, and a large one.
#[derive(Debug)]
struct Pages {
    begun: Semaphore,
    go: Notify,
    ticks: Arc<Semaphore>,
}

impl Site for Pages {
    const PAGES: &'static str = "there is /";

    async fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Option<Answer> {
        match request.uri().path() {
            "/" => Some(text(StatusCode::OK, "text/plain", "here".into())),
            "/waits" => {
                self.begun.add_permits(1);
                self.go.notified().await;
                Some(text(StatusCode::OK, "text/plain", "at last".into()))
            }
            "/large" => Some(text(StatusCode::OK, "text/plain", "x".repeat(16 << 20))),
            "/watch" => {
                let ticks = Arc::clone(&self.ticks);
                let content = Content::stream(move || {
                    let ticks = Arc::clone(&ticks);
                    async move {
                        ticks.acquire_owned().await.ok()?.forget();
                        Some("tick".into())
                    }
                });
                Some(answer(StatusCode::OK, "text/event-stream", content))
            }
            _ => None,
        }
    }

    async fn run(&self) {}
}

fn pages() -> Arc<Pages> {
    Arc::new(Pages {
        begun: Semaphore::new(0),
        go: Notify::new(),
        ticks: Arc::new(Semaphore::new(1)),
    })
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

async fn send(at: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn rest(mut stream: impl AsyncRead + Unpin) -> String {
    let mut told = String::new();
    // A connection that was ended may be reset.
    stream.read_to_string(&mut told).await.ok();
    told
}

async fn reads(stream: &mut TcpStream, word: &str) {
    let mut told = String::new();
    while !told.contains(word) {
        let byte = stream.read_u8().await.expect("the connection stays");
        told.push(byte.into());
    }
}

#[tokio::test]
async fn who_watches_and_who_has_asked_stay_while_hundreds_connect_and_say_nothing() {
    let site = pages();
    let http = Http::serve(listener(), None, Arc::clone(&site)).unwrap();
    let at = http.local_addr();
    let mut watches = send(at, "/watch").await;
    reads(&mut watches, "tick").await;
    let waits = send(at, "/waits").await;
    site.begun.acquire().await.unwrap().forget();
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(TcpStream::connect(at).await.unwrap());
    }
    // Whoever asks now came after all of them.
    assert!(rest(send(at, "/").await).await.ends_with("here"));
    site.ticks.add_permits(1);
    reads(&mut watches, "tick").await;
    site.go.notify_one();
    assert!(rest(waits).await.ends_with("at last"));
    http.stop().await;
    TcpStream::connect(at)
        .await
        .expect_err("the port is closed");
}

#[tokio::test]
async fn who_watches_stays_while_hundreds_ask_and_never_read() {
    let site = pages();
    let http = Http::serve(listener(), None, Arc::clone(&site)).unwrap();
    let at = http.local_addr();
    let mut watches = send(at, "/watch").await;
    reads(&mut watches, "tick").await;
    let mut never_read = Vec::new();
    for _ in 0..300 {
        never_read.push(send(at, "/large").await);
    }
    assert!(rest(send(at, "/").await).await.ends_with("here"));
    site.ticks.add_permits(1);
    reads(&mut watches, "tick").await;
}

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key, PEM.
    fn issue(&self, expires: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.not_after = date_time_ymd(expires, 1, 1);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

fn read(path: &Path) -> Result<PortTls, String> {
    PortTls::read(path, SystemTime::now()).map_err(|error| error.to_string())
}

/// A client that trusts this CA and has a certificate of another one, if any.
fn client(trusts: &Ca, of: Option<&Ca>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(trusts.0.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let config = match of {
        None => config.with_no_client_auth(),
        Some(ca) => {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["monitor".into()]).unwrap();
            let certificate = params.signed_by(&key, &ca.0).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let chain = vec![certificate.der().clone()];
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

/// What the port answers; nothing if it does not take the client.
async fn over_tls(at: SocketAddr, client: &TlsConnector) -> String {
    let stream = TcpStream::connect(at).await.unwrap();
    let name = "localhost".try_into().unwrap();
    match client.connect(name, stream).await {
        Ok(stream) => get(stream).await,
        Err(_not_trusted) => String::new(),
    }
}

async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.ok();
    rest(stream).await
}

#[tokio::test]
async fn with_tls_only_clients_with_a_certificate_of_the_ca_get_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("identity");
    let (own, other) = (Ca::new(), Ca::new());
    let (certificate, key) = own.issue(2100);
    write(&file, &[certificate, key, own.pem()].concat());
    let tls = read(&file).unwrap();
    let http = Http::serve(listener(), Some(tls.config), pages()).unwrap();
    let at = http.local_addr();
    assert!(
        over_tls(at, &client(&own, Some(&own)))
            .await
            .ends_with("here")
    );
    assert_eq!(over_tls(at, &client(&own, None)).await, "");
    assert_eq!(over_tls(at, &client(&own, Some(&other))).await, "");
    let plain = get(TcpStream::connect(at).await.unwrap()).await;
    assert!(!plain.contains("HTTP/1.1"), "{plain}");

    let (certificate, key) = other.issue(2100);
    write(&file, &[certificate, key, other.pem()].concat());
    http.replace_tls(read(&file).unwrap().config);
    assert_eq!(over_tls(at, &client(&own, Some(&own))).await, "");
    assert!(
        over_tls(at, &client(&other, Some(&other)))
            .await
            .ends_with("here")
    );
}

#[test]
fn each_fault_of_the_file_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("identity");
    let ca = Ca::new();
    let ((certificate, key), (_, other_key)) = (ca.issue(2100), ca.issue(2100));
    let (expired, its_key) = ca.issue(2020);
    for (parts, why) in [
        ([&certificate, &key, ""], "1 certificates instead of 2"),
        (
            [&certificate, "", &ca.pem()],
            "the private key: the file has none",
        ),
        (
            [&certificate, &other_key, &ca.pem()],
            "do not belong together",
        ),
        (
            [&expired, &its_key, &ca.pem()],
            "the certificate has expired",
        ),
        (
            [&ca.pem(), &key, &certificate],
            "the last certificate is not of a CA",
        ),
    ] {
        write(&file, &parts.concat());
        let told = read(&file).unwrap_err();
        assert!(
            told.contains(why) && told.contains("identity"),
            "{why}: {told}"
        );
    }
    write(&file, &[&*certificate, &key, &ca.pem()].concat());
    read(&file).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let told = read(&file).unwrap_err();
    assert!(
        told.contains("others can read it") && told.contains("chmod"),
        "{told}"
    );
    fs::remove_file(&file).unwrap();
    assert!(read(&file).unwrap_err().contains("No such file"));
}
