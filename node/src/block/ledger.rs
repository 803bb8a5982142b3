//! What the journal keeps of each pool: what it was, and how often something of it was given out.
//!
//! A pool keeps the number of its latest grant, too. A journal that was put back from an older copy knows
//! of fewer grants than the pool, and by that it is found out. The journal has each number first, in the commit that has
//! the lease, so that a crash between the two does not look like that; the pool has it before anybody is told.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use fabricbios_lease::{AllocationMode, StepError};
use fabricbios_pool::Facts;
use fabricbios_wire::ResourceId;
use serde::{Deserialize, Serialize};

use crate::{
    journal::{Change, Key, Writer},
    records::{self, Record},
};

/// A pool that this node has offered at some time: its facts as they were then, and its grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PoolRecord {
    pub(super) path: PathBuf,
    pub(super) identity: u128,
    pub(super) device: Option<String>,
    pub(super) capacity: u64,
    pub(super) align: u64,
    pub(super) block_bytes: u32,
    pub(super) in_stretches: bool,
    pub(super) read_only: bool,
    pub(super) removable: bool,
    /// The number of the latest grant.
    pub(super) grants: u64,
    /// The last run had it, so that its leases on record are all that there are.
    pub(super) was_offered: bool,
}

impl Record for PoolRecord {
    type Version3 = Self;
    type Version4 = Self;
}

impl PoolRecord {
    pub(super) fn of(facts: &Facts, path: &Path, grants: u64) -> Self {
        Self {
            path: path.to_owned(),
            identity: u128::from_be_bytes(facts.identity),
            device: facts.device.clone(),
            capacity: facts.capacity,
            align: facts.align,
            block_bytes: facts.block_bytes,
            in_stretches: facts.allocation_mode == AllocationMode::Stretches,
            read_only: facts.read_only,
            removable: facts.removable,
            grants,
            was_offered: true,
        }
    }

    /// What it was when it was there.
    pub(super) fn facts(&self) -> Facts {
        Facts {
            identity: self.identity.to_be_bytes(),
            name: self.path.display().to_string(),
            device: self.device.clone(),
            capacity: self.capacity,
            align: self.align,
            block_bytes: self.block_bytes,
            allocation_mode: match self.in_stretches {
                true => AllocationMode::Stretches,
                false => AllocationMode::Amounts,
            },
            read_only: self.read_only,
            removable: self.removable,
        }
    }

    pub(super) fn put(&self) -> anyhow::Result<Change> {
        Ok(Change::put(
            Key::Pool(self.identity),
            records::encode(self)?,
        ))
    }
}

/// The counting of grants.
#[derive(Debug)]
pub(super) struct JournalLedger {
    writer: Writer,
    records: Mutex<HashMap<ResourceId, PoolRecord>>,
}

impl JournalLedger {
    pub(super) fn new(writer: Writer, records: HashMap<ResourceId, PoolRecord>) -> Self {
        Self {
            writer,
            records: Mutex::new(records),
        }
    }

    /// The number of a grant of that pool that is about to be made: greater than any before. It is written down with the
    /// record of the lease.
    pub(super) fn next_grant(&self, resource_id: ResourceId) -> Result<u64, StepError> {
        let failed = |why: String| StepError::new("count grant", why);
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let record = records.get_mut(&resource_id);
        let record = record.ok_or_else(|| failed(format!("no pool is {resource_id}")))?;
        record.grants += 1;
        let (number, put) = (record.grants, record.put());
        let put = put.map_err(|error| failed(error.to_string()))?;
        self.writer.add(vec![put]);
        Ok(number)
    }
}
