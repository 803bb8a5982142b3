//! Access to a lease of a GPU: sessions in its worker, and the tenant's programs in its cgroup.

use std::{
    collections::BTreeMap,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fabricbios_cgroup::enter;
use fabricbios_contract::{
    Caller, DataPath, Entered, Given, Guard, LocalAccess, LocalRefusal, Part, Revoked,
};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Custody, Gate, Linger, Lookup, Proof,
    StepError,
};
use fabricbios_wire::{
    Binding, GpuBinding, KindBinding, LeaseError, LeaseId, Refusal, RefusalClass, ResourceType,
};
use nix::time::{ClockId, clock_gettime};

use crate::{Device, Gpus, QUEUE_SLOTS, containers, gpus::below, record::Record, steps::passed};

/// A worker of a shared lease is asked to wipe its memory and to end; after so long it is killed.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);

/// The path to the GPUs of a node.
#[derive(Debug)]
pub struct GpuPath {
    gpus: Arc<Gpus>,
    /// By UUID.
    devices: BTreeMap<String, Device>,
    guard: Arc<dyn Guard>,
    leases: Mutex<Custody<Arc<Entry>>>,
}

/// One lease.
#[derive(Debug, Default)]
struct Entry {
    state: Mutex<BindingState>,
    /// Held while a worker is started, or a process is let in.
    admission: Mutex<()>,
    /// Nanoseconds on the boot-time clock; 0 until the first `extend` after a bind.
    deadline: AtomicU64,
}

#[derive(Debug, Default)]
struct BindingState {
    gate: Gate,
    tenant: Arc<str>,
    /// Bound, and no cut has been proved since.
    is_open: bool,
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, BindingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admission(&self) -> MutexGuard<'_, ()> {
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_admitting(&self) -> bool {
        matches!(self.admission.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Checks that the lease is in use, and that `check` takes its tenant.
    fn check(
        &self,
        check: impl FnOnce(&str) -> Result<(), LocalRefusal>,
    ) -> Result<(), LocalRefusal> {
        let state = self.state();
        let generation = match state.gate.generation() {
            Some(generation) => generation,
            None => return Err(LocalRefusal::NotActive("it is not bound yet".into())),
        };
        check(&state.tenant)?;
        if !state.is_open || !state.gate.admits(generation) {
            return Err(LocalRefusal::NotActive("it was cut".into()));
        }
        if now() >= self.deadline.load(Ordering::Acquire) {
            return Err(LocalRefusal::NotActive("its deadline has passed".into()));
        }
        Ok(())
    }
}

impl GpuPath {
    /// The path to leases of these devices.
    #[must_use]
    pub fn new(gpus: Arc<Gpus>, devices: Vec<Device>, guard: Arc<dyn Guard>) -> Self {
        let by_uuid = |device: Device| (device.uuid.clone(), device);
        Self {
            gpus,
            devices: devices.into_iter().map(by_uuid).collect(),
            guard,
            leases: Mutex::default(),
        }
    }

    /// Connects a client of `tenant` to the worker of a lease. `session`: 0 for the session of the lease, which is started
    /// if there is none, else exactly this one. May block.
    ///
    /// # Errors
    /// The lease is not the tenant's or not in use, the session is over, or no worker can be started.
    pub fn connect(
        &self,
        lease: LeaseId,
        tenant: &str,
        session: u64,
    ) -> Result<UnixStream, Refusal> {
        let of_tenant = |of: &str| match of == tenant {
            true => Ok(()),
            // Others are not told that there is such a lease.
            false => Err(LocalRefusal::NotFound),
        };
        self.connect_checked(lease, session, of_tenant)
            .map_err(|error| match error {
                NotConnected::Worker(refusal) => refusal,
                NotConnected::Lease(LocalRefusal::NotFound) => Refusal::new(
                    LeaseError::NotFound,
                    RefusalClass::Permanent,
                    format!("no lease {lease} of a GPU of tenant {tenant}"),
                ),
                NotConnected::Lease(LocalRefusal::NotActive(state)) => Refusal::new(
                    LeaseError::Expired,
                    RefusalClass::Permanent,
                    format!("lease {lease} is not active: {state}"),
                ),
                NotConnected::Lease(other) => Refusal::new(
                    LeaseError::Internal,
                    RefusalClass::Transient,
                    other.to_string(),
                ),
            })
    }

    fn connect_checked(
        &self,
        lease: LeaseId,
        session: u64,
        check: impl FnOnce(&str) -> Result<(), LocalRefusal>,
    ) -> Result<UnixStream, NotConnected> {
        let found = self.leases().find(lease);
        let entry = LocalRefusal::unless_here(found).map_err(NotConnected::Lease)?;
        // Held until the worker serves: a cut that begins meanwhile kills again after it.
        let _admission = entry.admission();
        entry.check(check).map_err(NotConnected::Lease)?;
        let (mut record, device) = self.of(lease).map_err(NotConnected::Lease)?;
        let into_cgroup = |pid: i32| match &self.gpus.root {
            Some(root) => {
                let procs = root.name(&format!("{}/cgroup.procs", below(lease)));
                let moved = root.fs().write(&procs, &pid.to_string());
                moved.map_err(|error| fabricbios_cgroup::failed("start worker", &error))
            }
            None => Ok(()),
        };
        let sessions = &self.gpus.sessions;
        sessions
            .connect(lease, device, &mut record, session, into_cgroup)
            .map_err(NotConnected::Worker)
    }

    fn leases(&self) -> MutexGuard<'_, Custody<Arc<Entry>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, lease: LeaseId) -> Option<Arc<Entry>> {
        self.leases().find_or_make(lease)
    }

    /// The record of a lease that is bound, and its device.
    fn of(&self, lease: LeaseId) -> Result<(Record, &Device), LocalRefusal> {
        let record = self
            .gpus
            .records
            .find(lease)
            .map_err(LocalRefusal::Failed)?;
        let record = record.ok_or(LocalRefusal::NotFound)?;
        match self.devices.get(&record.uuid) {
            Some(device) => Ok((record, device)),
            None => Err(LocalRefusal::Failed(StepError::new(
                "find device",
                format_args!("{} is not on offer any more", record.uuid),
            ))),
        }
    }

    fn end(&self, lease: LeaseId) -> Result<Proof, StepError> {
        match self.gpus.records.find(lease)? {
            Some(record) => {
                if !record.is_exclusive {
                    self.gpus.sessions.close(lease, &record, CLOSES_WITHIN);
                }
                self.gpus.end(lease, &record)
            }
            None => Ok(nothing()),
        }
    }

    /// Opens the gate, and thaws the cgroup that an earlier cut froze.
    fn open(&self, entry: &Entry, order: &BindOrder) -> Result<(), BindError> {
        let (lease, generation) = (order.binding_id.lease_id, order.binding_id.generation);
        let _admission = entry.admission();
        if !entry.state().gate.admits(generation) {
            return Err(BindError::Cancelled);
        }
        if let Some(root) = &self.gpus.root {
            let thawed = root.write("thaw", &format!("{}/cgroup.freeze", below(lease)), "0");
            thawed.map_err(BindError::Failed)?;
        }
        let mut state = entry.state();
        // A session goes on in a new binding: it has no key that could leak.
        if let Some(before) = state
            .gate
            .generation()
            .filter(|it| !state.gate.is_revoked(*it))
        {
            state.gate.ended(before);
        }
        state.gate.open(generation)?;
        state.tenant = Arc::clone(&order.tenant);
        state.is_open = true;
        entry.deadline.store(0, Ordering::Release);
        Ok(())
    }
}

/// Why there is no connection to a worker.
enum NotConnected {
    Lease(LocalRefusal),
    Worker(Refusal),
}

/// The time on the clock of deadlines.
fn now() -> u64 {
    // The call fails only if the kernel does not have the clock; then every lease counts as ended.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.map_or(u64::MAX, |it| {
        u64::try_from(it.as_nanos()).unwrap_or(u64::MAX)
    })
}

impl DataPath for GpuPath {
    fn bind(&self, order: &BindOrder, _part: &Part) -> Result<Binding, BindError> {
        let lease = order.binding_id.lease_id;
        let entry = self.entry(lease).ok_or(BindError::Cancelled)?;
        self.guard.check(order)?;
        let (record, device) = self.of(lease).map_err(|error| match error {
            LocalRefusal::Failed(error) => BindError::Failed(error),
            other => BindError::Failed(StepError::new("find lease", other)),
        })?;
        let has_programs = !record.nodes.is_empty();
        if has_programs {
            let (variable, value) = device.environment();
            let environment = [format!("{variable}={value}"), containers::mark(lease)];
            let nodes: Vec<&Path> = record.nodes.iter().map(|it| &*it.path).collect();
            let written = record.cdi().write(lease, &environment, &nodes);
            written.map_err(BindError::Failed)?;
            passed("write CDI spec");
        }
        self.open(&entry, order)?;
        let gpu = GpuBinding {
            uuid: device.uuid.clone(),
            vendor: device.vendor,
            vram_bytes: record.vram_bytes,
            // The control plane, which the node knows.
            session_endpoint: None,
            cdi_device: has_programs.then(|| record.cdi().device_name(lease)),
            compute_slices: order.terms.gpu().and_then(|terms| terms.compute_slices),
            queue_slots: if record.one_shot { 1 } else { QUEUE_SLOTS },
        };
        Ok(Binding {
            kind: KindBinding::Gpu(Some(Box::new(gpu))),
            ..Binding::plain(ResourceType::Gpu)
        })
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        match self.leases().find(binding_id.lease_id) {
            Lookup::Here(entry) if entry.state().gate.is_closed(binding_id.generation) => {
                return Err(AlreadyCut);
            }
            Lookup::Here(entry) => entry.deadline.store(deadline.0, Ordering::Release),
            Lookup::Released => return Err(AlreadyCut),
            // The lease is bound later.
            Lookup::Unknown => {}
        }
        self.guard.extend(binding_id, deadline);
        Ok(())
    }

    /// The worker has been killed: nobody is there to tell.
    fn fenced(&self, _binding_id: BindingId) {}

    /// Nothing waits for the kernel under the lock of a lease's state.
    fn extends_at_once(&self) -> bool {
        true
    }

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        Err(BindError::Refused(no_key(binding_id)))
    }

    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        Err(no_key(binding_id))
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        let lease = binding_id.lease_id;
        let Some(entry) = self.entry(lease) else {
            return Ok(Revoked::proved(released()));
        };
        // Nothing connects or enters from here on; what did before is ended below.
        let closed = entry.state().gate.revoke(binding_id.generation);
        if let Err(moved_on) = closed {
            return Ok(Revoked::proved(moved_on.into()));
        }
        let is_admitting = entry.is_admitting();
        let mut steps = self.end(lease)?;
        if is_admitting {
            // A worker or a process on its way in may arrive after the kill.
            drop(entry.admission());
            steps = steps.and(self.end(lease)?);
        }
        let mut state = entry.state();
        state.gate.ended(binding_id.generation);
        state.is_open = false;
        Ok(Revoked {
            steps,
            ..Revoked::default()
        })
    }

    /// Reads what the kernel says. The cgroup stays frozen, and no device can be opened there.
    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        let mut proof = revoked.map(|it| it.steps.clone()).unwrap_or_default();
        let Some(entry) = self.entry(lease) else {
            return Ok(released());
        };
        if let Err(moved_on) = entry.state().gate.check_current(binding_id.generation) {
            return Ok(moved_on.into());
        }
        let Some(record) = self.gpus.records.find(lease)? else {
            return Ok(nothing());
        };
        let began = Instant::now();
        if let Some(worker) = record.worker
            && worker.process.is_there()
        {
            let why = format!("the worker, {}, is there", worker.process.describe());
            return Err(StepError::new("verify", why));
        }
        if let Some(root) = &self.gpus.root
            && root.exists("verify", &below(lease))?
        {
            let below = below(lease);
            let frozen = root.read("verify", &format!("{below}/cgroup.freeze"))?;
            if frozen != "1" || root.is_populated("verify", &below)? {
                let members = root.members("verify", &below)?;
                let at = root.path(&below);
                let why = format!(
                    "{}: cgroup.freeze is {frozen}, processes {members:?}",
                    at.display()
                );
                return Err(StepError::new("verify", why));
            }
        }
        if let [container, ..] = containers::of(lease, &record.nodes)[..] {
            let why = format!(
                "a container's process, {}, has the device",
                container.describe()
            );
            return Err(StepError::new("verify", why));
        }
        proof.add(
            "look for processes",
            began.elapsed(),
            "no worker, 0 processes",
        );
        self.guard.over(binding_id);
        Ok(proof)
    }

    fn remove(&self, binding_id: BindingId, _progress: &dyn Fn()) -> Result<(), StepError> {
        let lease = binding_id.lease_id;
        let Some(entry) = self.entry(lease) else {
            return Ok(());
        };
        let mut state = entry.state();
        if state.is_open {
            let why = format_args!("{binding_id}: it was not revoked");
            return Err(StepError::new("remove", why));
        }
        state.gate.remove();
        drop(state);
        self.leases().release(lease);
        Ok(())
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.gpus.records.leases()
    }
}

impl LocalAccess for GpuPath {
    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        given: Given,
    ) -> Result<Entered, LocalRefusal> {
        let entry = LocalRefusal::unless_here(self.leases().find(lease))?;
        // Held until the process is in: a cut that begins meanwhile kills again after it.
        let _admission = entry.admission();
        entry.check(|tenant| caller.check(tenant))?;
        let Given::Process(process) = given else {
            let why = format!("a lease of a GPU takes a process and no {given}");
            return Err(LocalRefusal::Unsupported(why));
        };
        let (record, device) = self.of(lease)?;
        let root = self.gpus.root.as_ref();
        let why = if !record.is_exclusive {
            "nothing keeps a program on the node to its part of a shared GPU's memory: lease it in an exclusive class \
             (--exclusivity session or device), or use a session"
        } else if root.is_none() {
            "this node has no cgroup v2, without which nothing ends the programs of a lease: use a session"
        } else if device.nodes.is_empty() {
            "this node knows no device nodes of the GPU: use a session"
        } else {
            ""
        };
        let Some(root) = root.filter(|_| why.is_empty()) else {
            return Err(LocalRefusal::Unsupported(why.to_owned()));
        };
        let entered = enter(root, &self.gpus.proc, &below(lease), caller, &process)?;
        let (variable, value) = device.environment();
        Ok(Entered {
            environment: vec![(variable.to_owned(), value.to_owned())],
            ..entered
        })
    }

    fn session(
        &self,
        lease: LeaseId,
        caller: &Caller,
        session: u64,
    ) -> Result<OwnedFd, LocalRefusal> {
        let connected = self.connect_checked(lease, session, |tenant| caller.check(tenant));
        connected.map(OwnedFd::from).map_err(|error| match error {
            NotConnected::Lease(refusal) => refusal,
            NotConnected::Worker(refusal) => refusal.into(),
        })
    }
}

fn released() -> Proof {
    Proof::nothing_to_cut("the lease was removed before")
}

fn nothing() -> Proof {
    Proof::nothing_to_cut("the lease has nothing on a GPU")
}

fn no_key(binding_id: BindingId) -> StepError {
    let why = format_args!("{binding_id}: a lease of a GPU has no key");
    StepError::new("change key", why)
}
