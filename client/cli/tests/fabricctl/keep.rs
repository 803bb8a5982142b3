//! `lease keep`: renewals from a shell.

use std::{
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Stdio},
};

use fabricbios_wire::{Answer, LeaseError, LeaseId, RefusalClass, Reply, Request};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{
    LEASE_TEXT, command,
    common::{FakeNode, LEASE, lease, refuse},
    fails, line_of,
};

/// A lease id whose renewal comes at the beginning of the window, so that it is due at once.
const OTHER: LeaseId = LeaseId(0xffff);

/// A node whose leases are due at once for `renewals` times, after which `then` answers renewals.
fn node(renewals: u64, then: fn(LeaseId) -> Answer) -> FakeNode {
    let mut terms = 0;
    FakeNode::start(move |request: &Request| {
        let (Request::LeaseRenew { lease_id, .. } | Request::LeaseQuery(lease_id)) = request else {
            panic!("{request:?}")
        };
        let is_renewal = matches!(request, Request::LeaseRenew { .. });
        if is_renewal && terms == renewals {
            return then(*lease_id);
        }
        terms += u64::from(is_renewal);
        let mut info = lease(170_000);
        info.lease_id = *lease_id;
        info.renewable_at_unix_ms = info.expires_at_unix_ms - 200_000;
        info.expires_at_unix_ms += terms;
        Ok(Reply::Lease(info))
    })
}

fn keeping(node: &FakeNode, leases: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = command(node, &format!("--json lease keep {leases}"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Value {
    serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
}

#[test]
fn a_lease_is_kept_until_a_signal_and_stays() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let an_hour = |lease_id| {
            let mut info = lease(3_600_000);
            info.lease_id = lease_id;
            Ok(Reply::Lease(info))
        };
        let node = node(2, an_hour);
        let (mut child, mut lines) = keeping(&node, LEASE_TEXT);
        let begins = next(&mut lines);
        assert_eq!(begins["lease_id"], LEASE_TEXT);
        assert_eq!(begins["renewed_at_unix_ms"], Value::Null);
        assert_eq!(begins["due_in_ms"], 0);
        let mut expiries = Vec::new();
        for _ in 0..3 {
            let renewed = next(&mut lines);
            assert!(renewed["renewed_at_unix_ms"].is_u64(), "{renewed}");
            expiries.push(renewed["expires_at_unix_ms"].as_u64().unwrap());
        }
        assert!(
            expiries.is_sorted() && expiries[2] == 1_800_003_600_000,
            "{expiries:?}"
        );
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        kill(pid, signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal}");
        let is_other =
            |it: &Request| !matches!(it, Request::LeaseQuery(LEASE) | Request::LeaseRenew { .. });
        assert!(!node.asked().iter().any(is_other), "{:?}", node.asked());
    }
}

#[test]
fn a_lease_that_is_lost_ends_nothing_but_itself_and_the_last_one_ends_the_command() {
    let node = node(0, |lease_id| {
        refuse(
            LeaseError::Revoked,
            RefusalClass::Permanent,
            &format!("lease {lease_id} was revoked by an operator"),
        )
    });
    let (status, line) = {
        let output = command(&node, &format!("lease keep {LEASE_TEXT} {OTHER}"));
        let output = { output }.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(status, Some(4));
    assert_eq!(line.lines().count(), 2, "{line}");
    for lease in [LEASE_TEXT.to_owned(), OTHER.to_string()] {
        assert!(
            line.contains(&format!("lease {lease} was revoked")),
            "{line}"
        );
    }
}

/// After another program has renewed the lease, the node refuses this program's renewal as too early.
#[test]
fn a_lease_that_another_program_renews_too_is_kept() {
    let (mut renewals, mut terms) = (0, 0);
    let node = FakeNode::start(move |request: &Request| {
        let mut info = lease(170_000);
        info.renewable_at_unix_ms = info.expires_at_unix_ms - 200_000;
        if matches!(request, Request::LeaseRenew { .. }) {
            renewals += 1;
            terms += 1;
            match renewals {
                1 => {
                    let why = "the lease can be renewed in 48 s";
                    return refuse(LeaseError::RenewTooEarly, RefusalClass::Transient, why);
                }
                2 => {}
                _ => info = lease(3_600_000),
            }
        }
        info.expires_at_unix_ms += terms;
        Ok(Reply::Lease(info))
    });
    let (mut child, mut lines) = keeping(&node, LEASE_TEXT);
    let expires = |line: Value| line["expires_at_unix_ms"].as_u64().unwrap();
    let begins = expires(next(&mut lines));
    assert_eq!(expires(next(&mut lines)), begins + 1, "the other's renewal");
    assert_eq!(expires(next(&mut lines)), begins + 2, "its own");
    let last = next(&mut lines);
    assert!(last["due_in_ms"].as_u64().unwrap() > 0, "{last}");
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let is_renewal = |it: &&Request| matches!(it, Request::LeaseRenew { .. });
    assert_eq!(node.asked().iter().filter(is_renewal).count(), 3);
}

#[test]
fn a_lease_that_is_over_is_not_kept_at_all() {
    let node = FakeNode::start(|_: &Request| {
        refuse(
            LeaseError::NotFound,
            RefusalClass::Permanent,
            "no such lease",
        )
    });
    let (status, object) = fails(&node, &format!("lease keep {LEASE_TEXT}"));
    assert_eq!((status, &object["reason"]["code"]), (4, &"NotFound".into()));
}

#[test]
fn a_renewal_that_comes_early_points_to_keep() {
    let node = FakeNode::start(|_: &Request| {
        let why = "lease 1 can be renewed in 48 s";
        refuse(LeaseError::RenewTooEarly, RefusalClass::Transient, why)
    });
    let (_, line) = line_of(&node, &format!("lease renew {LEASE_TEXT}"));
    assert!(
        line.contains("in 48 s; `fabricctl lease keep` waits for that"),
        "{line}"
    );
}
