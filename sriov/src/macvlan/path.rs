//! Makes the devices of a lease, hands the tenant's end over, and deletes them.

use std::{
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::{
    Caller, DataPath, Entered, Given, Guard, LocalAccess, LocalRefusal, Part, Revoked,
};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Custody, Gate, Linger, Lookup, Proof,
    StepError,
};
use fabricbios_wire::{
    Binding, Generation, HandOver, KindBinding, LeaseId, NetBinding, ResourceType,
};

use super::{
    devices::{Devices, Indexes},
    parent::Parent,
    record::Record,
    steps,
};
use crate::netlink::{By, require_network_namespace};

/// The path to the macvlans of one parent.
#[derive(Debug)]
pub struct MacvlanPath {
    parent: Arc<Parent>,
    guard: Arc<dyn Guard>,
    leases: Mutex<Custody<Arc<Entry>>>,
}

/// One lease.
#[derive(Debug, Default)]
struct Entry {
    /// Held while the devices are made, looked at or deleted. A cut does not wait for it.
    work: Mutex<()>,
    /// Held for a moment.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    gate: Gate,
    /// The binding that has opened.
    open: Option<(Generation, Arc<str>)>,
    /// The devices with rules of the last binding that opened here.
    indexes: Option<Indexes>,
}

impl Entry {
    fn work(&self) -> MutexGuard<'_, ()> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MacvlanPath {
    /// To the macvlans of this parent. `guard` ends leases that this process cannot end.
    #[must_use]
    pub fn new(parent: Arc<Parent>, guard: Arc<dyn Guard>) -> Self {
        Self {
            parent,
            guard,
            leases: Mutex::default(),
        }
    }

    fn leases(&self) -> MutexGuard<'_, Custody<Arc<Entry>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, lease: LeaseId) -> Option<Arc<Entry>> {
        self.leases().find_or_make(lease)
    }

    fn delete(&self, lease: LeaseId) -> Result<Proof, StepError> {
        Devices::of(lease).delete(&*self.parent.kernel)
    }

    fn check_gone(&self, lease: LeaseId) -> Result<Proof, StepError> {
        // A damaged record keeps nothing: the devices are found by their names.
        let record = self.parent.record(lease).unwrap_or_default();
        let address = record.map(|it| (self.parent.index(), it.mac));
        Devices::of(lease).check_gone(&*self.parent.kernel, address)
    }

    /// Ends access without a wait for the kernel's lock of network devices, or with one if the rules cannot be deleted.
    fn cut(&self, lease: LeaseId, known: Option<Indexes>) -> Result<Proof, StepError> {
        let (devices, kernel) = (Devices::of(lease), &*self.parent.kernel);
        let indexes = known.map_or_else(|| devices.indexes(kernel), Ok);
        let cut = indexes.and_then(|it| devices.cut(kernel, it));
        cut.or_else(|error| {
            tracing::warn!(lease_id = %lease, %error, "deleting the interfaces of the lease, as its rules are not gone");
            devices.delete(kernel)
        })
    }

    /// Proves that no frame passes: by the rules, or by the end of the interfaces if the rules do not tell.
    fn check_cut(&self, lease: LeaseId, known: Option<Indexes>) -> Result<Proof, StepError> {
        let (devices, kernel) = (Devices::of(lease), &*self.parent.kernel);
        let indexes = known.map_or_else(|| devices.indexes(kernel), Ok);
        let checked = indexes.and_then(|it| devices.check_cut(kernel, it));
        checked.or_else(|_| Ok(devices.delete(kernel)?.and(self.check_gone(lease)?)))
    }

    fn make(&self, order: &BindOrder, entry: &Entry, record: &Record) -> Result<(), BindError> {
        let BindingId {
            lease_id: lease,
            generation,
            ..
        } = order.binding_id;
        let kernel = &*self.parent.kernel;
        let plan = self.parent.plan(record).map_err(BindError::Failed)?;
        let devices = Devices::of(lease);
        let made = match order.adopts {
            true => devices.check(kernel, &plan),
            false => devices.make(kernel, &plan, generation),
        };
        let indexes = made.map_err(BindError::Failed)?;
        {
            let mut state = entry.state();
            state.gate.open(generation)?;
            state.indexes = Some(indexes);
        }
        if !order.adopts {
            let opened = devices.set_up(kernel, record.hand_over);
            opened.map_err(BindError::Failed)?;
        }
        let mut state = entry.state();
        // A cut does not wait for the kernel: it has deleted the rules, and the devices go.
        if !state.gate.admits(generation) {
            return Err(BindError::Cancelled);
        }
        state.open = Some((generation, order.tenant.clone()));
        Ok(())
    }
}

impl DataPath for MacvlanPath {
    fn bind(&self, order: &BindOrder, _part: &Part) -> Result<Binding, BindError> {
        let BindingId {
            lease_id: lease,
            generation,
            ..
        } = order.binding_id;
        self.guard.check(order)?;
        let record = self.parent.record(lease).map_err(BindError::Failed)?;
        let record = record.ok_or_else(|| {
            let why = format!("lease {lease} has no interface of {}", self.parent.name);
            BindError::Failed(StepError::new("bind", why))
        })?;
        let entry = self.entry(lease).ok_or(BindError::Cancelled)?;
        let _work = entry.work();
        let before = {
            let state = entry.state();
            if !state.gate.admits(generation) {
                return Err(BindError::Cancelled);
            }
            state.gate.generation()
        };
        let end = |generation| {
            let ended = self.delete(lease);
            let mut state = entry.state();
            state.open = None;
            state.indexes = None;
            if ended.is_ok() {
                state.gate.ended(generation);
            }
            ended
        };
        // The tenant of the binding before loses its interface, and gets a new one.
        if let Some(before) = before {
            end(before).map_err(BindError::Stranded)?;
        }
        self.make(order, &entry, &record).map_err(|error| {
            let undone = match order.adopts {
                // Its end is a cut of its own.
                true => Ok(()),
                false => end(generation).map(drop),
            };
            match (undone, before) {
                (Err(left), _) => BindError::Stranded(left),
                (Ok(()), Some(_)) => error.lost(),
                (Ok(()), None) => error,
            }
        })?;
        Ok(binding(lease, &record))
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        match self.leases().find(binding_id.lease_id) {
            Lookup::Released => return Err(AlreadyCut),
            Lookup::Here(entry) if entry.state().gate.is_closed(binding_id.generation) => {
                return Err(AlreadyCut);
            }
            // An unknown lease is bound later.
            Lookup::Here(_) | Lookup::Unknown => {}
        }
        self.guard.extend(binding_id, deadline);
        Ok(())
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        let lease = binding_id.lease_id;
        let Some(entry) = self.entry(lease) else {
            return Ok(Revoked::proved(released()));
        };
        let indexes = {
            let mut state = entry.state();
            if let Err(moved_on) = state.gate.revoke(binding_id.generation) {
                return Ok(Revoked::proved(moved_on.into()));
            }
            state.open = None;
            state.indexes
        };
        let steps = self.cut(lease, indexes)?;
        entry.state().gate.ended(binding_id.generation);
        Ok(Revoked {
            steps,
            ..Revoked::default()
        })
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        let Some(entry) = self.entry(lease) else {
            return Ok(released());
        };
        // A bind that is late makes devices before it sees that it was cut, and deletes them.
        let _work = entry.work();
        let indexes = {
            let state = entry.state();
            if let Err(moved_on) = state.gate.check_current(binding_id.generation) {
                return Ok(moved_on.into());
            }
            state.indexes
        };
        let proof = revoked.map(|it| it.steps.clone()).unwrap_or_default();
        let proof = proof.and(self.check_cut(lease, indexes)?);
        self.guard.over(binding_id);
        Ok(proof)
    }

    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        let lease = binding_id.lease_id;
        let Some(entry) = self.entry(lease) else {
            return Ok(());
        };
        let _work = entry.work();
        if entry.state().open.is_some() {
            let why = format!("{binding_id}: it was not revoked");
            return Err(StepError::new("remove", why));
        }
        progress();
        self.delete(lease)?;
        progress();
        self.check_gone(lease)?;
        entry.state().gate.remove();
        self.leases().release(lease);
        Ok(())
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.parent.leases_with_devices()
    }
}

impl LocalAccess for MacvlanPath {
    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        given: Given,
    ) -> Result<Entered, LocalRefusal> {
        let entry = LocalRefusal::unless_here(self.leases().find(lease))?;
        // Not held below: what waits for the kernel's lock of network devices would delay the cut. An interface that was cut
        // meanwhile reaches nothing, wherever it is, and one that was deleted has an index that no other gets.
        match &entry.state().open {
            Some((_, tenant)) => caller.check(tenant)?,
            None => return Err(LocalRefusal::NotActive("it has no binding".to_owned())),
        }
        let record = self.parent.record(lease).map_err(LocalRefusal::Failed)?;
        let record = record.ok_or(LocalRefusal::NotFound)?;
        let namespace = match given {
            Given::NetworkNamespace(namespace) if record.hand_over == HandOver::Netns => namespace,
            other => {
                return Err(LocalRefusal::Unsupported(format!(
                    "the lease takes no {other}; a lease with --hand-over netns takes a network namespace"
                )));
            }
        };
        let namespace = namespace.as_fd();
        require_network_namespace(namespace)
            .map_err(|error| LocalRefusal::Unsupported(error.to_string()))?;
        let (kernel, name) = (&self.parent.kernel, Devices::of(lease).tenant_end);
        let failed = |error| LocalRefusal::Failed(StepError::from(error));
        let link = kernel.link(By::Name(&name)).map_err(failed)?;
        let link = link.ok_or_else(|| {
            LocalRefusal::Unsupported(format!(
                "its interface {name} was given to a network namespace before, and is there"
            ))
        })?;
        kernel.move_to(link.index, namespace).map_err(failed)?;
        steps::passed("move to namespace");
        Ok(Entered::at(name))
    }
}

fn binding(lease: LeaseId, record: &Record) -> Binding {
    let net = NetBinding {
        pci_function: None,
        interface: Some(Devices::of(lease).tenant_end),
        mac: record.mac,
        vlan: record.vlan,
        rate_bps: record.rate_bps,
        hand_over: record.hand_over,
        vfio_group: None,
        cdi_device: None,
    };
    Binding {
        kind: KindBinding::Net(Some(Box::new(net))),
        ..Binding::plain(ResourceType::Net)
    }
}

fn released() -> Proof {
    Proof::nothing_to_cut("the lease was removed before")
}
