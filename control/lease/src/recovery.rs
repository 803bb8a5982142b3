//! The recovery decision for a lease of an earlier run; `restart` carries it out.

use core::time::Duration;

use fabricbios_wire::{LeasePhase, Transport};

use crate::{BootTime, Durability, LeaseRecord, LeaseTable, Now, Placement, resource::Resource};

/// Facts about the run that wrote the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierRun {
    /// The earlier run was on this boot, so its deadlines on the boot-time clock are valid.
    pub same_boot: bool,
    /// The wall clock was right in the earlier run and is right now. Used only after a reboot.
    pub wall_clock_trusted: bool,
}

/// The recovery decision for a lease of an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryDecision {
    /// The lease is over and holds no part.
    Over(LeasePhase),
    /// The lease keeps its part of the resource, if that part is still free for it.
    Holds(Held, Placement),
}

/// Why a lease of an earlier run holds its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// The lease is fenced.
    Fenced,
    /// The lease goes on until this time.
    Lives(BootTime),
    /// The term ended at this time; the contents are kept.
    Kept(BootTime),
    /// The lease is cut and released.
    Ends {
        /// How it ended.
        phase: LeasePhase,
        /// Whether the earlier run reported the end already.
        told: bool,
        /// When its term ended, or now.
        ended_at: BootTime,
    },
}

impl Held {
    /// The phase of a lease whose part is gone or belongs to another lease.
    pub(crate) fn displaced(self) -> LeasePhase {
        match self {
            Self::Ends {
                phase, told: true, ..
            } => phase,
            Self::Fenced => LeasePhase::Fenced,
            _ => LeasePhase::Revoked,
        }
    }
}

/// The place of a lease in its term.
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
        // Objects of this lease alone may be left; they go with its own cut and release.
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
                let held = Held::Ends {
                    phase,
                    told: true,
                    ended_at: now.boot,
                };
                RecoveryDecision::Holds(held, placement)
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
    let (phase, ended_at) = match term {
        Some(Term::Left(left)) => {
            return RecoveryDecision::Holds(Held::Lives(now.boot + left), placement);
        }
        Some(Term::OverSince(over)) => {
            let nanos = u64::try_from(over.as_nanos()).unwrap_or(u64::MAX);
            let ended_at = BootTime(now.boot.0.saturating_sub(nanos));
            if over < secs(record.grace_secs) {
                return RecoveryDecision::Holds(Held::Kept(ended_at), placement);
            }
            (LeasePhase::Expired, ended_at)
        }
        None => (LeasePhase::Revoked, now.boot),
    };
    let held = Held::Ends {
        phase,
        told: false,
        ended_at,
    };
    match stays {
        true => RecoveryDecision::Holds(held, placement),
        false => RecoveryDecision::Over(phase),
    }
}

/// The rest of the term by the valid clock; `None` without a valid clock. A deadline farther away than a whole term
/// came from another clock.
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
    /// Whether a new process can open the access of a lease again. Queue pairs of memory end with the process. UDP keys
    /// are made again. Kernel targets remain or can be made again. A lease without a transport can be opened again if
    /// its resource survives.
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
