//! Invariants that are checked from the effects alone, without the oracle.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv6Addr,
};

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{NOBODY, PAGE, SLICES, kind_of};

/// The state that a crash would leave.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) leases: BTreeMap<LeaseId, LeaseRecord>,
    pub(crate) fences: BTreeMap<ResourceId, FenceRecord>,
}

impl Journal {
    pub(crate) fn apply(&mut self, change: &Change) {
        match change.clone() {
            Change::PutLease(record) => drop(self.leases.insert(record.lease_id, record)),
            Change::RemoveLease(id) => drop(self.leases.remove(&id)),
            Change::PutFence(fence) => drop(self.fences.insert(fence.resource_id, fence)),
            Change::RemoveFence(id) => drop(self.fences.remove(&id)),
        }
    }
}

/// The observations so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Newest generation named by an order.
    newest: BTreeMap<LeaseId, Generation>,
    /// The binding in use, as its backend has reported it.
    works: BTreeMap<LeaseId, Generation>,
    /// Bindings whose cut was reported as proved.
    proved: BTreeSet<(LeaseId, Generation)>,
    extents: BTreeMap<LeaseId, (ResourceId, Extent)>,
    pub(crate) asked: BTreeMap<Ticket, Option<LeaseId>>,
    pub(crate) answered: BTreeSet<Ticket>,
    /// Bindings with an ordered cut.
    cut: BTreeSet<(LeaseId, Generation)>,
    /// The deadlines that the paths of a lease acknowledged.
    prolonged: BTreeSet<(LeaseId, Generation, BootTime)>,
    /// All changes of the journal so far.
    pub(crate) changes: Vec<Change>,
    /// The records on disk.
    pub(crate) journal: Journal,
}

impl Seen {
    fn cut_is_proved(&self, id: LeaseId) -> bool {
        let newest = self.newest.get(&id);
        newest.is_some_and(|&generation| self.proved.contains(&(id, generation)))
    }

    pub(crate) fn report(&mut self, report: &Report) {
        match report {
            Report::Bind(binding_id, Ok(_)) => drop(
                self.works
                    .insert(binding_id.lease_id, binding_id.generation),
            ),
            Report::Bind(binding_id, Err(BindError::Lost(_))) => {
                self.works.remove(&binding_id.lease_id);
            }
            Report::Cut(binding_id, Ok(_)) => {
                self.works.remove(&binding_id.lease_id);
                self.proved
                    .insert((binding_id.lease_id, binding_id.generation));
            }
            Report::Extended(binding_id, deadline, Ok(())) => {
                let acknowledged = (binding_id.lease_id, binding_id.generation, *deadline);
                self.prolonged.insert(acknowledged);
            }
            _ => {}
        }
    }

    /// Answers contain only bindings that exist now.
    pub(crate) fn invariant_what_is_told_works(&self, info: &LeaseInfo) {
        let told = !info.binding.is_plain();
        let works = self.works.get(&info.lease_id);
        assert!(
            !told || works == Some(&info.generation),
            "{info:?}: {works:?}"
        );
    }

    /// `open`: orders without a report yet.
    pub(crate) fn order(&mut self, order: &Order, open: &[Order], fenced: &[ResourceId]) {
        match order {
            Order::Bind(bind) => {
                invariant_no_new_lease_on_a_fenced_resource(bind, fenced);
                invariant_only_ports_are_bound(bind);
                let (id, place) = (
                    bind.binding_id.lease_id,
                    (bind.binding_id.resource_id, bind.extent()),
                );
                let before = *self.extents.entry(id).or_insert(place);
                assert_eq!(before, place, "a lease never moves");
                self.names(bind.binding_id);
            }
            Order::Rotate(binding_id)
            | Order::RetireKey(binding_id)
            | Order::ChangePeers(binding_id, _) => self.names(*binding_id),
            Order::Cut(binding_id, _) => {
                self.names(*binding_id);
                self.cut
                    .insert((binding_id.lease_id, binding_id.generation));
            }
            Order::Extend(binding_id, _) => {
                self.names(*binding_id);
                self.invariant_what_is_cut_is_not_prolonged(*binding_id);
            }
            Order::Confirm(binding_id) => unreachable!("{binding_id}: the driver confirms"),
            Order::Fenced(binding_id) => {
                let binding = (binding_id.lease_id, binding_id.generation);
                let cut = self.cut.contains(&binding) || self.proved.contains(&binding);
                assert!(cut, "{binding_id}: fenced before it was cut");
            }
            Order::Release(binding_id, placement) => {
                self.names(*binding_id);
                assert_eq!(
                    self.extents[&binding_id.lease_id],
                    (binding_id.resource_id, placement.extent())
                );
                self.invariant_release_waits(*binding_id, open);
            }
            Order::Reset(id, leases) => {
                for &(binding_id, ref placement) in leases {
                    self.names(binding_id);
                    assert_eq!(
                        self.extents[&binding_id.lease_id],
                        (*id, placement.extent())
                    );
                    invariant_nothing_is_on_its_way(binding_id, open);
                }
            }
        }
    }

    fn names(&mut self, binding_id: BindingId) {
        self.invariant_generations_never_go_back(binding_id);
        self.newest
            .insert(binding_id.lease_id, binding_id.generation);
    }

    fn invariant_generations_never_go_back(&self, binding_id: BindingId) {
        let newest = self.newest.get(&binding_id.lease_id).copied();
        assert!(
            newest.is_none_or(|newest| newest <= binding_id.generation),
            "{binding_id}"
        );
    }

    fn invariant_what_is_cut_is_not_prolonged(&self, binding_id: BindingId) {
        let cut = self
            .cut
            .contains(&(binding_id.lease_id, binding_id.generation));
        assert!(!cut, "{binding_id}: prolonged after its cut");
    }

    /// A client can use a key for as long as the answer says.
    fn invariant_the_transport_knew_before(&self, info: &LeaseInfo, now: BootTime) {
        if info.binding.is_plain() {
            return;
        }
        // A newer binding may be under way, or may have failed.
        let is_told = |&(id, generation, until): &(LeaseId, Generation, BootTime)| {
            let left_ms = until.0.saturating_sub(now.0) / 1_000_000;
            id == info.lease_id && info.generation <= generation && left_ms == info.remaining_ms
        };
        let told = self.prolonged.iter().any(is_told);
        assert!(told, "no path has agreed to {info:?}: {:?}", self.prolonged);
    }

    /// The process is gone with its state. Its death has ended its bindings, except those that the kernel serves.
    pub(crate) fn restart(&mut self, offers: &[Offer]) {
        let ended = |id: &LeaseId| {
            let place = self.extents.get(id);
            place.is_none_or(|place| !outlives_machine(place.0, offers))
        };
        let newest = self.newest.iter().filter(|(id, _)| ended(id));
        self.proved
            .extend(newest.map(|(&id, &generation)| (id, generation)));
        self.works.clear();
        self.prolonged.clear();
        self.asked
            .retain(|ticket, _| self.answered.contains(ticket));
    }

    fn invariant_release_waits(&self, binding_id: BindingId, open: &[Order]) {
        assert!(
            self.cut_is_proved(binding_id.lease_id),
            "{binding_id}: not proved cut"
        );
        invariant_nothing_is_on_its_way(binding_id, open);
    }

    pub(crate) fn answer(&mut self, ticket: Ticket, answer: &Answer, now: BootTime) {
        self.invariant_a_ticket_is_answered_once(ticket);
        let about = self.asked[&ticket];
        match (answer, about) {
            (Ok(Reply::Lease(info)), _) => {
                self.invariant_ended_is_told_after_the_proof(info);
                self.invariant_the_transport_knew_before(info, now);
            }
            (Ok(Reply::Revoked(RevokeOutcome::TornDown)), Some(id)) => {
                assert!(self.cut_is_proved(id), "{id} is not torn down");
            }
            (Err(refusal), Some(id))
                if matches!(refusal.error, LeaseError::Expired | LeaseError::Revoked) =>
            {
                assert!(self.cut_is_proved(id), "{id}: {refusal:?}");
            }
            _ => {}
        }
    }

    fn invariant_a_ticket_is_answered_once(&mut self, ticket: Ticket) {
        assert!(self.asked.contains_key(&ticket), "{ticket:?}: nobody asked");
        assert!(self.answered.insert(ticket), "{ticket:?} is answered twice");
    }

    pub(crate) fn invariant_ended_is_told_after_the_proof(&self, info: &LeaseInfo) {
        let over = matches!(
            info.phase,
            LeasePhase::Grace | LeasePhase::Expired | LeasePhase::Freed | LeasePhase::Revoked
        );
        assert!(!over || self.cut_is_proved(info.lease_id), "{info:?}");
    }

    pub(crate) fn invariant_extents_are_disjoint(&self, live: &[LeaseInfo], offers: &[Offer]) {
        let mut taken: Vec<_> = live
            .iter()
            .map(|info| self.extents[&info.lease_id])
            .collect();
        let amounts = |&&(id, _): &&(ResourceId, Extent)| is_amount(id, offers);
        assert!(taken.iter().filter(amounts).all(|(_, it)| it.offset == 0));
        taken.retain(|&(id, _)| !is_amount(id, offers));
        taken.sort();
        for &(id, extent) in &taken {
            let offer = offers.iter().find(|offer| offer.resource_id == id).unwrap();
            assert!(extent.end() <= offer.capacity);
            let whole_pages = extent.offset % PAGE == 0 && extent.length % PAGE == 0;
            assert!(whole_pages && extent.length > 0, "{extent:?}");
        }
        let clash = |pair: &[(ResourceId, Extent)]| {
            pair[0].0 == pair[1].0 && pair[0].1.end() > pair[1].1.offset
        };
        assert!(!taken.windows(2).any(clash), "{taken:?}");
    }

    pub(crate) fn write(&mut self, change: Change) {
        self.journal.apply(&change);
        self.changes.push(change);
    }

    /// The records match the answers of the table. Leases that were not granted are on record only if they are
    /// fenced.
    pub(crate) fn invariant_the_journal_replays(&self, told: &[LeaseInfo], fences: &[Fence]) {
        let over = |phase: LeasePhase| {
            let alive = matches!(
                phase,
                LeasePhase::Binding | LeasePhase::Active | LeasePhase::Grace
            );
            (!alive).then_some(phase)
        };
        let known =
            |info: &&LeaseInfo| info.granted_at_unix_ms != 0 || info.phase == LeasePhase::Fenced;
        let known = told.iter().filter(known);
        let told: BTreeMap<_, _> = known
            .map(|info| (info.lease_id, over(info.phase)))
            .collect();
        let leases = self.journal.leases.iter();
        let ended: BTreeMap<_, _> = leases.map(|(&id, record)| (id, record.ended)).collect();
        assert_eq!(ended, told, "journal against table");
        let written: Vec<Fence> = { self.journal.fences.values() }
            .map(FenceRecord::to_wire)
            .collect();
        assert_eq!(written, fences, "journal against fences");
    }

    /// The records have the part of every lease until it is clean, and not afterwards.
    pub(crate) fn invariant_what_outlives_the_machine_is_on_record(
        &self,
        live: &[LeaseInfo],
        offers: &[Offer],
    ) {
        for record in self.journal.leases.values() {
            if outlives_machine(record.resource_id, offers) {
                let lives = live.iter().any(|info| info.lease_id == record.lease_id);
                assert_eq!(record.placement.is_some(), lives, "{record:?}");
            }
        }
    }

    pub(crate) fn invariant_every_ticket_was_answered(&self) {
        let open = self
            .asked
            .keys()
            .filter(|ticket| !self.answered.contains(ticket));
        assert_eq!(open.count(), 0, "somebody still waits");
    }
}

/// A client keeps its binding and its keys until another binding has replaced them.
pub(crate) fn invariant_a_binding_that_fails_takes_nothing(
    report: &Report,
    before: Option<LeaseInfo>,
    after: Option<LeaseInfo>,
) {
    let Report::Bind(_, Err(error)) = report else {
        return;
    };
    let takes = matches!(error, BindError::Lost(_) | BindError::Stranded(_));
    let bound = before.filter(|info| !info.binding.is_plain());
    if let Some(before) = bound.filter(|_| !takes) {
        assert_eq!(Some(before), after, "{error:?}");
    }
}

fn invariant_no_new_lease_on_a_fenced_resource(bind: &BindOrder, fenced: &[ResourceId]) {
    let new = bind.binding_id.generation == Generation(1);
    assert!(
        !new || !fenced.contains(&bind.binding_id.resource_id),
        "{bind:?}"
    );
}

/// When a part is scrubbed, no order that could open it again still waits for its thread.
fn invariant_nothing_is_on_its_way(binding_id: BindingId, open: &[Order]) {
    let binds = |order: &Order| match order {
        Order::Bind(bind) => bind.binding_id.lease_id == binding_id.lease_id,
        Order::Rotate(other) | Order::ChangePeers(other, _) => {
            other.lease_id == binding_id.lease_id
        }
        _ => false,
    };
    assert!(
        !open.iter().any(binds),
        "{binding_id}: something is on its way"
    );
}

fn invariant_only_ports_are_bound(bind: &BindOrder) {
    let gid = |peer: &RdmaPeer| Ipv6Addr::from(peer.gid).to_string();
    let mut gids = bind.peers().iter().map(gid);
    assert!(!gids.any(|gid| NOBODY.contains(&gid.as_str())), "{bind:?}");
    let blocks = kind_of(bind.binding_id.resource_id) == ResourceType::Block;
    let takes_peers = matches!(bind.transport, Transport::Rdma | Transport::Both) && !blocks;
    assert!(bind.peers().is_empty() || takes_peers, "{bind:?}");
}

/// Only few cuts at once may linger. A cut that failed does not count: its lease is fenced.
/// No tenant has two leases by one request.
pub(crate) fn invariant_a_request_has_one_lease(told: &[LeaseInfo]) {
    let mut requests = BTreeSet::new();
    let granted = told.iter().filter(|info| info.granted_at_unix_ms != 0);
    for info in granted.filter(|info| info.request_token.is_some()) {
        let is_first = requests.insert((&info.tenant, info.request_token));
        assert!(is_first, "two leases: {info:?}");
    }
}

pub(crate) fn invariant_few_lingers(open: &[Order], live: &[LeaseInfo]) {
    let active = live.iter().filter(|info| info.phase == LeasePhase::Active);
    let active: BTreeSet<LeaseId> = active.map(|info| info.lease_id).collect();
    let brief = |order: &&Order| match order {
        Order::Cut(binding_id, Linger::Brief) => active.contains(&binding_id.lease_id),
        _ => false,
    };
    let brief = open.iter().filter(brief).count();
    assert!(brief <= 32, "{brief} lingers at once");
}

fn of(id: ResourceId, offers: &[Offer]) -> &Offer {
    let mut offers = offers.iter();
    offers.find(|offer| offer.resource_id == id).unwrap()
}

fn outlives_machine(id: ResourceId, offers: &[Offer]) -> bool {
    of(id, offers).durability == Durability::Machine
}

fn is_amount(id: ResourceId, offers: &[Offer]) -> bool {
    of(id, offers).allocation_mode != AllocationMode::Stretches
}

/// After any loss of journal data, no bytes have two holders.
pub(crate) fn invariant_nobody_is_displaced(effects: &[Effect]) {
    let mut effects = effects.iter();
    let displaced = effects.find(|it| matches!(it, Effect::Note(Note::Displaced { .. })));
    assert_eq!(displaced, None);
}

/// A lease that a restart adopts was in use and keeps its deadline: on the same boot, or by a trusted wall clock, in
/// milliseconds.
pub(crate) fn invariant_nothing_revives(
    before: &[LeaseInfo],
    after: &[LeaseInfo],
    pause_ms: u64,
    run: EarlierRun,
    offers: &[Offer],
) {
    for info in after {
        let uses = matches!(info.phase, LeasePhase::Active | LeasePhase::Grace);
        let known = before.iter().find(|known| known.lease_id == info.lease_id);
        let Some(known) = known.filter(|_| uses) else {
            assert!(!uses, "{info:?} comes from nowhere");
            continue;
        };
        let believed = run.wall_clock_trusted || info.remaining_ms == 0;
        let may = run.same_boot || believed && outlives_machine(info.resource_id, offers);
        assert!(may, "{info:?} lives on another boot");
        let left_ms = known.remaining_ms.saturating_sub(pause_ms);
        // The expiry and both times are rounded down to a millisecond.
        let rounding_ms = if run.same_boot { 0 } else { 2 };
        assert!(info.remaining_ms <= left_ms + rounding_ms);
        assert_eq!(info.expires_at_unix_ms, known.expires_at_unix_ms);
        assert!(info.generation >= known.generation);
        let lived = matches!(known.phase, LeasePhase::Active | LeasePhase::Grace);
        assert!(lived, "{known:?} is {info:?}");
    }
}

/// After any loss of journal data, bytes have one holder, and fenced bytes are not free.
pub(crate) fn invariant_bytes_have_one_holder(table: &LeaseTable, offers: &[Offer]) {
    for (offer, arena) in offers.iter().zip(table.availability()) {
        let holders = table.holders(offer.resource_id);
        let mut held: Vec<Extent> = holders.map(|(_, part)| part.extent()).collect();
        held.sort();
        let clash = |pair: &[Extent]| pair[0].overlaps(pair[1]);
        let apart = is_amount(offer.resource_id, offers) || !held.windows(2).any(clash);
        assert!(apart, "{held:?}");
        let bytes: u64 = held.iter().map(|extent| extent.length).sum();
        assert!(arena.available + bytes <= offer.capacity);
    }
    let fenced = table.census().contains_key(&State::Fenced);
    assert!(
        !fenced || !table.fences().is_empty(),
        "a fenced lease without a fence"
    );
}

pub(crate) fn invariant_the_deadline_is_ahead(next: Option<BootTime>, now: BootTime) {
    assert!(next.is_none_or(|next| next > now), "{next:?} at {now:?}");
}

/// Permanent means never: no resource of this node could meet the request, even if all leases end.
pub(crate) fn invariant_permanent_means_never(
    answer: &Answer,
    wanted: &LeaseAllocRequest,
    offers: &[Offer],
) {
    let Err(refusal) = answer else { return };
    if refusal.error == LeaseError::CapacityExceeded && refusal.class != RefusalClass::Policy {
        let named = |offer: &&Offer| wanted.resource_id.is_none_or(|id| id == offer.resource_id);
        let kind = |offer: &&Offer| kind_of(offer.resource_id) == wanted.resource_type();
        let transport = |offer: &&Offer| {
            let mut transports = offer.transports.iter();
            let transport = |transport: &Transport| {
                matches!(wanted.transport, Transport::Auto) || *transport == wanted.transport
            };
            let goes = transports.any(|it| transport(it) && goes_over(*it, offer, wanted));
            goes || offer.transports.is_empty()
        };
        let slices = wanted.terms.gpu().and_then(|gpu| gpu.compute_slices);
        let mut could = offers.iter().filter(named).filter(kind).filter(transport);
        let never = !could.any(|offer| offer.capacity / PAGE >= wanted.capacity.div_ceil(PAGE))
            || slices > Some(SLICES);
        assert_eq!(
            refusal.class == RefusalClass::Permanent,
            never,
            "{refusal:?}"
        );
    }
}

/// Only memory over RDMA has queue pairs of the client, only NVMe-oF has hosts, and NVMe-oF cannot be
/// read-only.
fn goes_over(transport: Transport, offer: &Offer, wanted: &LeaseAllocRequest) -> bool {
    let Some(block) = wanted.terms.block() else {
        let peers = wanted.terms.rdma_peers();
        return peers.is_empty() || matches!(transport, Transport::Rdma | Transport::Both);
    };
    let udp = transport == Transport::Udp;
    let read_only = offer.read_only || block.read_only;
    (udp || !read_only) && !(udp && block.names_host())
}
