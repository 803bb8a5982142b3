//! What the machine sees of orders and reports, and its checks.

use std::collections::BTreeSet;

use fabricbios_lease::{
    BindOrder, FenceRecord, LeaseRecord, LeaseTable, Order, Placement, Report, State,
};
use fabricbios_wire::{Generation, LeaseId, LeaseInfo, LeasePhase, RequestToken, ResourceId};

use super::{
    invariants::Invariant,
    kinds,
    machine::{Machine, Object, SOON, ZEROES},
    store::pages_of,
};
use crate::{
    driver::{Input, fair::Owner},
    journal::{Key, Value, records},
};

/// The rest of a job, and the job of its lease that waited for it: so many steps.
pub(super) const AFTERMATH: u64 = 25 * SOON;

/// Orders and reports.
impl Machine {
    pub(super) fn ordered(&mut self, order: &Order) {
        self.say(|| format!("ordered: {order:?}"));
        let leases = match order {
            Order::Reset(id, leases) => {
                let leases = leases.iter().map(|(it, _)| it.lease_id);
                let leases: Vec<LeaseId> = leases.collect();
                self.resetting.insert(*id, leases.clone());
                leases
            }
            order => order.lease_id().into_iter().collect(),
        };
        let locks = matches!(
            order,
            Order::Bind(_) | Order::Release(..) | Order::Reset(..)
        );
        self.dispatching = (leases.into_iter().collect(), locks);
        if let Order::Confirm(id) = order
            && self.record(id.lease_id).is_none()
        {
            let why = format!("{id} is confirmed and on no record");
            self.breaks(Invariant::NoAnswerBeforeDurable, why);
        }
        let Order::Bind(bind) = order else { return };
        let (id, extent) = (bind.binding_id, bind.extent());
        let held = |((resource, lease), part): &(&(ResourceId, LeaseId), &Placement)| {
            let is_other = *resource == id.resource_id && *lease != id.lease_id;
            let overlaps = matches!(part, Placement::Stretch(its) if its.overlaps(extent));
            is_other && overlaps && self.fenced.contains(lease)
        };
        if let Some(((_, lease), _)) = self.parts.iter().find(held) {
            let why = format!("{id} gets a part of lease {lease}");
            self.breaks(Invariant::FencedIsNotGranted, why);
        }
    }

    pub(super) fn reported(&mut self, report: &Report) {
        self.say(|| format!("reported: {report:?}"));
        match report {
            Report::Cut(id, Ok(_)) => {
                let newest = self.proved.entry(id.lease_id).or_insert(id.generation);
                *newest = (*newest).max(id.generation);
            }
            Report::Reset(id, Ok(())) => {
                let leases = self.resetting.remove(id).unwrap_or_default();
                let ended = leases.into_iter().map(|it| (it, Generation(u32::MAX)));
                self.proved.extend(ended);
            }
            Report::Cut(id, Err(_)) | Report::Release(id, Err(_)) => {
                self.fenced.insert(id.lease_id);
            }
            Report::RetireKey(id, Ok(_)) => {
                let mut its = self.objects.iter();
                let old = its.any(|((_, lease), it)| *lease == id.lease_id && it.old_key);
                if old {
                    self.breaks(Invariant::KeysEnd, format_args!("the old key of {id}"));
                }
            }
            _ => {}
        }
    }

    /// Sends a report to the driver.
    pub(super) fn report(&mut self, owner: Owner, report: Report) {
        self.reported(&report);
        if let Some(driver) = &self.driver {
            let at = self.now().boot;
            driver.report(owner, Input::Report { at, report });
        }
    }

    /// The outcome of a lease in the journal: `None` without a record, `Some(None)` while the lease lives.
    pub(super) fn record(&self, id: LeaseId) -> Option<Option<LeasePhase>> {
        let record: LeaseRecord = records::decode(self.records.get(&Key::Lease(id))?).unwrap();
        Some(record.ended)
    }

    /// The leases behind the fences on record: their end may not have been written down.
    pub(super) fn fenced_on_record(&self) -> BTreeSet<LeaseId> {
        let is_fenced = |id: &LeaseId| self.record(*id) == Some(Some(LeasePhase::Fenced));
        let of = |(key, value): (&Key, &Value)| match key {
            Key::Lease(id) => Some(*id).filter(is_fenced),
            Key::Fence(_) => Some(records::decode::<FenceRecord>(value).unwrap().lease_id),
            _ => None,
        };
        self.records.iter().filter_map(of).collect()
    }

    /// Whether the end of access by this object was proved or told.
    pub(super) fn is_ended(&self, path: &'static str, lease: LeaseId, object: &Object) -> bool {
        let proved = self.proved.get(&lease);
        let on_path = self.cuts.get(&(path, lease)).copied().flatten();
        proved.is_some_and(|it| *it >= object.generation)
            || on_path.is_some_and(|it| object.is_of(it))
            || self.over.contains(&lease)
    }

    /// Whether this process has tried to cut the lease on this path, and has failed.
    pub(super) fn could_not_cut(&self, path: &'static str, lease: LeaseId) -> bool {
        self.cuts.get(&(path, lease)) == Some(&None)
    }
}

/// Checks of a store.
impl Machine {
    /// Whether a write of a header fails half way.
    pub(super) fn tears(&mut self) -> bool {
        self.happens(|it| it.disk)
    }

    /// Whether the store can make a new part, beside all that it has given out: the table knows of strays only in pools.
    pub(super) fn has_room(&self, order: &BindOrder) -> bool {
        let id = order.binding_id.resource_id;
        let held: Vec<&Placement> = self.held(id).map(|(_, part)| part).collect();
        (self.offers[&id].0.has_room)(&held, &order.placement)
    }

    fn held(&self, id: ResourceId) -> impl Iterator<Item = (LeaseId, &Placement)> {
        let parts = self.parts.iter();
        let its = parts.filter(move |((resource, _), _)| *resource == id);
        its.map(|((_, lease), part)| (*lease, part))
    }

    /// Checks the parts that were given out. A stray whose cut is proved uses no amount, but its position is not clean.
    pub(super) fn check_apart(&mut self, id: ResourceId) {
        let held: Vec<&Placement> = self.held(id).map(|(_, part)| part).collect();
        let of_table = self.held(id).filter(|(it, _)| !self.strays.contains(it));
        let of_table: Vec<&Placement> = of_table.map(|(_, part)| part).collect();
        if !(kinds::are_apart(&held) && (self.offers[&id].0.adds_up)(&of_table)) {
            let why = format!("{held:?} of {id}");
            self.breaks(Invariant::NoTwoHolders, why);
        }
    }

    /// Checks the bytes that a client with access finds.
    pub(super) fn check_bytes(&mut self, id: ResourceId, lease: LeaseId, part: Option<&Placement>) {
        let (Some(pages), Some(part)) = (self.pages.get(&id), part) else {
            return;
        };
        let pages = &pages[pages_of(part.extent())];
        let foreign = pages.iter().any(|it| *it != lease && *it != ZEROES);
        let lost = pages.contains(&ZEROES) && self.wrote.contains(&lease);
        let what = format!("lease {lease} finds {pages:?}");
        if foreign {
            self.breaks(Invariant::NoForeignBytes, &what);
        }
        if lost {
            self.breaks(Invariant::BytesStay, &what);
        }
    }

    pub(super) fn check_may_clean(&mut self, lease: LeaseId) {
        let mut objects = self.objects.iter();
        if let Some(((path, _), _)) =
            objects.find(|((_, it), object)| *it == lease && object.is_open)
        {
            let why = format!("lease {lease} is cleaned and reached over {path}");
            self.breaks(Invariant::NoAccessAfterProof, why);
        }
        if self.granted.contains_key(&lease) && self.record(lease) == Some(None) {
            let why = format_args!("lease {lease} is cleaned and lives on record");
            self.breaks(Invariant::RecordBeforeScrub, why);
        }
    }

    /// Checks that each new fence has a cause: trouble that lasted, with [`AFTERMATH`], until the last check.
    pub(super) fn check_fences(&mut self, table: &LeaseTable) {
        let uncut = table.uncut().filter(|(_, state)| *state == State::Fenced);
        let uncut = uncut.map(|(id, _)| id);
        let unreleased = self.offers.keys().flat_map(|id| table.unreleased(*id));
        let unreleased = unreleased.map(|(id, _)| id.lease_id);
        let named = table.fences().into_iter().map(|it| it.lease_id);
        let fenced: BTreeSet<LeaseId> = uncut.chain(unreleased).chain(named).collect();
        let is_cause = |until: u64| self.checked_at <= until.saturating_add(AFTERMATH);
        let has_cause = |id: &LeaseId| {
            let its = self.in_trouble_until.get(id).copied();
            is_cause(self.held_up_until) || its.is_some_and(is_cause)
        };
        let mut new = fenced.difference(&self.behind_fences);
        let without = new.find(|id| !has_cause(id)).copied();
        self.behind_fences = fenced;
        self.checked_at = self.now;
        if let Some(id) = without {
            let why = format_args!("lease {id}: {:?}", table.fences());
            self.breaks(Invariant::NoFenceWithoutCause, why);
        }
    }

    /// Checks that a request gets one lease, as long as that lease is on record.
    pub(super) fn check_request(
        &mut self,
        who: &'static str,
        token: RequestToken,
        info: &LeaseInfo,
    ) {
        let id = info.lease_id;
        let before = self.requests.insert((who, token), id);
        let other = before.filter(|it| *it != id && self.record(*it).is_some());
        if other.is_some() || info.request_token != Some(token) {
            let why = format_args!("request {token} of {who} has {id} and {other:?}");
            self.breaks(Invariant::OneLeaseForARequest, why);
        }
    }

    /// Checks that the journal has one lease of each request.
    fn check_requests(&mut self) {
        let of = |(key, value): (&Key, &Value)| match key {
            Key::Lease(_) => Some(records::decode::<LeaseRecord>(value).unwrap()),
            _ => None,
        };
        let leases = self.records.iter().filter_map(of);
        let granted = leases.filter(|it| it.granted_at_unix_ms != 0);
        let mut requests = BTreeSet::new();
        let second = granted
            .filter_map(|it| Some((it.tenant, it.requested?.token)))
            .find(|it| !requests.insert(it.clone()));
        if let Some((who, token)) = second {
            let why = format_args!("two leases by request {token} of {who} are on record");
            self.breaks(Invariant::OneLeaseForARequest, why);
        }
    }

    /// Checks that the journal has what was told.
    pub(super) fn check_told(&mut self) {
        self.check_requests();
        let has = |id: &&LeaseId| self.records.contains_key(&Key::Lease(**id));
        let lives = |id: &&LeaseId| self.record(**id).flatten().is_none();
        let lost = self.granted.keys().find(|id| !has(id)).copied();
        let lost = lost.or_else(|| self.over.iter().find(lives).copied());
        if let Some(id) = lost {
            let why = format_args!("what was told of lease {id} is not on record");
            self.breaks(Invariant::NothingLostOverRestart, why);
        }
    }
}
