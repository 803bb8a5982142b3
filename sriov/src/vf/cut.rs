//! Ends the access of a lease to its virtual function, from the record alone.

use std::{
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use fabricbios_contract::EndByName;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::{LeaseId, PciFunction};

use super::{
    holders,
    pci::Pci,
    record::{Record, Records},
    steps,
};

/// Longest wait for the end of killed holders. A virtual machine with much memory takes seconds.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Bus mastering off stops every frame at once, whatever the tenant does with the interface. A process that has the function
/// through vfio could turn it on again, so it is killed.
#[derive(Clone, Debug)]
pub(super) struct Cutter {
    pub(super) pci: Pci,
    /// The directory of vfio groups: `/dev/vfio`.
    pub(super) groups: PathBuf,
}

impl Cutter {
    /// The device of the group that was handed over.
    pub(super) fn group(&self, record: &Record) -> Option<PathBuf> {
        let vfio = record.vfio.as_ref()?;
        Some(self.groups.join(vfio.group.to_string()))
    }

    /// Stops every frame, and kills who could let some out again. Until its end such a process may turn bus mastering on all
    /// the time, so only [`Cutter::prove`] tells whether it is off then. Waits for nobody: a virtual machine with much memory
    /// takes seconds to end, and other leases are due.
    pub(super) fn stop(&self, lease: LeaseId, record: &Record) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        let mut began = Instant::now();
        let mut done = |step: &'static str, found: &dyn fmt::Display| {
            steps::passed(step);
            proof.add(step, began.elapsed(), found);
            began = Instant::now();
        };
        let stopped = self.pci.stop_bus_master(record.function);
        let (Some(vfio), Some(group)) = (&record.vfio, self.group(record)) else {
            stopped?;
            done("bus master off", &record.function);
            return Ok(proof);
        };
        let told = |stopped: Result<(), StepError>| match stopped {
            Ok(()) => record.function.to_string(),
            Err(error) => format!("not yet: {error}"),
        };
        done("bus master off", &told(stopped));
        let removed = vfio.cdi().remove(lease);
        let killed = holders::kill_holders(&group)?;
        done(
            "kill holders",
            &format_args!("{killed:?} of {}", group.display()),
        );
        removed?;
        done("remove CDI spec", &"");
        // A holder may have turned it on again before it was killed.
        let stopped = self.pci.stop_bus_master(record.function);
        done("bus master off", &told(stopped));
        Ok(proof)
    }

    /// Waits for the end of all holders, then proves that access has ended.
    pub(super) fn prove(&self, record: &Record, patience: Duration) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        if let Some(group) = self.group(record) {
            let began = Instant::now();
            let ended = holders::end_holders(&group, patience);
            // A holder may have turned it on again before it was killed, or has it still.
            let stopped = self.pci.stop_bus_master(record.function);
            let found = format!("{:?} of {}", ended?, group.display());
            stopped?;
            steps::passed("end holders");
            proof.add("end holders", began.elapsed(), found);
        }
        Ok(proof.and(self.check(record)?))
    }

    /// Checks that nobody has access.
    pub(super) fn check(&self, record: &Record) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        let began = Instant::now();
        let function = record.function;
        if self.pci.is_bus_master(function)? {
            let why = format!("function {function} is bus master");
            return Err(StepError::new("read command register", why));
        }
        proof.add("read command register", began.elapsed(), "no bus master");
        if let Some(group) = self.group(record) {
            let began = Instant::now();
            let found = holders::holders(&group)?;
            if !found.is_empty() {
                let why = format!("processes {found:?} have {} open", group.display());
                return Err(StepError::new("look for holders", why));
            }
            proof.add("look for holders", began.elapsed(), "none");
        }
        Ok(proof)
    }
}

/// Ends leases of virtual functions without the daemon.
#[derive(Debug)]
pub struct VfEnd {
    cutter: Cutter,
    records: Records,
}

impl VfEnd {
    /// The same places as in [`Places`](super::Places).
    #[must_use]
    pub fn new(places: &super::Places) -> Self {
        Self {
            cutter: places.cutter(),
            records: Records::at(&places.records),
        }
    }

    /// Whether an earlier run has left leases, and the machine has none of their functions any more: their card is gone.
    ///
    /// # Errors
    /// The records or the functions cannot be read.
    pub fn all_are_gone(&self) -> Result<bool, StepError> {
        let left = self.records.readable()?;
        for (_, record) in &left {
            if !self.cutter.pci.is_gone(record.function)? {
                return Ok(false);
            }
        }
        Ok(!left.is_empty())
    }

    /// Ends the leases that an earlier run has left on cards that are not on offer any more. Their functions are cleaned
    /// when their card is offered again.
    ///
    /// # Errors
    /// The records cannot be read, or a lease cannot be ended.
    pub fn end_unoffered(&self, offered: Option<PciFunction>) -> Result<(), StepError> {
        for (lease, record) in self.records.readable()? {
            if offered == Some(record.card) {
                continue;
            }
            tracing::warn!(lease_id = %lease, card = %record.card, "ending a lease of a virtual function of a card that is not on offer any more");
            self.end_within(lease, ENDS_WITHIN)?;
        }
        Ok(())
    }

    fn end_within(&self, lease: LeaseId, patience: Duration) -> Result<(), StepError> {
        // While the record is held, no other lease gets the function.
        let Some(held) = self.records.hold(lease)? else {
            return Ok(());
        };
        self.cutter.stop(lease, &held.record)?;
        self.cutter.prove(&held.record, patience).map(drop)
    }
}

impl EndByName for VfEnd {
    /// A holder that has not ended yet is looked for by the next call.
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        self.end_within(lease, Duration::ZERO)
    }
}
