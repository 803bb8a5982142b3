//! A simulated store: an arena, a pool with the header of `fabricbios_pool`, or parts without bytes.

use std::{
    collections::BTreeSet,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::{Inline, Part, Store, TellCondition};
use fabricbios_lease::{
    BindError, BindOrder, BindingId, Custody, Durability, Extent, Lookup, NotFree, Placement,
    Proof, StepError,
};
use fabricbios_pool::format::{BYTES, Header, PLACES, Record};
use fabricbios_wire::{LeaseId, NodeId, ResourceId};

use super::{
    invariants::{Invariant, Mistake},
    kinds::PAGE,
    machine::{BEFORE_THE_POOL, Machine, World, ZEROES},
};

/// The driver's thread does not clean longer parts.
const INLINE_MAX: u64 = 3 * PAGE;

/// See the module.
pub(super) struct SimStore {
    world: World,
    resource_id: ResourceId,
    /// The positions of leases count.
    has_pages: bool,
    custody: Mutex<Custody<()>>,
    /// Of a pool.
    record: Option<Record>,
}

/// Makes each pool of a new machine, and the pages of all resources.
pub(super) fn make_pools(machine: &mut Machine) {
    for (id, (kind, offer)) in machine.offers.clone() {
        if !kind.has_pages {
            continue;
        }
        let is_pool = offer.durability == Durability::Machine;
        let before = if is_pool { BEFORE_THE_POOL } else { ZEROES };
        let pages = vec![
            before;
            pages_of(Extent {
                offset: 0,
                length: offer.capacity
            })
            .len()
        ];
        machine.pages.insert(id, pages);
        if is_pool {
            let header = Header {
                sequence: 1,
                identity: id.0.to_be_bytes(),
                node: NodeId([0; 32]),
                unwritten_from: 0,
                grants: 0,
            };
            machine
                .headers
                .insert(id, [vec![0; BYTES], header.encode().to_vec()]);
        }
    }
}

/// The pages of an extent.
pub(super) fn pages_of(extent: Extent) -> std::ops::Range<usize> {
    (extent.offset / PAGE) as usize..(extent.end() / PAGE) as usize
}

impl SimStore {
    /// The store of a process that starts. `held`: the leases that hold a part.
    pub(super) fn new(world: &World, resource_id: ResourceId) -> Self {
        let mut machine = world.lock();
        let (kind, offer) = machine.offers[&resource_id].clone();
        let header = machine.headers.get(&resource_id);
        let header = header.map(|[first, second]| Header::newest([first, second]));
        let record = match header {
            Some(Ok(Some(header))) => Some(Record::new(header)),
            None => None,
            Some(found) => {
                machine.breaks(Invariant::PoolIsRecognised, format_args!("{found:?}"));
                None
            }
        };
        // Memory without a file ends with its process.
        if offer.durability == Durability::Nothing {
            let pages = machine.pages.entry(resource_id).or_default();
            pages.fill(ZEROES);
        }
        // A pool finds the volumes of the earlier process, those of strays too.
        let mut custody = Custody::default();
        let parts = machine.parts.iter();
        for ((_, lease), part) in parts.filter(|((id, _), _)| *id == resource_id) {
            if record.is_some() {
                let claimed = custody.claim(*lease, part.extent());
                claimed.expect("they were apart");
            }
        }
        drop(machine);
        Self {
            world: world.clone(),
            resource_id,
            has_pages: kind.has_pages,
            custody: Mutex::new(custody),
            record,
        }
    }

    /// Takes up the parts that leases hold at the start. An arena cleans the rest.
    pub(super) fn ready(&self, held: &[(BindingId, Placement)]) {
        let mut machine = self.world.lock();
        let its = held
            .iter()
            .filter(|(id, _)| id.resource_id == self.resource_id);
        let its: Vec<&(BindingId, Placement)> = its.collect();
        let is_stray = |it: &LeaseId| its.iter().all(|(id, _)| id.lease_id != *it);
        let parts = machine.parts.keys();
        let found = parts.filter(|(id, lease)| *id == self.resource_id && is_stray(lease));
        let found: Vec<LeaseId> = found.map(|(_, lease)| *lease).collect();
        machine.strays.extend(found);
        for (id, placement) in &its {
            if self.is_arena() {
                self.claim(id.lease_id, placement)
                    .expect("the table keeps them apart");
                let key = (self.resource_id, id.lease_id);
                machine.parts.insert(key, placement.clone());
            }
        }
        if self.is_arena() {
            let holds = |page: usize| {
                its.iter()
                    .any(|(_, it)| pages_of(it.extent()).contains(&page))
            };
            let pages = machine.pages.entry(self.resource_id).or_default();
            let free = pages
                .iter_mut()
                .enumerate()
                .filter(|(page, _)| !holds(*page));
            free.for_each(|(_, stamp)| *stamp = ZEROES);
        }
    }

    /// A step of a call with this part.
    fn step(&self, what: &'static str, lease: LeaseId, part: &Placement) -> Result<(), StepError> {
        match self.is_inline(part) {
            true => self.world.at_once(what, lease),
            false => self.world.step(what, lease),
        }
    }

    fn is_arena(&self) -> bool {
        self.has_pages && self.record.is_none()
    }

    fn custody(&self) -> MutexGuard<'_, Custody<()>> {
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(&self, lease: LeaseId, placement: &Placement) -> Result<(), NotFree> {
        let mut custody = self.custody();
        if !self.has_pages {
            custody.find_or_make(lease);
            return Ok(());
        }
        custody.claim(lease, placement.extent())
    }

    /// Why a part cannot be claimed.
    fn not_free(&self, lease: LeaseId, why: NotFree) -> StepError {
        let mut machine = self.world.lock();
        if matches!(why, NotFree::HeldBy(other, _) if machine.strays.contains(&other)) {
            let why = format_args!("lease {lease}: {why}");
            machine.breaks(Invariant::StraysAreNotGranted, why);
        }
        StepError::new("claim", why)
    }

    /// Zeroes the pages, one after the other.
    fn zero(&self, lease: LeaseId, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        let part = Placement::Stretch(extent);
        for page in pages_of(extent) {
            self.step("zero a page", lease, &part)?;
            self.world.lock().pages.entry(self.resource_id).or_default()[page] = ZEROES;
            progress();
        }
        Ok(())
    }

    /// Writes a header. A write that fails may be torn.
    fn put(&self) -> impl Fn(&Header) -> Result<(), fabricbios_pool::Error> {
        |header| {
            let mut machine = self.world.lock();
            let tears = machine.tears();
            let both = machine.has(Mistake::WritesOverBothCopies);
            let copies = machine.headers.entry(self.resource_id).or_default();
            let written = if tears { 90 } else { BYTES };
            for (copy, place) in copies.iter_mut().zip(PLACES) {
                if place == header.place() || both {
                    copy[..written].copy_from_slice(&header.encode()[..written]);
                }
            }
            match tears {
                true => Err(io::Error::other("the device does not answer").into()),
                false => Ok(()),
            }
        }
    }
}

impl Store for SimStore {
    fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        let Some(record) = &self.record else {
            return Ok(());
        };
        let (lease, extent) = (order.binding_id.lease_id, order.extent());
        let touch = || {
            let touched = record.touch(&self.put(), extent);
            touched.map_err(|why| StepError::new("write the header", why))
        };
        let unwritten = record.unwritten_within(extent);
        if self.world.lock().has(Mistake::CountsBeforeZeroing) {
            touch()?;
        }
        for stretch in unwritten {
            self.zero(lease, stretch, progress)?;
        }
        touch()
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let (lease, key) = (order.binding_id.lease_id, self.key(order.binding_id));
        self.step("open a part", lease, &order.placement)
            .map_err(BindError::Failed)?;
        if self.custody().find(lease) == Lookup::Released {
            return Err(BindError::Cancelled);
        }
        let has_room = {
            let machine = self.world.lock();
            order.adopts || machine.parts.contains_key(&key) || machine.has_room(order)
        };
        if !has_room {
            let why = "another lease has it";
            return Err(BindError::Failed(StepError::new("open a part", why)));
        }
        self.claim(lease, &order.placement)
            .map_err(|why| BindError::Failed(self.not_free(lease, why)))?;
        let mut machine = self.world.lock();
        let mut placement = order.placement.clone();
        if let (Placement::Stretch(extent), true) =
            (&mut placement, machine.has(Mistake::TakesAnyPart))
        {
            extent.offset = 0;
        }
        machine.parts.insert(key, placement.clone());
        machine.check_apart(self.resource_id);
        if self.has_pages && order.adopts && machine.has(Mistake::ScrubsAtAdoption) {
            let pages = machine.pages.entry(self.resource_id).or_default();
            pages[pages_of(order.extent())].fill(ZEROES);
        }
        Ok(Part::at(placement))
    }

    fn confirm(&self, binding_id: BindingId) -> Result<(), StepError> {
        self.world.step("confirm", binding_id.lease_id)?;
        let counted = self
            .record
            .as_ref()
            .map(|it| it.count(&self.put(), it.grants() + 1));
        let counted = counted.unwrap_or(Ok(()));
        counted.map_err(|why| StepError::new("count grant", why))
    }

    fn forget(&self, binding_id: BindingId, part: &Placement) -> Result<(), StepError> {
        self.step("forget a part", binding_id.lease_id, part)?;
        self.world.lock().parts.remove(&self.key(binding_id));
        self.custody().forget(binding_id.lease_id);
        Ok(())
    }

    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        if self.custody().find(lease) == Lookup::Released {
            return Ok(Proof::default());
        }
        let mut machine = self.world.lock();
        machine.check_may_clean(lease);
        if machine.has(Mistake::HidesStrays) && machine.strays.contains(&lease) {
            let now = machine.now;
            machine.troubles(&BTreeSet::from([lease]), now);
            return Err(StepError::new("release a part", "somebody holds it"));
        }
        let placement = { machine.parts.get(&self.key(binding_id)) }
            .or(placement)
            .cloned();
        let scrubs = self.has_pages && !machine.has(Mistake::ScrubsNothing);
        drop(machine);
        if let Some(placement) = placement.as_ref().filter(|_| scrubs) {
            self.claim(lease, placement)
                .map_err(|why| self.not_free(lease, why))?;
            self.zero(lease, placement.extent(), progress)?;
        }
        match &placement {
            Some(part) => self.step("release a part", lease, part)?,
            None => self.world.step("release a part", lease)?,
        }
        self.world.lock().parts.remove(&self.key(binding_id));
        self.custody().release(lease);
        Ok(Proof::nothing_to_clean("it is simulated"))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.world.lists()?;
        let known = self.custody().all().into_iter().map(|(id, ())| id);
        let mut all: Vec<LeaseId> = known.collect();
        let machine = self.world.lock();
        let parts = machine
            .parts
            .keys()
            .filter(|(id, _)| *id == self.resource_id);
        if !machine.has(Mistake::ListsNothing) {
            all.extend(parts.map(|(_, lease)| *lease));
        }
        Ok(all)
    }

    /// As [`fabricbios_pool`] does: of a pool alone.
    fn place_of(&self, lease: LeaseId) -> Option<Placement> {
        let hides = self.record.is_none() || self.world.lock().has(Mistake::HidesStrays);
        let place = self.custody().extent_of(lease).filter(|_| !hides);
        place.map(Placement::Stretch)
    }

    /// As an arena in memory: short parts.
    fn is_inline(&self, part: &Placement) -> bool {
        let is_short = self.is_arena() && part.amount() <= INLINE_MAX;
        is_short && self.world.lock().inline[&self.resource_id] == Inline::Everything
    }

    fn tell_condition(&self, _: TellCondition) {}
}

impl SimStore {
    fn key(&self, binding_id: BindingId) -> (ResourceId, LeaseId) {
        (self.resource_id, binding_id.lease_id)
    }
}
