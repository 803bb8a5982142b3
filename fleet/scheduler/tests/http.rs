//! The HTTP port of a scheduler, without etcd: real requests over TCP.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up should fail loudly"
)]

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use fabricbios_control::Caller;
use fabricbios_discovery::{Found, Looking};
use fabricbios_fabric::{Fabric, FabricDirectory, Member, Verifier};
use fabricbios_scheduler::{Policy, Scheduler, Settings};
use fabricbios_wire::{
    Epoch, InventoryExtension, LeaseId, LeaseReport, NodeReport, Reply, ReportPart, Request,
    ResourceInventory, ResourceType, Role, health,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// How long something may take that takes a moment.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn the_program_names_its_commit_as_the_others_do() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_fabricbios-scheduler"));
    let output = program.arg("--version").output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let begin = format!("fabricbios-scheduler {version} (commit ");
    assert!(told.starts_with(&begin), "{told}");
}

struct Fleet {
    directory: FabricDirectory,
    place: tempfile::TempDir,
}

impl Fleet {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("fabric");
        let directory = FabricDirectory::init(&at, SystemTime::now()).unwrap();
        Self { directory, place }
    }

    fn settings(&self, http_listen: Option<SocketAddr>) -> Settings {
        Settings {
            identity: self.directory.scheduler_identity(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            http_listen,
            run_dir: None,
            policy: Policy::Binpack,
            announce: Vec::new(),
        }
    }

    fn scheduler(&self) -> (Scheduler, SocketAddr) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let scheduler = Scheduler::start(&self.settings(Some(any))).unwrap();
        let http = scheduler.http_addr().unwrap();
        (scheduler, http)
    }

    fn node(&self) -> Fabric {
        let state_dir = self.place.path().join("node");
        let now = SystemTime::now();
        Fabric::open_or_create(&state_dir, now).unwrap();
        let request = Fabric::request(&state_dir).unwrap();
        let member = Member::Node(Vec::new());
        let signed = self.directory.sign(&request, &member, None, now).unwrap();
        Fabric::accept(&state_dir, &signed.pem, now).unwrap().fabric
    }
}

/// Reports of a node without resources: first its inventory, then all that decides about a lease.
fn reports(node: &Fabric) -> [Request; 2] {
    let inventory = NodeReport {
        sequence: 1,
        endpoint: SocketAddr::from(([192, 0, 2, 1], 5701)).into(),
        inventory: ResourceInventory {
            node_id: node.node_id(),
            epoch: Epoch(1),
            health: health::OK,
            mem_arenas: Vec::new(),
            block_devs: Vec::new(),
            cpu_caps: Vec::new(),
            nics: Vec::new(),
            gpus: Vec::new(),
            extensions: vec![InventoryExtension::Limits {
                lease_secs_max: 3600,
                grace_secs_max: 3600,
                bare_metal: false,
            }],
        },
    };
    let leases = LeaseReport {
        sequence: 2,
        part: ReportPart::Whole,
        leases: Vec::new(),
        gone: Vec::new(),
    };
    [Request::NodeReport(inventory), Request::NodeLeases(leases)]
}

/// Sends this text and reads until the connection ends: status, header in small letters, body.
async fn send(at: SocketAddr, text: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).await.unwrap();
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

async fn ask(at: SocketAddr, method: &str, path: &str) -> (u16, String, String) {
    send(at, &format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
}

async fn get(at: SocketAddr, path: &str) -> (u16, Value) {
    let (status, head, body) = ask(at, "GET", path).await;
    assert!(head.contains("content-type: application/json"), "{head}");
    (status, serde_json::from_str(&body).unwrap())
}

/// Waits until the page of /healthz has this at this name, and returns it with the status of /readyz.
async fn until(at: SocketAddr, name: &str, expected: Value) -> (Value, u16) {
    let begin = Instant::now();
    loop {
        // On a busy machine the scheduler may be late: 503.
        let (_, page) = get(at, "/healthz").await;
        if page[name] == expected {
            return (page, get(at, "/readyz").await.0);
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{name} is not {expected}: {page}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the server has ended the connection.
async fn ended(mut stream: TcpStream) {
    let mut told = Vec::new();
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut told)).await;
    // Also by a reset.
    end.expect("the connection goes on").ok();
}

/// The connections that this server has open, of proc_net_tcp(5).
fn connections(at: SocketAddr) -> usize {
    const ESTABLISHED: &str = "01";
    let local = format!(":{:04X}", at.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let lines = table
        .lines()
        .map(|it| it.split_whitespace().collect::<Vec<_>>());
    let is_open = |it: &Vec<&str>| it[1].ends_with(&local) && it[3] == ESTABLISHED;
    lines.filter(is_open).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_is_ready_while_a_node_reports_and_says_what_it_lacks() {
    let fleet = Fleet::new();
    let (scheduler, at) = fleet.scheduler();
    let (status, page) = get(at, "/readyz").await;
    assert_eq!(status, 503);
    let (status, alive) = get(at, "/healthz").await;
    assert_eq!((status, &alive), (200, &page));
    let why = page["why_not"].as_array().unwrap();
    assert!(
        why[0].as_str().unwrap().contains("no node reports"),
        "{page}"
    );
    assert!(why[1].as_str().unwrap().contains("without etcd"), "{page}");
    for (name, expected) in [
        ("scheduler_id", json!(scheduler.id().to_string())),
        ("fabric", json!(fleet.directory.id().to_string())),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("ready", json!(false)),
        ("view_complete", json!(false)),
        ("nodes_reporting", json!(0)),
        ("members_away", json!(0)),
        ("members_known", json!(false)),
        ("etcd", json!("none")),
        ("policy", json!("binpack")),
        ("policy_from", json!("flag")),
    ] {
        assert_eq!(page[name], expected, "{name}");
    }

    let node = fleet.node();
    let listen = scheduler.local_addr().to_string();
    let caller = Caller::connect(&listen, &node, Role::Scheduler).await;
    let caller = caller.unwrap();
    let [inventory, leases] = reports(&node);
    assert_eq!(caller.call(&inventory).await.unwrap(), Ok(Reply::Reported));
    let (page, ready) = until(at, "nodes_reporting", json!(1)).await;
    assert_eq!((ready, &page["nodes_whole"]), (200, &json!(0)));
    let untold = "1 have not told their leases";
    assert!(page["why_not"].to_string().contains(untold), "{page}");
    assert_eq!(caller.call(&leases).await.unwrap(), Ok(Reply::Reported));
    let (page, _) = until(at, "nodes_whole", json!(1)).await;
    assert!(!page["why_not"].to_string().contains(untold), "{page}");

    drop(caller);
    let (_, ready) = until(at, "nodes_reporting", json!(0)).await;
    assert_eq!(ready, 503);
    scheduler.stop().await;
    assert!(TcpStream::connect(at).await.is_err(), "the port is open");
}

/// Waits until this page, asked with these lines of a header, has this text, and returns it.
async fn until_it_has(at: SocketAddr, path: &str, header: &str, text: &str) -> String {
    let begin = Instant::now();
    loop {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n");
        let (_, head, body) = send(at, &request).await;
        if body.contains(text) {
            return format!("{head}\r\n\r\n{body}");
        }
        assert!(begin.elapsed() < PATIENCE, "no {text} in {head}: {body}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_follow_nodes_requests_and_refusals() {
    let fleet = Fleet::new();
    let (scheduler, at) = fleet.scheduler();
    let page = until_it_has(at, "/metrics", "", "fabricbios_scheduler_ready 0\n").await;
    assert!(page.contains("version=0.0.4"), "{page}");
    for line in [
        "fabricbios_fleet_nodes{state=\"whole\"} 0\n",
        "fabricbios_scheduler_policy{policy=\"binpack\",from=\"flag\"} 1\n",
        "fabricbios_scheduler_decision_seconds_count 0\n",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    // There is no etcd, and no node that is late.
    for absent in [
        "\nfabricbios_scheduler_etcd_up ",
        "\nfabricbios_fleet_oldest_report_age_seconds ",
    ] {
        assert!(!page.contains(absent), "{absent}: {page}");
    }

    let node = fleet.node();
    let listen = scheduler.local_addr().to_string();
    let caller = Caller::connect(&listen, &node, Role::Scheduler).await;
    let caller = caller.unwrap();
    for report in reports(&node) {
        assert_eq!(caller.call(&report).await.unwrap(), Ok(Reply::Reported));
    }
    let [again, _] = reports(&node);
    caller.call(&again).await.unwrap().unwrap_err();
    let identity = fabricbios_client::Identity::load(fleet.directory.admin_identity()).unwrap();
    let client = fabricbios_client::Node::connect_async(&listen, &identity).await;
    let client = client.unwrap();
    let lease = client.call_async(Request::LeaseQuery(LeaseId(7))).await;
    lease.expect_err("no node has it");
    let not_taken = "fabricbios_scheduler_reports_not_taken_total{why=\"sequence\"} 1\n";
    let refused = "fabricbios_scheduler_refusals_total{class=\"transient\",code=\"NotFound\"} 1\n";
    until_it_has(at, "/metrics", "", refused).await;
    let page = until_it_has(at, "/metrics", "", not_taken).await;
    for line in [
        "fabricbios_fleet_nodes{state=\"whole\"} 1\n",
        "fabricbios_fleet_nodes_by_health{health=\"ok\"} 1\n",
        "fabricbios_scheduler_ready 1\n",
        "fabricbios_scheduler_view_complete 0\n",
        "fabricbios_scheduler_reports_total{of=\"inventory\"} 1\n",
        "fabricbios_scheduler_reports_total{of=\"leases\"} 1\n",
        "fabricbios_scheduler_connections 2\n",
        "\nfabricbios_fleet_oldest_report_age_seconds ",
        "\nfabricbios_scheduler_certificate_expiry_timestamp_seconds ",
        "\nprocess_resident_memory_bytes ",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert!(!page.contains(&node.node_id().to_string()), "{page}");
    let accept = "Accept: application/openmetrics-text\r\n";
    let page = until_it_has(at, "/metrics", accept, "# EOF\n").await;
    assert!(page.contains("application/openmetrics-text"), "{page}");
    drop(caller);
    let none = "fabricbios_fleet_nodes{state=\"whole\"} 0\n";
    until_it_has(at, "/metrics", "", none).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_totals_to_all_and_nodes_to_who_has_the_token() {
    let fleet = Fleet::new();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings = Settings {
        run_dir: Some(fleet.place.path().to_owned()),
        ..fleet.settings(Some(any))
    };
    let scheduler = Scheduler::start(&settings).unwrap();
    let at = scheduler.http_addr().unwrap();
    let node = fleet.node();
    let listen = scheduler.local_addr().to_string();
    let caller = Caller::connect(&listen, &node, Role::Scheduler).await;
    let caller = caller.unwrap();
    for report in reports(&node) {
        assert_eq!(caller.call(&report).await.unwrap(), Ok(Reply::Reported));
    }
    let id = node.node_id().to_string();
    let page = until_it_has(at, "/", "", "<b>1</b> report").await;
    assert!(
        page.contains("content-security-policy: default-src 'none'"),
        "{page}"
    );
    assert!(page.contains("fabricctl page --state-dir DIR"), "{page}");
    assert!(!page.contains(&id) && !page.contains("192.0.2.1"), "{page}");

    let file = fleet.place.path().join("page.url");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let url = std::fs::read_to_string(file).unwrap();
    let path = url.trim().strip_prefix(&format!("http://{at}")).unwrap();
    let asked = |path: &str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        async move { send(at, &request).await }
    };
    let (status, head, _) = asked(path, "127.0.0.1").await;
    assert_eq!(status, 303);
    let cookie = head.split_once("set-cookie: ").unwrap().1;
    let cookie = format!("Cookie: {}\r\n", cookie.split_once(';').unwrap().0);
    let page = until_it_has(at, "/", &cookie, &id).await;
    assert!(page.contains("192.0.2.1:5701"), "{page}");
    let wrong = cookie.replace('=', "=0");
    let page = until_it_has(at, "/", &wrong, "<b>1</b> report").await;
    assert!(!page.contains(&id), "{page}");
    assert_eq!(asked("/?token=0", "127.0.0.1").await.0, 403);
    assert_eq!(asked("/", "scheduler.example").await.0, 421);

    // Who watches is told when the node is gone.
    let mut watching = TcpStream::connect(at).await.unwrap();
    let request = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    watching.write_all(request.as_bytes()).await.unwrap();
    drop(caller);
    let mut told = String::new();
    let gone = async {
        let mut part = [0; 4096];
        while !told.contains("<b>0</b> report") {
            let read = watching.read(&mut part).await.unwrap();
            assert!(read > 0, "it has ended: {told}");
            told += &String::from_utf8_lossy(&part[..read]);
        }
    };
    tokio::time::timeout(PATIENCE, gone)
        .await
        .expect("it is not told");
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_not_there_is_named() {
    let fleet = Fleet::new();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let settings = Settings {
        run_dir: Some(fleet.place.path().join("none")),
        ..fleet.settings(Some(any))
    };
    let refused = Scheduler::start(&settings).unwrap_err();
    let text = format!("{refused:#}");
    assert!(
        text.contains("page.url") && text.contains("/none"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_wrongly_is_told_so() {
    let fleet = Fleet::new();
    let (scheduler, at) = fleet.scheduler();
    for path in ["/metrics/", "/leases", "/healthz/", "/../healthz", "*"] {
        assert_eq!(ask(at, "GET", path).await.0, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let (status, head, _) = ask(at, method, "/healthz").await;
        assert_eq!(status, 405, "{method}");
        assert!(head.contains("allow: get, head"), "{head}");
    }
    let (status, head, body) = ask(at, "HEAD", "/healthz?verbose").await;
    assert_eq!((status, &body[..]), (200, ""));
    assert!(head.contains("content-length: "), "{head}");
    for garbage in [
        "\r\n\u{7}\u{7}\r\n\r\n",
        "GET /healthz\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
    ] {
        assert_eq!(send(at, garbage).await.0, 400, "{garbage:?}");
    }
    let long = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(1 << 20));
    let mut stream = TcpStream::connect(at).await.unwrap();
    // It may be refused before all of it is sent.
    stream.write_all(long.as_bytes()).await.ok();
    ended(stream).await;
    assert_eq!(get(at, "/healthz").await.0, 200);
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_say_nothing_hold_up_nobody_and_are_ended() {
    let fleet = Fleet::new();
    let (scheduler, at) = fleet.scheduler();
    let mut idle = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        // Some have begun to ask.
        if number % 2 == 0 {
            // It may have been ended for a later one.
            stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.ok();
        }
        idle.push(stream);
    }
    for _ in 0..100 {
        assert_eq!(get(at, "/healthz").await.0, 200);
    }
    // Some that have been ended may still be counted.
    let open = connections(at);
    assert!(open < 60, "{open} connections are open");
    // One that asks for ever and reads nothing is answered once.
    let mut greedy = TcpStream::connect(at).await.unwrap();
    let request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
    greedy.write_all(request.as_bytes()).await.unwrap();
    idle.push(greedy);
    for stream in idle {
        ended(stream).await;
    }
    // Of those that are alone none goes on either.
    let silent = TcpStream::connect(at).await.unwrap();
    ended(silent).await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_option_there_is_no_port_and_an_address_in_use_is_named() {
    let fleet = Fleet::new();
    let (scheduler, at) = fleet.scheduler();
    let refused = Scheduler::start(&fleet.settings(Some(at))).unwrap_err();
    let text = format!("{refused:#}");
    assert!(text.contains(&format!("--http-listen {at}")), "{text}");
    let other = Scheduler::start(&fleet.settings(None)).unwrap();
    assert_eq!(other.http_addr(), None);
    for scheduler in [scheduler, other] {
        scheduler.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_is_announced() {
    let fleet = Fleet::new();
    let lo = vec!["lo".to_owned()];
    // At another address than those that are announced, another program may have the port.
    for (http, is_announced) in [("127.0.0.1:0", true), ("127.0.0.2:0", false)] {
        let any = Some(http.parse().unwrap());
        let settings = Settings {
            announce: lo.clone(),
            ..fleet.settings(any)
        };
        let scheduler = Scheduler::start(&settings).unwrap();
        let verifier = Verifier::new(fleet.directory.ca().certificate()).unwrap();
        let looking = Looking::ask(&lo, verifier, ResourceType::Scheduler).unwrap();
        let mut changes = looking.changes();
        let is_it = |it: &&Found| it.id == scheduler.id();
        let port = {
            let found = changes.wait_for(|all| all.iter().any(|it| is_it(&it)));
            let found = tokio::time::timeout(PATIENCE, found).await.unwrap();
            found.unwrap().iter().find(is_it).unwrap().http_port()
        };
        let listened = scheduler.http_addr().map(|it| it.port());
        assert_eq!(port, listened.filter(|_| is_announced));
        scheduler.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_where_it_serves_http() {
    let fleet = Fleet::new();
    let start = |flags: &[&str]| program(&fleet.directory.scheduler_identity(), flags);
    let (mut program, line) = start(&["--http-listen=127.0.0.1:0"]);
    let (_, at) = line.trim().split_once(" http=").unwrap();
    assert_eq!(get(at.parse().unwrap(), "/healthz").await.0, 200);
    program.kill().unwrap();
    program.wait().unwrap();
    let (mut program, line) = start(&[]);
    assert!(!line.contains("http"), "{line}");
    program.kill().unwrap();
    program.wait().unwrap();
}

fn program(identity: &Path, flags: &[&str]) -> (std::process::Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricbios-scheduler"));
    command.arg("--identity").arg(identity);
    command.arg("--listen=127.0.0.1:0").args(flags);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert!(line.starts_with("READY scheduler="), "{line}");
    (child, line)
}
