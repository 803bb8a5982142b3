//! The path to macvlans: makes the devices of a lease, hands the tenant's end over, and ends access.

use std::{
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
};

use fabricbios_contract::{
    Bindings, Caller, DataPath, Entered, Given, Guard, LocalAccess, LocalRefusal, Part, Revoked,
};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, KindBinding, LeaseId, NetBinding, ResourceType};

use super::{
    devices::{Devices, Indexes},
    parent::Parent,
    record::MacvlanRecord,
    steps,
};
use crate::{given, netlink::By};

/// The path to the macvlans of one parent.
#[derive(Debug)]
pub struct MacvlanPath {
    parent: Arc<Parent>,
    bindings: Bindings<Known>,
}

/// The indexes of the devices with rules of a lease's last binding here, as long as the devices exist.
#[derive(Debug, Default)]
struct Known(Mutex<Option<Indexes>>);

impl Known {
    fn get(&self) -> Option<Indexes> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, indexes: Option<Indexes>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = indexes;
    }
}

impl MacvlanPath {
    /// The path for leases of this parent. `guard` ends leases that this process cannot end.
    #[must_use]
    pub fn new(parent: Arc<Parent>, guard: Arc<dyn Guard>) -> Self {
        Self {
            parent,
            bindings: Bindings::guarded_by(guard),
        }
    }

    fn delete(&self, lease: LeaseId) -> Result<Proof, StepError> {
        Devices::of(lease).delete(&*self.parent.kernel)
    }

    fn check_gone(&self, lease: LeaseId) -> Result<Proof, StepError> {
        // A damaged record does not stop the check: the devices are found by their names.
        let record = self.parent.record(lease).unwrap_or_default();
        let address = record.map(|it| (self.parent.index(), it.mac));
        Devices::of(lease).check_gone(&*self.parent.kernel, address)
    }

    /// Ends access without waiting for the kernel's lock of network devices. If the rules cannot be deleted, deletes
    /// the devices, which waits for that lock.
    fn cut(&self, lease: LeaseId, known: &Known) -> Result<Revoked, StepError> {
        let (devices, kernel) = (Devices::of(lease), &*self.parent.kernel);
        let indexes = known.get().map_or_else(|| devices.indexes(kernel), Ok);
        let cut = indexes.and_then(|it| devices.cut(kernel, it));
        let cut = cut.or_else(|error| {
            tracing::warn!(lease_id = %lease, %error, "deleting the interfaces of the lease, as its rules are not gone");
            devices.delete(kernel)
        });
        cut.map(Revoked::by)
    }

    /// Proves that no frame passes. If the rules cannot be read or still pass frames, deletes the interfaces and proves
    /// that.
    fn check_cut(&self, lease: LeaseId, known: &Known) -> Result<Proof, StepError> {
        let (devices, kernel) = (Devices::of(lease), &*self.parent.kernel);
        let indexes = known.get().map_or_else(|| devices.indexes(kernel), Ok);
        let checked = indexes.and_then(|it| devices.check_cut(kernel, it));
        checked.or_else(|_| Ok(devices.delete(kernel)?.and(self.check_gone(lease)?)))
    }
}

impl DataPath for MacvlanPath {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let BindingId {
            lease_id: lease,
            generation,
            ..
        } = order.binding_id;
        let making = self.bindings.begin(order)?;
        let record = part.record::<MacvlanRecord>()?;
        let (devices, kernel) = (Devices::of(lease), &*self.parent.kernel);
        let make = || {
            let plan = self.parent.plan(&record)?;
            let indexes = match order.adopts {
                true => devices.check(kernel, &plan)?,
                false => devices.make(kernel, &plan, generation)?,
            };
            making.objects().set(Some(indexes));
            Ok(())
        };
        let open = |()| match order.adopts {
            true => Ok(()),
            false => devices.set_up(kernel, record.hand_over),
        };
        // The tenant of the older binding loses its interface and gets a new one.
        let end = || {
            let deleted = self.delete(lease);
            making.objects().set(None);
            deleted.map(drop)
        };
        making.anew(order.adopts, make, open, end)?;
        Ok(binding(lease, &record))
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        self.bindings.extend(binding_id, deadline)
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        let lease = binding_id.lease_id;
        self.bindings
            .revoke(binding_id, |known| self.cut(lease, known))
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        self.bindings.verify(
            binding_id,
            revoked,
            |known| self.cut(lease, known),
            |known, _| self.check_cut(lease, known),
        )
    }

    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        let lease = binding_id.lease_id;
        self.bindings.remove(lease, |_| {
            progress();
            self.delete(lease)?;
            progress();
            self.check_gone(lease).map(drop)
        })
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
        let entry = self.bindings.in_use(lease)?;
        // The lease may be cut during the hand-over. The entry does not block the cut, since waiting here for the
        // kernel's lock of network devices would delay the proof. An interface that was cut meanwhile reaches nothing,
        // in any namespace. The index of a deleted interface is not used again.
        entry.remaining(|tenant| caller.check(tenant))?;
        let record = self.parent.record(lease).map_err(LocalRefusal::Failed)?;
        let record = record.ok_or(LocalRefusal::NotFound)?;
        let namespace = given::namespace(given, record.hand_over)?;
        let (kernel, name) = (&self.parent.kernel, Devices::of(lease).tenant_end);
        let failed = |error| LocalRefusal::Failed(StepError::from(error));
        let link = kernel.link(By::Name(&name)).map_err(failed)?;
        let link = link.ok_or_else(|| {
            LocalRefusal::Unsupported(format!(
                "its interface {name} was given to a network namespace before, and is there"
            ))
        })?;
        let moved = kernel.move_to(link.index, namespace.as_fd());
        moved.map_err(failed)?;
        steps::passed("move to namespace");
        Ok(Entered::at(name))
    }
}

fn binding(lease: LeaseId, record: &MacvlanRecord) -> Binding {
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
