//! How the end of a lease is reported: as data, and the same in errors, health and answers.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use fabricbios_client::{EndCause, Error, Health, LeaseEnd, MemLease};
use fabricbios_wire::{LeaseInfo, LeasePhase, LeaseStatus, Reply, Request};

use crate::{
    builder,
    common::{FakeNode, LEASE, lease},
};

/// A lease that was granted as `granted`; the node then answers `told` about it.
fn lease_of(granted: LeaseInfo, told: LeaseInfo) -> (FakeNode, MemLease) {
    let node = FakeNode::start(move |request: &Request| {
        let is_alloc = matches!(request, Request::LeaseAlloc(_));
        Ok(Reply::Lease(match is_alloc {
            true => granted.clone(),
            false => told.clone(),
        }))
    });
    let lease = builder(&node).acquire().unwrap();
    (node, lease)
}

fn ended(phase: LeasePhase, cause: EndCause) -> LeaseInfo {
    LeaseInfo {
        phase,
        status: LeaseStatus::Revoked,
        end: Some(Arc::new(LeaseEnd {
            at_unix_ms: 1,
            cause,
            by: None,
            proof: Vec::new(),
            cleaning: Vec::new(),
        })),
        ..lease(0)
    }
}

fn with_grace(info: LeaseInfo) -> LeaseInfo {
    LeaseInfo {
        grace_ends_unix_ms: info.expires_at_unix_ms + 3_600_000,
        ..info
    }
}

#[test]
fn an_end_that_the_node_told_is_an_end_with_its_cause_and_is_not_asked_for_again() {
    let told = ended(LeasePhase::Revoked, EndCause::NodeRestarted);
    let (node, lease) = lease_of(crate::common::lease(60_000), told);
    assert_eq!(lease.health(), Health::Good);
    lease.query().unwrap();
    let asked = node.asked().len();
    let error = lease.renew().unwrap_err();
    assert!(
        matches!(
            error,
            Error::Ended {
                lease_id: LEASE,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.is_over(), "{error}");
    assert_eq!(error.end_cause(), Some(EndCause::NodeRestarted));
    assert!(error.to_string().contains("revoked"), "{error}");
    assert_eq!(lease.health(), Health::Lost(error));
    assert_eq!(node.asked().len(), asked);
}

#[test]
fn a_term_that_nobody_renewed_is_lost_and_a_renewal_that_comes_after_all_is_good() {
    let (_node, lease) = lease_of(lease(0), lease(60_000));
    let Health::Lost(error) = lease.health() else {
        panic!("{:?}", lease.health())
    };
    assert!(error.is_over(), "{error}");
    assert_eq!(error.end_cause(), Some(EndCause::Expired));
    lease.renew().unwrap();
    assert_eq!(lease.health(), Health::Good);
}

#[test]
fn in_its_grace_time_a_lease_is_lost_and_not_over() {
    let grace = LeaseInfo {
        phase: LeasePhase::Grace,
        ..with_grace(lease(0))
    };
    // Lost by the clock of this machine, and lost by the answer of the node.
    let (_node, by_clock) = lease_of(with_grace(lease(0)), lease(60_000));
    let (_other, by_node) = lease_of(lease(60_000), grace);
    by_node.query().unwrap();
    for lease in [&by_clock, &by_node] {
        let Health::Lost(error) = lease.health() else {
            panic!("{:?}", lease.health())
        };
        assert_eq!(error, Error::InGrace { lease_id: LEASE });
        assert!(!error.is_over() && error.to_string().contains("a renewal opens it again"));
    }
    by_clock.renew().unwrap();
    assert_eq!(by_clock.health(), Health::Good);
}

#[test]
fn a_watch_tells_a_revocation_with_its_cause() {
    let told = ended(LeasePhase::Revoked, EndCause::Revoked);
    let (_node, lease) = lease_of(crate::common::lease(60_000), told);
    let error = lease.end_watch().wait();
    assert_eq!(error.end_cause(), Some(EndCause::Revoked), "{error}");
}

#[test]
fn a_watch_tells_that_the_lease_was_freed_and_another_thread_cannot_use_it() {
    let (_node, lease) = lease_of(lease(60_000), lease(60_000));
    let watch = lease.end_watch();
    let told = std::thread::scope(|threads| {
        let waiting = threads.spawn(|| watch.wait());
        lease.free_shared().unwrap();
        waiting.join().unwrap()
    });
    assert_eq!(told.end_cause(), Some(EndCause::Freed));
    let error = lease.renew().unwrap_err();
    assert_eq!(error.end_cause(), Some(EndCause::Freed), "{error}");
}

#[test]
fn a_watch_of_a_lease_in_its_grace_time_says_so() {
    let (_node, lease) = lease_of(with_grace(lease(0)), with_grace(lease(0)));
    let told = lease.end_watch().wait();
    assert_eq!(told, Error::InGrace { lease_id: LEASE });
}

#[test]
fn a_watch_goes_on_if_the_term_is_over_here_and_not_for_the_node() {
    let queries = AtomicUsize::new(0);
    let node = FakeNode::start(move |request: &Request| {
        let is_query = matches!(request, Request::LeaseQuery(_));
        Ok(Reply::Lease(match is_query {
            false => lease(0),
            true if queries.fetch_add(1, Ordering::Relaxed) == 0 => lease(60_000),
            true => ended(LeasePhase::Revoked, EndCause::Revoked),
        }))
    });
    let lease = builder(&node).acquire().unwrap();
    let told = lease.end_watch().wait();
    assert_eq!(told.end_cause(), Some(EndCause::Revoked), "{told}");
}
