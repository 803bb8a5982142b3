//! The lease table once more, slow and simple: a list, scanned from end to end for everything. Written from the
//! documentation, so that it agrees with the table only where the table does what is documented.

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{PAGE, actions::Asker};

const MS: u64 = 1_000_000;
const SEC: u64 = 1_000 * MS;
const TERM_MAX_SECS: u32 = 3600;
const CUT_NS: u64 = SEC;
const BIND_NS: u64 = 30 * SEC;
const STALL_NS: u64 = 10 * SEC;
const RESET_NS: u64 = 30 * SEC;
const KEEP_NS: u64 = 15 * 60 * SEC;
const OVERLAP_MS_MAX: u32 = 60_000;
const RENEWAL_OVERLAP_MS: u32 = 5_000;
const FAREWELLS_AT_ONCE: usize = 32;

/// How much there may be, of which the operator decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) records: usize,
    pub(crate) tenant_records: usize,
    pub(crate) tenant_binds: usize,
}

impl Limits {
    pub(crate) const PLENTY: Self = Self {
        records: 1_000,
        tenant_records: 1_000,
        tenant_binds: 1_000,
    };
}

/// The keys of a lease, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Keys {
    pub(crate) rkey: Option<u32>,
    pub(crate) dp_key: Option<u32>,
}

impl Keys {
    const NONE: Self = Self {
        rkey: None,
        dp_key: None,
    };

    pub(crate) fn of(binding: &Binding) -> Self {
        let number = |key: &DpKey| u32::from_be_bytes(*key.0.first_chunk().unwrap());
        Self {
            rkey: binding.rdma.as_ref().and_then(|rdma| rdma.rkey),
            dp_key: binding.dp_key.as_ref().map(number),
        }
    }
}

pub(crate) fn dp_key(number: u32) -> DpKey {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    DpKey(key)
}

/// What somebody is told, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Said {
    Lease {
        phase: String,
        remaining_ms: u64,
        keys: Keys,
    },
    Revoked(String),
    Cleared,
    No(String),
}

impl Said {
    fn no(error: LeaseError) -> Self {
        Self::No(format!("{error:?}"))
    }

    fn revoked(outcome: RevokeOutcome) -> Self {
        Self::Revoked(format!("{outcome:?}"))
    }

    pub(crate) fn of(answer: &Answer) -> Self {
        match answer {
            Ok(Reply::Lease(info)) => Self::Lease {
                phase: format!("{:?}", info.phase),
                remaining_ms: info.remaining_ms,
                keys: Keys::of(&info.binding),
            },
            Ok(Reply::Revoked(outcome)) => Self::revoked(*outcome),
            Ok(Reply::FenceCleared) => Self::Cleared,
            Ok(other) => panic!("nobody asked for {other:?}"),
            Err(refusal) => Self::no(refusal.error),
        }
    }
}

/// Where a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Asked,
    InUse,
    /// A new binding is being made; what was before is being taken away.
    NewBinding,
    /// A new key is being made, or the old one is being ended before the new one is told.
    NewKey,
    BeingCut,
    Kept,
    Scrubbed,
    Clean,
    Fenced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OldKey {
    None,
    Works { rkey: Option<u32>, until: u64 },
    Dying { by: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Grant,
    Rebind,
    Renew,
    Free,
    Revoke,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnItsWay {
    Nothing,
    Bind,
    Rotate,
}

/// A lease on record.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) id: LeaseId,
    pub(crate) tenant: String,
    pub(crate) arena: usize,
    pub(crate) extent: Extent,
    life: Life,
    generation: u32,
    road: Transport,
    peers: Vec<RdmaPeer>,
    rotate_on_renew: bool,
    term_secs: u32,
    grace_ns: u64,
    deadline: u64,
    since: u64,
    pub(crate) granted: bool,
    ending: LeasePhase,
    keys: Keys,
    old: OldKey,
    overlap_ms: u32,
    on_its_way: OnItsWay,
    /// Who waited for that was told that it takes long.
    patience_over: bool,
    release_ordered: bool,
    /// It has been heard of.
    release_moves: bool,
    /// It is fenced, and all that failed is its release.
    only_release_failed: bool,
    waits: Vec<(Ticket, Waits)>,
}

impl Held {
    fn alarm(&self) -> Option<u64> {
        let mut at = vec![];
        if matches!(self.life, Life::InUse | Life::NewBinding | Life::NewKey) {
            at.push(self.deadline);
            match self.old {
                OldKey::None => {}
                OldKey::Works { until, .. } => at.push(until),
                OldKey::Dying { by } => at.push(by),
            }
        }
        match self.life {
            Life::NewBinding | Life::NewKey if self.patience_over => {}
            Life::Asked | Life::NewBinding | Life::NewKey => at.push(self.since + BIND_NS),
            Life::BeingCut => at.push(self.since + CUT_NS),
            Life::Kept => at.push(self.deadline + self.grace_ns),
            Life::Scrubbed if self.release_moves => at.push(self.since + STALL_NS),
            Life::Clean => at.push(self.since + KEEP_NS),
            // What waits for its turn is not stuck.
            Life::Scrubbed | Life::InUse | Life::Fenced => {}
        }
        at.into_iter().min()
    }

    /// The last fifth of the term begins.
    pub(crate) fn renewable_at(&self) -> u64 {
        let window = u64::from(self.term_secs) * SEC / 5;
        self.deadline.saturating_sub(window)
    }

    pub(crate) fn phase(&self) -> LeasePhase {
        match self.life {
            Life::Asked => LeasePhase::Binding,
            Life::InUse | Life::NewBinding | Life::NewKey | Life::BeingCut => LeasePhase::Active,
            Life::Kept => LeasePhase::Grace,
            Life::Scrubbed | Life::Clean => self.ending,
            Life::Fenced => LeasePhase::Fenced,
        }
    }

    pub(crate) fn status(&self) -> LeaseStatus {
        match self.phase() {
            LeasePhase::Binding | LeasePhase::Active => LeaseStatus::Active,
            LeasePhase::Grace | LeasePhase::Expired | LeasePhase::Freed => LeaseStatus::Expired,
            LeasePhase::Revoked | LeasePhase::Fenced => LeaseStatus::Revoked,
        }
    }

    pub(crate) fn alive(&self) -> bool {
        self.life != Life::Clean
    }

    pub(crate) fn generation(&self) -> Generation {
        Generation(self.generation)
    }

    /// The keys that the holder is told, and the rkey before with its end.
    pub(crate) fn told(&self) -> (Keys, Option<(u32, u64)>) {
        match (self.life, self.old) {
            (Life::InUse | Life::NewKey, OldKey::Works { rkey, until }) => {
                (self.keys, rkey.map(|rkey| (rkey, until)))
            }
            (Life::InUse | Life::NewKey, _) => (self.keys, None),
            _ => (Keys::NONE, None),
        }
    }

    pub(crate) fn remaining_ms(&self, now: u64) -> u64 {
        match self.phase() {
            LeasePhase::Active => self.deadline.saturating_sub(now) / MS,
            _ => 0,
        }
    }

    /// Why a request about a lease in this state cannot be met.
    fn unfit(&self) -> LeaseError {
        match self.life {
            Life::Kept if self.on_its_way == OnItsWay::Nothing => LeaseError::Expired,
            Life::Fenced => LeaseError::Fenced,
            Life::Scrubbed | Life::Clean => match self.ending {
                LeasePhase::Revoked => LeaseError::Revoked,
                LeasePhase::Fenced => LeaseError::Fenced,
                _ => LeaseError::Expired,
            },
            _ => LeaseError::ResourceBusy,
        }
    }

    fn over(&self) -> LeaseError {
        match self.phase() {
            LeasePhase::Revoked => LeaseError::Revoked,
            LeasePhase::Fenced => LeaseError::Fenced,
            _ => LeaseError::Expired,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Arena {
    pub(crate) id: ResourceId,
    pub(crate) roads: Vec<Transport>,
    lasts: bool,
    owner: Vec<Option<LeaseId>>,
    /// Which lease it is told of, and whether only releases failed.
    fence: Option<(LeaseId, bool)>,
    /// Who asked for it, if somebody did, and until when.
    resetting: Option<(Option<Ticket>, u64)>,
    /// Something was fenced since the remediation began, so it proves nothing about that.
    overtaken: bool,
}

impl Arena {
    pub(crate) fn longest(&self) -> u64 {
        let runs = self.owner.split(Option::is_some);
        runs.map(|run| run.len() as u64 * PAGE).max().unwrap_or(0)
    }

    pub(crate) fn available(&self) -> u64 {
        if self.fence.is_some() {
            0
        } else {
            self.longest()
        }
    }

    pub(crate) fn fenced(&self) -> bool {
        self.fence.is_some()
    }

    /// The lease that its fence names.
    pub(crate) fn culprit(&self) -> Option<LeaseId> {
        self.fence.map(|(id, _)| id)
    }

    /// What whole pages can be had of it.
    pub(crate) fn usable(&self) -> u64 {
        self.owner.len() as u64 * PAGE
    }

    fn pages(extent: Extent) -> std::ops::Range<usize> {
        let first = extent.offset / PAGE;
        let end = (extent.offset + extent.length).div_ceil(PAGE);
        usize::try_from(first).unwrap()..usize::try_from(end).unwrap()
    }
}

/// All there is.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    pub(crate) boot: u64,
    limits: Limits,
    draining: bool,
    pub(crate) arenas: Vec<Arena>,
    pub(crate) leases: Vec<Held>,
    pub(crate) orders: Vec<Order>,
    pub(crate) answers: Vec<(Ticket, Said)>,
}

impl Oracle {
    pub(crate) fn new(boot: u64, offers: &[Offer], limits: Limits) -> Self {
        let arena = |offer: &Offer| Arena {
            id: offer.resource_id,
            roads: offer.transports.clone(),
            lasts: offer.outlives_process,
            owner: vec![None; usize::try_from(offer.capacity / PAGE).unwrap()],
            fence: None,
            resetting: None,
            overtaken: false,
        };
        Self {
            boot,
            limits,
            draining: false,
            arenas: offers.iter().map(arena).collect(),
            leases: vec![],
            orders: vec![],
            answers: vec![],
        }
    }

    fn say(&mut self, ticket: Ticket, said: Said) {
        self.answers.push((ticket, said));
    }

    fn refuse(&mut self, ticket: Ticket, error: LeaseError) {
        self.say(ticket, Said::no(error));
    }

    fn find(&self, id: LeaseId) -> Option<usize> {
        self.leases.iter().position(|lease| lease.id == id)
    }

    /// The road of a lease, and the keys that it has.
    pub(crate) fn keys(&self, id: LeaseId) -> (Transport, Keys) {
        let held = self.find(id).map(|at| &self.leases[at]);
        held.map_or((Transport::Rdma, Keys::NONE), |lease| {
            (lease.road, lease.keys)
        })
    }

    /// What is somebody's of an arena, in order.
    pub(crate) fn held(&self, id: ResourceId) -> Vec<Extent> {
        let its = |lease: &&Held| lease.alive() && self.arenas[lease.arena].id == id;
        let mut held: Vec<Extent> = self.leases.iter().filter(its).map(|l| l.extent).collect();
        held.sort();
        held
    }

    fn tag(&self, at: usize) -> Tag {
        let lease = &self.leases[at];
        Tag {
            lease_id: lease.id,
            generation: lease.generation(),
            resource_id: self.arenas[lease.arena].id,
        }
    }

    fn lease_said(&self, at: usize, with_key: bool) -> Said {
        let lease = &self.leases[at];
        Said::Lease {
            phase: format!("{:?}", lease.phase()),
            remaining_ms: lease.remaining_ms(self.boot),
            keys: if with_key { lease.told().0 } else { Keys::NONE },
        }
    }
}

/// Time.
impl Oracle {
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let leases = self.leases.iter().filter_map(Held::alarm);
        let resets = self.arenas.iter().filter_map(|arena| arena.resetting);
        leases.chain(resets.map(|(_, by)| by)).min()
    }

    pub(crate) fn pass_to(&mut self, boot: u64) {
        self.boot = boot;
        while let Some((_, _, id)) = self.first_due() {
            match self.find(LeaseId(id)) {
                Some(at) => self.lease_due(at),
                None => self.reset_over(ResourceId(id), false),
            }
        }
    }

    /// What fell due longest ago; leases before resources, then by id.
    fn first_due(&self) -> Option<(u64, bool, u128)> {
        let alarm = |lease: &Held| Some((lease.alarm()?, false, lease.id.0));
        let leases = self.leases.iter().filter_map(alarm);
        let reset = |arena: &Arena| Some((arena.resetting?.1, true, arena.id.0));
        let resets = self.arenas.iter().filter_map(reset);
        leases.chain(resets).filter(|due| due.0 <= self.boot).min()
    }

    fn lease_due(&mut self, at: usize) {
        let now = self.boot;
        let lease = &mut self.leases[at];
        match lease.life {
            Life::Asked => self.cut(at, LeasePhase::Revoked),
            Life::InUse | Life::NewBinding | Life::NewKey if lease.deadline <= now => {
                self.cut(at, LeasePhase::Expired);
            }
            Life::InUse | Life::NewBinding | Life::NewKey => match lease.old {
                OldKey::Works { until, .. } if until <= now => {
                    lease.old = OldKey::Dying { by: now + CUT_NS };
                    let tag = self.tag(at);
                    self.orders.push(Order::RetireKey(tag));
                }
                OldKey::Dying { by } if by <= now => self.cut(at, LeasePhase::Revoked),
                _ => self.lose_patience(at),
            },
            Life::BeingCut => self.fence(at, false),
            Life::Kept => self.scrub(at),
            Life::Scrubbed => self.fence(at, true),
            Life::Clean => drop(self.leases.remove(at)),
            Life::Fenced => unreachable!("a fence has no alarm"),
        }
    }

    /// Nobody waits for the binding or key any more; otherwise all is as it was.
    fn lose_patience(&mut self, at: usize) {
        self.leases[at].patience_over = true;
        let waits = std::mem::take(&mut self.leases[at].waits);
        self.tell_without(at, waits, LeaseError::Unavailable);
    }

    pub(crate) fn drain(&mut self) {
        self.draining = true;
        for at in 0..self.leases.len() {
            self.end(at, LeasePhase::Revoked);
        }
    }
}

/// Ends.
impl Oracle {
    /// Whatever it was doing, it is to end as `phase`.
    fn end(&mut self, at: usize, phase: LeasePhase) {
        let lease = &mut self.leases[at];
        match lease.life {
            Life::Asked | Life::InUse | Life::NewBinding | Life::NewKey => self.cut(at, phase),
            // Somebody wants it gone: nothing is kept for a renewal.
            Life::BeingCut if lease.ending == LeasePhase::Expired => lease.ending = phase,
            Life::Kept => {
                lease.ending = phase;
                self.scrub(at);
            }
            Life::BeingCut | Life::Scrubbed | Life::Clean | Life::Fenced => {}
        }
    }

    fn cut(&mut self, at: usize, phase: LeasePhase) {
        let under_way = { self.leases.iter() }
            .filter(|lease| lease.life == Life::BeingCut)
            .count();
        let expected = phase == LeasePhase::Freed;
        let hurried = self.draining || under_way >= FAREWELLS_AT_ONCE;
        let lease = &mut self.leases[at];
        lease.life = Life::BeingCut;
        lease.ending = phase;
        lease.since = self.boot;
        let tag = self.tag(at);
        let farewell = match expected || hurried {
            true => Farewell::None,
            false => Farewell::Brief,
        };
        self.orders.push(Order::Cut(tag, farewell));
    }

    fn scrub(&mut self, at: usize) {
        self.leases[at].life = Life::Scrubbed;
        self.leases[at].since = self.boot;
        self.order_release(at);
    }

    fn order_release(&mut self, at: usize) {
        let tag = self.tag(at);
        let lease = &mut self.leases[at];
        if lease.on_its_way == OnItsWay::Nothing {
            lease.release_ordered = true;
            self.orders.push(Order::Release(tag, lease.extent));
        }
    }

    fn fence(&mut self, at: usize, only_release: bool) {
        let tag = self.tag(at);
        let lease = &mut self.leases[at];
        let works = matches!(
            lease.life,
            Life::Asked | Life::InUse | Life::NewBinding | Life::NewKey
        );
        if works {
            self.orders.push(Order::Cut(tag, Farewell::None));
        }
        self.orders.push(Order::Fenced(tag));
        lease.life = Life::Fenced;
        lease.ending = LeasePhase::Fenced;
        lease.only_release_failed = only_release;
        let waits = std::mem::take(&mut lease.waits);
        let arena = &mut self.arenas[lease.arena];
        // The first stands, except that a failed release makes way for what is graver.
        arena.fence = match arena.fence {
            Some(before @ (_, by_release)) if only_release || !by_release => Some(before),
            _ => Some((lease.id, only_release)),
        };
        arena.overtaken = arena.resetting.is_some();
        for (ticket, waits) in waits {
            match waits {
                Waits::Revoke => self.say(ticket, Said::revoked(RevokeOutcome::Fenced)),
                _ => self.refuse(ticket, LeaseError::Fenced),
            }
        }
    }

    /// The bytes are anybody's; what nobody was told of leaves no record.
    fn clean(&mut self, at: usize) {
        let lease = &mut self.leases[at];
        lease.life = Life::Clean;
        lease.since = self.boot;
        let lease = lease.clone();
        self.give_back(&lease);
        if !lease.granted {
            self.leases.remove(at);
        }
    }

    fn give_back(&mut self, lease: &Held) {
        let owner = &mut self.arenas[lease.arena].owner;
        let mine = owner.iter_mut().filter(|page| **page == Some(lease.id));
        mine.for_each(|page| *page = None);
    }

    fn unfence(&mut self, arena: usize) {
        self.arenas[arena].fence = None;
        let fenced = |lease: &Held| lease.arena == arena && lease.life == Life::Fenced;
        while let Some(at) = self.leases.iter().position(fenced) {
            self.clean(at);
        }
    }

    fn reset_over(&mut self, id: ResourceId, clean: bool) {
        let arena = self.arenas.iter().position(|arena| arena.id == id).unwrap();
        let Some((ticket, _)) = self.arenas[arena].resetting.take() else {
            return;
        };
        let overtaken = std::mem::take(&mut self.arenas[arena].overtaken);
        let cleared = clean && !overtaken;
        if cleared {
            self.unfence(arena);
        }
        match (ticket, cleared) {
            (Some(ticket), true) => self.say(ticket, Said::Cleared),
            (Some(ticket), false) => self.refuse(ticket, LeaseError::Fenced),
            (None, _) => {}
        }
    }
}

/// Reports.
impl Oracle {
    pub(crate) fn report(&mut self, report: &Report) {
        match report {
            Report::Bind(tag, outcome) => self.returned(*tag, OnItsWay::Bind, outcome),
            Report::Rotate(tag, outcome) => self.returned(*tag, OnItsWay::Rotate, outcome),
            Report::RetireKey(tag, outcome) => self.retired(*tag, outcome.is_ok()),
            Report::Cut(tag, outcome) => self.was_cut(*tag, outcome.is_ok()),
            Report::ReleaseProgress(tag) => {
                let now = self.boot;
                let cleaned = |lease: &&mut Held| lease.life == Life::Scrubbed;
                if let Some(at) = self.at(*tag)
                    && let Some(lease) = Some(&mut self.leases[at]).filter(cleaned)
                    && lease.release_ordered
                {
                    lease.since = now;
                    lease.release_moves = true;
                }
            }
            Report::Release(tag, outcome) => self.released(*tag, outcome.is_ok()),
            Report::Reset(id, outcome) => self.reset_over(*id, outcome.is_ok()),
        }
    }

    fn at(&self, tag: Tag) -> Option<usize> {
        self.find(tag.lease_id).filter(|&at| self.tag(at) == tag)
    }

    fn returned(&mut self, tag: Tag, what: OnItsWay, outcome: &Result<Binding, BindError>) {
        let Some(at) = self
            .at(tag)
            .filter(|&at| self.leases[at].on_its_way == what)
        else {
            return;
        };
        self.leases[at].on_its_way = OnItsWay::Nothing;
        let life = self.leases[at].life;
        match (life, outcome) {
            (_, Err(BindError::Stranded(_))) => self.fence(at, false),
            (Life::Asked | Life::NewBinding | Life::NewKey, Ok(binding)) => self.bound(at, binding),
            (Life::Asked | Life::NewBinding | Life::NewKey, Err(error)) => {
                self.not_bound(at, error);
            }
            (Life::Scrubbed, _) => self.scrub(at),
            _ => {}
        }
    }

    fn bound(&mut self, at: usize, binding: &Binding) {
        let now = self.boot;
        let lease = &mut self.leases[at];
        let before = std::mem::replace(&mut lease.keys, Keys::of(binding));
        match lease.life {
            Life::Asked => {
                lease.granted = true;
                lease.deadline = now + u64::from(lease.term_secs) * SEC;
            }
            Life::NewKey if lease.overlap_ms == 0 => {
                // Told when the old key is dead.
                lease.old = OldKey::Dying { by: now + CUT_NS };
                let tag = self.tag(at);
                return self.orders.push(Order::RetireKey(tag));
            }
            Life::NewKey => {
                let until = (now + u64::from(lease.overlap_ms) * MS).min(lease.deadline);
                assert_ne!(before, Keys::NONE, "only what has a key gets another");
                let rkey = before.rkey;
                lease.old = OldKey::Works { rkey, until };
            }
            _ => {}
        }
        if self.leases[at].life != Life::NewKey {
            self.prolong(at);
        }
        self.in_use(at);
    }

    /// Roads that look at the clock learn the deadline.
    fn prolong(&mut self, at: usize) {
        let deadline = BootTime(self.leases[at].deadline);
        self.orders.push(Order::Extend(self.tag(at), deadline));
    }

    fn in_use(&mut self, at: usize) {
        self.leases[at].life = Life::InUse;
        let said = self.lease_said(at, true);
        for (ticket, _) in std::mem::take(&mut self.leases[at].waits) {
            self.say(ticket, said.clone());
        }
    }

    fn not_bound(&mut self, at: usize, error: &BindError) {
        let error = match error {
            BindError::Refused(_) => LeaseError::InvalidArgs,
            BindError::Cancelled => LeaseError::Unavailable,
            _ => LeaseError::Internal,
        };
        let lease = &mut self.leases[at];
        let waits = std::mem::take(&mut lease.waits);
        match lease.life {
            Life::Asked => self.clean(at),
            Life::NewBinding => {
                lease.keys = Keys::NONE;
                lease.life = Life::InUse;
            }
            _ => lease.life = Life::InUse,
        }
        self.tell_without(at, waits, error);
    }

    /// Who renewed has the term, if not the key.
    fn tell_without(&mut self, at: usize, waits: Vec<(Ticket, Waits)>, error: LeaseError) {
        for (ticket, waits) in waits {
            if waits == Waits::Renew {
                let said = self.lease_said(at, true);
                self.say(ticket, said);
            } else {
                self.refuse(ticket, error);
            }
        }
    }

    fn retired(&mut self, tag: Tag, fine: bool) {
        let dying = |&at: &usize| {
            let lease = &self.leases[at];
            matches!(lease.old, OldKey::Dying { .. })
                && matches!(lease.life, Life::InUse | Life::NewKey)
        };
        let Some(at) = self.at(tag).filter(dying) else {
            return;
        };
        if fine {
            self.leases[at].old = OldKey::None;
            self.in_use(at);
        } else {
            self.cut(at, LeasePhase::Revoked);
        }
    }

    fn was_cut(&mut self, tag: Tag, proved: bool) {
        let being_cut = |&at: &usize| self.leases[at].life == Life::BeingCut;
        let Some(at) = self.at(tag).filter(being_cut) else {
            return;
        };
        if !proved {
            return self.fence(at, false);
        }
        let lease = &mut self.leases[at];
        lease.old = OldKey::None;
        let grace = lease.deadline + lease.grace_ns > self.boot;
        let keep = lease.ending == LeasePhase::Expired && grace;
        lease.life = if keep { Life::Kept } else { Life::Scrubbed };
        self.tell_end(at);
        if !keep {
            self.scrub(at);
        }
    }

    fn tell_end(&mut self, at: usize) {
        let ended = self.lease_said(at, false);
        let over = self.leases[at].over();
        for (ticket, waits) in std::mem::take(&mut self.leases[at].waits) {
            match waits {
                Waits::Grant => self.refuse(ticket, LeaseError::Internal),
                Waits::Rebind | Waits::Renew => self.refuse(ticket, over),
                Waits::Free => self.say(ticket, ended.clone()),
                Waits::Revoke => self.say(ticket, Said::revoked(RevokeOutcome::TornDown)),
            }
        }
    }

    fn released(&mut self, tag: Tag, fine: bool) {
        let Some(at) = self.at(tag).filter(|&at| self.leases[at].release_ordered) else {
            return;
        };
        let lease = &self.leases[at];
        match (lease.life, fine) {
            (Life::Scrubbed, true) => self.clean(at),
            (Life::Scrubbed, false) => self.fence(at, true),
            (Life::Fenced, true) if lease.only_release_failed => {
                let arena = lease.arena;
                self.clean(at);
                let mut others = self.leases.iter().filter(|lease| lease.arena == arena);
                let last = !others.any(|lease| lease.life == Life::Fenced);
                if last
                    && self.arenas[arena]
                        .fence
                        .is_some_and(|(_, by_release)| by_release)
                {
                    self.unfence(arena);
                }
            }
            _ => {}
        }
    }
}

/// The daemon dies and comes back.
impl Oracle {
    pub(crate) fn restart(&mut self, boot: u64, same_boot: bool) {
        self.boot = boot;
        self.draining = false;
        // What nobody was told of is forgotten, unless something of it may be left.
        let known = |lease: &Held| lease.granted || lease.life == Life::Fenced;
        let (known, unknown) = self.leases.drain(..).partition(known);
        self.leases = known;
        for lease in unknown {
            self.give_back(&lease);
        }
        for at in 0..self.leases.len() {
            self.leases[at].waits.clear();
            self.leases[at].on_its_way = OnItsWay::Nothing;
            self.leases[at].release_ordered = false;
            self.restart_one(at, same_boot);
        }
        for at in 0..self.arenas.len() {
            self.arenas[at].resetting = None;
            // Another boot: nothing but the bytes can be left.
            if self.arenas[at].fenced() && !same_boot {
                self.reset(self.arenas[at].id, None);
            }
        }
    }

    fn restart_one(&mut self, at: usize, same_boot: bool) {
        let lease = &self.leases[at];
        let by_datagrams = matches!(lease.road, Transport::Udp | Transport::Both);
        let adopted = same_boot && by_datagrams && self.arenas[lease.arena].lasts;
        let grace_ends = lease.deadline + lease.grace_ns;
        match lease.life {
            Life::Fenced => self.leases[at].only_release_failed = false,
            Life::Scrubbed | Life::Clean => self.clean(at),
            _ if !adopted => self.end_with_the_process(at, LeasePhase::Revoked),
            _ if self.boot < lease.deadline => {
                self.leases[at].ending = LeasePhase::Revoked;
                self.leases[at].peers.clear();
                self.bind_again(at);
            }
            _ if self.boot < grace_ends => {
                let lease = &mut self.leases[at];
                lease.life = Life::Kept;
                lease.ending = LeasePhase::Expired;
                lease.peers.clear();
                lease.keys = Keys::NONE;
                lease.old = OldKey::None;
            }
            _ => self.end_with_the_process(at, LeasePhase::Expired),
        }
    }

    fn end_with_the_process(&mut self, at: usize, phase: LeasePhase) {
        self.leases[at].ending = phase;
        self.clean(at);
    }
}

/// Requests.
impl Oracle {
    /// The arena that should be taken.
    pub(crate) fn place(&self, wanted: &LeaseAllocRequest) -> Result<usize, LeaseError> {
        let (secs, grace) = (wanted.lease_secs, wanted.grace_secs);
        if wanted.capacity == 0 || secs == 0 || secs > TERM_MAX_SECS || grace > TERM_MAX_SECS {
            return Err(LeaseError::InvalidArgs);
        }
        if !wanted.rdma_peers.iter().all(|&peer| names_one_port(peer)) {
            return Err(LeaseError::InvalidArgs);
        }
        let at = match wanted.resource_id {
            Some(id) => {
                let named = self.arenas.iter().position(|arena| arena.id == id);
                named.ok_or(LeaseError::NotFound)?
            }
            None => self.tightest(wanted),
        };
        let arena = &self.arenas[at];
        let road = self.road(at, wanted);
        if arena.fenced() {
            Err(LeaseError::Fenced)
        } else if !road.is_some_and(|road| wanted.rdma_peers.is_empty() || takes_peers(road)) {
            Err(LeaseError::InvalidArgs)
        } else if arena.longest() < wanted.capacity {
            Err(LeaseError::CapacityExceeded)
        } else {
            Ok(at)
        }
    }

    /// Hopeless arenas count last, then those that cannot now, then the looser ones.
    fn tightest(&self, wanted: &LeaseAllocRequest) -> usize {
        let mut left: Vec<usize> = (0..self.arenas.len()).collect();
        let mut prefer = |good: &dyn Fn(usize) -> bool| {
            if left.iter().any(|&at| good(at)) {
                left.retain(|&at| good(at));
            }
        };
        prefer(&|at| self.arenas[at].usable() >= wanted.capacity);
        prefer(&|at| self.road(at, wanted).is_some());
        prefer(&|at| !self.arenas[at].fenced());
        prefer(&|at| self.arenas[at].longest() >= wanted.capacity);
        let tight = left.into_iter();
        tight
            .min_by_key(|&at| (self.arenas[at].longest(), at))
            .unwrap()
    }

    pub(crate) fn road(&self, at: usize, wanted: &LeaseAllocRequest) -> Option<Transport> {
        let roads = &self.arenas[at].roads;
        let takes_peers = |road: &Transport| takes_peers(*road);
        match wanted.transport {
            Transport::Auto if !wanted.rdma_peers.is_empty() => {
                roads.iter().copied().find(takes_peers)
            }
            Transport::Auto => roads.first().copied(),
            road => roads.contains(&road).then_some(road),
        }
    }

    /// `extent` is what the table took: any that is free will do.
    pub(crate) fn alloc(
        &mut self,
        ticket: Ticket,
        tenant: &str,
        id: LeaseId,
        wanted: &LeaseAllocRequest,
        extent: Option<Extent>,
    ) {
        let admitted = { self.room_for_a_record(tenant) }
            .and_then(|()| self.turn_to_bind(tenant))
            .and_then(|()| self.place(wanted));
        let arena = match admitted {
            Ok(arena) => arena,
            Err(error) => return self.refuse(ticket, error),
        };
        let extent = extent.unwrap_or_else(|| panic!("there is room for {wanted:?}: {self:#?}"));
        let pages = wanted.capacity.div_ceil(PAGE);
        assert_eq!((extent.length, extent.offset % PAGE), (pages * PAGE, 0));
        for page in Arena::pages(extent) {
            let owner = &mut self.arenas[arena].owner[page];
            assert_eq!(owner.replace(id), None, "page {page} is somebody's");
        }
        let lease = Held {
            id,
            tenant: tenant.to_owned(),
            arena,
            extent,
            life: Life::Asked,
            generation: 1,
            road: self.road(arena, wanted).unwrap(),
            peers: wanted.rdma_peers.clone(),
            rotate_on_renew: wanted.rotate_on_renew,
            term_secs: wanted.lease_secs,
            grace_ns: u64::from(wanted.grace_secs) * SEC,
            deadline: 0,
            since: self.boot,
            granted: false,
            ending: LeasePhase::Revoked,
            keys: Keys::NONE,
            old: OldKey::None,
            overlap_ms: 0,
            on_its_way: OnItsWay::Bind,
            patience_over: false,
            release_ordered: false,
            release_moves: false,
            only_release_failed: false,
            waits: vec![(ticket, Waits::Grant)],
        };
        self.leases.push(lease);
        self.order_bind(self.leases.len() - 1);
    }

    /// Ended leases count too: what is bounded is memory.
    fn room_for_a_record(&self, tenant: &str) -> Result<(), LeaseError> {
        let all = self.leases.len();
        let its = self.leases.iter().filter(|lease| lease.tenant == tenant);
        match all < self.limits.records && its.count() < self.limits.tenant_records {
            true => Ok(()),
            false => Err(LeaseError::Unavailable),
        }
    }

    fn turn_to_bind(&self, tenant: &str) -> Result<(), LeaseError> {
        let on_their_way = |lease: &&Held| lease.on_its_way != OnItsWay::Nothing;
        let its = self.leases.iter().filter(|lease| lease.tenant == tenant);
        match its.filter(on_their_way).count() < self.limits.tenant_binds {
            true => Ok(()),
            false => Err(LeaseError::ResourceBusy),
        }
    }

    fn order_bind(&mut self, at: usize) {
        let tag = self.tag(at);
        let lease = &self.leases[at];
        self.orders.push(Order::Bind(BindOrder {
            tag,
            extent: lease.extent,
            transport: lease.road,
            peers: lease.peers.clone(),
        }));
    }

    /// The lease, if this asker may do something with it and it is not over.
    fn mine(&self, asker: Asker, id: LeaseId) -> Result<usize, LeaseError> {
        let at = self.find(id).ok_or(LeaseError::NotFound)?;
        match asker {
            Asker::Stranger => Err(LeaseError::NotFound),
            Asker::Operator => Err(LeaseError::NotPermitted),
            Asker::Holder => Ok(at),
        }
    }

    pub(crate) fn renew(&mut self, ticket: Ticket, asker: Asker, id: LeaseId, secs: u32) {
        if let Err(error) = self.try_renew(ticket, asker, id, secs) {
            self.refuse(ticket, error);
        }
    }

    fn try_renew(
        &mut self,
        ticket: Ticket,
        asker: Asker,
        id: LeaseId,
        secs: u32,
    ) -> Result<(), LeaseError> {
        let at = self.mine(asker, id)?;
        let now = self.boot;
        let lease = &mut self.leases[at];
        if !lease.alive() {
            return Err(lease.unfit());
        }
        if lease.life == Life::InUse && now < lease.renewable_at() {
            return Err(LeaseError::RenewTooEarly);
        }
        if secs > TERM_MAX_SECS {
            return Err(LeaseError::InvalidArgs);
        }
        let rotates =
            lease.rotate_on_renew && lease.life == Life::InUse && lease.keys != Keys::NONE;
        if rotates || lease.life == Life::Kept {
            let tenant = lease.tenant.clone();
            self.turn_to_bind(&tenant)?;
        }
        let lease = &mut self.leases[at];
        if rotates && lease.old != OldKey::None {
            return Err(LeaseError::ResourceBusy);
        }
        let kept = lease.life == Life::Kept && lease.on_its_way == OnItsWay::Nothing;
        if lease.life != Life::InUse && !kept {
            return Err(lease.unfit());
        }
        if secs > 0 {
            lease.term_secs = secs;
        }
        lease.deadline = now + u64::from(lease.term_secs) * SEC;
        if let OldKey::Works { until, .. } = &mut lease.old {
            *until = lease.deadline.min(*until);
        }
        if kept {
            self.leases[at].waits.push((ticket, Waits::Renew));
            self.bind_again(at);
            return Ok(());
        }
        self.prolong(at);
        let lease = &self.leases[at];
        if rotates {
            let half_term_ms = lease.term_secs.saturating_mul(500);
            self.new_key(
                at,
                ticket,
                Waits::Renew,
                RENEWAL_OVERLAP_MS.min(half_term_ms),
            );
        } else {
            let said = self.lease_said(at, true);
            self.say(ticket, said);
        }
        Ok(())
    }

    fn bind_again(&mut self, at: usize) {
        let lease = &mut self.leases[at];
        lease.generation += 1;
        lease.life = Life::NewBinding;
        lease.since = self.boot;
        lease.keys = Keys::NONE;
        lease.old = OldKey::None;
        lease.on_its_way = OnItsWay::Bind;
        lease.patience_over = false;
        self.order_bind(at);
    }

    fn new_key(&mut self, at: usize, ticket: Ticket, waits: Waits, overlap_ms: u32) {
        let lease = &mut self.leases[at];
        lease.life = Life::NewKey;
        lease.since = self.boot;
        lease.overlap_ms = overlap_ms;
        lease.on_its_way = OnItsWay::Rotate;
        lease.patience_over = false;
        lease.waits.push((ticket, waits));
        let tag = self.tag(at);
        self.orders.push(Order::Rotate(tag));
    }

    pub(crate) fn bind(&mut self, ticket: Ticket, asker: Asker, id: LeaseId, peers: &[RdmaPeer]) {
        let fits = |at: usize| {
            let lease = &self.leases[at];
            if !lease.alive() {
                return Err(lease.unfit());
            }
            let ports = peers.iter().all(|&peer| names_one_port(peer));
            if !takes_peers(lease.road) || !ports {
                return Err(LeaseError::InvalidArgs);
            }
            self.turn_to_bind(&lease.tenant)?;
            match lease.life {
                Life::InUse => Ok(at),
                _ => Err(lease.unfit()),
            }
        };
        match self.mine(asker, id).and_then(fits) {
            Err(error) => self.refuse(ticket, error),
            Ok(at) => {
                self.leases[at].peers = peers.to_vec();
                self.leases[at].waits.push((ticket, Waits::Rebind));
                self.bind_again(at);
            }
        }
    }

    pub(crate) fn rotate(&mut self, ticket: Ticket, asker: Asker, id: LeaseId, overlap_ms: u32) {
        let fits = |at: usize| {
            let lease = &self.leases[at];
            match lease.life {
                Life::Clean => Err(lease.unfit()),
                _ if overlap_ms > OVERLAP_MS_MAX => Err(LeaseError::InvalidArgs),
                Life::InUse if lease.old != OldKey::None => Err(LeaseError::ResourceBusy),
                Life::InUse if lease.keys == Keys::NONE && takes_peers(lease.road) => {
                    Err(LeaseError::InvalidArgs)
                }
                Life::InUse => self.turn_to_bind(&lease.tenant).map(|()| at),
                _ => Err(self
                    .turn_to_bind(&lease.tenant)
                    .err()
                    .unwrap_or(lease.unfit())),
            }
        };
        match self.mine(asker, id).and_then(fits) {
            Err(error) => self.refuse(ticket, error),
            // Nothing to rotate, and no queue pair to bind to: a binding is what gives it a key.
            Ok(at) if self.leases[at].keys == Keys::NONE => {
                self.leases[at].waits.push((ticket, Waits::Rebind));
                self.bind_again(at);
            }
            Ok(at) => self.new_key(at, ticket, Waits::Rebind, overlap_ms),
        }
    }

    pub(crate) fn free(&mut self, ticket: Ticket, asker: Asker, id: LeaseId) {
        let at = match self.mine(asker, id) {
            Ok(at) => at,
            Err(error) => return self.refuse(ticket, error),
        };
        match (self.leases[at].life, self.leases[at].phase()) {
            // Freeing twice is no error.
            (_, LeasePhase::Freed) => {
                let said = self.lease_said(at, false);
                self.say(ticket, said);
            }
            (Life::Scrubbed | Life::Clean | Life::Fenced, _) => {
                let error = self.leases[at].over();
                self.refuse(ticket, error);
            }
            _ => self.end_for(at, LeasePhase::Freed, ticket, Waits::Free),
        }
    }

    fn end_for(&mut self, at: usize, phase: LeasePhase, ticket: Ticket, waits: Waits) {
        self.end(at, phase);
        self.leases[at].waits.push((ticket, waits));
        if self.leases[at].life == Life::Scrubbed {
            self.tell_end(at);
        }
    }

    pub(crate) fn revoke(&mut self, ticket: Ticket, asker: Asker, id: LeaseId) {
        if !matches!(asker, Asker::Operator) {
            return self.refuse(ticket, LeaseError::NotPermitted);
        }
        let Some(at) = self.find(id) else {
            return self.say(ticket, Said::revoked(RevokeOutcome::NotFound));
        };
        match (self.leases[at].life, self.leases[at].phase()) {
            (_, LeasePhase::Fenced) => self.say(ticket, Said::revoked(RevokeOutcome::Fenced)),
            (Life::Scrubbed | Life::Clean, _) => {
                self.say(ticket, Said::revoked(RevokeOutcome::TornDown));
            }
            _ => self.end_for(at, LeasePhase::Revoked, ticket, Waits::Revoke),
        }
    }

    pub(crate) fn clear_fence(&mut self, ticket: Ticket, asker: Asker, id: ResourceId) {
        if !matches!(asker, Asker::Operator) {
            return self.refuse(ticket, LeaseError::NotPermitted);
        }
        let named = self.arenas.iter().find(|arena| arena.id == id);
        let Some(arena) = named.filter(|arena| arena.fenced()) else {
            return self.refuse(ticket, LeaseError::NotFound);
        };
        if arena.resetting.is_some() {
            return self.refuse(ticket, LeaseError::ResourceBusy);
        }
        let fenced = self.fenced_on(id);
        if fenced
            .iter()
            .any(|lease| lease.on_its_way != OnItsWay::Nothing)
        {
            return self.refuse(ticket, LeaseError::ResourceBusy);
        }
        self.reset(id, Some(ticket));
    }

    fn reset(&mut self, id: ResourceId, asker: Option<Ticket>) {
        let by = self.boot + RESET_NS;
        let fenced = self.fenced_on(id);
        let leases = { fenced.iter() }
            .map(|lease| (self.tag(self.find(lease.id).unwrap()), lease.extent))
            .collect();
        self.orders.push(Order::Reset(id, leases));
        let arena = self.arenas.iter_mut().find(|arena| arena.id == id).unwrap();
        arena.resetting = Some((asker, by));
        arena.overtaken = false;
    }

    fn fenced_on(&self, id: ResourceId) -> Vec<&Held> {
        let fenced =
            |lease: &&Held| lease.life == Life::Fenced && self.arenas[lease.arena].id == id;
        self.leases.iter().filter(fenced).collect()
    }
}

fn takes_peers(road: Transport) -> bool {
    matches!(road, Transport::Rdma | Transport::Both)
}

/// By the bytes of the GID: a group, nobody, or whoever asks answers to no connection.
fn names_one_port(peer: RdmaPeer) -> bool {
    let (high, low) = peer.gid.split_at(12);
    if high == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
        let group = (224..240).contains(&low[0]);
        return !group && low[0] != 127 && low != [0; 4] && low != [255; 4];
    }
    let (first, last) = (peer.gid[0], u128::from_be_bytes(peer.gid));
    first != 0xff && last > 1
}
