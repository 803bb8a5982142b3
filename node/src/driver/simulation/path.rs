//! A simulated path: the gate and the locks of the real paths ([`Bindings`]) in front of simulated objects.

use fabricbios_contract::{Bindings, DataPath, Inline, Part, Revoked};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, DpKey, Generation, LeaseId, ResourceId};

use super::{
    invariants::Mistake,
    kinds::Kind,
    machine::{Object, World},
};

/// See the module.
pub(super) struct SimPath {
    pub(super) name: &'static str,
    pub(super) kind: &'static Kind,
    /// The path is in the daemon's process, and its objects end with it. It checks deadlines itself, has keys and cuts at
    /// once. The objects of other paths are in the kernel.
    pub(super) is_udp: bool,
    pub(super) world: World,
    pub(super) bindings: Bindings,
}

impl SimPath {
    /// A step of a call that the driver's thread makes only if the path is inline as a whole.
    fn step(&self, what: &'static str, id: BindingId) -> Result<(), StepError> {
        match self.inline(id.resource_id) {
            Inline::Everything => self.world.at_once(what, id.lease_id),
            Inline::Cut | Inline::Nothing => self.world.step(what, id.lease_id),
        }
    }

    fn opens(&self, id: BindingId) {
        let until = if self.is_udp { 0 } else { u64::MAX };
        let object = Object {
            resource_id: id.resource_id,
            generation: id.generation,
            is_open: true,
            until: BootTime(until),
            checks_deadlines: self.is_udp,
            old_key: false,
            is_left: false,
        };
        let mut machine = self.world.lock();
        machine.objects.insert((self.name, id.lease_id), object);
    }

    /// Ends access of this generation and of older ones.
    fn ends(&self, id: BindingId) {
        let mut machine = self.world.lock();
        let object = machine.objects.get_mut(&(self.name, id.lease_id));
        if let Some(object) = object.filter(|it| it.is_of(id.generation)) {
            object.is_open = false;
        }
    }

    fn cuts(&self, id: BindingId) -> Result<Revoked, StepError> {
        if self.world.lock().has(Mistake::ProvesWithoutACut) {
            return Ok(Revoked::proved(Proof::nothing_to_cut("a mistake")));
        }
        if self.is_udp {
            self.ends(id);
            return Ok(Revoked::proved(Proof::default()));
        }
        self.world.step("cut", id.lease_id)?;
        self.ends(id);
        Ok(Revoked::default())
    }

    fn looks(&self, id: BindingId) -> Result<Proof, StepError> {
        if !self.is_udp {
            self.world.step("look", id.lease_id)?;
        }
        let machine = self.world.lock();
        let object = machine.objects.get(&(self.name, id.lease_id));
        match object.filter(|it| it.is_open && it.is_of(id.generation)) {
            Some(_) => Err(StepError::new("look", "it is open")),
            None => Ok(Proof::nothing_to_cut("it is closed")),
        }
    }

    fn notes_cut(&self, id: BindingId, proved: Option<Generation>) {
        let mut machine = self.world.lock();
        machine.cuts.insert((self.name, id.lease_id), proved);
    }

    fn binding(&self) -> Binding {
        Binding {
            dp_key: self.is_udp.then_some(DpKey([7; 32])),
            ..Binding::plain(self.kind.resource_type)
        }
    }

    fn change<T>(
        &self,
        id: BindingId,
        change: impl FnOnce(&mut Object) -> T,
    ) -> Result<T, StepError> {
        let mut machine = self.world.lock();
        let object = machine.objects.get_mut(&(self.name, id.lease_id));
        let object = object.filter(|it| it.is_open);
        let object = object.ok_or_else(|| StepError::new("change key", "it is not open"));
        object.map(change)
    }

    fn makes(&self, order: &BindOrder) -> Result<(), BindError> {
        let (id, lease) = (order.binding_id, order.binding_id.lease_id);
        let key = (self.name, lease);
        let making = self.bindings.begin(order)?;
        self.step("look for the peer", id)
            .map_err(BindError::Refused)?;
        if self.is_udp {
            return making.beside(|| {
                self.opens(id);
                Ok(())
            });
        }
        let make = || self.world.step("make objects", lease);
        let open = |()| {
            self.opens(id);
            self.world.step("opened", lease)
        };
        let end = || {
            self.world.step("undo", lease)?;
            let mut machine = self.world.lock();
            let is_newer = |it: &Object| !it.is_of(id.generation);
            if !machine.objects.get(&key).is_some_and(is_newer) {
                machine.objects.remove(&key);
            }
            Ok(())
        };
        if self.kind.binds_anew {
            return making.anew(order.adopts, make, open, end);
        }
        let made = making.beside(|| make().and_then(open).map_err(BindError::Failed));
        if made.is_err() && !order.adopts {
            end().map_err(BindError::Stranded)?;
        }
        made
    }
}

impl DataPath for SimPath {
    fn inline(&self, resource_id: ResourceId) -> Inline {
        match self.is_udp {
            true => self.world.lock().inline[&resource_id],
            false => Inline::Nothing,
        }
    }

    fn bind(&self, order: &BindOrder, _: &Part) -> Result<Binding, BindError> {
        match self.makes(order) {
            Err(BindError::Cancelled) if self.world.lock().has(Mistake::OpensBehindACut) => {
                self.opens(order.binding_id);
            }
            made => made?,
        }
        Ok(self.binding())
    }

    fn extend(&self, id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        self.bindings.extend(id, deadline)?;
        let mut machine = self.world.lock();
        if let Some(object) = machine.objects.get_mut(&(self.name, id.lease_id)) {
            object.until = deadline;
        }
        Ok(())
    }

    fn rotate(&self, id: BindingId) -> Result<Binding, BindError> {
        self.step("rotate", id).map_err(BindError::Failed)?;
        let rotated = self.change(id, |object| {
            object.old_key = true;
            object.generation = object.generation.max(id.generation);
        });
        rotated.map_err(BindError::Refused)?;
        Ok(self.binding())
    }

    fn retire_key(&self, id: BindingId) -> Result<Binding, StepError> {
        self.step("retire", id)?;
        let keeps = self.world.lock().has(Mistake::KeepsTheOldKey);
        self.change(id, |object| object.old_key = keeps)?;
        Ok(self.binding())
    }

    fn revoke(&self, id: BindingId, _: Linger) -> Result<Revoked, StepError> {
        let revoked = self.bindings.revoke(id, |()| self.cuts(id));
        if revoked.is_err() {
            self.notes_cut(id, None);
        }
        revoked
    }

    fn verify(&self, id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let prove = |(): &(), _: Option<&Revoked>| self.looks(id);
        let proof = self.bindings.verify(id, revoked, |()| self.cuts(id), prove);
        self.notes_cut(id, proof.is_ok().then_some(id.generation));
        proof
    }

    fn remove(&self, id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        self.bindings.remove(id.lease_id, |()| {
            self.step("remove", id)?;
            progress();
            let mut machine = self.world.lock();
            if !machine.has(Mistake::RemovesNothing) {
                machine.objects.remove(&(self.name, id.lease_id));
            }
            Ok(())
        })
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.world.lists()?;
        let machine = self.world.lock();
        let its = machine
            .objects
            .keys()
            .filter(|(path, _)| *path == self.name);
        match machine.has(Mistake::ListsNothing) {
            true => Ok(Vec::new()),
            false => Ok(its.map(|(_, lease)| *lease).collect()),
        }
    }
}
