//! What commits have changed: the payload of a frame, and what a checkpoint brings into the journal's file.

use serde::{Deserialize, Serialize};

use super::{Group, Key, Recovered, Value};

/// Bytes of a change beside its value, at most.
const HEAD_BYTES: usize = 32;

/// The changes of one commit or more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) stamp: Stamp,
    pub(super) records: Group,
}

/// When and on which boot. The time of the last write belongs to the boot that is written: a later start compares it
/// with the clock of another boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    /// The wall-clock time of the last commit; `None`: no lease or fence was written on this boot yet.
    pub(super) written_unix_ms: Option<u64>,
    /// The boot, with its first leases or fences.
    pub(super) boot_id: Option<String>,
}

impl Changes {
    /// Adds the changes of a later commit.
    pub(super) fn add(&mut self, later: Self) {
        let Self { stamp, records } = later;
        self.stamp.written_unix_ms = stamp.written_unix_ms.or(self.stamp.written_unix_ms);
        self.stamp.boot_id = stamp.boot_id.or(self.stamp.boot_id.take());
        self.records.extend(records);
    }

    /// Changes the contents of a journal accordingly.
    pub(super) fn apply(self, to: &mut Recovered) {
        let Self { stamp, records } = self;
        to.written_unix_ms = stamp.written_unix_ms.unwrap_or(to.written_unix_ms);
        to.last_boot_id = stamp.boot_id.or(to.last_boot_id.take());
        for (key, value) in records {
            match value {
                Some(value) => drop(to.records.insert(key, value)),
                None => drop(to.records.remove(&key)),
            }
        }
    }

    /// The changes as bytes.
    pub(super) fn encode(&self) -> postcard::Result<Value> {
        let of_records = self.records.values().flatten();
        let of_records: usize = of_records.map(|value| value.len()).sum();
        let heads = (self.records.len() + 4) * HEAD_BYTES;
        // With room for all, so that no copy of a part is left behind.
        let bytes = Vec::with_capacity(of_records + heads);
        let mut bytes = postcard::to_extend(&self.stamp, bytes)?;
        for change in &self.records {
            bytes = postcard::to_extend(&change, bytes)?;
        }
        Ok(Value::new(bytes))
    }

    /// The changes in these bytes.
    ///
    /// # Errors
    /// The bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> postcard::Result<Self> {
        let (stamp, mut rest) = postcard::take_from_bytes(bytes)?;
        let mut records = Group::new();
        while !rest.is_empty() {
            let ((key, value), behind): ((Key, Option<Value>), _) =
                postcard::take_from_bytes(rest)?;
            records.insert(key, value);
            rest = behind;
        }
        Ok(Self { stamp, records })
    }
}
