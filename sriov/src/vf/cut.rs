//! Ends the access of a lease to its virtual function, from the record alone.

use std::{fmt, path::PathBuf, time::Instant};

use fabricbios_contract::EndByName;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;

use super::{
    cdi::Cdi,
    holders,
    pci::Pci,
    record::{Record, Records},
    steps,
};

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

    pub(super) fn cut(&self, lease: LeaseId, record: &Record) -> Result<Proof, StepError> {
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
        let ended = holders::end_holders(&group)?;
        done(
            "end holders",
            &format_args!("{ended:?} of {}", group.display()),
        );
        // A holder may have turned it on again before it was killed.
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

    /// The leases on record.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let all = self.records.all()?.into_iter();
        Ok(all.map(|(lease, _)| lease).collect())
    }
}

impl EndByName for VfEnd {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        // While the record is held, no other lease gets the function.
        match self.records.hold(lease)? {
            Some(held) => self.cutter.cut(lease, &held.record).map(drop),
            None => Ok(()),
        }
    }
}
