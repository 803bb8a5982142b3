//! The daemon with 1,024 file descriptors: blocks are leased over UDP until it grants no more.
#![allow(clippy::expect_used, reason = "a test that cannot go on says why")]

use std::{
    fs::{self, DirBuilder, File},
    io::{BufRead, BufReader},
    os::unix::fs::DirBuilderExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_wire::{
    LeaseAllocRequest, LeaseError, LeaseId, LeaseInfo, LeasePhase, RefusalClass, Reply, Request,
    ResourceType, Transport,
};
use tokio::task::JoinSet;

/// More leases than there are descriptors.
const ASKED: usize = 1_100;
/// Requests of one tenant at a time.
const AT_ONCE: usize = 16;

/// A daemon that ends with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("gone");
    }
}

/// The daemon and where it listens.
fn start(directory: &Path) -> (Daemon, String) {
    let pool = directory.join("pool");
    DirBuilder::new().mode(0o700).create(&pool).expect("a pool");
    let log = File::create(directory.join("log")).expect("a log");
    // The soft limit is below the hard one, as on most systems.
    let limited = "ulimit -Sn 512; ulimit -Hn 1024; exec \"$0\" \"$@\"";
    let mut child = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_fabricbiosd")])
        .args(["control-server", "--listen", "127.0.0.1:0"])
        .args(["--fbbu-listen", "127.0.0.1:0", "--state-dir"])
        .arg(directory.join("state"))
        .arg("--block-pool")
        .arg(&pool)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .expect("a daemon");
    let output = child.stdout.take().expect("a pipe");
    let (daemon, mut line) = (Daemon(child), String::new());
    let read = BufReader::new(output).read_line(&mut line);
    read.expect("a line of output");
    let address = line.trim().rsplit_once("listen=");
    let (_, address) = address.unwrap_or_else(|| panic!("{line:?}: {}", log_of(directory)));
    (daemon, address.to_owned())
}

fn log_of(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).expect("a log")
}

/// The outcomes of all futures, run with this many at a time.
async fn all<T, F>(asked: impl Iterator<Item = F>) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let (mut running, mut outcomes) = (JoinSet::new(), Vec::new());
    for ask in asked {
        running.spawn(ask);
        if running.len() == AT_ONCE {
            outcomes.extend(running.join_next().await);
        }
    }
    while let Some(outcome) = running.join_next().await {
        outcomes.push(outcome);
    }
    outcomes
        .into_iter()
        .map(|it| it.expect("no panic"))
        .collect()
}

async fn alloc(node: Node) -> Result<LeaseInfo, Error> {
    let request = LeaseAllocRequest {
        transport: Transport::Udp,
        ..LeaseAllocRequest::new(ResourceType::Block, 4096, 600)
    };
    node.alloc_async(request).await
}

async fn free(node: Node, id: LeaseId) -> Result<LeaseInfo, Error> {
    node.lease_async(Request::LeaseFree(id)).await
}

#[tokio::test]
async fn grants_stop_before_descriptors_run_out_and_every_lease_ends_properly() {
    let directory = tempfile::tempdir().expect("a directory");
    let (daemon, address) = start(directory.path());
    let identity = directory.path().join("state/admin.identity");
    let identity = Identity::load(&identity).expect("an identity");
    let connect = || Node::connect_async(&address, &identity);
    let node = connect().await.expect("a connection");

    let open = || {
        let files = fs::read_dir(format!("/proc/{}/fd", daemon.0.id()));
        files.expect("a process").count()
    };
    let before = open();
    let more = all((0..50).map(|_| {
        let (address, identity) = (address.clone(), identity.clone());
        async move { Node::connect_async(&address, &identity).await }
    }));
    let more = more.await;
    assert!(more.iter().all(Result::is_ok), "{more:?}");
    assert_eq!(open(), before, "a connection takes none");

    let mut outcomes = all((0..ASKED).map(|_| alloc(node.clone()))).await;
    while outcomes.last().is_some_and(Result::is_ok) {
        outcomes.push(alloc(node.clone()).await);
    }
    let (granted, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    // Of 1,024 descriptors 384 are reserved, and the daemon uses some itself.
    assert!((400..640).contains(&granted.len()), "{}", granted.len());
    for refused in refused {
        let refused = refused.expect_err("refused");
        let refusal = refused.refusal().expect("from the node");
        assert_eq!(refusal.error, LeaseError::Unavailable, "{refusal}");
        assert_eq!(refusal.class, RefusalClass::Transient, "{refusal}");
    }
    let log = log_of(directory.path());
    assert!(log.contains("from=512 to=1024"), "{log}");
    assert!(log.contains("LimitNOFILE="), "{log}");

    let other = connect().await.expect("another connection");
    let ids = granted.into_iter().flatten().map(|lease| lease.lease_id);
    for freed in all(ids.map(|id| free(other.clone(), id))).await {
        assert_eq!(freed.expect("freed").phase, LeasePhase::Freed);
    }
    let fences = node
        .call_async(Request::FenceList)
        .await
        .expect("an answer");
    assert_eq!(fences, Reply::Fences(Vec::new()));
    // Descriptors become free with the releases, which run in the background.
    let (begin, patience) = (Instant::now(), Duration::from_secs(60));
    while let Err(error) = alloc(node.clone()).await {
        assert!(
            begin.elapsed() < patience,
            "no grant within {patience:?}: {error}"
        );
        tokio::task::yield_now().await;
    }
}
