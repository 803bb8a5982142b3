//! The backend: orders of the lease table, carried out on one device and one arena.
//!
//! Each order finds the slot of its lease, asks it what may be done, and does that: with the
//! slot's lock only where access opens, without any lock where the kernel may take its time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricbios_arena::Arena;
use fabricbios_contract::{DataPath, Part, Revoked};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BootTime, Custody, Farewell, Lookup, Proof, StepError, Tag,
};
use fabricbios_wire::{Binding, Generation, LeaseId, RdmaStrategy, ResourceId};

use super::{
    device::{Device, Found, close},
    hardware::Hardware,
    life::{CutStep, State},
    parts::Parts,
    permits::Permits,
    slot::Slot,
    strategy::{Shared, Strategy},
};

/// What to lease, and over which device.
#[derive(Debug)]
pub struct RdmaConfig {
    /// Name of the device; without one the first that can carry leases.
    pub device: Option<String>,
    /// The bytes; other roads may reach the same ones.
    pub arena: Arc<Arena>,
    /// The resource that the arena is.
    pub resource_id: ResourceId,
    /// How leases are given out.
    pub strategy: Strategy,
}

/// What came of opening.
#[derive(Debug)]
pub enum RdmaOpened {
    /// Leases can be carried.
    Ready(Box<RdmaBackend>),
    /// There is no device that could, and none was asked for by name. Said once, for people.
    Absent(String),
}

/// Facts for inventories and the start message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaInventory {
    /// Name of the device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// GID that clients connect to.
    pub gid: [u8; 16],
    /// Where it is in the port's table.
    pub gid_index: u8,
    /// Path MTU of the port in bytes.
    pub mtu_bytes: u16,
    /// Largest message in bytes.
    pub message_bytes: u32,
    /// Whether windows of type 2B exist.
    pub has_type_2b: bool,
    /// What leases are: windows, or regions.
    pub strategy: RdmaStrategy,
    /// Whether keys allow atomics.
    pub atomics: bool,
    /// Whether leases are windows and the device keeps a window's holder to the window. Where it does
    /// not, every lease has a region of its own under its windows, which costs a registration per
    /// grant.
    pub windows_have_bounds: bool,
}

/// Leases of memory over RDMA.
#[derive(Debug)]
pub struct RdmaBackend {
    pub(super) hardware: Hardware,
    pub(super) resource_id: ResourceId,
    /// Of the leases that have, or had, a binding over this path.
    custody: Mutex<Custody<Arc<Slot<Parts>>>>,
    pub(super) bring_ups: Permits,
}

impl RdmaBackend {
    /// Opens the device, registers the arena if leases are to be windows, and checks that the kernel's
    /// resource tracker can be asked. `Err` when a device named is absent or unfit, or the arena
    /// cannot be registered.
    pub fn open(config: RdmaConfig) -> Result<RdmaOpened, StepError> {
        let device = match Device::find(config.device.as_deref(), config.strategy.needs_windows())?
        {
            Found::Device(device) => *device,
            Found::Nothing(reason) => return Ok(RdmaOpened::Absent(reason)),
        };
        let strategy = config.strategy.on(device.limits.has_type_2b);
        let shared = Shared::open(&device, &config.arena, strategy)?;
        let mut hardware = Hardware::new(device, config.arena, shared);
        let tag = own_tag(config.resource_id);
        hardware.check_tracker(tag)?;
        hardware.try_from_outside(tag)?;
        hardware.try_bounds(tag)?;
        Ok(RdmaOpened::Ready(Box::new(Self {
            hardware,
            resource_id: config.resource_id,
            custody: Mutex::default(),
            bring_ups: Permits::new(),
        })))
    }

    /// Facts for inventories.
    pub fn inventory(&self) -> RdmaInventory {
        let device = &self.hardware.device;
        RdmaInventory {
            device: device.name().to_owned(),
            port: device.port,
            gid: device.gid.bytes,
            gid_index: device.gid.index,
            mtu_bytes: device.state.mtu_bytes,
            message_bytes: device.state.message_bytes,
            has_type_2b: device.limits.has_type_2b,
            strategy: self.hardware.shared.strategy(),
            atomics: device.limits.atomics,
            windows_have_bounds: self.hardware.windows_have_bounds(),
        }
    }

    /// Makes the next of each of these steps fail: `create_qp`, `modify_qp RTR`, `modify_qp RTS`, `alloc_mw`, `bind_mw`,
    /// `modify_qp access`; `local_inv`, `dealloc_mw`, `dereg_mr` (of a lease's
    /// own region), `destroy_qp` or `restrack`; or `fresh_key`: the kernel's key counts as retired.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn fail_next(&self, steps: &[&'static str]) {
        self.hardware.faults.plan(steps);
    }

    /// Cuts what is left and gives the device back, for an orderly end.
    pub fn close(self) -> Result<(), StepError> {
        let all = self.custody().all();
        for (lease_id, slot) in all {
            let Some(generation) = slot.lock().gate.generation() else {
                continue;
            };
            let tag = Tag {
                lease_id,
                generation,
                resource_id: self.resource_id,
            };
            self.end(tag, Farewell::None)?;
        }
        let Hardware { device, shared, .. } = self.hardware;
        shared.close()?;
        close(device.context)
    }

    /// Held for a look-up, never while a slot's lock is wanted: no lease waits here for another.
    pub(super) fn custody(&self) -> MutexGuard<'_, Custody<Arc<Slot<Parts>>>> {
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a lease that is bound here.
    pub(super) fn bound_slot(
        &self,
        tag: Tag,
        step: &'static str,
    ) -> Result<Arc<Slot<Parts>>, StepError> {
        match self.custody().find(tag.lease_id) {
            Lookup::Here(slot) => Ok(slot),
            _ => Err(self
                .hardware
                .error(step, tag, "the lease is not bound here")),
        }
    }
}

/// For steps that no lease asked for.
fn own_tag(resource_id: ResourceId) -> Tag {
    Tag {
        lease_id: LeaseId(0),
        generation: Generation(0),
        resource_id,
    }
}

impl RdmaBackend {
    /// Ends access and proves it: the two cannot be told apart here, since the regions of a lease stay until its queue
    /// pairs are proved gone.
    pub(super) fn end(&self, tag: Tag, farewell: Farewell) -> Result<Proof, StepError> {
        let Some(slot) = self.custody().find_or_make(tag.lease_id) else {
            return Ok(Proof::nothing_to_cut("it was released before"));
        };
        let step = slot.begin_cut(tag.generation)?;
        self.bring_ups.wake();
        match step {
            CutStep::Cut(parts) => slot.finish_cut(
                tag.generation,
                self.hardware.dismantle(parts, tag, farewell),
            ),
            CutStep::Unreachable(why) => Ok(why),
            CutStep::Wait => Err(self
                .hardware
                .error("cut", tag, "an earlier cut does not end")),
        }
    }
}

impl DataPath for RdmaBackend {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        self.carry_out(order, part.extent())
    }

    /// The device looks at no clock; the guard does. Leases over another path are none of its.
    fn extend(&self, tag: Tag, deadline: BootTime) -> Result<(), AlreadyCut> {
        let found = self.custody().find(tag.lease_id);
        let slot = match found {
            Lookup::Here(slot) => slot,
            Lookup::Released => return Err(AlreadyCut),
            Lookup::Unknown => return Ok(()),
        };
        if slot.is_over(tag.generation) {
            return Err(AlreadyCut);
        }
        if let Some(guard) = &self.hardware.guard {
            guard.extend(tag.lease_id, deadline);
        }
        Ok(())
    }

    /// Whoever still asks is answered by the device.
    fn fenced(&self, _tag: Tag) {}

    fn rotate(&self, tag: Tag) -> Result<Binding, BindError> {
        self.add_key(tag)
    }

    fn retire_key(&self, tag: Tag) -> Result<Binding, StepError> {
        self.drop_old_key(tag)
    }

    fn revoke(&self, tag: Tag, farewell: Farewell) -> Result<Revoked, StepError> {
        self.end(tag, farewell).map(Revoked::proved)
    }

    /// Queue pairs end with their process: where this one knows nothing of a lease, there is nothing of it.
    fn verify(&self, tag: Tag, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        if let Some(revoked) = revoked {
            return Ok(revoked.steps.clone());
        }
        let found = self.custody().find(tag.lease_id);
        let Some(slot) = found.here() else {
            return Ok(Proof::nothing_to_cut("no queue pair of it is here"));
        };
        let life = slot.lock();
        life.check_ended(tag.generation)
            .map_err(|why| self.hardware.error("verify", tag, why))
    }

    fn remove(&self, tag: Tag, _progress: &dyn Fn()) -> Result<(), StepError> {
        self.give_back(tag)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let all = self.custody().all().into_iter();
        let there = all.filter(|(_, slot)| !matches!(slot.lock().state, State::Empty));
        Ok(there.map(|(lease, _)| lease).collect())
    }
}
