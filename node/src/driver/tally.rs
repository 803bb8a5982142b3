//! What the driver counts for metrics. Nothing of it grows with what tenants ask for.

use std::collections::{BTreeMap, VecDeque};

use fabricbios_lease::{Availability, Histogram, Note, Report, StateFigures};
use fabricbios_wire::{LeaseId, Refusal, Request, ResourceId, ResourceInventory, ResourceType};

use crate::{
    driver::{load::PoolFigures, mailbox::Waiting},
    journal::JournalFigures,
};

/// Ends that are kept in mind.
const LAST_ENDS: usize = 12;

/// Counts since the start.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By resource.
    pub resources: BTreeMap<ResourceId, OfResource>,
    /// Refusals, by the kind that was asked for, class and code. `None`: no kind was named, or one that this program does
    /// not know.
    pub refusals: BTreeMap<(Option<ResourceType>, &'static str, &'static str), u64>,
    /// The last leases that ended clean, the last at the end, with the time at which their access had ended: milliseconds since
    /// 1970.
    pub last_ends: VecDeque<(LeaseId, u64)>,
}

/// The counts of one resource.
#[derive(Clone, Debug, Default)]
pub struct OfResource {
    /// Leases whose grant was answered: it is in the journal, and their store has confirmed it.
    pub grants: u64,
    /// Leases that could not be made, by a fault of the node.
    pub not_bound: u64,
    /// Proved cuts, by the cause of the end.
    pub cuts: BTreeMap<&'static str, u64>,
    /// From the decision to the proof.
    pub cut_times: Histogram,
    /// From the deadline to the proof, of leases that expired.
    pub late: Histogram,
    /// Leases fenced because the end of their access is not proved.
    pub unproved: u64,
    /// Capacity that was cleaned and is free again, in the unit of the kind.
    pub cleaned: u64,
    /// Fences, by the step that failed. Steps are named in this program.
    pub fences: BTreeMap<String, u64>,
}

/// What the driver tells for metrics and health.
#[derive(Clone, Debug)]
pub struct DriverFigures {
    /// Every resource on offer.
    pub offered: Vec<Availability>,
    /// The leases of each, by state.
    pub states: Vec<StateFigures>,
    /// The inventory of the same moment, with the health of node and resources.
    pub inventory: ResourceInventory,
    /// Counts since the start.
    pub tally: Tally,
    /// What waits for the driver.
    pub waiting: Waiting,
    /// Answers and orders that wait for the disk.
    pub held: usize,
    /// The jobs in worker pools.
    pub pools: Vec<PoolFigures>,
    /// The journal.
    pub journal: JournalFigures,
    /// Why the journal cannot be written.
    pub unwritable: Option<String>,
    /// The node is going down and grants nothing.
    pub is_draining: bool,
}

impl Tally {
    /// Counts an event of the table.
    pub(crate) fn note(&mut self, note: &Note) {
        match note {
            Note::NotBound { resource_id, .. } => self.of(*resource_id).not_bound += 1,
            Note::Refused {
                wanted, refusal, ..
            } => {
                let kind = wanted.as_ref().map(|it| it.resource_type);
                self.refused(kind, refusal);
            }
            Note::Cut {
                binding_id,
                cause,
                time,
                ..
            } => {
                let of = self.of(binding_id.resource_id);
                *of.cuts.entry(cause.name()).or_default() += 1;
                of.cut_times.add(time.took);
                if let Some(late) = time.after_deadline {
                    of.late.add(late);
                }
            }
            Note::Ended { record, .. } => {
                if self.last_ends.len() == LAST_ENDS {
                    self.last_ends.pop_front();
                }
                let ended = record.end.as_ref().map_or(0, |it| it.at_unix_ms);
                self.last_ends.push_back((record.lease_id, ended));
            }
            Note::Fenced {
                resource_id,
                reason,
                by_release,
                ..
            } => {
                let of = self.of(*resource_id);
                of.unproved += u64::from(!by_release);
                *of.fences.entry(reason.step.name().to_owned()).or_default() += 1;
            }
            _ => {}
        }
    }

    /// Counts what a release has cleaned. `amount`: the capacity of its lease.
    pub(super) fn report(&mut self, report: &Report, amount: Option<u64>) {
        if let Report::Release(binding_id, Ok(_)) = report {
            self.of(binding_id.resource_id).cleaned += amount.unwrap_or(0);
        }
    }

    /// Counts a lease of this resource that its client gets.
    pub(super) fn granted(&mut self, id: ResourceId) {
        self.of(id).grants += 1;
    }

    /// Counts a refusal.
    pub(crate) fn refused(&mut self, kind: Option<ResourceType>, refusal: &Refusal) {
        let known = kind.filter(|it| !matches!(it, ResourceType::Unknown(_)));
        let key = (known, refusal.class.name(), refusal.error.name());
        *self.refusals.entry(key).or_default() += 1;
    }

    fn of(&mut self, id: ResourceId) -> &mut OfResource {
        self.resources.entry(id).or_default()
    }
}

/// The kind that a request names.
pub(super) fn kind_of(request: &Request) -> Option<ResourceType> {
    match request {
        Request::LeaseAlloc(wanted) => Some(wanted.resource_type()),
        _ => None,
    }
}
