//! The store of one device: it examines the device before each grant, and wipes it before the next grant.

mod clean;
mod health;
mod strangers;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    thread,
    time::{Duration, Instant},
};

use fabricbios_cgroup::{Process, nodes};
use fabricbios_contract::{Part, Store, TellCondition};
use fabricbios_lease::{BindError, BindOrder, BindingId, Placement, Proof, StepError};
use fabricbios_wire::{GpuExclusivityClass, GpuExecutionMode, LeaseId};

use crate::{
    Device, Gpus, Health,
    management::{Account, Accounted},
    owned::{self, NotOwned},
    record::{Baseline, Record},
    steps::passed,
};

use health::condition;

/// Pause between two looks at the device.
const LOOK: Duration = Duration::from_millis(100);

/// The store of a device or partition.
#[derive(Debug)]
pub struct GpuStore {
    gpus: Arc<Gpus>,
    device: Device,
    state: Mutex<StoreState>,
    /// Held while a release or grant examines the device's memory, because a wipe takes all free memory.
    work: Mutex<Resets>,
}

/// Leases whose memory did not come back, with the time of their last reset.
type Resets = BTreeMap<LeaseId, Option<Instant>>;

struct StoreState {
    /// The health that the vendor's library reports.
    health: Health,
    /// The health of the device's nodes.
    nodes: Health,
    /// Only users of leases may open the device's own nodes.
    is_owned: bool,
    /// For each lease that is about to be granted, the processes that have the device open.
    before: BTreeMap<LeaseId, Vec<Process>>,
    tell: Option<TellCondition>,
}

impl std::fmt::Debug for StoreState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreState")
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

impl GpuStore {
    /// The store of this device.
    #[must_use]
    pub fn new(gpus: Arc<Gpus>, device: Device) -> Self {
        // The libraries of a new process do not have the errors that earlier processes received.
        let failure = gpus.records.failure(&device.uuid);
        let store = Self {
            gpus,
            device,
            state: Mutex::new(StoreState {
                health: failure.map_or(Health::Good, Health::Failed),
                nodes: Health::Good,
                is_owned: false,
                before: BTreeMap::new(),
                tell: None,
            }),
            work: Mutex::default(),
        };
        store.set_health(store.device.health.clone());
        store
    }

    /// The UUID of the device.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.device.uuid
    }

    /// Closes the device's own nodes to all users without a lease. Users of leases that go on keep access. Call it
    /// once, at the start.
    ///
    /// # Errors
    /// The nodes cannot be closed. Then anybody may use the device beside a lease, so the node must not
    /// offer an exclusive class.
    pub fn take_nodes(&self) -> Result<(), NotOwned> {
        let taken = owned::take(&self.gpus.records, &self.device, &self.users()?);
        self.state().is_owned = taken.is_ok();
        taken
    }

    /// Reads the nodes back, at each grant and each end.
    fn check_nodes(&self) -> Result<(), StepError> {
        if !self.state().is_owned {
            return Ok(());
        }
        let checked = nodes::check(&self.device.own_nodes(), &self.users()?);
        let health = match &checked {
            Ok(()) => Health::Good,
            Err(error) => Health::Degraded(error.to_string()),
        };
        let mut state = self.state();
        if state.nodes != health {
            state.nodes = health;
            state.changed();
        }
        drop(state);
        checked.map_err(|error| {
            let why = format!(
                "{}: {error}: end those who have the device open, and restart the node",
                self.device.uuid
            );
            StepError::new("check nodes", why)
        })
    }

    /// The users of all leases of the device.
    fn users(&self) -> Result<BTreeSet<u32>, StepError> {
        let records = self.records()?.into_iter();
        Ok(records.flat_map(|(_, record)| record.users).collect())
    }

    /// Waits for other calls that examine the memory of the device.
    fn work(&self, progress: &dyn Fn()) -> MutexGuard<'_, Resets> {
        loop {
            match self.work.try_lock() {
                Ok(work) => return work,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    progress();
                    thread::sleep(LOOK);
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, StoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn account(&self, step: &'static str) -> Result<Accounted, StepError> {
        let call = Account {
            device: self.device.clone(),
            libraries: self.gpus.sessions.libraries.clone(),
        };
        self.gpus.cutter.call(step, &call, &|| ())
    }

    fn record_of(&self, lease: LeaseId) -> Result<Option<Record>, StepError> {
        let record = self.gpus.records.find(lease)?;
        Ok(record.filter(|it| it.uuid == self.device.uuid))
    }

    fn make(&self, order: &BindOrder) -> Result<Record, StepError> {
        let lease = order.binding_id.lease_id;
        if let Health::Failed(why) = self.health() {
            let why = format_args!("{}: {why}", self.device.uuid);
            return Err(StepError::new("check device", why));
        }
        let record = self.record(order)?;
        if record.is_exclusive && self.has_unwiped(&record.baseline)? {
            let why = format!(
                "{}: memory of an earlier lease came back just now: ask again, and it is wiped first",
                self.device.uuid
            );
            return Err(StepError::new("check device", why));
        }
        self.gpus.records.write(lease, &record)?;
        passed("make record");
        self.gpus.make_cgroup(lease, &self.device)?;
        Ok(record)
    }

    /// The state that the device must reach by a wipe, if it has bytes that no wipe has covered: left by a shared
    /// lease, or memory that came back after the last wipe.
    fn unwiped(&self) -> Result<Option<Baseline>, StepError> {
        let (records, uuid) = (&self.gpus.records, &self.device.uuid);
        if let Some(baseline) = records.unwiped(uuid)? {
            return Ok(Some(baseline));
        }
        if records.wiped_bytes(uuid)?.is_none() {
            return Ok(None);
        }
        let baseline = Baseline::of(&self.account("look at device")?);
        Ok(self.has_unwiped(&baseline)?.then_some(baseline))
    }

    /// The device is no longer on offer: when it is offered again, the earlier wipe does not count.
    ///
    /// # Errors
    /// The record cannot be removed.
    pub fn leave(&self) -> Result<(), StepError> {
        self.gpus.records.forget_wiped(&self.device.uuid)
    }

    /// True if more memory is free than at the last wipe.
    fn has_unwiped(&self, baseline: &Baseline) -> Result<bool, StepError> {
        let wiped = self.gpus.records.wiped_bytes(&self.device.uuid)?;
        Ok(wiped.is_some_and(|wiped| baseline.free_bytes > wiped))
    }

    /// The record of a lease for this order.
    fn record(&self, order: &BindOrder) -> Result<Record, StepError> {
        let lease = order.binding_id.lease_id;
        let account = self.account("look at device")?;
        let terms = order.terms.gpu().cloned().unwrap_or_default();
        let is_shared = is_shared(order);
        // In a shared class nothing limits a program to its part of the memory, and without a cgroup nothing ends a
        // program.
        let has_programs = !is_shared && self.gpus.root.is_some();
        let mut state = self.state();
        Ok(Record {
            uuid: self.device.uuid.clone(),
            is_exclusive: !is_shared,
            nodes: match has_programs {
                true => self.device.nodes.clone(),
                false => Vec::new(),
            },
            owned: match state.is_owned {
                true => self.device.own_nodes(),
                false => Vec::new(),
            },
            users: self.gpus.users(lease, &order.tenant, has_programs),
            cdi: self.gpus.cdi.clone(),
            vram_bytes: order.placement.amount(),
            one_shot: terms.execution_mode == Some(GpuExecutionMode::OneShot),
            scrub_at_close: terms.exclusivity == Some(GpuExclusivityClass::SessionExclusive),
            baseline: Baseline {
                holders: state.before.remove(&lease).unwrap_or_default(),
                ..Baseline::of(&account)
            },
            worker: None,
            is_dirty: false,
            is_over: false,
        })
    }

    /// The leases of the device.
    fn records(&self) -> Result<Vec<(LeaseId, Record)>, StepError> {
        let mut records = Vec::new();
        for lease in self.gpus.records.leases()? {
            if let Some(record) = self.record_of(lease)? {
                records.push((lease, record));
            }
        }
        Ok(records)
    }
}

fn is_shared(order: &BindOrder) -> bool {
    let class = order.terms.gpu().and_then(|it| it.exclusivity);
    class == Some(GpuExclusivityClass::Shared)
}

impl Store for GpuStore {
    /// Wipes what earlier releases could not: bytes that a shared lease has left, and memory that came back later. All
    /// other memory was wiped at the release.
    fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        let lease = order.binding_id.lease_id;
        if order.adopts || self.record_of(lease)?.is_some() {
            return Ok(());
        }
        self.check_nodes()?;
        let holders = self.holders_before(order, progress)?;
        let mut work = self.work(progress);
        if !is_shared(order)
            && let Some(baseline) = self.unwiped()?
        {
            let record = Record {
                baseline: Baseline {
                    holders: holders.clone(),
                    ..baseline
                },
                // The users of the previous lease have no processes any more.
                users: BTreeSet::new(),
                ..self.record(order)?
            };
            self.clean(lease, &record, &mut work, progress)?;
        }
        self.state().before.insert(lease, holders);
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let lease = order.binding_id.lease_id;
        let part = |record: Record| Part::with(order.placement.clone(), record);
        match self.record_of(lease).map_err(BindError::Failed)? {
            Some(record) => return Ok(part(record)),
            None if order.adopts => {
                let why =
                    format_args!("{}: the lease has nothing there any more", self.device.uuid);
                return Err(BindError::Failed(StepError::new("adopt lease", why)));
            }
            None => {}
        }
        // No wipe may begin before the lease has its record.
        let _work = self.work(&|| ());
        match self.make(order) {
            Ok(record) => Ok(part(record)),
            Err(error) => Err(match self.forget(order.binding_id, &order.placement) {
                Ok(()) => BindError::Failed(error),
                Err(left) => BindError::Stranded(left),
            }),
        }
    }

    /// Nothing to do: after a reboot the leases have ended, even if an older journal has them.
    fn confirm(&self, _binding_id: BindingId) -> Result<(), StepError> {
        Ok(())
    }

    fn forget(&self, binding_id: BindingId, _placement: &Placement) -> Result<(), StepError> {
        let lease = binding_id.lease_id;
        self.state().before.remove(&lease);
        // A failed bind may have opened a part. The proof of a cut checks that while the record exists.
        if let Some(record) = self.record_of(lease)? {
            self.gpus.end(lease, &record)?;
        }
        self.gpus.remove_cgroup(lease)?;
        self.gpus.records.remove(lease)
    }

    fn release(
        &self,
        binding_id: BindingId,
        _placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        let mut cleaned = Proof::default();
        if let Some(mut record) = self.record_of(lease)? {
            // The path has done so already, unless the lease was never bound.
            self.gpus.end(lease, &record)?;
            self.gpus.sessions.note_end(lease, &mut record)?;
            record.is_over = true;
            self.gpus.records.write(lease, &record)?;
            progress();
            // A fault of the nodes is reported as health; the search for holders shows whether a process used it.
            self.check_nodes().ok();
            let mut work = self.work(progress);
            cleaned = match record.is_exclusive {
                true => self.clean(lease, &record, &mut work, progress)?,
                false => self.end_shared(lease, &record, &mut work, progress)?,
            };
            drop(work);
            progress();
            self.gpus.remove_cgroup(lease)?;
            self.gpus.records.remove(lease)?;
            passed("remove record");
        }
        self.state().before.remove(&lease);
        Ok(cleaned)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let records = self.records()?;
        Ok(records.into_iter().map(|(lease, _)| lease).collect())
    }

    fn repair(&self) -> Result<(), StepError> {
        match self.health() {
            Health::Failed(why) => self.reset_failed(&why),
            Health::Good | Health::Degraded(_) | Health::Silent(_) => Ok(()),
        }
    }

    fn tell_condition(&self, tell: TellCondition) {
        let mut state = self.state();
        let health = state.health();
        if health != Health::Good {
            tell(condition(&health));
        }
        state.tell = Some(tell);
    }
}
