//! Ends the access of a lease to its virtual function, from the record alone.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use fabricbios_cgroup::{Containers, Process};
use fabricbios_contract::EndByName;
use fabricbios_helper::{CallError, Supervisor};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::{LeaseId, PciFunction};

use super::{
    Places,
    call::{Operator, SILENCE_MAX},
    drivers,
    endings::{Endings, Outcome, kept_off},
    holders::EndHolders,
    pci::Pci,
    record::{Records, VfRecord},
    steps,
};

/// Longest wait for the end of a lease's containers and of other holders. A virtual machine with much memory takes
/// seconds.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// The wait for a helper process is longer than its own time limit by this.
const SLACK: Duration = Duration::from_millis(500);

/// Switching bus mastering off stops every frame at once, whatever the tenant does with the interface. A process that
/// has the function through vfio could switch it on again, so the process is killed; a driver that switches it on is
/// unbound.
#[derive(Clone, Debug)]
pub(super) struct Cutter {
    pub(super) operator: Operator,
    /// The directory of vfio groups: `/dev/vfio`.
    pub(super) groups: PathBuf,
    pub(super) directory: PathBuf,
    pub(super) records: Records,
    /// Processes of the node, which are never killed as holders.
    owners: Vec<Process>,
    endings: Arc<Endings>,
}

/// The part of an end that waits for others, and after which access has ended for good.
struct Rest {
    step: &'static str,
    limit: Duration,
    work: Box<dyn FnOnce() -> Outcome + Send>,
}

impl Cutter {
    /// `others`: processes of the node besides this one.
    pub(super) fn new(
        places: &Places,
        supervisor: Supervisor,
        others: impl IntoIterator<Item = Process>,
    ) -> Self {
        let own = Process::of(std::process::id().cast_signed());
        Self {
            operator: Operator {
                pci: Pci::new(&places.sysfs),
                supervisor,
            },
            groups: places.dev.join("vfio"),
            directory: places.records.clone(),
            records: Records::at(&places.records),
            owners: own.into_iter().chain(others).collect(),
            endings: Arc::default(),
        }
    }

    pub(super) fn pci(&self) -> &Pci {
        &self.operator.pci
    }

    /// The containers that have the function through vfio.
    pub(super) fn containers(&self, lease: LeaseId) -> Containers {
        Containers::of(&self.directory, lease, steps::STEPS)
    }

    /// Stops every frame, and kills the processes that could send frames again. Until such a process has ended, or an
    /// unchecked driver is unbound, it may switch bus mastering on again, so only [`Cutter::prove`] says whether it is off. Waits only for a moment: a
    /// virtual machine with much memory takes seconds to end, and other leases are due.
    pub(super) fn stop(&self, lease: LeaseId, record: &VfRecord) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        let mut began = Instant::now();
        let mut done = |step: &'static str, found: String| {
            steps::passed(step);
            proof.add(step, began.elapsed(), found);
            began = Instant::now();
        };
        let told = |stopped: Result<(), StepError>| match stopped {
            Ok(()) => record.function.to_string(),
            Err(error) => format!("not yet: {error}"),
        };
        let stopped = self.pci().stop_bus_master(record.function);
        done("bus master off", told(stopped));
        let Some(vfio) = &record.vfio else {
            return Ok(proof);
        };
        let removed = vfio.cdi().remove(lease);
        done("remove CDI spec", String::new());
        let killed = self.containers(lease).kill();
        // The processes of a container close the group as they end: until then no other holder is searched for.
        let searched = match killed {
            Ok(false) => {
                let moment = self.endings.moment();
                self.endings.start(lease, moment, self.search(lease).work)
            }
            _ => Ok(()),
        };
        removed?;
        killed?;
        searched?;
        // A holder may have switched bus mastering on again before it was killed.
        let stopped = self.pci().stop_bus_master(record.function);
        steps::passed("bus master off");
        proof.add("bus master off", Duration::ZERO, told(stopped));
        Ok(proof)
    }

    /// Waits until no process can have access again, then proves that access has ended. If `waits` is false, this waits
    /// only for a moment, and the next call continues.
    pub(super) fn prove(
        &self,
        lease: LeaseId,
        record: &VfRecord,
        waits: bool,
    ) -> Result<Proof, StepError> {
        let mut began = Instant::now();
        let moment = self.endings.moment();
        let mut proof = Proof::default();
        if record.vfio.is_some() {
            let patience = if waits { ENDS_WITHIN } else { moment };
            proof = self.containers(lease).end(&Tree::new("/proc"), patience)?;
        }
        if let Some(rest) = self.rest(lease, record)? {
            let limit = if waits { rest.limit } else { moment };
            let patience = limit.saturating_sub(began.elapsed());
            let found = self.endings.wait(lease, patience, rest.work)?;
            let found = found.ok_or_else(|| {
                let why = format!(
                    "function {}: the end of the lease is not over yet",
                    record.function
                );
                StepError::new(rest.step, why)
            })?;
            steps::passed(rest.step);
            proof.add(rest.step, began.elapsed(), found);
            began = Instant::now();
            // Bus mastering was on again in between.
            self.pci().stop_bus_master(record.function)?;
            proof.add("bus master off", began.elapsed(), record.function);
        }
        Ok(proof.and(self.check(record)?))
    }

    /// The rest of the end. `None`: bus mastering is off, and that has ended access for good.
    fn rest(&self, lease: LeaseId, record: &VfRecord) -> Result<Option<Rest>, StepError> {
        if record.vfio.is_some() {
            return Ok(Some(self.search(lease)));
        }
        let is_for_good = || -> Result<bool, StepError> {
            let driver = self.pci().driver(record.card)?;
            let driver = driver.as_deref().and_then(drivers::find);
            Ok(driver.is_some_and(|it| it.is_cut_by_bus_master)
                && !self.pci().is_bus_master(record.function)?)
        };
        let is_gone = self.pci().is_gone(record.function)?;
        match self.endings.has(lease) || !is_gone && !is_for_good()? {
            true => Ok(Some(self.unbinding(lease, record.function))),
            false => Ok(None),
        }
    }

    /// Opens the group, and kills the processes that have it open.
    fn search(&self, lease: LeaseId) -> Rest {
        const STEP: &str = "end holders";
        let its = self.clone();
        let work = move || {
            // The lease may have ended meanwhile, and another lease may have the function.
            let Some(held) = its.records.hold(lease)? else {
                return Ok("the lease has no function any more".to_owned());
            };
            let owners = its.owners.iter().filter(|it| it.is_there());
            let call = EndHolders {
                records: its.directory.clone(),
                groups: its.groups.clone(),
                lease,
                owners: owners.map(|it| it.pid).collect(),
                within: ENDS_WITHIN,
            };
            let supervisor = &its.operator.supervisor;
            let ended = kept_off(its.pci(), held.record.function, || {
                supervisor.call(&call, ENDS_WITHIN + SLACK, &|_| ())
            });
            let ended = ended.map_err(|error| match error {
                CallError::Failed(failure) => {
                    StepError::new(STEP, &failure.detail).with_errno(failure.errno)
                }
                error => {
                    let group = held.record.group(&its.groups).unwrap_or_default();
                    StepError::new(STEP, format_args!("{}: {error}", group.display()))
                }
            })?;
            tracing::debug!(lease_id = %lease, %ended, "the vfio group is free");
            Ok(ended.to_string())
        };
        Rest {
            step: STEP,
            limit: ENDS_WITHIN + 2 * SLACK,
            work: Box::new(work),
        }
    }

    /// Unbinds the driver: its resets may switch bus mastering on.
    fn unbinding(&self, lease: LeaseId, function: PciFunction) -> Rest {
        let its = self.clone();
        let work = move || {
            let Some(_held) = its.records.hold(lease)? else {
                return Ok("the lease has no function any more".to_owned());
            };
            kept_off(its.pci(), function, || {
                its.operator.finish_unbinding(function)
            })?;
            Ok(function.to_string())
        };
        Rest {
            step: "unbind driver",
            limit: SILENCE_MAX + SLACK,
            work: Box::new(work),
        }
    }

    /// Unbinds the driver. Until it is unbound it may switch bus mastering on, so this keeps it off.
    pub(super) fn unbind(&self, function: PciFunction) -> Result<(), StepError> {
        kept_off(self.pci(), function, || self.operator.unbind(function))
    }

    /// Checks that bus mastering is off, so that the function reaches nothing.
    fn check(&self, record: &VfRecord) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        let began = Instant::now();
        let function = record.function;
        if self.pci().is_bus_master(function)? {
            let why = format!("function {function} is bus master");
            return Err(StepError::new("read command register", why));
        }
        proof.add("read command register", began.elapsed(), "no bus master");
        Ok(proof)
    }
}

/// Ends leases of virtual functions without the daemon.
#[derive(Debug)]
pub struct VfEnd(Cutter);

impl VfEnd {
    /// `supervisor` makes [`calls`](super::calls). `others`: processes of the node besides this one; they are never
    /// killed.
    #[must_use]
    pub fn new(
        places: &Places,
        supervisor: Supervisor,
        others: impl IntoIterator<Item = Process>,
    ) -> Self {
        Self(Cutter::new(places, supervisor, others))
    }

    /// Whether an earlier run has left leases on cards that are not on offer, and none of their functions exists any
    /// more: the cards were removed.
    ///
    /// # Errors
    /// The records or the functions cannot be read.
    pub fn all_are_gone(&self, offered: &[PciFunction]) -> Result<bool, StepError> {
        let mut left = self.0.records.readable()?;
        left.retain(|(_, record)| !offered.contains(&record.card));
        for (_, record) in &left {
            if !self.0.pci().is_gone(record.function)? {
                return Ok(false);
            }
        }
        Ok(!left.is_empty())
    }

    /// Ends the leases that an earlier run has left on cards that are no longer on offer. Their functions are cleaned
    /// when the card is offered again.
    ///
    /// # Errors
    /// The records cannot be read, or a lease cannot be ended.
    pub fn end_unoffered(&self, offered: &[PciFunction]) -> Result<(), StepError> {
        for (lease, record) in self.0.records.readable()? {
            if offered.contains(&record.card) {
                continue;
            }
            tracing::warn!(lease_id = %lease, card = %record.card, "ending a lease of a virtual function of a card that is not on offer any more");
            self.end_by_record(lease, true)?;
        }
        Ok(())
    }

    fn end_by_record(&self, lease: LeaseId, waits: bool) -> Result<(), StepError> {
        // While the record is held, no other lease gets the function.
        let Some(held) = self.0.records.hold(lease)? else {
            return Ok(());
        };
        self.0.stop(lease, &held.record)?;
        self.0.prove(lease, &held.record, waits).map(drop)
    }
}

impl EndByName for VfEnd {
    /// The part that waits continues beside the ends of other leases; the next call returns its outcome.
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        self.end_by_record(lease, false)
    }
}

impl VfRecord {
    /// The device of the lease's vfio group, in the directory of all groups.
    pub(super) fn group(&self, groups: &Path) -> Option<PathBuf> {
        let vfio = self.vfio.as_ref()?;
        Some(groups.join(vfio.group.to_string()))
    }
}
