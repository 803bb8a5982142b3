//! Access to a lease of a GPU: sessions in its worker, and the tenant's programs in its cgroup.

use std::{
    collections::BTreeMap,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    sync::Arc,
    time::Duration,
};

use fabricbios_cgroup::{Endings, enter, nodes};
use fabricbios_contract::{
    Bindings, Caller, DataPath, Edits, Entered, Given, Guard, LocalAccess, LocalRefusal, Part,
    Revoked,
};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{
    Binding, GpuBinding, KindBinding, LeaseError, LeaseId, Refusal, RefusalClass, ResourceType,
};

use crate::{
    Device, Gpus, QUEUE_SLOTS, gpus::below, record::Record, sessions::ENDS_WITHIN, steps::passed,
};

/// A worker of a shared lease gets this long to wipe its memory and to end; then it is killed.
const CLOSES_WITHIN: Duration = Duration::from_millis(500);

/// Mode of device nodes in a container: every user may use the device, as on machines where the vendor's driver makes
/// the nodes.
const NODE_MODE: u32 = 0o666;

/// The path to the GPUs of a node.
#[derive(Debug)]
pub struct GpuPath {
    gpus: Arc<Gpus>,
    /// The devices by UUID.
    devices: BTreeMap<String, Device>,
    bindings: Bindings,
    /// Workers of shared leases that wipe their memory.
    closings: Endings,
}

impl GpuPath {
    /// The path to leases of these devices.
    #[must_use]
    pub fn new(gpus: Arc<Gpus>, devices: Vec<Device>, guard: Arc<dyn Guard>) -> Self {
        let by_uuid = |device: Device| (device.uuid.clone(), device);
        Self {
            gpus,
            devices: devices.into_iter().map(by_uuid).collect(),
            bindings: Bindings::guarded_by(guard),
            closings: Endings::default(),
        }
    }

    /// Connects a client of `tenant` to the worker of a lease. `session`: 0 for the current session of the lease, which
    /// is started if there is none; otherwise only the session with this number. May block.
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
            // Other tenants must not learn that the lease exists.
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
        check: impl Fn(&str) -> Result<(), LocalRefusal>,
    ) -> Result<UnixStream, NotConnected> {
        let entry = self.bindings.in_use(lease).map_err(NotConnected::Lease)?;
        // Held until the worker serves, so that a cut waits.
        let admission = entry.admit(check).map_err(NotConnected::Lease)?;
        let (mut record, device) = self.of(lease).map_err(NotConnected::Lease)?;
        let into_cgroup = |pid: i32| {
            if let Some(root) = &self.gpus.root {
                // The worker gets a child cgroup: a cgroup whose children have limits cannot contain processes itself.
                let place = format!("{}/worker", below(lease));
                root.make_below("make worker cgroup", &place)?;
                let procs = root.name(&format!("{place}/cgroup.procs"));
                let moved = root.fs().write(&procs, &pid.to_string());
                moved.map_err(|error| fabricbios_cgroup::failed("start worker", &error))?;
            }
            let is_over = admission.check();
            is_over.map_err(|refusal| StepError::new("start worker", refusal))
        };
        let sessions = &self.gpus.sessions;
        let connected = sessions.connect(lease, device, &mut record, session, into_cgroup);
        connected.map_err(|refusal| match admission.check() {
            Err(LocalRefusal::NotActive(state)) => {
                let why = format!("{state}; {}", refusal.message);
                NotConnected::Lease(LocalRefusal::NotActive(why))
            }
            _ => NotConnected::Worker(refusal),
        })
    }

    /// The present record of a lease that is bound, with its worker, and its device.
    fn of(&self, lease: LeaseId) -> Result<(Record, &Device), LocalRefusal> {
        let record = self
            .gpus
            .records
            .find(lease)
            .map_err(LocalRefusal::Failed)?;
        let record = record.ok_or(LocalRefusal::NotFound)?;
        let device = self.device(&record).map_err(LocalRefusal::Failed)?;
        Ok((record, device))
    }

    fn device(&self, record: &Record) -> Result<&Device, StepError> {
        let device = self.devices.get(&record.uuid);
        device.ok_or_else(|| {
            let why = format_args!("{} is not on offer any more", record.uuid);
            StepError::new("find device", why)
        })
    }

    /// Lets container engines give the device to containers of the lease.
    fn admit_containers(
        &self,
        lease: LeaseId,
        record: &Record,
        device: &Device,
    ) -> Result<(), StepError> {
        self.gpus.records.containers(lease).open()?;
        let environment = { device.environment() }.map(|(name, value)| format!("{name}={value}"));
        let nodes = record.nodes.iter().map(|it| (&*it.path, NODE_MODE));
        let nodes: Vec<(&Path, u32)> = nodes.collect();
        let edits = Edits {
            environment: &environment,
            nodes: &nodes,
            hook: &self.gpus.hook(lease),
        };
        record.cdi().write(lease, &edits)?;
        passed("write CDI spec");
        Ok(())
    }

    /// Ends access. A worker of a shared lease gets [`CLOSES_WITHIN`] first: a thread of the lease waits for it, since
    /// other leases are due.
    fn cut(&self, lease: LeaseId) -> Result<Revoked, StepError> {
        let Some(record) = self.gpus.records.find(lease)? else {
            return Ok(Revoked::proved(nothing()));
        };
        if !record.is_exclusive {
            let closes = self.closing(lease, record.clone());
            let begun = self.closings.start(lease, Duration::ZERO, closes);
            if begun.is_ok() {
                return Ok(Revoked::default());
            }
        }
        self.gpus.cutter.stop(lease, &record).map(Revoked::by)
    }

    /// Asks the worker of a shared lease to wipe its memory, and then ends access.
    fn closing(
        &self,
        lease: LeaseId,
        record: Record,
    ) -> impl FnOnce() -> Result<String, StepError> + Send + 'static {
        let (sessions, cutter) = (self.gpus.sessions.clone(), self.gpus.cutter.clone());
        move || {
            sessions.close(lease, &record, CLOSES_WITHIN);
            cutter.stop(lease, &record).map(|_| String::new())
        }
    }

    /// Waits for the processes of the lease, and proves that nobody has access any more.
    fn prove(&self, lease: LeaseId) -> Result<Proof, StepError> {
        let Some(record) = self.gpus.records.find(lease)? else {
            return Ok(nothing());
        };
        let cutter = &self.gpus.cutter;
        if record.is_exclusive {
            return cutter.finish(lease, &record);
        }
        let closes = self.closing(lease, record.clone());
        if { self.closings.wait(lease, ENDS_WITHIN, closes)? }.is_none() {
            let why = "the worker was asked to end and was not killed yet";
            return Err(StepError::new("close worker", why));
        }
        // A worker may have started since the thread began.
        let stopped = cutter.stop(lease, &record)?;
        Ok(stopped.and(cutter.finish(lease, &record)?))
    }
}

/// Why no worker could be connected.
enum NotConnected {
    Lease(LocalRefusal),
    Worker(Refusal),
}

impl DataPath for GpuPath {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let lease = order.binding_id.lease_id;
        let making = self.bindings.begin(order)?;
        let record = part.record::<Record>()?;
        let device = self.device(&record).map_err(BindError::Failed)?;
        let has_programs = !record.nodes.is_empty();
        // A cut during this closure ends all of it again.
        let admit = || -> Result<(), StepError> {
            if has_programs {
                self.admit_containers(lease, &record, device)?;
            }
            nodes::admit(&record.owned, &record.users)?;
            passed("open nodes");
            // An earlier cut froze the cgroup.
            match &self.gpus.root {
                Some(root) => root.write("thaw", &format!("{}/cgroup.freeze", below(lease)), "0"),
                None => Ok(()),
            }
        };
        making.beside(|| admit().map_err(BindError::Failed))?;
        let gpu = GpuBinding {
            uuid: device.uuid.clone(),
            vendor: device.vendor,
            vram_bytes: record.vram_bytes,
            // The node adds its control plane as the endpoint.
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
        self.bindings.extend(binding_id, deadline)
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        let lease = binding_id.lease_id;
        self.bindings.revoke(binding_id, |()| self.cut(lease))
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        self.bindings.verify(
            binding_id,
            revoked,
            |()| self.cut(lease),
            |(), _| self.prove(lease),
        )
    }

    fn remove(&self, binding_id: BindingId, _progress: &dyn Fn()) -> Result<(), StepError> {
        // The store removes the directory and cgroup of the lease.
        self.bindings.remove(binding_id.lease_id, |()| Ok(()))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.gpus.records.leases()
    }
}

impl LocalAccess for GpuPath {
    fn remaining(&self, lease: LeaseId, caller: &Caller) -> Result<Duration, LocalRefusal> {
        let entry = self.bindings.in_use(lease)?;
        entry.remaining(|tenant| caller.check(tenant))
    }

    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        given: Given,
    ) -> Result<Entered, LocalRefusal> {
        let entry = self.bindings.in_use(lease)?;
        // Held until the process is in the cgroup.
        let _admission = entry.admit(|tenant| caller.check(tenant))?;
        let Given::Process(process) = given else {
            let why = format!("a lease of a GPU takes a process and no {given}");
            return Err(LocalRefusal::Unsupported(why));
        };
        let (record, device) = self.of(lease)?;
        let root = self.gpus.root.as_ref();
        let why = if !record.is_exclusive {
            "nothing keeps a program on the node to its part of a shared GPU's memory: lease it in an exclusive class \
             (--exclusivity session or device), or use a session (fabricctl gpu run)"
        } else if root.is_none() {
            "this node has no cgroup v2 with a device controller, without which nothing ends the programs of a lease: use a session (fabricctl gpu run)"
        } else if device.nodes.is_empty() {
            "this node knows no device nodes of the GPU: use a session (fabricctl gpu run)"
        } else {
            ""
        };
        let Some(root) = root.filter(|_| why.is_empty()) else {
            return Err(LocalRefusal::Unsupported(why.to_owned()));
        };
        let entered = enter(
            root,
            &self.gpus.cutter.proc,
            &below(lease),
            caller,
            &process,
        )?;
        let own = |text: &str| text.to_owned();
        let variables = device.environment().into_iter();
        Ok(Entered {
            environment: variables
                .map(|(name, value)| (own(name), own(value)))
                .collect(),
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

fn nothing() -> Proof {
    Proof::nothing_to_cut("the lease has nothing on a GPU")
}
