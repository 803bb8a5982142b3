//! The store of one device: it knows the device before each grant, and wipes it before the next one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use fabricbios_contract::{Part, Store, TellCondition};
use fabricbios_lease::{
    BindError, BindOrder, BindingId, Condition, Custody, Lookup, Placement, StepError,
};
use fabricbios_wire::{GpuExclusivityClass, GpuExecutionMode, LeaseId};

use crate::{
    Device, Gpus, Health,
    holders::holders,
    management::{Account, Accounted, Reset, Scrub},
    process::Process,
    record::{Baseline, Record},
    steps::passed,
};

/// Memory that is not back after so long without any coming back is lost.
const PATIENCE: Duration = Duration::from_secs(8);

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// The driver itself takes and gives back some memory between two looks: pages of its own, of 2 MiB each.
const TOLERANCE_BYTES: u64 = 32 << 20;

/// Of the bytes that were free before the grant, so many are wiped.
const WIPED_PERCENT: u64 = 99;

/// A device is reset at most once in this time for one lease.
const RESET_EVERY: Duration = Duration::from_secs(300);

/// The store of a device or partition.
#[derive(Debug)]
pub struct GpuStore {
    gpus: Arc<Gpus>,
    device: Device,
    state: Mutex<State>,
    /// One release at a time looks at the memory of the device. Of leases whose memory did not come back: the last reset.
    work: Mutex<BTreeMap<LeaseId, Option<Instant>>>,
}

struct State {
    released: Custody<()>,
    health: Health,
    tell: Option<TellCondition>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

impl GpuStore {
    /// The store of this device.
    #[must_use]
    pub fn new(gpus: Arc<Gpus>, device: Device) -> Self {
        let health = device.health.clone();
        Self {
            gpus,
            device,
            state: Mutex::new(State {
                released: Custody::default(),
                health,
                tell: None,
            }),
            work: Mutex::default(),
        }
    }

    /// The UUID of the device.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.device.uuid
    }

    /// The health as it is now.
    #[must_use]
    pub fn health(&self) -> Health {
        self.state().health.clone()
    }

    /// The health has changed.
    pub fn set_health(&self, health: Health) {
        let mut state = self.state();
        state.health = health;
        if let Some(tell) = &state.tell {
            tell(condition(&state.health));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn account(&self, step: &'static str) -> Result<Accounted, StepError> {
        let call = Account {
            device: self.device.clone(),
            libraries: self.gpus.sessions.libraries.clone(),
        };
        self.gpus.call(step, &call, &|| ())
    }

    fn record_of(&self, lease: LeaseId) -> Result<Option<Record>, StepError> {
        let record = self.gpus.records.find(lease)?;
        Ok(record.filter(|it| it.uuid == self.device.uuid))
    }

    fn make(&self, order: &BindOrder) -> Result<(), StepError> {
        let lease = order.binding_id.lease_id;
        if let Health::Failed(why) = self.health() {
            let why = format_args!("{}: {why}", self.device.uuid);
            return Err(StepError::new("check device", why));
        }
        let account = self.account("look at device")?;
        let terms = order.terms.gpu().cloned().unwrap_or_default();
        let is_shared = terms.exclusivity == Some(GpuExclusivityClass::Shared);
        let record = Record {
            uuid: self.device.uuid.clone(),
            is_exclusive: !is_shared,
            // Nothing keeps a program to a part of the memory.
            nodes: match is_shared {
                true => Vec::new(),
                false => self.device.nodes.clone(),
            },
            cdi: self.gpus.cdi.clone(),
            vram_bytes: order.placement.amount(),
            one_shot: terms.execution_mode == Some(GpuExecutionMode::OneShot),
            scrub_at_close: terms.exclusivity == Some(GpuExclusivityClass::SessionExclusive),
            baseline: Baseline {
                free_bytes: account.free_bytes,
                holders: holders(&self.device.nodes),
                listed: account.processes.iter().map(|it| it.pid).collect(),
            },
            worker: None,
            is_dirty: false,
            is_over: false,
        };
        self.gpus.records.write(lease, &record)?;
        passed("make record");
        self.gpus.make_cgroup(lease, &self.device)
    }

    /// The other leases of the device.
    fn others(&self, lease: LeaseId) -> Result<Vec<(LeaseId, Record)>, StepError> {
        let mut others = Vec::new();
        for other in self.gpus.records.leases()? {
            if other != lease
                && let Some(record) = self.record_of(other)?
            {
                others.push((other, record));
            }
        }
        Ok(others)
    }

    /// Proves that nothing of the lease is left on the device, and wipes the device. Where that fails again, it resets the
    /// device first.
    fn clean(&self, lease: LeaseId, record: &Record, progress: &dyn Fn()) -> Result<(), StepError> {
        let mut resets = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_holders(record)?;
        if let Err(error) = self.wipe(lease, record, progress) {
            match resets.get(&lease) {
                // What the first release lacks may come back by itself.
                None => {
                    resets.insert(lease, None);
                    return Err(error);
                }
                Some(Some(at)) if at.elapsed() < RESET_EVERY => return Err(error),
                Some(_) => {}
            }
            resets.insert(lease, Some(Instant::now()));
            self.reset(lease, &error, progress)?;
            self.wipe(lease, record, progress)?;
        }
        resets.remove(&lease);
        Ok(())
    }

    /// Waits for the memory, and overwrites it.
    fn wipe(&self, lease: LeaseId, record: &Record, progress: &dyn Fn()) -> Result<(), StepError> {
        self.wait_for_memory(record, progress)?;
        let call = Scrub {
            device: self.device.clone(),
            libraries: self.gpus.sessions.libraries.clone(),
        };
        let wiped = self.gpus.call("scrub", &call, progress)?;
        passed("scrub");
        let free = record.baseline.free_bytes;
        let percent = wiped.bytes as f64 * 100.0 / free.max(1) as f64;
        if u128::from(wiped.bytes) * 100 < u128::from(free) * u128::from(WIPED_PERCENT) {
            let why = format!(
                "{}: only {:.2} % of the {free} bytes that were free before the lease could be wiped ({} bytes); {WIPED_PERCENT} % \
                 are needed",
                self.device.uuid, percent, wiped.bytes
            );
            return Err(StepError::new("scrub", why));
        }
        tracing::info!(
            lease_id = %lease,
            device = self.device.uuid,
            bytes = wiped.bytes,
            free,
            "scrubbed {percent:.2} % of the memory that was free before the lease"
        );
        Ok(())
    }

    /// Who has the device open now and had not before the grant.
    fn check_holders(&self, record: &Record) -> Result<(), StepError> {
        let own = self.gpus.supervisor.pid();
        let is_strange = |holder: &Process| {
            let of_the_node = parent(holder.pid).is_some_and(|it| Some(it) == own);
            !of_the_node && !record.baseline.holders.contains(holder)
        };
        let mut strange = holders(&self.device.nodes);
        strange.retain(is_strange);
        // Workers of other leases have it open too.
        if !record.is_exclusive {
            strange.retain(|holder| !self.is_in_a_lease(*holder));
        }
        match &strange[..] {
            [] => Ok(()),
            strange => {
                let each: Vec<String> = strange.iter().map(|it| it.describe()).collect();
                let why = format!(
                    "{}: {} has the device open, and had not before the lease: end it",
                    self.device.uuid,
                    each.join(", ")
                );
                Err(StepError::new("look for holders", why))
            }
        }
    }

    fn is_in_a_lease(&self, holder: Process) -> bool {
        let leases = self.gpus.records.leases().unwrap_or_default();
        let mut records = leases
            .into_iter()
            .filter_map(|it| self.gpus.records.find(it).ok()?);
        records.any(|it| it.worker.is_some_and(|worker| worker.process == holder))
    }

    /// Waits until the vendor lists no process of the lease and the memory is back. Memory that comes back is progress.
    fn wait_for_memory(&self, record: &Record, progress: &dyn Fn()) -> Result<(), StepError> {
        let wanted = record.baseline.free_bytes.saturating_sub(TOLERANCE_BYTES);
        let (mut most, mut since) = (0, Instant::now());
        loop {
            let account = self.account("look at device")?;
            if let Health::Failed(why) = &account.health {
                return Err(StepError::new("look at device", why));
            }
            let strange: Vec<u32> = { account.processes.iter() }
                .map(|it| it.pid)
                .filter(|pid| !record.baseline.listed.contains(pid))
                .collect();
            if strange.is_empty() && account.free_bytes >= wanted {
                return Ok(());
            }
            if account.free_bytes > most {
                (most, since) = (account.free_bytes, Instant::now());
                progress();
            }
            if since.elapsed() > PATIENCE {
                return Err(self.not_back(record, &account, &strange));
            }
            thread::sleep(LOOK);
        }
    }

    fn not_back(&self, record: &Record, account: &Accounted, strange: &[u32]) -> StepError {
        let uuid = &self.device.uuid;
        let each = strange.iter().map(|pid| {
            let found = i32::try_from(*pid).ok().and_then(Process::of);
            found.map_or_else(
                || format!("pid {pid}, which is not there any more"),
                Process::describe,
            )
        });
        let each: Vec<String> = each.collect();
        let why = match each.is_empty() {
            false => format!("{uuid}: the driver still lists {}", each.join(", ")),
            true => format!(
                "{uuid}: {} of the {} bytes that were free before the lease have not come back, and the driver lists no \
                 process that has them",
                record
                    .baseline
                    .free_bytes
                    .saturating_sub(account.free_bytes),
                record.baseline.free_bytes
            ),
        };
        StepError::new("wait for memory", why)
    }

    /// Resets the device, if nothing uses it.
    fn reset(
        &self,
        lease: LeaseId,
        because: &StepError,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let account = self.account("look at device")?;
        let alive = account.processes.iter().find_map(|it| {
            let process = Process::of(i32::try_from(it.pid).ok()?)?;
            process.is_there().then_some(process)
        });
        if let Some(process) = alive {
            let why = format!(
                "{because}; it is not reset, as {} uses it",
                process.describe()
            );
            return Err(StepError::new("reset device", why));
        }
        tracing::warn!(lease_id = %lease, device = self.device.uuid, %because, "resetting the device");
        let call = Reset {
            device: self.device.clone(),
        };
        self.gpus.call("reset device", &call, progress)?;
        passed("reset device");
        Ok(())
    }
}

fn parent(pid: i32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn condition(health: &Health) -> Condition {
    match health {
        Health::Good => Condition::Good,
        Health::Degraded(why) | Health::Failed(why) => Condition::Degraded(why.clone()),
    }
}

impl Store for GpuStore {
    /// The device was wiped when it was given back.
    fn prepare(&self, _order: &BindOrder, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let lease = order.binding_id.lease_id;
        if self.state().released.find(lease) == Lookup::Released {
            return Err(BindError::Cancelled);
        }
        let part = Part::at(order.placement.clone());
        match self.record_of(lease).map_err(BindError::Failed)? {
            Some(_) => return Ok(part),
            None if order.adopts => {
                let why =
                    format_args!("{}: the lease has nothing there any more", self.device.uuid);
                return Err(BindError::Failed(StepError::new("adopt lease", why)));
            }
            None => {}
        }
        match self.make(order) {
            Ok(()) => Ok(part),
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
        self.gpus.remove_cgroup(lease)?;
        self.gpus.records.remove(lease)
    }

    fn release(
        &self,
        binding_id: BindingId,
        _placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let lease = binding_id.lease_id;
        if self.state().released.find(lease) == Lookup::Released {
            return Ok(());
        }
        if let Some(mut record) = self.record_of(lease)? {
            // The path has done so already, unless none was ever bound.
            self.gpus.end(lease, &record)?;
            self.gpus.sessions.note_end(lease, &mut record)?;
            record.is_over = true;
            self.gpus.records.write(lease, &record)?;
            progress();
            if record.is_exclusive {
                self.clean(lease, &record, progress)?;
            } else if record.is_dirty {
                let others = self.others(lease)?;
                let using = others.iter().filter(|(_, it)| !it.is_over).count();
                if using > 0 {
                    let why = format!(
                        "{}: its worker had to be killed, so its memory is not wiped; {using} other leases use the device, and it \
                         is wiped when they are over",
                        self.device.uuid
                    );
                    return Err(StepError::new("scrub", why));
                }
                // The first lease found the most memory free.
                let all = others.iter().map(|(_, it)| it).chain([&record]);
                let first = all.max_by_key(|it| it.baseline.free_bytes);
                self.clean(lease, first.unwrap_or(&record), progress)?;
            }
            progress();
            self.gpus.remove_cgroup(lease)?;
            self.gpus.records.remove(lease)?;
            passed("remove record");
        }
        self.state().released.release(lease);
        Ok(())
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let mut leases = Vec::new();
        for lease in self.gpus.records.leases()? {
            if self.record_of(lease)?.is_some() {
                leases.push(lease);
            }
        }
        Ok(leases)
    }

    fn tell_condition(&self, tell: TellCondition) {
        let mut state = self.state();
        if state.health != Health::Good {
            tell(condition(&state.health));
        }
        state.tell = Some(tell);
    }
}
