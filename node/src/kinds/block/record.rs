//! The journal's record of each pool: its facts and its number of grants.
//!
//! The pool stores the number of its latest grant too. A journal that was restored from an older copy has a lower
//! number than the pool; the node detects the older copy by this difference. The journal stores each number first, in
//! the commit of the lease, so that a crash between the two writes does not look like an older copy. The pool stores
//! the number before the node answers the client.

use std::path::{Path, PathBuf};

use fabricbios_lease::AllocationMode;
use fabricbios_pool::Facts;
use serde::{Deserialize, Serialize};

use crate::journal::{Change, Key, records};

/// A pool that this node has offered at some time: its facts at that time, and its grants.
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
    /// The last run offered the pool, so the leases of the pool on record are complete.
    pub(super) was_offered: bool,
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

    /// The facts of the pool when it was last open.
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

#[cfg(test)]
mod tests {
    use fabricbios_lease::FORMAT;

    use super::{super::facts, *};

    #[test]
    fn a_record_is_written_as_the_number_of_the_format_says() {
        let bytes = records::encode(&PoolRecord::of(&facts(7), Path::new("/pool"), 5)).unwrap();
        let of_format_9 = "052f706f6f6c07008080808004802080200000000501";
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            (FORMAT, hex.as_str()),
            (9, of_format_9),
            "another shape needs another number: docs/compatibility.md"
        );
    }
}
