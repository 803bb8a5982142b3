//! A fabric with a scheduler and nodes that only report, and requests to the scheduler's port.

use std::{
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use fabricbios_fabric::{Fabric, FabricDirectory, Member};
use fabricbios_scheduler::{Policy, Scheduler, Settings};
use fabricbios_wire::{
    Epoch, InventoryExtension, LeaseReport, NodeReport, ReportPart, Request, ResourceInventory,
    health,
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// How long something may take that takes a moment.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Fleet {
    pub(crate) directory: FabricDirectory,
    pub(crate) place: tempfile::TempDir,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("fabric");
        let directory = FabricDirectory::init(&at, SystemTime::now()).unwrap();
        Self { directory, place }
    }

    pub(crate) fn settings(&self, http_listen: Option<SocketAddr>) -> Settings {
        Settings {
            identity: self.directory.scheduler_identity(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            http_listen,
            http_identity: None,
            run_dir: None,
            policy: Policy::Binpack,
            announce: Vec::new(),
        }
    }

    pub(crate) fn scheduler(&self) -> (Scheduler, SocketAddr) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let scheduler = Scheduler::start(&self.settings(Some(any))).unwrap();
        let http = scheduler.http_addr().unwrap();
        (scheduler, http)
    }

    pub(crate) fn node(&self) -> Fabric {
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
pub(crate) fn reports(node: &Fabric) -> [Request; 2] {
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
pub(crate) async fn send(at: SocketAddr, text: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).await.unwrap();
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

pub(crate) async fn ask(at: SocketAddr, method: &str, path: &str) -> (u16, String, String) {
    send(at, &format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
}

pub(crate) async fn get(at: SocketAddr, path: &str) -> (u16, Value) {
    let (status, head, body) = ask(at, "GET", path).await;
    assert!(head.contains("content-type: application/json"), "{head}");
    (status, serde_json::from_str(&body).unwrap())
}

/// Waits until the page of /healthz has this at this name, and returns it with the status of /readyz.
pub(crate) async fn until(at: SocketAddr, name: &str, expected: Value) -> (Value, u16) {
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

/// Waits until this page, asked with these lines of a header, has this text, and returns it.
pub(crate) async fn until_it_has(at: SocketAddr, path: &str, header: &str, text: &str) -> String {
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
