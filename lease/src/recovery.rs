//! What becomes of a lease of an earlier run: decided here, done in `restart`.

use core::time::Duration;

use fabricbios_wire::{LeasePhase, Transport};

use crate::{BootTime, Durability, LeaseRecord, LeaseTable, Now, Placement, resource::Resource};

/// What is known of the run that wrote the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierRun {
    /// It was of this boot, so that deadlines on the boot-time clock mean what they meant then.
    pub same_boot: bool,
    /// The wall clock says now, and said then, what time it is. Counts only where the boot is another.
    pub wall_clock_trusted: bool,
}

/// What becomes of a lease of an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryDecision {
    /// It holds nothing.
    Over(LeasePhase),
    /// It may hold its part of the resource.
    Holds(Held, Placement),
}

/// How a lease of an earlier run holds what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// It is fenced, and what that fences.
    Fenced,
    /// It goes on until then.
    Lives(BootTime),
    /// Its term ended then, its contents are kept.
    Kept(BootTime),
    /// It is to be cut and released.
    Ends {
        /// How it ended.
        phase: LeasePhase,
        /// The earlier run told so already.
        told: bool,
    },
}

impl Held {
    /// The end of a lease whose part of the resource is not to be had any more.
    pub(crate) fn displaced(self) -> LeasePhase {
        match self {
            Self::Ends { phase, told: true } => phase,
            Self::Fenced => LeasePhase::Fenced,
            _ => LeasePhase::Revoked,
        }
    }
}

/// Where in its term a lease is.
enum Term {
    Left(Duration),
    OverSince(Duration),
}

impl LeaseTable {
    pub(crate) fn recovery_decision(
        &self,
        now: Now,
        record: &LeaseRecord,
        run: EarlierRun,
    ) -> RecoveryDecision {
        let resource = self.resources.get(&record.resource_id);
        let durability = resource.map_or(Durability::Nothing, |resource| resource.durability);
        // What was made for this lease alone may be there, and goes with a cut and a release of its own.
        let stays = match durability {
            Durability::Machine => true,
            Durability::Boot => run.same_boot,
            Durability::Nothing | Durability::Process => false,
        };
        match (record.ended, record.placement.clone()) {
            (Some(LeasePhase::Fenced), Some(placement)) => {
                RecoveryDecision::Holds(Held::Fenced, placement)
            }
            (Some(phase), Some(placement)) if stays => {
                RecoveryDecision::Holds(Held::Ends { phase, told: true }, placement)
            }
            (Some(phase), _) => RecoveryDecision::Over(phase),
            (None, None) => RecoveryDecision::Over(LeasePhase::Revoked),
            (None, Some(placement)) => {
                let reopens = resource.filter(|it| !record.cannot_go_on && it.can_reopen(record));
                let term = reopens.and_then(|_| term(now, record, run, durability));
                of_the_living(now, record, stays, term, placement)
            }
        }
    }
}

fn of_the_living(
    now: Now,
    record: &LeaseRecord,
    stays: bool,
    term: Option<Term>,
    placement: Placement,
) -> RecoveryDecision {
    let phase = match term {
        Some(Term::Left(left)) => {
            return RecoveryDecision::Holds(Held::Lives(now.boot + left), placement);
        }
        Some(Term::OverSince(over)) if over < secs(record.grace_secs) => {
            let over = u64::try_from(over.as_nanos()).unwrap_or(u64::MAX);
            let ended_at = BootTime(now.boot.0.saturating_sub(over));
            return RecoveryDecision::Holds(Held::Kept(ended_at), placement);
        }
        Some(_) => LeasePhase::Expired,
        None => LeasePhase::Revoked,
    };
    match stays {
        true => RecoveryDecision::Holds(Held::Ends { phase, told: false }, placement),
        false => RecoveryDecision::Over(phase),
    }
}

/// By the clock that can be believed; `None` if none can. A deadline farther away than a whole term was
/// read from another clock.
fn term(now: Now, record: &LeaseRecord, run: EarlierRun, durability: Durability) -> Option<Term> {
    let wall_clock_counts = durability == Durability::Machine
        && run.wall_clock_trusted
        && record.granted_at_unix_ms <= now.unix_ms;
    let (left, over) = if run.same_boot {
        let deadline = record.deadline;
        (now.boot.until(deadline), deadline.until(now.boot))
    } else if wall_clock_counts {
        let (expires, now) = (record.expires_at_unix_ms, now.unix_ms);
        let span = |from: u64, to: u64| Duration::from_millis(to.saturating_sub(from));
        (span(now, expires), span(expires, now))
    } else {
        return None;
    };
    match left {
        Duration::ZERO => Some(Term::OverSince(over)),
        left => (left <= secs(record.term_secs)).then_some(Term::Left(left)),
    }
}

impl Resource {
    /// Whether a new process can open again what a lease had: queue pairs of memory die with the
    /// process, keys of datagrams are made anew, what the kernel serves is there or can be made again, and so is
    /// what has no transport.
    fn can_reopen(&self, record: &LeaseRecord) -> bool {
        let transport = record.effective.transport;
        let reopens = match (self.durability, transport) {
            (Durability::Nothing, _) => false,
            (_, None) => true,
            (Durability::Process, Some(transport)) => {
                matches!(transport, Transport::Udp | Transport::Both)
            }
            (Durability::Boot | Durability::Machine, Some(transport)) => {
                !matches!(transport, Transport::Auto | Transport::Rdma)
            }
        };
        let offered = match transport {
            Some(transport) => self.transports.contains(&transport),
            None => self.transports.is_empty(),
        };
        reopens && offered && self.kind == record.resource_type
    }
}

pub(crate) fn secs(secs: u32) -> Duration {
    Duration::from_secs(secs.into())
}
