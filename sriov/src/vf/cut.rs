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
    cdi::Cdi,
    holders,
    pci::Pci,
    record::{Record, Records},
    steps,
};

/// Longest wait for the end of killed holders. A virtual machine with much memory takes seconds.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// In the watchdog, which ends the other leases of this kind in the same thread and tries again.
const ENDS_SHORTLY: Duration = Duration::from_secs(1);

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

    pub(super) fn cut(
        &self,
        lease: LeaseId,
        record: &Record,
        patience: Duration,
    ) -> Result<Proof, StepError> {
        let mut proof = Proof::default();
        let mut began = Instant::now();
        let mut done = |step: &'static str, found: &dyn fmt::Display| {
            steps::passed(step);
            proof.add(step, began.elapsed(), found);
            began = Instant::now();
        };
        self.pci.stop_bus_master(record.function)?;
        done("bus master off", &record.function);
        let (Some(vfio), Some(group)) = (&record.vfio, self.group(record)) else {
            return Ok(proof);
        };
        Cdi::at(&vfio.specs).remove(lease)?;
        done("remove CDI spec", &"");
        let ended = holders::end_holders(&group, patience);
        // A holder may have turned it on again before it was killed, or has it still.
        self.pci.stop_bus_master(record.function)?;
        let ended = ended?;
        done(
            "end holders",
            &format_args!("{ended:?} of {}", group.display()),
        );
        self.pci.stop_bus_master(record.function)?;
        done("bus master off", &record.function);
        Ok(proof)
    }

    /// Proves that access has ended.
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
            records: Records(places.records.clone()),
        }
    }

    /// Ends the leases that an earlier run has left on cards that are not on offer any more. Their functions are cleaned
    /// when their card is offered again.
    ///
    /// # Errors
    /// The records cannot be read, or a lease cannot be ended.
    pub fn end_unoffered(&self, offered: Option<PciFunction>) -> Result<(), StepError> {
        for (lease, record) in self.records.all()? {
            if offered == Some(record.card) {
                continue;
            }
            tracing::warn!(lease_id = %lease, card = %record.card, "ending a lease of a virtual function of a card that is not on offer any more");
            self.end(lease)?;
        }
        Ok(())
    }
}

impl EndByName for VfEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        // While the record is held, no other lease gets the function.
        match self.records.hold(lease)? {
            Some(held) => self.cutter.cut(lease, &held.record, ENDS_SHORTLY).map(drop),
            None => Ok(()),
        }
    }
}
