//! `lease watch`: prints each change of a lease until it ends.

use std::{thread, time::Duration};

use fabricbios_client::{Error, Node, lease_json};
use fabricbios_wire::{LeaseError, LeaseId, LeaseInfo, LeasePhase, RefusalClass, Request};

use crate::{
    failure::Failure,
    json::{Object, field},
    lease_text,
    output::Output,
    time_text,
};

/// The node is asked this long after a deadline, when the change is visible.
const AFTER_DEADLINE: Duration = Duration::from_millis(5);

pub(super) fn run(
    node: &Node,
    lease_id: LeaseId,
    poll_ms: u32,
    output: Output,
) -> Result<(), Failure> {
    let poll = Duration::from_millis(poll_ms.into());
    let mut shown: Option<LeaseInfo> = None;
    loop {
        let info = match node.lease(Request::LeaseQuery(lease_id)) {
            Ok(info) => info,
            // The node forgets an ended lease after a time.
            Err(error) if shown.is_some() && is_gone(&error) => return Ok(()),
            Err(error) => return Err(Failure::from(error).at(&format!("lease {lease_id}"))),
        };
        let pause = time_to_next(&info, poll);
        let over = is_over(info.phase);
        if shown.as_ref().map(without_clock) != Some(without_clock(&info)) {
            show(&info, output)?;
            shown = Some(info);
        }
        if over {
            return Ok(());
        }
        thread::sleep(pause);
    }
}

/// Prints the lease as it was observed.
fn show(info: &LeaseInfo, output: Output) -> Result<(), Failure> {
    let seen_at = time_text::now_ms();
    let seen = Object::from([field("seen_at_unix_ms", seen_at)]);
    let json = seen.and(lease_json(info));
    output.print(&json, || {
        let at = time_text::utc(seen_at);
        format!("at {at}\n{}", lease_text::full(info))
    })
}

/// A scheduler does not find a lease of a node that does not report now: that is transient.
fn is_gone(error: &Error) -> bool {
    error.refusal().is_some_and(|refusal| {
        refusal.error == LeaseError::NotFound && refusal.class != RefusalClass::Transient
    })
}

fn is_over(phase: LeasePhase) -> bool {
    match phase {
        LeasePhase::Binding | LeasePhase::Active | LeasePhase::Grace => false,
        LeasePhase::Expired | LeasePhase::Revoked | LeasePhase::Freed | LeasePhase::Fenced => true,
    }
}

/// The lease without its remaining times, which always change.
fn without_clock(info: &LeaseInfo) -> LeaseInfo {
    let mut info = LeaseInfo {
        remaining_ms: 0,
        ..info.clone()
    };
    if let Some(previous) = info
        .binding
        .rdma_mut()
        .and_then(|rdma| rdma.previous.as_mut())
    {
        previous.remaining_ms = 0;
    }
    info
}

/// The time to the next known deadline or to the next poll, whichever comes first.
fn time_to_next(info: &LeaseInfo, poll: Duration) -> Duration {
    let old_key = info.binding.rdma().and_then(|rdma| rdma.previous);
    let deadlines = [
        info.remaining_ms,
        old_key.map_or(0, |old| old.remaining_ms.into()),
    ];
    let known = deadlines.into_iter().filter(|ms| *ms > 0).min();
    known.map_or(poll, |ms| {
        poll.min(Duration::from_millis(ms) + AFTER_DEADLINE)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fabricbios_wire::{
        Binding, Effective, Generation, KindBinding, LeaseStatus, PreviousKey, RdmaBinding,
        RdmaStrategy, ResourceId, ResourceType,
    };

    use super::*;

    fn lease(remaining_ms: u64, old_key_ms: Option<u32>) -> LeaseInfo {
        let rdma = RdmaBinding {
            rkey: Some(1),
            remote_addr: 0,
            qp_num: 1,
            gid: [0; 16],
            port: 1,
            psn: 0,
            path_mtu: 1_024,
            strategy: RdmaStrategy::Window,
            previous: old_key_ms.map(|remaining_ms| PreviousKey {
                rkey: 2,
                remaining_ms,
            }),
            max_rd_atomic: 1,
            atomics: false,
            further: Vec::new(),
            prepared_rkey: None,
            attach: None,
        };
        LeaseInfo {
            lease_id: LeaseId(1),
            resource_id: ResourceId(1),
            status: LeaseStatus::Active,
            phase: LeasePhase::Active,
            generation: Generation(1),
            capacity: 1,
            granted_at_unix_ms: 0,
            expires_at_unix_ms: 0,
            renewable_at_unix_ms: 0,
            grace_ends_unix_ms: 0,
            remaining_ms,
            effective: Effective::default(),
            binding: Binding {
                kind: KindBinding::Mem(Some(rdma)),
                ..Binding::plain(ResourceType::Mem)
            },
            tenant: None,
            end: None,
            intent: None,
            request_token: None,
        }
    }

    #[test]
    fn it_wakes_at_the_nearest_deadline_and_at_least_once_a_poll() {
        let poll = Duration::from_secs(1);
        let ms = |ms| Duration::from_millis(ms) + AFTER_DEADLINE;
        assert_eq!(time_to_next(&lease(300, None), poll), ms(300));
        assert_eq!(time_to_next(&lease(300, Some(200)), poll), ms(200));
        assert_eq!(time_to_next(&lease(30_000, None), poll), poll);
        assert_eq!(time_to_next(&lease(0, None), poll), poll);
    }

    #[test]
    fn clocks_that_run_down_are_no_change() {
        assert_eq!(
            without_clock(&lease(300, Some(9))),
            without_clock(&lease(200, Some(5)))
        );
        assert_ne!(
            without_clock(&lease(300, Some(9))),
            without_clock(&lease(300, None))
        );
    }
}
