//! Each mistake in a history is found, by the name of what it breaks, and nothing else is.

use std::time::Duration;

use fabricbios_lease::{BootTime, Extent, LeaseRecord, Placement, Requested};
use fabricbios_wire::{
    Effective, Generation, LeaseId, LeasePhase, RequestToken, ResourceId, ResourceType,
};

use super::{Asks, Invariant, Invariants, Watched};

const HOLDER: &str = "blue";
/// The end of the leases below, and times before and after it.
const END: BootTime = at(1_000);
const BEFORE: BootTime = at(900);
const AFTER: BootTime = at(1_001);
const LATER: BootTime = at(1_060);

const fn at(secs: u64) -> BootTime {
    BootTime(secs * 1_000_000_000)
}

/// A node, and what has been broken.
struct History {
    all: Invariants,
    node: Watched,
}

impl History {
    /// With leases of these numbers.
    fn with(leases: &[u128]) -> Self {
        let mut it = Self {
            all: Invariants::default(),
            node: Watched::new(1),
        };
        for number in leases {
            it.writes(BEFORE, lease(*number));
        }
        it
    }

    fn writes(&mut self, now: BootTime, record: LeaseRecord) {
        let id = record.lease_id;
        self.node.becomes(id, Some(record), now, &self.all);
    }

    fn forgets(&mut self, now: BootTime, number: u128) {
        self.node.becomes(LeaseId(number), None, now, &self.all);
    }

    fn is_asked(&mut self, number: u128, tenant: &str, asks: Asks) {
        self.node.is_asked(LeaseId(number), tenant, asks);
    }

    /// The names of what was broken.
    fn broken(&self) -> Vec<String> {
        let told = self.all.broken();
        let name = |it: String| it.split(':').next().unwrap_or_default().to_owned();
        told.into_iter().map(name).collect()
    }

    #[track_caller]
    fn breaks(&self, invariant: Invariant) {
        assert_eq!(self.broken(), [invariant.to_string()]);
    }

    #[track_caller]
    fn breaks_nothing(&self) {
        assert_eq!(self.all.broken(), Vec::<String>::new());
    }
}

/// A lease of this number, in the part of this number, by the request of this number.
fn lease(number: u128) -> LeaseRecord {
    let part = u64::try_from(number).unwrap_or(0);
    LeaseRecord {
        lease_id: LeaseId(number),
        tenant: HOLDER.into(),
        resource_id: ResourceId(1),
        resource_type: ResourceType::Mem,
        capacity: 4096,
        placement: Some(extent(part * 4096, 4096)),
        generation: Generation(1),
        granted_at_unix_ms: 1,
        expires_at_unix_ms: 1,
        effective: Effective::default(),
        term_secs: 100,
        grace_secs: 0,
        deadline: END,
        ended: None,
        end: None,
        cannot_go_on: false,
        fenced_by_release: false,
        terms: None,
        intent: None,
        requested: Some(Requested {
            token: RequestToken(number),
            sum: 1,
        }),
    }
}

fn extent(offset: u64, length: u64) -> Placement {
    Placement::Stretch(Extent { offset, length })
}

/// The lease has ended, and its part is being cleaned.
fn over(number: u128, phase: LeasePhase) -> LeaseRecord {
    LeaseRecord {
        ended: Some(phase),
        ..lease(number)
    }
}

/// Its part is free.
fn free(number: u128, phase: LeasePhase) -> LeaseRecord {
    LeaseRecord {
        placement: None,
        deadline: BootTime(0),
        ..over(number, phase)
    }
}

/// It ends at another time.
fn until(number: u128, deadline: BootTime) -> LeaseRecord {
    LeaseRecord {
        deadline,
        ..lease(number)
    }
}

#[test]
fn a_correct_history_breaks_nothing() {
    let mut history = History::with(&[1, 2, 3, 4]);
    // The first is renewed, and ends at its new time.
    history.is_asked(1, HOLDER, Asks::Renewal);
    history.writes(BEFORE, until(1, LATER));
    // The second is freed.
    history.is_asked(2, HOLDER, Asks::End);
    history.writes(BEFORE, over(2, LeasePhase::Freed));
    history.writes(BEFORE, free(2, LeasePhase::Freed));
    // The third ends by its term. Its part goes to another one, and its request may be granted anew.
    history.writes(AFTER, over(3, LeasePhase::Expired));
    history.writes(AFTER, free(3, LeasePhase::Expired));
    let again = LeaseRecord {
        placement: lease(3).placement,
        requested: lease(3).requested,
        ..until(5, LATER)
    };
    history.writes(AFTER, again);
    history.forgets(AFTER, 3);
    history.writes(AFTER, over(4, LeasePhase::Expired));
    // Another one has a time of grace, in which it is written again.
    let kept = LeaseRecord {
        grace_secs: 30,
        ..lease(6)
    };
    history.writes(BEFORE, kept.clone());
    history.writes(AFTER, kept);
    history.node.look_for_late(at(1_049), &history.all);
    history.breaks_nothing();
}

#[test]
fn a_start_may_end_leases_and_is_no_reason_to_prolong_them() {
    let mut history = History::with(&[1, 2, 3, 4]);
    history.node.starts(BEFORE);
    history.writes(BEFORE, over(1, LeasePhase::Revoked));
    history.writes(BEFORE, until(2, at(950)));
    history.forgets(BEFORE, 4);
    history.breaks_nothing();
    history.writes(BEFORE, until(3, LATER));
    history.breaks(Invariant::OnlyHoldersMoveEnds);
}

#[test]
fn what_a_start_has_taken_over_it_does_not_end_later() {
    let mut history = History::with(&[1]);
    history.node.starts(BEFORE);
    history.writes(BEFORE, lease(1));
    history.writes(BEFORE, over(1, LeasePhase::Revoked));
    history.breaks(Invariant::OnlyHoldersMoveEnds);
}

#[test]
fn a_part_that_is_granted_twice() {
    for (offset, length) in [(4096, 4096), (8191, 1), (0, 4097), (4097, 1), (0, 65_536)] {
        let mut history = History::with(&[1]);
        let placement = Some(extent(offset, length));
        history.writes(
            BEFORE,
            LeaseRecord {
                placement,
                ..lease(2)
            },
        );
        history.breaks(Invariant::NothingGrantedTwice);
    }
}

#[test]
fn a_part_that_is_granted_while_it_is_cleaned() {
    let mut history = History::with(&[1]);
    history.writes(AFTER, over(1, LeasePhase::Expired));
    let placement = lease(1).placement;
    history.writes(
        AFTER,
        LeaseRecord {
            placement,
            ..until(2, LATER)
        },
    );
    history.breaks(Invariant::NothingGrantedTwice);
}

#[test]
fn neighbours_and_other_resources_are_no_mistake() {
    let mut history = History::with(&[1, 2]);
    let elsewhere = LeaseRecord {
        resource_id: ResourceId(2),
        placement: lease(1).placement,
        ..lease(3)
    };
    history.writes(BEFORE, elsewhere);
    history.breaks_nothing();
}

#[test]
fn a_request_with_two_leases_at_a_node_or_at_two() {
    let requested = lease(1).requested;
    let mut history = History::with(&[1]);
    history.writes(
        BEFORE,
        LeaseRecord {
            requested,
            ..lease(2)
        },
    );
    history.breaks(Invariant::OneLeasePerRequest);

    let history = History::with(&[1]);
    let mut other = Watched::new(2);
    other.becomes(LeaseId(1), Some(lease(1)), BEFORE, &history.all);
    history.breaks(Invariant::OneLeasePerRequest);
}

#[test]
fn a_token_of_another_tenant_is_another_request() {
    let mut history = History::with(&[1]);
    let of_another = LeaseRecord {
        requested: lease(1).requested,
        tenant: "red".into(),
        ..lease(2)
    };
    history.writes(BEFORE, of_another);
    history.breaks_nothing();
}

#[test]
fn an_end_that_moves_without_a_renewal() {
    for deadline in [LATER, at(950), AFTER] {
        let mut history = History::with(&[1]);
        history.writes(BEFORE, until(1, deadline));
        history.breaks(Invariant::OnlyHoldersMoveEnds);
    }
}

#[test]
fn a_renewal_moves_one_end_once() {
    let mut history = History::with(&[1, 2]);
    history.is_asked(1, HOLDER, Asks::Renewal);
    history.writes(BEFORE, until(1, LATER));
    history.breaks_nothing();
    history.writes(BEFORE, until(1, at(2_000)));
    history.writes(BEFORE, until(2, LATER));
    let twice = Invariant::OnlyHoldersMoveEnds.to_string();
    assert_eq!(history.broken(), [twice.clone(), twice]);
}

#[test]
fn only_the_holder_renews_and_frees() {
    for (asks, next) in [
        (Asks::Renewal, until(1, LATER)),
        (Asks::End, over(1, LeasePhase::Freed)),
    ] {
        let mut history = History::with(&[1]);
        history.is_asked(1, "red", asks);
        history.writes(BEFORE, next);
        history.breaks(Invariant::OnlyHoldersMoveEnds);
    }
}

#[test]
fn a_lease_that_ends_or_vanishes_before_its_time() {
    for phase in [LeasePhase::Expired, LeasePhase::Revoked, LeasePhase::Freed] {
        let mut history = History::with(&[1]);
        history.writes(BEFORE, over(1, phase));
        history.breaks(Invariant::OnlyHoldersMoveEnds);
    }
    let mut history = History::with(&[1]);
    history.forgets(BEFORE, 1);
    history.breaks(Invariant::OnlyHoldersMoveEnds);

    let mut history = History::with(&[]);
    let kept = LeaseRecord {
        grace_secs: 30,
        ..lease(1)
    };
    history.writes(BEFORE, kept);
    history.writes(AFTER, over(1, LeasePhase::Expired));
    history.breaks(Invariant::OnlyHoldersMoveEnds);
}

#[test]
fn a_lease_that_lives_again() {
    let mut history = History::with(&[1]);
    history.writes(AFTER, over(1, LeasePhase::Expired));
    history.is_asked(1, HOLDER, Asks::Renewal);
    history.writes(AFTER, lease(1));
    history.breaks(Invariant::OnlyHoldersMoveEnds);
}

#[test]
fn a_lease_that_outlives_its_time() {
    let late = END + Duration::from_secs(21);
    let history = History::with(&[1]);
    history.node.look_for_late(late, &history.all);
    history.breaks(Invariant::LeasesEnd);

    let mut history = History::with(&[1]);
    history.writes(late, over(1, LeasePhase::Expired));
    history.breaks(Invariant::LeasesEnd);

    // A daemon that was not there ends it when it starts.
    let mut history = History::with(&[1]);
    history.node.starts(late);
    history.writes(late, over(1, LeasePhase::Expired));
    history.breaks_nothing();
}
