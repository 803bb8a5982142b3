//! Conditions that raise alerts of docs/metrics/alerts.yaml, made on a running scheduler with an etcd. Each test scrapes the
//! scheduler before and after, and looks at what the rule asks for.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fabricbios_control::Caller;
use fabricbios_fabric::Member;
use fabricbios_testbed::scrapes::{Scene, samples, sum};
use fabricbios_wire::{Reply, Request, health};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use tokio::{net::TcpStream, time::sleep};

use crate::{
    intent::get,
    world::{Reporting, World, until_async},
};

mod slow;

/// The program. It is killed at the end of the test.
struct Program {
    child: Child,
    listen: String,
    http: SocketAddr,
}

impl Program {
    fn start(world: &World) -> Self {
        let mut command = world.program();
        command.arg("--http-listen=127.0.0.1:0");
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let ready = line.split_once(" listen=");
        let ready = ready.and_then(|(_, it)| it.trim().split_once(" http="));
        let (listen, http) = ready.unwrap_or_else(|| panic!("{line}"));
        Self {
            child,
            listen: listen.to_owned(),
            http: http.parse().unwrap(),
        }
    }

    /// A page of metrics, which is newer than all before.
    async fn page(&self) -> String {
        // An answer serves all who ask within half a second.
        sleep(Duration::from_millis(600)).await;
        get(self.http, "/metrics").await
    }

    /// A scheduler that is well: so many nodes have told it all, and etcd answers.
    async fn well(&self, nodes: f64) -> String {
        until_async("a scheduler that is well", async || {
            let page = self.page().await;
            let now = samples(&page);
            let whole = now["fabricbios_fleet_nodes{state=\"whole\"}"] == nodes;
            let is_well = whole && sum(&now, "fabricbios_fleet_nodes") == nodes;
            (is_well && now["fabricbios_scheduler_etcd_up"] == 1.0).then_some(page)
        })
        .await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().unwrap();
    }
}

/// A scheduler to which one node reports.
struct Watched {
    world: World,
    program: Program,
    node: Reporting,
    /// The node's connection.
    connection: Caller,
}

impl Watched {
    async fn start() -> Self {
        let world = World::new();
        let program = Program::start(&world);
        let node = world.node("rack=r7");
        let connection = node.connect_at(&program.listen).await;
        assert_eq!(node.begin(&connection).await, Ok(Reply::Reported));
        node.say_all(&connection).await;
        Self {
            world,
            program,
            node,
            connection,
        }
    }

    async fn scene(&self, alerts: &'static [&'static str]) -> Scene {
        Scene::of(&self.program.well(1.0).await, alerts)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_is_gone() {
    let watched = Watched::start().await;
    let scene = watched.scene(&["FabricbiosSchedulerSilent"]).await;
    let at = watched.program.http;
    drop(watched.program);
    TcpStream::connect(at).await.unwrap_err();
    scene.raised_by(&[""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_only_node_is_gone() {
    let watched = Watched::start().await;
    let alerts = &["FabricbiosSchedulerNotReady", "FabricbiosNodesAway"];
    let scene = watched.scene(alerts).await;
    drop(watched.connection);
    scene
        .raised(
            || watched.program.page(),
            |_, now| {
                let away = now["fabricbios_fleet_nodes{state=\"away\"}"];
                now["fabricbios_scheduler_ready"] == 0.0 && away > 0.0
            },
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_fenced_and_has_not_told_all() {
    let watched = Watched::start().await;
    let alerts = &["FabricbiosNodesFenced", "FabricbiosNodesUntold"];
    let scene = watched.scene(alerts).await;
    let other = watched.world.node("rack=r8");
    let connection = other.connect_at(&watched.program.listen).await;
    let mut report = other.report();
    report.inventory.health = health::FENCED;
    let taken = connection.call(&Request::NodeReport(report)).await;
    assert_eq!(taken.unwrap(), Ok(Reply::Reported));
    scene
        .raised(
            || watched.program.page(),
            |_, now| {
                let fenced = now["fabricbios_fleet_nodes_by_health{health=\"fenced\"}"];
                fenced > 0.0 && now["fabricbios_fleet_nodes{state=\"untold\"}"] > 0.0
            },
        )
        .await;
}

/// As after a state directory was copied to another machine.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_have_one_key() {
    let watched = Watched::start().await;
    let scene = watched.scene(&["FabricbiosReportsNotTaken"]).await;
    let later = watched.node.connect_at(&watched.program.listen).await;
    assert_eq!(watched.node.begin(&later).await, Ok(Reply::Reported));
    let first = watched.node.begin(&watched.connection).await;
    first.expect_err("a later connection reports");
    let why = "fabricbios_scheduler_reports_not_taken_total{why=\"later-connection\"}";
    scene
        .raised(|| watched.program.page(), |well, now| now[why] > well[why])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_is_gone() {
    let mut watched = Watched::start().await;
    let scene = watched.scene(&["FabricbiosEtcdDown"]).await;
    watched.world.etcd.kill();
    scene
        .raised(
            || watched.program.page(),
            |_, now| now["fabricbios_scheduler_etcd_up"] == 0.0,
        )
        .await;
}

/// Signs the scheduler's key anew, for so long.
fn sign_scheduler(world: &World, validity: Duration) {
    let file = world.directory.scheduler_identity();
    let key = PrivateKeyDer::from_pem_file(&file).unwrap();
    let key = rcgen::KeyPair::try_from(&key).unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key);
    let request = request.unwrap().pem().unwrap();
    let now = SystemTime::now();
    let signed = world
        .directory
        .sign(&request, &Member::Scheduler, Some(validity), now);
    // The certificate, and the authority's.
    let signed = signed.unwrap().pem;
    let (own, authority) = signed.split_at(signed.rfind("-----BEGIN").unwrap());
    fs::write(file, [own, &key.serialize_pem(), authority].concat()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_ends_soon() {
    let watched = Watched::start().await;
    let scene = watched.scene(&["FabricbiosSchedulerCertificateEnds"]).await;
    let days = |number: u64| Duration::from_secs(number * 24 * 3600);
    sign_scheduler(&watched.world, days(10));
    drop(watched.program);
    let program = Program::start(&watched.world);
    let soon = SystemTime::now() + days(30);
    let soon = soon.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    scene
        .raised(
            || program.page(),
            |_, now| now["fabricbios_scheduler_certificate_expiry_timestamp_seconds"] < soon,
        )
        .await;
}
