//! A node of the kind, as a process, asked by the SDK over QUIC and used through the descriptors that it gives.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_control::Fabric;
use fabricbios_test_units::Client;
use fabricbios_wire::*;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

/// A running node and its operator.
struct Daemon {
    process: Child,
    /// The processes of its store and its path, if they are separate.
    apart: Vec<Pid>,
    operator: Node,
}

impl Daemon {
    async fn start(at: &Path, arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_fabricbios-test-units"))
            .arg("serve")
            .arg("--state-dir")
            .arg(at)
            .arg("--directory")
            .arg(at.join("units"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        let mut words = ready.split_whitespace();
        assert_eq!(words.next(), Some("READY"));
        let address = words.next().unwrap();
        let fabric = Fabric::open_or_create(at, SystemTime::now()).unwrap();
        let identity = Identity::load(fabric.admin_identity()).unwrap();
        Self {
            process,
            apart: words.map(|it| Pid::from_raw(it.parse().unwrap())).collect(),
            operator: Node::connect_async(address, &identity).await.unwrap(),
        }
    }

    async fn alloc(&self, count: u64, shared: bool, secs: u32) -> Result<LeaseId, Error> {
        let class = match shared {
            true => CpuIsolationClass::BestEffort,
            false => CpuIsolationClass::WholeCore,
        };
        let isolation = Some(class);
        let request = LeaseAllocRequest {
            terms: CpuTerms {
                isolation,
                ..CpuTerms::default()
            }
            .into(),
            ..LeaseAllocRequest::new(ResourceType::Cpu, count, secs)
        };
        self.operator
            .alloc_async(request)
            .await
            .map(|it| it.lease_id)
    }

    async fn ask(&self, request: Request) -> LeaseInfo {
        self.operator.lease_async(request).await.unwrap()
    }

    async fn phase(&self, lease: LeaseId) -> LeasePhase {
        self.ask(Request::LeaseQuery(lease)).await.phase
    }

    /// The units in the inventory.
    async fn told(&self) -> FlatEntry {
        let request = Request::GetInventory(InventoryForm::Flat);
        let Ok(Reply::FlatInventory(entries)) = self.operator.call_async(request).await else {
            panic!("no inventory")
        };
        entries[0]
    }

    async fn until(&self, is_so: impl Fn(&FlatEntry) -> bool) {
        while !is_so(&self.told().await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn clear_fence(&self) {
        let id = self.told().await.resource_id;
        let cleared = self.operator.call_async(Request::FenceClear(id)).await;
        assert_eq!(cleared.unwrap(), Reply::FenceCleared);
    }
}

impl Drop for Daemon {
    /// Kills the node, as a crash would.
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self) -> &Path {
        self.0.path()
    }

    fn unit(&self, number: u32) -> PathBuf {
        self.at().join(format!("units/units/{number}"))
    }

    fn socket(&self, lease: LeaseId) -> PathBuf {
        self.at().join("units/sockets").join(lease.to_string())
    }

    fn client(&self, lease: LeaseId) -> std::io::Result<Client> {
        Client::connect(&self.at().join("units/sockets"), lease)
    }
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>) -> LeaseError {
    outcome.unwrap_err().refusal().unwrap().error
}

#[tokio::test]
async fn units_are_granted_alone_or_shared_and_used() {
    for arguments in [&[][..], &["--apart"]] {
        let place = Place::new();
        let node = Daemon::start(place.at(), arguments).await;
        let alone = node.alloc(2, false, 60).await.unwrap();
        let mut alone = place.client(alone).unwrap();
        assert_eq!(alone.numbers(), [0, 1]);
        assert_eq!(alone.add(1, 3).unwrap(), Some(3));
        let mut shared = Vec::new();
        for _ in 0..2 {
            let lease = node.alloc(1, true, 60).await.unwrap();
            shared.push(place.client(lease).unwrap());
        }
        for (client, sum) in shared.iter_mut().zip([1, 2]) {
            assert_eq!(client.numbers(), [2]);
            assert_eq!(client.add(2, 1).unwrap(), Some(sum));
        }
        let told = node.told().await;
        assert_eq!((told.capacity, told.available), (4, 1));
        let more = refused(node.alloc(2, false, 60).await);
        assert_eq!(more, LeaseError::CapacityExceeded);
    }
}

#[tokio::test]
async fn a_client_sees_the_end_of_its_lease() {
    for arguments in [&[][..], &["--apart"]] {
        let place = Place::new();
        let node = Daemon::start(place.at(), arguments).await;
        for (secs, end) in [
            (60, Some(Request::LeaseFree as fn(LeaseId) -> Request)),
            (60, Some(Request::LeaseRevoke as fn(LeaseId) -> Request)),
            (2, None),
        ] {
            let lease = node.alloc(1, false, secs).await.unwrap();
            let mut client = place.client(lease).unwrap();
            assert_eq!(client.add(0, 1).unwrap(), Some(1), "it was made clean");
            if let Some(end) = end {
                node.operator.call_async(end(lease)).await.unwrap();
            }
            let ended = tokio::task::spawn_blocking(move || client.wait_for_the_end());
            ended.await.unwrap().unwrap();
            assert!(place.client(lease).is_err());
            node.until(|it| it.available == 4).await;
        }
    }
}

#[tokio::test]
async fn a_unit_that_cannot_be_given_back_is_fenced_and_the_others_are_not() {
    let place = Place::new();
    let node = Daemon::start(place.at(), &[]).await;
    let lease = node.alloc(1, false, 60).await.unwrap();
    let aside = place.at().join("aside");
    fs::rename(place.unit(0), &aside).unwrap();
    node.ask(Request::LeaseFree(lease)).await;
    node.until(|it| it.flags != 0).await;
    assert_eq!(node.told().await.flags, resource_flags::DEGRADED);
    let Ok(Reply::Fences(fences)) = node.operator.call_async(Request::FenceList).await else {
        panic!("no list")
    };
    assert_eq!((fences.len(), fences[0].lease_id), (1, lease));
    let other = node.alloc(1, false, 60).await.unwrap();
    assert_eq!(place.client(other).unwrap().numbers(), [1]);
    fs::rename(&aside, place.unit(0)).unwrap();
    node.clear_fence().await;
    assert_eq!(node.told().await.available, 3);
    let next = node.alloc(1, false, 60).await.unwrap();
    assert_eq!(place.client(next).unwrap().numbers(), [0]);
}

#[tokio::test]
async fn a_killed_node_goes_on_with_its_leases_and_ends_the_others_by_name() {
    for arguments in [&[][..], &["--apart"]] {
        let place = Place::new();
        let node = Daemon::start(place.at(), arguments).await;
        let kept = node.alloc(1, false, 60).await.unwrap();
        let mut client = place.client(kept).unwrap();
        client.add(0, 5).unwrap();
        let over = node.alloc(1, false, 2).await.unwrap();
        place.client(over).unwrap().add(1, 1).unwrap();
        drop(node);
        client.wait_for_the_end().unwrap();
        // Left by a lease that no client knows.
        let stray = LeaseId(7);
        let part = place.at().join("units/leases").join(stray.to_string());
        fs::create_dir(&part).unwrap();
        fs::hard_link(place.unit(3), part.join("3")).unwrap();
        drop(UnixListener::bind(place.socket(stray)).unwrap());
        // While there is no node, nothing checks the deadline.
        std::thread::sleep(Duration::from_secs(2));

        let node = Daemon::start(place.at(), arguments).await;
        assert!(!part.exists() && !place.socket(stray).exists());
        assert_eq!(node.phase(over).await, LeasePhase::Expired);
        assert!(!place.socket(over).exists());
        // The end is reported before the release.
        node.until(|it| it.available == 3).await;
        assert_eq!(fs::read(place.unit(1)).unwrap(), [0; 8]);
        assert_eq!(node.phase(kept).await, LeasePhase::Active);
        let mut client = place.client(kept).unwrap();
        assert_eq!(client.add(0, 1).unwrap(), Some(6));
        node.ask(Request::LeaseFree(kept)).await;
        client.wait_for_the_end().unwrap();
        node.until(|it| it.available == 4).await;
    }
}

#[tokio::test]
async fn while_the_node_is_dead_or_stopped_its_watchdog_ends_leases_at_their_deadlines() {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        // On a slow machine a short term may be over while the node still obeys.
        let mut terms = [2, 10, 50].into_iter();
        while !watchdog_ends(signal, terms.next().expect("a term that was not over")).await {}
    }
}

/// `false` if the lease ended before the node got the signal.
async fn watchdog_ends(signal: Signal, secs: u32) -> bool {
    let place = Place::new();
    let node = Daemon::start(place.at(), &["--guarded"]).await;
    let freed = node.alloc(1, false, 60).await.unwrap();
    node.ask(Request::LeaseFree(freed)).await;
    let lease = node.alloc(1, false, secs).await.unwrap();
    let pid = Pid::from_raw(node.process.id().try_into().unwrap());
    kill(pid, signal).unwrap();
    if !place.socket(lease).exists() {
        return false;
    }
    let ended = async {
        while place.socket(lease).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), ended)
        .await
        .expect("the watchdog ends the lease");
    let node = match signal {
        Signal::SIGKILL => {
            drop(node);
            Daemon::start(place.at(), &["--guarded"]).await
        }
        _ => {
            kill(pid, Signal::SIGCONT).unwrap();
            node
        }
    };
    node.until(|it| it.available == 4).await;
    assert_eq!(node.phase(lease).await, LeasePhase::Expired);
    true
}

#[tokio::test]
async fn when_the_process_of_the_path_is_gone_no_end_is_claimed() {
    let place = Place::new();
    let node = Daemon::start(place.at(), &["--apart"]).await;
    let lease = node.alloc(1, false, 60).await.unwrap();
    let client = place.client(lease).unwrap();
    kill(node.apart[1], Signal::SIGKILL).unwrap();
    client.wait_for_the_end().unwrap();
    let freed = refused(node.operator.lease_async(Request::LeaseFree(lease)).await);
    assert_eq!(freed, LeaseError::Fenced);
    assert_eq!(refused(node.alloc(1, false, 60).await), LeaseError::Fenced);
    drop(node);

    let node = Daemon::start(place.at(), &["--apart"]).await;
    assert_eq!(refused(node.alloc(1, false, 60).await), LeaseError::Fenced);
    node.clear_fence().await;
    assert!(!place.socket(lease).exists());
    let next = node.alloc(4, false, 60).await.unwrap();
    assert_eq!(place.client(next).unwrap().numbers(), [0, 1, 2, 3]);
}

#[tokio::test]
async fn when_the_process_of_the_store_is_gone_the_inventory_says_so_and_leases_end() {
    let place = Place::new();
    let node = Daemon::start(place.at(), &["--apart"]).await;
    let lease = node.alloc(1, false, 60).await.unwrap();
    let client = place.client(lease).unwrap();
    kill(node.apart[0], Signal::SIGKILL).unwrap();
    node.until(|it| it.flags != 0).await;
    assert_eq!(node.told().await.flags, resource_flags::DEGRADED);
    assert_eq!(node.phase(lease).await, LeasePhase::Active);
    node.ask(Request::LeaseFree(lease)).await;
    client.wait_for_the_end().unwrap();
}

#[tokio::test]
async fn a_path_whose_process_is_stopped_holds_up_no_other_lease() {
    let place = Place::new();
    let node = Daemon::start(place.at(), &["--apart"]).await;
    let lease = node.alloc(1, false, 60).await.unwrap();
    kill(node.apart[1], Signal::SIGSTOP).unwrap();
    // The end cannot be proved. The driver goes on meanwhile, and after it has told the path of the fence as well.
    let free = node.operator.lease_async(Request::LeaseFree(lease));
    let (freed, told) = tokio::join!(free, node.told());
    assert_eq!(refused(freed), LeaseError::Fenced);
    assert_eq!(told.available, 3);
    assert_eq!(node.phase(lease).await, LeasePhase::Fenced);
    kill(node.apart[1], Signal::SIGCONT).unwrap();
    node.clear_fence().await;
    assert_eq!(node.told().await.available, 4);
}
