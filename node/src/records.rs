//! The journal's form of the table's records: a version, then the record.

use anyhow::{Context, bail};
use fabricbios_lease::{BootTime, Extent, FenceRecord, LeaseRecord, Placement, RECORDS_VERSION};
use fabricbios_wire::{
    BlockTerms, Effective, Generation, LeaseEnd, LeaseId, LeasePhase, ResourceId, ResourceType,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Versions before, which are still read.
const VERSION_3: u8 = 3;
const VERSION_4: u8 = 4;

/// What can be read in the shapes that it had in versions before.
pub(crate) trait Record: DeserializeOwned {
    /// In [`VERSION_3`].
    type Version3: DeserializeOwned + Into<Self>;
    /// In [`VERSION_4`].
    type Version4: DeserializeOwned + Into<Self>;
}

impl Record for LeaseRecord {
    type Version3 = LeaseBefore5<NoEnd>;
    type Version4 = LeaseBefore5<Option<Box<LeaseEnd>>>;
}

impl Record for FenceRecord {
    type Version3 = Self;
    type Version4 = Self;
}

/// A [`LeaseRecord`] that knows blocks by name, and stretches only.
#[derive(Deserialize)]
pub(crate) struct LeaseBefore5<End> {
    lease_id: LeaseId,
    tenant: String,
    resource_id: ResourceId,
    resource_type: ResourceType,
    capacity: u64,
    extent: Option<Extent>,
    generation: Generation,
    granted_at_unix_ms: u64,
    expires_at_unix_ms: u64,
    effective: Effective,
    term_secs: u32,
    grace_secs: u32,
    deadline: BootTime,
    ended: Option<LeasePhase>,
    end: End,
    cannot_go_on: bool,
    fenced_by_release: bool,
    block: Option<Box<BlockTerms>>,
}

/// [`VERSION_3`] does not say why a lease ended: no byte of a record.
#[derive(Deserialize)]
pub(crate) struct NoEnd;

impl From<NoEnd> for Option<Box<LeaseEnd>> {
    fn from(_: NoEnd) -> Self {
        None
    }
}

impl<End: Into<Option<Box<LeaseEnd>>>> From<LeaseBefore5<End>> for LeaseRecord {
    fn from(old: LeaseBefore5<End>) -> Self {
        Self {
            lease_id: old.lease_id,
            tenant: old.tenant,
            resource_id: old.resource_id,
            resource_type: old.resource_type,
            capacity: old.capacity,
            placement: old.extent.map(Placement::Stretch),
            generation: old.generation,
            granted_at_unix_ms: old.granted_at_unix_ms,
            expires_at_unix_ms: old.expires_at_unix_ms,
            effective: old.effective,
            term_secs: old.term_secs,
            grace_secs: old.grace_secs,
            deadline: old.deadline,
            ended: old.ended,
            end: old.end.into(),
            cannot_go_on: old.cannot_go_on,
            fenced_by_release: old.fenced_by_release,
            terms: old.block.map(|terms| Box::new((*terms).into())),
        }
    }
}

/// A record as bytes.
pub(crate) fn encode(record: &impl Serialize) -> postcard::Result<Vec<u8>> {
    postcard::to_extend(record, vec![RECORDS_VERSION])
}

/// Bytes as a record, if this version of the daemon or one of the two before wrote them, whole.
pub(crate) fn decode<T: Record>(bytes: &[u8]) -> anyhow::Result<T> {
    let Some((&version, record)) = bytes.split_first() else {
        bail!("the journal holds an empty record; {ADVICE}");
    };
    match version {
        RECORDS_VERSION => read(record),
        VERSION_4 => read::<T::Version4>(record).map(Into::into),
        VERSION_3 => read::<T::Version3>(record).map(Into::into),
        _ => bail!(
            "the journal holds a record of version {version}, not {VERSION_3} to {RECORDS_VERSION}; {ADVICE}"
        ),
    }
}

const ADVICE: &str = "start the version that wrote it, or move the journal away to start anew";

fn read<T: DeserializeOwned>(record: &[u8]) -> anyhow::Result<T> {
    let read = postcard::take_from_bytes(record);
    match read.context("the journal holds a damaged record; move it away to start anew")? {
        (record, []) => Ok(record),
        _ => bail!("the journal holds a record with something behind it; {ADVICE}"),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;
    use crate::journal::{self, Journal};
    use fabricbios_lease::StepError;

    fn fence() -> FenceRecord {
        FenceRecord {
            resource_id: ResourceId(1),
            resource_type: ResourceType::Mem,
            lease_id: LeaseId(2),
            since_unix_ms: 3,
            reason: StepError::new("dealloc_mw", "EIO"),
            by_release: false,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = encode(&fence()).unwrap();
        assert_eq!(decode::<FenceRecord>(&bytes).unwrap(), fence());
    }

    #[test]
    fn other_versions_and_damage_are_told_and_not_guessed_at() {
        let good = encode(&fence()).unwrap();
        let mut older = good.clone();
        older[0] = 2;
        let longer = [good.as_slice(), &[0]].concat();
        let shorter = &good[..good.len() - 1];
        for (bytes, word) in [
            (older.as_slice(), "version 2"),
            (&longer, "behind"),
            (shorter, "damaged"),
            (&[], "empty"),
        ] {
            let error = decode::<FenceRecord>(bytes).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    /// Written by the daemon of before this version: two leases in use, one freed, one expired, one revoked.
    #[test]
    fn a_journal_of_the_version_before_is_read() {
        let fixture = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fixtures/journal-of-records-3.redb.gz"
        );
        let unpacked = Command::new("gzip")
            .args(["-dc", fixture])
            .output()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(journal::FILE);
        fs::write(&path, unpacked.stdout).unwrap();
        let (_journal, recovered) = Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap();
        let mut leases: Vec<LeaseRecord> = { recovered.leases.iter() }
            .map(|(_, bytes)| decode(bytes).unwrap())
            .collect();
        leases.sort_by_key(|lease| lease.granted_at_unix_ms);
        let told: Vec<_> = { leases.iter() }
            .map(|it| (it.resource_type, it.capacity, it.ended))
            .collect();
        let (mem, block) = (ResourceType::Mem, ResourceType::Block);
        let ended = [LeasePhase::Freed, LeasePhase::Expired, LeasePhase::Revoked];
        let [freed, expired, revoked] = ended.map(|phase| (mem, 4096, Some(phase)));
        let in_use = [(mem, 65_536, None), (block, 65_536, None)];
        assert_eq!(told, [in_use[0], in_use[1], freed, expired, revoked]);
        assert!(
            leases
                .iter()
                .all(|it| it.tenant == "blue" && it.end.is_none())
        );
        assert!(
            leases[1]
                .terms
                .as_ref()
                .is_some_and(|terms| terms.block().is_some_and(|it| it.read_only))
        );
        let pools = recovered.pools.iter();
        assert_eq!(
            pools.map(|(_, bytes)| bytes[0]).collect::<Vec<_>>(),
            [VERSION_3]
        );
    }
}
