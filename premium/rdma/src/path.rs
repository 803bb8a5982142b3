//! The data path for memory over RDMA: orders of the lease table, carried out on one device, for all arenas of a node.
//!
//! Each order finds the cell of its lease, takes the next step from the cell, and does it. The lock of the cell is held
//! only where access opens; no lock is held where a call may take long.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricbios_arena::Arenas;
use fabricbios_contract::{DataPath, Part, Revoked};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Custody, Linger, Lookup, Proof,
    StepError,
};
use fabricbios_wire::{Binding, Generation, LeaseId, PeerChange, RdmaStrategy, ResourceId};

use super::{
    binding_cell::BindingCell,
    binding_state::Phase,
    binding_step::CutStep,
    device::{Device, Found, close},
    hardware::Hardware,
    parts::Parts,
    queue_pairs::QueuePairs,
    strategy::{Shared, Strategy},
};

/// Settings of an [`RdmaPath`].
#[derive(Debug)]
pub struct RdmaConfig {
    /// Name of the device; `None`: the first device that can carry leases.
    pub device: Option<String>,
    /// The memory of leases, at least one arena. Other paths may give access to the same memory.
    pub arenas: Arenas,
    /// Windows or regions.
    pub strategy: Strategy,
}

/// The result of [`RdmaPath::open`].
#[derive(Debug)]
pub enum RdmaOpened {
    /// A device can carry leases.
    Ready(Box<RdmaPath>),
    /// No device can carry leases, and the settings name no device. The text says why.
    Absent(String),
}

/// Properties of device and port, for inventories and the start message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaInventory {
    /// Name of the device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// GID to which clients connect.
    pub gid: [u8; 16],
    /// Index of the GID in the table of the port.
    pub gid_index: u8,
    /// Path MTU of the port in bytes.
    pub mtu_bytes: u16,
    /// Largest message in bytes.
    pub message_bytes: u32,
    /// Whether leases are windows or regions.
    pub strategy: RdmaStrategy,
    /// Whether keys allow atomics.
    pub atomics: bool,
    /// Whether leases are windows and the device enforces the bounds of a window. If the device does not, every lease
    /// has its own region under its windows, which costs a registration per grant.
    pub windows_have_bounds: bool,
}

/// The data path for memory over RDMA.
#[derive(Debug)]
pub struct RdmaPath {
    pub(super) hardware: Hardware,
    /// The leases that have, or had, a binding over this path.
    custody: Mutex<Custody<Arc<BindingCell<Parts>>>>,
}

impl RdmaPath {
    /// Opens the device, registers the arenas if leases are windows, and checks that the kernel's resource tracker
    /// answers.
    ///
    /// # Errors
    /// The named device is absent or cannot carry leases, or an arena cannot be registered.
    pub fn open(config: RdmaConfig) -> Result<RdmaOpened, StepError> {
        let device = match Device::find(config.device.as_deref(), config.strategy.needs_windows())?
        {
            Found::Device(device) => *device,
            Found::Nothing(reason) => return Ok(RdmaOpened::Absent(reason.to_string())),
        };
        let strategy = config.strategy.on(device.limits.has_type_2b);
        let shared = Shared::open(&device, &config.arenas, strategy)?;
        // The largest arena: a test needs two pages.
        let largest = config.arenas.iter().max_by_key(|(_, it)| it.bytes());
        let binding_id = own_binding_id(largest.map_or(ResourceId(0), |(id, _)| *id));
        let mut hardware = Hardware::new(device, config.arenas, shared);
        hardware.check_tracker(binding_id)?;
        hardware.try_from_outside(binding_id)?;
        hardware.try_bounds(binding_id)?;
        Ok(RdmaOpened::Ready(Box::new(Self {
            hardware,
            custody: Mutex::default(),
        })))
    }

    /// Properties of device and port.
    pub fn inventory(&self) -> RdmaInventory {
        let device = &self.hardware.device;
        RdmaInventory {
            device: device.name().to_owned(),
            port: device.port,
            gid: device.gid.bytes,
            gid_index: device.gid.index,
            mtu_bytes: device.state.mtu_bytes,
            message_bytes: device.state.message_bytes,
            strategy: self.hardware.shared.strategy(),
            atomics: device.limits.atomics,
            windows_have_bounds: self.hardware.windows_have_bounds(),
        }
    }

    /// The queue pairs of leases, and who is told when one ends.
    pub fn queue_pairs(&self) -> Arc<QueuePairs> {
        Arc::clone(&self.hardware.queue_pairs)
    }

    /// For tests: `fails` decides at each call of one of these steps whether the step fails: `create_qp`, `modify_qp RTR`,
    /// `modify_qp RTS`, `alloc_mw`, `bind_mw`, `modify_qp access`; `local_inv`, `dealloc_mw`, `dereg_mr` (of a lease's own
    /// region), `destroy_qp` or `restrack`; or `fresh_key`: the kernel's key counts as retired. For a path whose steps
    /// nobody decides on yet.
    #[cfg(feature = "fault-injection")]
    #[doc(hidden)]
    pub fn fail_if(&self, fails: impl Fn(&str) -> bool + Send + Sync + 'static) {
        self.hardware.faults.decide(Box::new(fails));
    }

    /// Cuts all bindings and closes the device.
    ///
    /// # Errors
    /// A cut failed, or the kernel refuses to destroy an object.
    pub fn close(self) -> Result<(), StepError> {
        let all = self.custody().all();
        for (lease_id, cell) in all {
            let Some(generation) = cell.lock().gate.generation() else {
                continue;
            };
            // A cut finds the objects by the lease; the resource does not matter.
            let binding_id = BindingId {
                lease_id,
                generation,
                resource_id: ResourceId(0),
            };
            self.end(binding_id, Linger::None)?;
        }
        let Hardware { device, shared, .. } = self.hardware;
        shared.close()?;
        close(device.context)
    }

    /// The lock of the custody. It is held only for a look-up, and never while a cell is locked. So no lease waits here
    /// for another lease.
    pub(super) fn custody(&self) -> MutexGuard<'_, Custody<Arc<BindingCell<Parts>>>> {
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cell of a lease that is bound here.
    pub(super) fn bound_cell(
        &self,
        binding_id: BindingId,
        step: &'static str,
    ) -> Result<Arc<BindingCell<Parts>>, StepError> {
        match self.custody().find(binding_id.lease_id) {
            Lookup::Here(cell) => Ok(cell),
            _ => Err(self
                .hardware
                .error(step, binding_id, "the lease is not bound here")),
        }
    }
}

/// The binding id for steps that belong to no lease.
fn own_binding_id(resource_id: ResourceId) -> BindingId {
    BindingId {
        lease_id: LeaseId(0),
        generation: Generation(0),
        resource_id,
    }
}

impl RdmaPath {
    /// Ends access and proves it. This is one step here, because the regions of a lease stay until its queue pairs are
    /// proved gone.
    pub(super) fn end(&self, binding_id: BindingId, linger: Linger) -> Result<Proof, StepError> {
        let Some(cell) = self.custody().find_or_make(binding_id.lease_id) else {
            return Ok(Proof::nothing_to_cut("the lease was released before"));
        };
        match cell.begin_cut(binding_id.generation)? {
            CutStep::Cut(parts) => cell.finish_cut(
                binding_id.generation,
                self.hardware.dismantle(parts, binding_id, linger),
            ),
            CutStep::Unreachable(why) => Ok(why),
        }
    }
}

impl DataPath for RdmaPath {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        self.carry_out(order, part.extent())
    }

    /// Sends the deadline to the guard, since the device ends no access by time. A lease on another path is ignored.
    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        let found = self.custody().find(binding_id.lease_id);
        let cell = match found {
            Lookup::Here(cell) => cell,
            Lookup::Released => return Err(AlreadyCut),
            Lookup::Unknown => return Ok(()),
        };
        if cell.is_closed(binding_id.generation) {
            return Err(AlreadyCut);
        }
        // The guard hears of the deadline once: here, or with the queue pairs.
        if cell.extend(deadline)
            && let Some(guard) = &self.hardware.guard
        {
            guard.extend(binding_id.lease_id, deadline);
        }
        Ok(())
    }

    /// Does nothing: the device itself answers the client.
    fn fenced(&self, _binding_id: BindingId) {}

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        self.add_key(binding_id)
    }

    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        self.drop_old_key(binding_id)
    }

    fn change_peers(
        &self,
        binding_id: BindingId,
        change: &PeerChange,
    ) -> Result<Binding, BindError> {
        self.change(binding_id, change)
    }

    fn revoke(&self, binding_id: BindingId, linger: Linger) -> Result<Revoked, StepError> {
        self.end(binding_id, linger).map(Revoked::proved)
    }

    /// Proves that access has ended. Queue pairs end with their process, so a lease that this process does not know has
    /// none.
    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        if let Some(revoked) = revoked {
            return Ok(revoked.steps.clone());
        }
        let found = self.custody().find(binding_id.lease_id);
        let Some(cell) = found.here() else {
            return Ok(Proof::nothing_to_cut(
                "this daemon has no queue pair of the lease",
            ));
        };
        let state = cell.lock();
        state
            .check_ended(binding_id.generation)
            .map_err(|why| self.hardware.error("verify", binding_id, why))
    }

    fn remove(&self, binding_id: BindingId, _progress: &dyn Fn()) -> Result<(), StepError> {
        self.give_back(binding_id)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let all = self.custody().all().into_iter();
        let there = all.filter(|(_, cell)| !matches!(cell.lock().phase, Phase::Empty));
        Ok(there.map(|(lease, _)| lease).collect())
    }
}
