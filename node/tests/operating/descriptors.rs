//! The daemon with 1,024 file descriptors: blocks are leased over UDP until it grants no more.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use fabricbios_client::{Error, Node};
use fabricbios_wire::{
    LeaseError, LeaseId, LeaseInfo, LeasePhase, RefusalClass, Reply, Request, ResourceType,
};
use tokio::task::JoinSet;

use crate::daemon::*;

/// More leases than there are descriptors.
const ASKED: usize = 1_100;
/// Requests of one tenant at a time.
const AT_ONCE: usize = 16;

/// The soft limit is below the hard one, as on most systems.
const LIMITED: &str = "ulimit -Sn 512; ulimit -Hn 1024; exec \"$0\" \"$@\"";

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
    node.alloc_async(request(ResourceType::Block)).await
}

async fn free(node: Node, id: LeaseId) -> Result<LeaseInfo, Error> {
    node.lease_async(Request::LeaseFree(id)).await
}

#[tokio::test]
async fn grants_stop_before_descriptors_run_out_and_every_lease_ends_properly() {
    let place = Place::new();
    let daemon = place.command(&place.pool());
    let mut limited = Command::new("sh");
    limited.args(["-c", LIMITED]).arg(daemon.get_program());
    limited.args(daemon.get_args());
    let daemon = place.begin(limited, place.new_log());
    let (address, identity) = (daemon.address.clone(), place.admin());
    let node = daemon.client(&identity).await;

    let open = || {
        let files = fs::read_dir(format!("/proc/{}/fd", daemon.pid()));
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
    let log = place.log();
    assert!(log.contains("from=512 to=1024"), "{log}");
    assert!(log.contains("LimitNOFILE="), "{log}");

    let other = daemon.client(&identity).await;
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
