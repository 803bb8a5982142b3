//! Automatic renewal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use fabricbios_client::{Error, Health, MemLease};
use fabricbios_wire::{Answer, LeaseError, LeaseInfo, RefusalClass, Reply, Request};

use crate::{
    builder,
    common::{FakeNode, LEASE, lease, refuse},
};

/// A node that answers the nth renewal by script, and the numbers of the renewals that it has answered.
fn renewals(
    script: impl Fn(usize) -> Answer + Send + 'static,
) -> (FakeNode, mpsc::Receiver<usize>) {
    let (told, renewed) = mpsc::channel();
    let count = Arc::new(AtomicUsize::new(0));
    let node = FakeNode::start(move |request: &Request| match request {
        Request::LeaseRenew { .. } => {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            let answer = script(number);
            told.send(number).ok();
            answer
        }
        _ => Ok(Reply::Lease(due())),
    });
    (node, renewed)
}

/// A lease in its last fifth with minutes left: its renewal is due at once, even on a slow machine.
fn due() -> LeaseInfo {
    let info = lease(170_000);
    let renewable_at_unix_ms = info.expires_at_unix_ms - 200_000;
    LeaseInfo {
        renewable_at_unix_ms,
        ..info
    }
}

/// The renewal is due again at once, until the third renewal.
fn renewed(number: usize) -> LeaseInfo {
    if number >= 3 {
        return lease(1_000_000);
    }
    let expires_at_unix_ms = due().expires_at_unix_ms + number as u64;
    LeaseInfo {
        expires_at_unix_ms,
        ..due()
    }
}

fn renewing(node: &FakeNode) -> MemLease {
    builder(node)
        .lease_secs(1_000)
        .auto_renew(true)
        .acquire()
        .unwrap()
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_lease_renews_itself_until_it_is_freed() {
    let (node, renewed) = renewals(|number| Ok(Reply::Lease(renewed(number))));
    let lease = renewing(&node);
    for number in 1..=3 {
        assert_eq!(renewed.recv_timeout(PATIENCE).unwrap(), number);
    }
    lease.free().unwrap();
    let last = node.asked().len();
    assert_eq!(
        node.asked()[last - 1],
        Request::LeaseFree(LEASE),
        "nothing is asked after free"
    );
}

#[test]
fn a_renewal_that_fails_is_tried_again_and_shows_meanwhile() {
    let busy = || refuse(LeaseError::Unavailable, RefusalClass::Transient, "busy");
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let (node, renewed) = renewals(move |number| match number {
        1 => busy(),
        _ => {
            may_go_on.lock().unwrap().recv().ok();
            Ok(Reply::Lease(lease(1_000_000)))
        }
    });
    let lease = renewing(&node);
    assert_eq!(renewed.recv_timeout(PATIENCE).unwrap(), 1);
    wait_for(&lease, |health| matches!(health, Health::Retrying(_)));
    go_on.send(()).unwrap();
    wait_for(&lease, |health| *health == Health::Good);
}

#[test]
fn a_lease_that_was_taken_back_says_so_at_the_next_use() {
    let (node, _renewed) = renewals(|_| {
        refuse(
            LeaseError::Revoked,
            RefusalClass::Permanent,
            "revoked by an operator",
        )
    });
    let lease = renewing(&node);
    wait_for(&lease, |health| matches!(health, Health::Lost(_)));
    let error = lease.rotate().unwrap_err();
    assert!(
        matches!(&error, Error::Ended { why, .. } if why.contains("operator")),
        "{error}"
    );
    lease.query().unwrap();
}

fn wait_for(lease: &MemLease, wanted: impl Fn(&Health) -> bool) {
    let start = std::time::Instant::now();
    while !wanted(&lease.health()) {
        assert!(
            start.elapsed() < PATIENCE,
            "health stays {:?}",
            lease.health()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
