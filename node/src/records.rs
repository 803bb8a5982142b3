//! The journal's form of the table's records: a version, then the record.

use anyhow::{Context, bail};
use fabricbios_lease::RECORDS_VERSION;
use serde::{Serialize, de::DeserializeOwned};

/// A record as bytes.
pub(crate) fn encode(record: &impl Serialize) -> postcard::Result<Vec<u8>> {
    postcard::to_extend(record, vec![RECORDS_VERSION])
}

/// Bytes as a record, if this version of the daemon wrote them, whole.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> anyhow::Result<T> {
    let advice = "start the version that wrote it, or move the journal away to start anew";
    let Some((&version, record)) = bytes.split_first() else {
        bail!("the journal holds an empty record; {advice}");
    };
    if version != RECORDS_VERSION {
        bail!("the journal holds a record of version {version}, not {RECORDS_VERSION}; {advice}");
    }
    let read = postcard::take_from_bytes(record);
    match read.context("the journal holds a damaged record; move it away to start anew")? {
        (record, []) => Ok(record),
        _ => bail!("the journal holds a record with something behind it; {advice}"),
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{LeaseId, ResourceId, ResourceType};

    use super::*;
    use fabricbios_lease::{FenceRecord, StepError};

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
        older[0] -= 1;
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
}
