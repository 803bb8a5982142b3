//! The store of one device: it knows the device before each grant, and wipes it before the next one.

mod clean;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use fabricbios_cgroup::Process;
use fabricbios_contract::{Part, Store, TellCondition};
use fabricbios_lease::{
    BindError, BindOrder, BindingId, Condition, Custody, Lookup, Placement, StepError,
};
use fabricbios_wire::{GpuExclusivityClass, GpuExecutionMode, LeaseId};

use crate::{
    Device, Gpus, Health, containers,
    holders::Holders,
    management::{Account, Accounted},
    record::{Baseline, Listed, Record},
    steps::passed,
};

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
        self.check_others(lease)?;
        let holders = self.holders()?;
        if let Some(holder) = holders.iter().find(|it| containers::is_in_one(**it)) {
            let why = format!(
                "{}: {}, in a container of a lease that is over, has the device open: end it",
                self.device.uuid,
                holder.describe()
            );
            return Err(StepError::new("look for holders", why));
        }
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
                holders,
                listed: account.processes.iter().map(Listed::of).collect(),
            },
            worker: None,
            is_dirty: false,
            is_over: false,
        };
        self.gpus.records.write(lease, &record)?;
        passed("make record");
        self.gpus.make_cgroup(lease, &self.device)
    }

    /// Who has the device open.
    fn holders(&self) -> Result<Vec<Process>, StepError> {
        let call = Holders(self.device.own_nodes());
        self.gpus.call("look for holders", &call, &|| ())
    }

    /// Checks that no lease of the device has left bytes there that nobody has wiped.
    fn check_others(&self, lease: LeaseId) -> Result<(), StepError> {
        let others = self.others(lease)?;
        let mut unwiped = others
            .iter()
            .filter(|(other, record)| self.gpus.sessions.is_dirty(*other, record));
        if unwiped.next().is_none() {
            return Ok(());
        }
        let why = format!(
            "{}: a session of another lease has ended without wiping its memory; the device is wiped when that lease is over, and \
             has no new leases until then",
            self.device.uuid
        );
        Err(StepError::new("check device", why))
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
