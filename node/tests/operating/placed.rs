//! Two nodes and a scheduler: leases are placed, used, and go on without the scheduler.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant, SystemTime},
};

use fabricbios_client::{Error, FleetNode, Identity, MemBuilder, Node};
use fabricbios_fabric::FabricDirectory;
use fabricbios_scheduler::{Policy, Scheduler, Settings};
use fabricbios_wire::{
    Affinity, FleetLease, IssueRequest, LEASES_PER_REPORT_MAX, LeaseAllocRequest, LeaseError,
    LeaseId, LeaseIntent, LeasePhase, RefusalClass, Reply, Request, ResourceType, Role, Tried,
};

use crate::daemon::*;

/// The pause between two looks at what a scheduler knows.
const LOOK: Duration = Duration::from_millis(10);
/// Most of a node's MiB: a second lease of this size needs a second node.
const MOST: u64 = 768 << 10;

struct Fleet {
    directory: FabricDirectory,
    identity: std::path::PathBuf,
    scheduler: Option<Scheduler>,
    listen: SocketAddr,
    /// Interfaces on which the scheduler announces itself.
    announce: Vec<String>,
    _place: tempfile::TempDir,
}

impl Fleet {
    fn new() -> Self {
        Self::announcing(Vec::new())
    }

    fn announcing(announce: Vec<String>) -> Self {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().join("fabric");
        let directory = FabricDirectory::init(&at, SystemTime::now()).unwrap();
        let mut fleet = Self {
            directory,
            identity: at.join("scheduler.identity"),
            scheduler: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            announce,
            _place: place,
        };
        fleet.start().unwrap();
        fleet
    }

    /// Starts the scheduler where it was before.
    fn start(&mut self) -> anyhow::Result<()> {
        let settings = Settings {
            identity: self.identity.clone(),
            listen: self.listen,
            http_listen: None,
            http_identity: None,
            run_dir: None,
            policy: Policy::default(),
            announce: self.announce.clone(),
        };
        let scheduler = Scheduler::start(&settings)?;
        self.listen = scheduler.local_addr();
        self.scheduler = Some(scheduler);
        Ok(())
    }

    async fn stop(&mut self) {
        self.scheduler.take().unwrap().stop().await;
    }

    /// Starts it again, once its address is free: the last task of the one before has the socket a little longer.
    async fn start_again(&mut self) {
        let begin = Instant::now();
        while let Err(error) = self.start() {
            assert!(begin.elapsed() < PATIENCE, "{error:#}");
            tokio::time::sleep(LOOK).await;
        }
    }

    fn node(&self, place: &Place) -> Daemon {
        self.node_with(place, format!("--scheduler={}", self.listen))
    }

    fn node_with(&self, place: &Place, schedulers: String) -> Daemon {
        let fabric = self.identity.parent().unwrap().to_str().unwrap();
        let words = vec![format!("--fabric-dir={fabric}"), schedulers];
        place.start(&[place.memory(), words].concat())
    }

    async fn client(&self) -> Node {
        let identity = Identity::load(self.directory.admin_identity()).unwrap();
        self.client_of(&identity).await
    }

    async fn client_of(&self, identity: &Identity) -> Node {
        let client = Node::connect_async(&self.listen.to_string(), identity).await;
        client.unwrap()
    }

    /// A new identity of a tenant.
    fn tenant(&self, name: &str) -> Identity {
        let key = rcgen::KeyPair::generate().unwrap();
        let csr = rcgen::CertificateParams::default().serialize_request(&key);
        let request = IssueRequest {
            tenant: name.into(),
            role: Role::Tenant,
            valid_secs: 600,
            csr_der: csr.unwrap().der().to_vec(),
        };
        let issued = self.directory.ca().issue(&request, SystemTime::now());
        let Ok(Reply::Issued {
            certificate_pem,
            ca_pem,
        }) = issued
        else {
            panic!("{issued:?}")
        };
        let path = self.identity.with_file_name(format!("{name}.identity"));
        let pem = format!("{certificate_pem}{}{ca_pem}", key.serialize_pem());
        fs::write(&path, pem).unwrap();
        Identity::load(path).unwrap()
    }

    async fn until_reported(&self, client: &Node, nodes: usize) -> Vec<FleetNode> {
        loop {
            match client.nodes_async().await {
                Ok(told) if told.len() == nodes => return told,
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }
}

fn wanted() -> LeaseAllocRequest {
    LeaseAllocRequest {
        capacity: MOST,
        ..request(ResourceType::Mem)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_leases_go_to_two_nodes_and_go_on_without_the_scheduler() {
    let mut fleet = Fleet::new();
    let places = [Place::new(), Place::new()];
    let [one_node, other_node] = [fleet.node(&places[0]), fleet.node(&places[1])];
    let client = fleet.client().await;
    assert!(client.is_scheduler());
    let told = fleet.until_reported(&client, 2).await;
    let mut ids: Vec<String> = told.iter().map(|it| it.id.to_string()).collect();
    ids.sort_unstable();
    let mut nodes = [one_node.node.clone(), other_node.node.clone()];
    nodes.sort_unstable();
    assert_eq!(ids, nodes);

    let one = client.acquire_async(wanted()).await.unwrap();
    // The scheduler may not know of the first lease yet: then the first node refuses, and the client asks the second.
    let other = client.acquire_async(wanted()).await.unwrap();
    assert_ne!(one.node.id(), other.node.id());
    let full = client.acquire_async(wanted()).await.unwrap_err();
    let Error::Refused(refusal) = full else {
        panic!("{full}")
    };
    assert_eq!(
        (refusal.error, refusal.class),
        (LeaseError::CapacityExceeded, RefusalClass::Transient)
    );
    write(&one.info, b"first").await;
    write(&other.info, b"other").await;

    fleet.stop().await;
    for (granted, bytes) in [(&one, b"first"), (&other, b"other")] {
        assert_eq!(first(&granted.info).await, *bytes);
        let id = granted.info.lease_id;
        let now = granted.node.lease_async(Request::LeaseQuery(id)).await;
        assert_eq!(now.unwrap().phase, LeasePhase::Active);
    }
    let freed = Request::LeaseFree(one.info.lease_id);
    one.node.lease_async(freed).await.unwrap();

    // A scheduler that starts anew learns from the nodes what is free.
    fleet.start_again().await;
    let client = fleet.client().await;
    fleet.until_reported(&client, 2).await;
    let again = client
        .patient(PATIENCE)
        .acquire_async(wanted())
        .await
        .unwrap();
    assert_eq!(again.node.id(), one.node.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_killed_is_no_candidate_any_more() {
    let fleet = Fleet::new();
    let place = Place::new();
    let daemon = fleet.node(&place);
    let client = fleet.client().await;
    fleet.until_reported(&client, 1).await;
    daemon.end(nix::sys::signal::Signal::SIGKILL);
    fleet.until_reported(&client, 0).await;
    let none = client.acquire_async(wanted()).await.unwrap_err();
    assert!(none.to_string().contains("no node reports"), "{none}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_finds_a_scheduler_that_announces_itself_also_when_it_comes_back() {
    let mut fleet = Fleet::announcing(vec!["lo".into()]);
    let place = Place::new();
    let _daemon = fleet.node_with(&place, "--discover=lo".into());
    for _ in 0..2 {
        let client = fleet.client().await;
        fleet.until_reported(&client, 1).await;
        fleet.stop().await;
        fleet.start_again().await;
    }
}

/// A scheduler is found on its link by a builder too, and the lease comes from the node that it names.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_finds_a_scheduler_gets_a_lease_through_it() {
    let mut fleet = Fleet::announcing(vec!["lo".into()]);
    let place = Place::new();
    let daemon = fleet.node_with(&place, "--discover=lo".into());
    let client = fleet.client().await;
    fleet.until_reported(&client, 1).await;
    let identity = Identity::load(fleet.directory.admin_identity()).unwrap();
    let builder = MemBuilder::new().bytes(4096).auto_renew(false);
    let lease = builder.node("discover:lo").identity(&identity);
    let lease = lease.acquire_async().await.unwrap();
    assert_eq!(lease.node_id().unwrap().to_string(), daemon.node);
    lease.free_async().await.unwrap();

    // A handle looks anew when its scheduler has come back at another address.
    let found = Node::connect_async("discover:lo", &identity).await.unwrap();
    assert_eq!(found.id(), client.id());
    assert!(found.is_scheduler());
    fleet.stop().await;
    fleet.listen.set_port(0);
    fleet.start_again().await;
    let found = found.patient(PATIENCE);
    fleet.until_reported(&found, 1).await;
    assert_eq!(found.remote(), Some(fleet.listen));
}

#[test]
fn schedulers_are_named_or_found_and_not_both() {
    let place = Place::new();
    let words = ["--scheduler=192.0.2.10:5704", "--discover=lo"].map(str::to_owned);
    let why = place.start_in_vain(&[place.memory(), words.to_vec()].concat());
    for word in ["--scheduler 192.0.2.10:5704", "--discover lo", "not both"] {
        assert!(why.contains(word), "{why}");
    }
}

/// The leases that the scheduler tells, once they are as `are_they` wants.
async fn until_told(client: &Node, are_they: impl Fn(&[FleetLease]) -> bool) -> Vec<FleetLease> {
    loop {
        match client.fleet_leases_async().await {
            Ok(told) if are_they(&told) => return told,
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

fn is(phase: LeasePhase) -> impl Fn(&[FleetLease]) -> bool {
    move |told| matches!(told, [one] if one.lease.phase == phase)
}

async fn not_found(client: &Node, id: LeaseId) -> String {
    let refused = client.lease_async(Request::LeaseQuery(id)).await;
    let error = refused.unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.error, LeaseError::NotFound, "{refusal}");
    refusal.message.replace(&id.to_string(), "ID")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_used_through_the_scheduler_by_its_tenant_alone() {
    let mut fleet = Fleet::new();
    let places = [Place::new(), Place::new()];
    let _daemons = [fleet.node(&places[0]), fleet.node(&places[1])];
    let operator = fleet.client().await;
    fleet.until_reported(&operator, 2).await;
    let [blue, red] = [fleet.tenant("blue"), fleet.tenant("red")];
    let (blues, reds) = (fleet.client_of(&blue).await, fleet.client_of(&red).await);

    let granted = blues.acquire_async(wanted()).await.unwrap();
    let id = granted.info.lease_id;
    let told = until_told(&blues, is(LeasePhase::Active)).await;
    let [one] = &told[..] else { panic!("{told:?}") };
    assert_eq!(
        (one.lease.lease_id, Some(one.node_id)),
        (id, granted.node.id())
    );
    assert_eq!(&one.lease.tenant, "blue");
    assert_eq!(until_told(&operator, is(LeasePhase::Active)).await, told);
    assert_eq!(reds.fleet_leases_async().await.unwrap(), []);

    let now = blues.lease_async(Request::LeaseQuery(id)).await.unwrap();
    assert_eq!(now.binding, granted.info.binding);
    let seen = operator.lease_async(Request::LeaseQuery(id)).await.unwrap();
    assert_eq!(seen.phase, LeasePhase::Active);
    let of_nobody = not_found(&reds, LeaseId(1)).await;
    assert_eq!(not_found(&reds, id).await, of_nobody);

    // A scheduler that starts anew learns the leases from the nodes.
    fleet.stop().await;
    fleet.start_again().await;
    let blues = fleet.client_of(&blue).await;
    assert_eq!(until_told(&blues, is(LeasePhase::Active)).await, told);
    let freed = blues.lease_async(Request::LeaseFree(id)).await.unwrap();
    assert_eq!(freed.phase, LeasePhase::Freed);
    until_told(&blues, <[FleetLease]>::is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_to_the_node_of_another_one_of_its_tenant_or_away_from_a_named_node() {
    let fleet = Fleet::new();
    let places = [Place::new(), Place::new()];
    let _daemons = [fleet.node(&places[0]), fleet.node(&places[1])];
    let operator = fleet.client().await;
    fleet.until_reported(&operator, 2).await;
    let [blue, red] = [fleet.tenant("blue"), fleet.tenant("red")];
    let (blues, reds) = (fleet.client_of(&blue).await, fleet.client_of(&red).await);
    let first = blues
        .acquire_async(request(ResourceType::Mem))
        .await
        .unwrap();

    let near = Affinity {
        category: 2,
        strength: 1,
        target_type: 2,
        target: first.info.lease_id.0.to_be_bytes().to_vec(),
    };
    let near = LeaseAllocRequest {
        intent: LeaseIntent {
            affinities: vec![near],
            ..LeaseIntent::default()
        },
        ..request(ResourceType::Mem)
    };
    // The scheduler may not know of the first lease yet, and refuses for now.
    let patient = blues.patient(PATIENCE);
    for _ in 0..4 {
        let granted = patient.acquire_async(near.clone()).await.unwrap();
        assert_eq!(granted.node.id(), first.node.id());
    }
    let of_nobody = reds.acquire_async(near.clone()).await.unwrap_err();
    assert!(of_nobody.to_string().contains("of yours"), "{of_nobody}");

    let told = patient.explain_async(near.clone()).await.unwrap();
    assert_eq!(Some(told.candidates[0].node_id), first.node.id());
    let says = "1 by affinity";
    assert!(told.why.contains(says), "{}", told.why);
    assert_eq!(told.candidates.len(), 1);

    let away = LeaseAllocRequest {
        tried: vec![Tried::avoided(first.node.id().unwrap())],
        ..request(ResourceType::Mem)
    };
    for _ in 0..4 {
        let granted = blues.acquire_async(away.clone()).await.unwrap();
        assert_ne!(granted.node.id(), first.node.id());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_through_the_scheduler_and_its_end_by_time_is_told() {
    let fleet = Fleet::new();
    let place = Place::new();
    let _daemon = fleet.node(&place);
    let client = fleet.client().await;
    fleet.until_reported(&client, 1).await;
    let short = LeaseAllocRequest {
        lease_secs: 2,
        grace_secs: 600,
        ..request(ResourceType::Mem)
    };
    let granted = client.acquire_async(short).await.unwrap();
    let lease_id = granted.info.lease_id;
    // Nothing but its deadline changes the lease.
    let over = until_told(&client, is(LeasePhase::Grace)).await;
    assert_eq!(
        over[0].lease.expires_at_unix_ms,
        granted.info.expires_at_unix_ms
    );
    let renew = Request::LeaseRenew {
        lease_id,
        lease_secs: 600,
    };
    let renewed = client.lease_async(renew).await.unwrap();
    let told = until_told(&client, is(LeasePhase::Active)).await;
    assert_eq!(told[0].lease.expires_at_unix_ms, renewed.expires_at_unix_ms);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_leases_that_takes_several_reports_is_told_whole() {
    let mut fleet = Fleet::new();
    let place = Place::new();
    let daemon = fleet.node(&place);
    let client = fleet.client().await;
    fleet.until_reported(&client, 1).await;
    let identity = Identity::load(fleet.directory.admin_identity()).unwrap();
    let node = daemon.client(&identity).await;
    let mut ids = Vec::new();
    // As many as the memory has pages, which is as many as one report has leases.
    for _ in 0..LEASES_PER_REPORT_MAX {
        ids.push(alloc(&node, ResourceType::Mem).await.lease_id);
    }
    ids.sort_unstable();
    let are_all = |told: &[FleetLease]| {
        let told = told
            .iter()
            .filter(|it| it.lease.phase == LeasePhase::Active);
        told.map(|it| it.lease.lease_id).eq(ids.iter().copied())
    };
    until_told(&client, are_all).await;
    fleet.stop().await;
    fleet.start_again().await;
    let client = fleet.client().await;
    until_told(&client, are_all).await;
}
