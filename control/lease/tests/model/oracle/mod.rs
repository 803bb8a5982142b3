//! A second lease table, slow and simple: a list that every operation scans from end to end. It is written from the
//! documentation, so it agrees with the table only where the table does what is documented.

mod codes;
mod device;
mod ends;
mod reports;
mod requests;
mod restart;

use std::collections::BTreeMap;

use fabricbios_lease::*;
use fabricbios_wire::*;

use crate::{BOOT, FUNCTIONS, PAGE, PAIRS, UNIX_MS, actions::Asker, kind_of};
use device::Has;

const MS: u64 = 1_000_000;
const SEC: u64 = 1_000 * MS;
const TERM_MAX_SECS: u32 = 3600;
const CUT_NS: u64 = SEC;
const BIND_NS: u64 = 30 * SEC;
const EXTEND_NS: u64 = SEC;
const STALL_NS: u64 = 10 * SEC;
const RESET_NS: u64 = 30 * SEC;
const KEEP_NS: u64 = 15 * 60 * SEC;
const OVERLAP_MS_MAX: u32 = 60_000;
const RENEWAL_OVERLAP_MS: u32 = 5_000;
const LINGERS_AT_ONCE: usize = 32;

/// The limits of the operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) leases: usize,
    pub(crate) ended: usize,
    pub(crate) tenant_leases: usize,
    pub(crate) tenant_ended: usize,
    pub(crate) tenant_binds: usize,
    /// The most bytes of memory of one tenant.
    pub(crate) tenant_bytes: u64,
}

impl Limits {
    pub(crate) const PLENTY: Self = Self {
        leases: 1_000,
        ended: 1_000,
        tenant_leases: 1_000,
        tenant_ended: 1_000,
        tenant_binds: 1_000,
        tenant_bytes: u64::MAX,
    };
}

/// The keys of a lease, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Keys {
    pub(crate) rkey: Option<u32>,
    pub(crate) dp_key: Option<u32>,
    pub(crate) nvmeof: Option<u32>,
}

impl Keys {
    const NONE: Self = Self {
        rkey: None,
        dp_key: None,
        nvmeof: None,
    };

    pub(crate) fn of(binding: &Binding) -> Self {
        let number = |key: &DpKey| u32::from_be_bytes(*key.0.first_chunk().unwrap());
        Self {
            rkey: binding.rdma().and_then(|rdma| rdma.rkey),
            dp_key: binding.dp_key.as_ref().map(number),
            nvmeof: binding.nvmeof().map(|it| it.nsid),
        }
    }
}

pub(crate) fn dp_key(number: u32) -> DpKey {
    let mut key = [0; 32];
    key[..4].copy_from_slice(&number.to_be_bytes());
    DpKey(key)
}

/// The attach code that an answer tells.
pub(crate) fn code_of(binding: &Binding) -> Option<u128> {
    let attach = binding.rdma()?.attach.as_ref()?;
    Some(u128::from_be_bytes(attach.code.0))
}

/// The part of an answer that is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Said {
    Lease {
        phase: String,
        remaining_ms: u64,
        keys: Keys,
        code: Option<u128>,
    },
    Revoked(String),
    Cleared,
    No(String),
}

impl Said {
    fn no(error: LeaseError) -> Self {
        Self::No(format!("{error:?}"))
    }

    fn with_code(mut self, told: u128) -> Self {
        if let Self::Lease { code, .. } = &mut self {
            *code = Some(told);
        }
        self
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
                code: code_of(&info.binding),
            },
            Ok(Reply::Revoked(outcome)) => Self::revoked(*outcome),
            Ok(Reply::FenceCleared) => Self::Cleared,
            Ok(other) => panic!("nobody asked for {other:?}"),
            Err(refusal) => Self::no(refusal.error),
        }
    }
}

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Asked,
    InUse,
    /// A new binding is being made; the old one works.
    NewBinding,
    /// A new key is being made, or the old key is being retired before the client gets the new key; or queue pairs join
    /// or leave.
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
    Works {
        rkey: Option<u32>,
        until: u64,
    },
    Dying {
        by: u64,
    },
    /// The key ended with its binding, while the order to retire it was outstanding.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Grant,
    Repeat,
    Rebind,
    Renew,
    Free,
    Revoke,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnItsWay {
    Nothing,
    /// A bind that waits for the acknowledgement of its deadline.
    Term,
    Bind,
    Rotate,
    Peers,
}

/// The step that waits for an acknowledgement.
#[derive(Clone, Debug)]
enum Then {
    Renew {
        secs: u32,
        expires_ms: u64,
        rotates: bool,
    },
    Bind,
    /// The keys and queue pairs of the new binding, and its old rkey.
    Tell(Keys, Vec<u32>, Option<u32>),
}

/// A lease on record.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) id: LeaseId,
    pub(crate) tenant: String,
    /// The request, if it had a token.
    pub(crate) request: Option<LeaseAllocRequest>,
    pub(crate) arena: usize,
    pub(crate) extent: Extent,
    life: Life,
    generation: u32,
    /// The generation of the binding that the holder sees.
    bound: Option<u32>,
    /// `Auto`: its kind has no transport.
    transport: Transport,
    peers: Vec<RdmaPeer>,
    /// Peers of the binding in use while another one is being made.
    peers_before: Option<Vec<RdmaPeer>>,
    rotate_on_renew: bool,
    /// The enforced terms of blocks and GPUs.
    terms: Option<LeaseTerms>,
    term_secs: u32,
    grace_ns: u64,
    deadline: u64,
    pub(crate) expires_ms: u64,
    since: u64,
    /// When a thread began the cut, or when another cut of the same kind progressed since.
    cut_moved: Option<u64>,
    /// When its end was certain, wall clock; 0 before.
    pub(crate) ended_ms: u64,
    /// When its record is dropped, once it is clean.
    forget_at: u64,
    pub(crate) granted: bool,
    ending: LeasePhase,
    keys: Keys,
    /// The node's queue pairs.
    pub(crate) pairs: Vec<u32>,
    old: OldKey,
    overlap_ms: u32,
    on_its_way: OnItsWay,
    /// A deadline that no path has acknowledged.
    extending: Option<(u64, Then)>,
    /// The waiting client was answered that the work takes long.
    patience_over: bool,
    release_ordered: bool,
    /// The release has progressed.
    release_moves: bool,
    /// The lease is of an earlier run, and this run has not bound it yet.
    bound_before: bool,
    /// When the lease is bound again, and how many such binds failed.
    again_at: Option<u64>,
    in_vain: u32,
    /// An earlier run reported its end; the lease is cut once more.
    told_over: bool,
    /// The lease could not be adopted and is cut.
    revoked_at_a_restart: bool,
    /// The lease is fenced by a failed release alone.
    only_release_failed: bool,
    waits: Vec<(Ticket, Waits)>,
}

impl Held {
    fn alarm(&self, sort: Sort) -> Option<u64> {
        let in_term = matches!(self.life, Life::InUse | Life::NewBinding | Life::NewKey);
        let mut at = vec![];
        match sort {
            Sort::Time if in_term => {
                at.push(self.deadline);
                if let OldKey::Works { until, .. } = self.old {
                    at.push(until);
                }
                let may_bind = self.life == Life::InUse && self.extending.is_none();
                at.extend(self.again_at.filter(|_| may_bind));
            }
            Sort::Time if self.life == Life::Asked && self.extending.is_some() => {
                at.push(self.deadline);
            }
            Sort::Time if self.life == Life::Kept => at.push(self.deadline + self.grace_ns),
            Sort::Patience => {
                if let OldKey::Dying { by } = self.old
                    && in_term
                {
                    at.push(by);
                }
                match self.life {
                    _ if self.extending.is_some() => at.push(self.since + EXTEND_NS),
                    Life::NewBinding | Life::NewKey if self.patience_over => {}
                    Life::Asked | Life::NewBinding | Life::NewKey => at.push(self.since + BIND_NS),
                    Life::BeingCut => {
                        at.push(self.since + 10 * CUT_NS);
                        at.extend(self.cut_moved.map(|moved| moved + CUT_NS));
                    }
                    Life::Scrubbed if self.release_moves => at.push(self.since + STALL_NS),
                    // A cut that waits for its turn is not stuck.
                    _ => {}
                }
            }
            Sort::Memory if self.life == Life::Clean => at.push(self.forget_at),
            _ => {}
        }
        at.into_iter().min()
    }

    /// When the last fifth of the term begins.
    pub(crate) fn renewable_at(&self) -> u64 {
        let window = u64::from(self.term_secs) * SEC / 5;
        self.deadline.saturating_sub(window)
    }

    pub(crate) fn phase(&self) -> LeasePhase {
        match self.life {
            Life::Asked => LeasePhase::Binding,
            Life::BeingCut if self.told_over => self.ending,
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

    pub(crate) fn effective(&self) -> Effective {
        let terms = self.terms.as_ref();
        let blocks = terms.and_then(LeaseTerms::block);
        let gpu = terms.and_then(LeaseTerms::gpu);
        Effective {
            transport: Some(self.transport).filter(|it| *it != Transport::Auto),
            rotate_on_renew: self.rotate_on_renew,
            read_only: blocks.is_some_and(|it| it.read_only),
            mutual_auth: blocks.is_some_and(|it| it.mutual_auth),
            gpu_exclusivity: gpu.and_then(|it| it.exclusivity),
            gpu_execution_mode: gpu.and_then(|it| it.execution_mode),
            gpu_compute_slices: gpu.and_then(|it| it.compute_slices),
            ..Effective::default()
        }
    }

    /// Whether its end was reported; then only work of the node is left.
    fn is_over(&self) -> bool {
        self.told_over || matches!(self.life, Life::Scrubbed | Life::Clean | Life::Fenced)
    }

    /// Whether it is over and not clean yet.
    fn leaves(&self) -> bool {
        self.is_over() && matches!(self.life, Life::Scrubbed | Life::BeingCut)
    }

    pub(crate) fn alive(&self) -> bool {
        self.life != Life::Clean
    }

    pub(crate) fn generation(&self) -> Generation {
        Generation(self.generation)
    }

    pub(crate) fn told_generation(&self) -> Generation {
        Generation(self.bound.unwrap_or(self.generation))
    }

    /// The keys that the holder sees, and the old rkey with its end.
    pub(crate) fn told(&self) -> (Keys, Option<(u32, u64)>) {
        match (self.life, self.old) {
            (Life::InUse | Life::NewBinding | Life::NewKey, OldKey::Works { rkey, until }) => {
                (self.keys, rkey.map(|rkey| (rkey, until)))
            }
            (Life::InUse | Life::NewBinding | Life::NewKey, _) => (self.keys, None),
            _ => (Keys::NONE, None),
        }
    }

    /// Removes the binding of the lease.
    fn unbind(&mut self) {
        self.pairs.clear();
        (self.keys, self.bound, self.old, self.peers_before) =
            (Keys::NONE, None, OldKey::None, None);
        self.stop_extending();
    }

    fn stop_extending(&mut self) -> Option<Then> {
        if self.on_its_way == OnItsWay::Term {
            self.on_its_way = OnItsWay::Nothing;
        }
        self.extending.take().map(|(_, then)| then)
    }

    /// Removes the older binding, and with it the old key.
    fn older_is_gone(&mut self) {
        self.peers_before = None;
        self.old = match self.old {
            OldKey::Dying { .. } | OldKey::Gone => OldKey::Gone,
            OldKey::Works { .. } | OldKey::None => OldKey::None,
        };
    }

    pub(crate) fn remaining_ms(&self, now: u64) -> u64 {
        match self.phase() {
            LeasePhase::Active => self.deadline.saturating_sub(now) / MS,
            _ => 0,
        }
    }

    /// Whether queue pairs of a client are connected, or were and have all left.
    fn connected(&self) -> bool {
        let in_use = matches!(self.life, Life::InUse | Life::NewBinding | Life::NewKey);
        in_use && self.bound.is_some() && (self.keys.rkey.is_some() || self.pairs.is_empty())
    }

    /// Whether other queue pairs may be asked for now.
    fn takes_a_change(&self) -> Result<(), LeaseError> {
        match (self.life, self.old) {
            (Life::InUse, _) if self.extending.is_some() => Err(LeaseError::ResourceBusy),
            (Life::InUse, OldKey::None | OldKey::Works { .. }) => Ok(()),
            (Life::InUse, OldKey::Dying { .. } | OldKey::Gone) => Err(LeaseError::ResourceBusy),
            _ => Err(self.unfit()),
        }
    }

    /// The refusal of a request that does not fit the state of the lease.
    fn unfit(&self) -> LeaseError {
        match self.life {
            Life::Kept if self.on_its_way == OnItsWay::Nothing => LeaseError::Expired,
            Life::Fenced => LeaseError::Fenced,
            _ if self.is_over() => match self.ending {
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

/// The sort of a timer: a deadline, a time limit of a backend, or the end of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Time,
    Patience,
    Memory,
}

#[derive(Clone, Debug)]
pub(crate) struct Arena {
    pub(crate) id: ResourceId,
    pub(crate) transports: Vec<Transport>,
    kind: ResourceType,
    durability: Durability,
    fence_scope: FenceScope,
    allocation_mode: AllocationMode,
    read_only: bool,
    owner: Vec<Option<LeaseId>>,
    /// For a GPU: what each lease has.
    has: BTreeMap<LeaseId, Has>,
    /// The lease that the fence names, and whether only releases failed.
    fence: Option<(LeaseId, bool)>,
    /// The remediation that has not reported: who waits for it, and until when.
    resetting: Option<(Option<Ticket>, Option<u64>)>,
    /// A lease was fenced since the remediation began, which proves nothing about it.
    overtaken: bool,
}

impl Arena {
    pub(crate) fn longest(&self) -> u64 {
        let free = self.owner.iter().filter(|page| page.is_none()).count() as u64;
        match self.allocation_mode {
            AllocationMode::Device(_) => return self.most_of_device(self.shares(), None) * PAGE,
            AllocationMode::Amounts => return free * PAGE,
            AllocationMode::Vector(_) => {
                let mut held: BTreeMap<LeaseId, u64> = BTreeMap::new();
                let owned = self.owner.iter().flatten();
                owned.for_each(|&id| *held.entry(id).or_default() += 1);
                let pairs: u64 = held.values().map(|pages| pages.div_ceil(2)).sum();
                return match (held.len() as u64) < FUNCTIONS {
                    true => free.min(2 * (PAIRS - pairs)) * PAGE,
                    false => 0,
                };
            }
            _ => {}
        }
        let runs = self.owner.split(Option::is_some);
        runs.map(|run| run.len() as u64 * PAGE).max().unwrap_or(0)
    }

    fn give_back(&mut self, id: LeaseId) {
        let mine = self.owner.iter_mut().filter(|page| **page == Some(id));
        mine.for_each(|page| *page = None);
        self.has.remove(&id);
    }

    pub(crate) fn available(&self) -> u64 {
        if self.fenced() { 0 } else { self.longest() }
    }

    /// Whether the whole resource is fenced.
    pub(crate) fn fenced(&self) -> bool {
        self.fence.is_some() && !self.partly_fenced()
    }

    pub(crate) fn partly_fenced(&self) -> bool {
        self.fence
            .is_some_and(|(_, by_release)| match self.fence_scope {
                FenceScope::Separate => true,
                FenceScope::Part => by_release,
                FenceScope::Whole => false,
            })
    }

    fn outlives_machine(&self) -> bool {
        self.durability == Durability::Machine
    }

    /// The lease that the fence of the arena names.
    pub(crate) fn culprit(&self) -> Option<LeaseId> {
        self.fence.map(|(id, _)| id)
    }

    /// The bytes of all whole pages.
    pub(crate) fn usable(&self) -> u64 {
        self.owner.len() as u64 * PAGE
    }

    /// The pages of a placement. An amount has no positions: any free pages.
    fn pages(&self, extent: Extent) -> Vec<usize> {
        let first = extent.offset / PAGE;
        let end = (extent.offset + extent.length).div_ceil(PAGE);
        let (first, end) = (
            usize::try_from(first).unwrap(),
            usize::try_from(end).unwrap(),
        );
        if self.allocation_mode == AllocationMode::Stretches {
            return (first..end).collect();
        }
        assert_eq!(first, 0, "amounts start at 0");
        let free = (0..self.owner.len()).filter(|&page| self.owner[page].is_none());
        free.take(end).collect()
    }
}

/// The whole state of the model.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    pub(crate) boot: u64,
    limits: Limits,
    draining: bool,
    /// Paths acknowledge deadlines at once.
    pub(crate) at_once: bool,
    /// When a cut of each kind of resource last progressed.
    cut_moved: BTreeMap<ResourceType, u64>,
    pub(crate) arenas: Vec<Arena>,
    pub(crate) leases: Vec<Held>,
    /// The codes that nobody has presented yet.
    codes: Vec<(LeaseId, u128)>,
    pub(crate) orders: Vec<Order>,
    pub(crate) answers: Vec<(Ticket, Said)>,
}

impl Oracle {
    pub(crate) fn new(boot: u64, offers: &[Offer], limits: Limits) -> Self {
        let arena = |offer: &Offer| Arena {
            id: offer.resource_id,
            transports: offer.transports.clone(),
            kind: kind_of(offer.resource_id),
            durability: offer.durability,
            fence_scope: offer.fence_scope,
            allocation_mode: offer.allocation_mode.clone(),
            read_only: offer.read_only,
            owner: vec![None; usize::try_from(offer.capacity / PAGE).unwrap()],
            has: BTreeMap::new(),
            fence: None,
            resetting: None,
            overtaken: false,
        };
        Self {
            boot,
            limits,
            draining: false,
            at_once: true,
            cut_moved: BTreeMap::new(),
            arenas: offers.iter().map(arena).collect(),
            leases: vec![],
            codes: vec![],
            orders: vec![],
            answers: vec![],
        }
    }

    pub(crate) fn unix_ms(&self) -> u64 {
        UNIX_MS + (self.boot - BOOT) / MS
    }

    fn machine(&self, at: usize) -> bool {
        self.arenas[self.leases[at].arena].outlives_machine()
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

    /// The transport of a lease, and the keys and queue pairs that it has.
    pub(crate) fn keys(&self, id: LeaseId) -> (Transport, Keys, Vec<u32>) {
        let held = self.find(id).map(|at| &self.leases[at]);
        held.map_or((Transport::Rdma, Keys::NONE, vec![]), |lease| {
            (lease.transport, lease.keys, lease.pairs.clone())
        })
    }

    /// The rkey before the last rotation, if it still works.
    pub(crate) fn old_rkey(&self, id: LeaseId) -> Option<u32> {
        let old = self.find(id).map(|at| self.leases[at].old);
        match old {
            Some(OldKey::Works { rkey, .. }) => rkey,
            _ => None,
        }
    }

    /// The held parts of an arena, in order.
    pub(crate) fn held(&self, id: ResourceId) -> Vec<Extent> {
        let its = |lease: &&Held| lease.alive() && self.arenas[lease.arena].id == id;
        let mut held: Vec<Extent> = self.leases.iter().filter(its).map(|l| l.extent).collect();
        held.sort();
        held
    }

    fn placement(&self, at: usize) -> Placement {
        let lease = &self.leases[at];
        let arena = &self.arenas[lease.arena];
        match arena.allocation_mode {
            AllocationMode::Amounts => Placement::Amount(lease.extent.length),
            AllocationMode::Device(_) => arena.has[&lease.id].placement(),
            AllocationMode::Vector(_) => {
                let bytes = lease.extent.length;
                let taken = [bytes, (bytes / PAGE).div_ceil(2), 1];
                let names = ["bytes", "pairs", "functions"].into_iter();
                let quantities = names.zip(taken).map(|(name, amount)| Quantity {
                    name: name.into(),
                    amount,
                });
                Placement::Vector(quantities.collect())
            }
            _ => lease.extent.into(),
        }
    }

    fn binding_id(&self, at: usize) -> BindingId {
        let lease = &self.leases[at];
        BindingId {
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
            code: None,
        }
    }
}
