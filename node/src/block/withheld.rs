//! A pool that the last run had and that cannot be had now: nothing of it is given out, and nothing of it
//! is touched. What its leases hold stays theirs.

use std::path::Path;

use fabricbios_lease::{Condition, Extent, StepError};
use fabricbios_pool::{Facts, TellCondition, Volume};
use fabricbios_wire::LeaseId;

use super::{ledger::PoolRecord, parts::Volumes};

/// See the module.
#[derive(Debug)]
pub(super) struct Withheld {
    facts: Facts,
    why: String,
}

impl Withheld {
    pub(super) fn new(record: &PoolRecord, path: &Path, why: String) -> Self {
        let facts = Facts {
            name: path.display().to_string(),
            ..record.facts()
        };
        Self { facts, why }
    }

    fn error(&self) -> StepError {
        StepError::new("find pool", format!("it is withheld: {}", self.why))
    }
}

impl Volumes for Withheld {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn count_grant(&self, _: u64) -> Result<(), StepError> {
        Err(self.error())
    }
    fn prepare(&self, _: Extent, _: &dyn Fn()) -> Result<(), StepError> {
        Err(self.error())
    }
    fn create(&self, _: LeaseId, _: Extent) -> Result<Volume, StepError> {
        Err(self.error())
    }
    fn reopen(&self, _: LeaseId, _: Extent) -> Result<Volume, StepError> {
        Err(self.error())
    }
    /// Whatever there is: it is looked for when the pool is back.
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(Vec::new())
    }
    /// What is not on record is looked for when the pool is back; what is stays fenced until then.
    fn destroy(&self, _: LeaseId, extent: Option<Extent>, _: &dyn Fn()) -> Result<(), StepError> {
        extent.map_or(Ok(()), |_| Err(self.error()))
    }
    fn tell_condition(&self, tell: TellCondition) {
        tell(Condition::Degraded(self.error().to_string()));
    }
}
