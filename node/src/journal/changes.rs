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

#[cfg(test)]
mod tests {
    use fabricbios_wire::{LeaseId, ResourceId};

    use super::*;

    fn changes() -> Changes {
        let put = |value: &[u8]| Some(Value::new(value.to_vec()));
        Changes {
            stamp: Stamp {
                written_unix_ms: Some(5),
                boot_id: Some("b".into()),
            },
            records: [
                (Key::Lease(LeaseId(1)), put(b"lease")),
                (Key::Fence(ResourceId(2)), None),
                (Key::Host(300), put(b"")),
            ]
            .into(),
        }
    }

    #[test]
    fn what_was_written_is_read_and_its_bytes_are_those_of_the_format() {
        let bytes = changes().encode().unwrap();
        assert_eq!(Changes::decode(&bytes).unwrap(), changes());
        let hex: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
        let of_format_9 = concat!(
            "0105",
            "010162",
            "0001",
            "01056c65617365",
            "0102",
            "00",
            "04ac02",
            "0100"
        );
        assert_eq!(
            (fabricbios_lease::FORMAT, hex),
            (9, of_format_9.to_owned()),
            "another shape needs another number: docs/compatibility.md"
        );
    }

    #[test]
    fn no_part_of_it_makes_a_panic_or_passes_for_the_whole() {
        let bytes = changes().encode().unwrap();
        for length in 0..bytes.len() {
            if let Ok(part) = Changes::decode(&bytes[..length]) {
                assert_ne!(part, changes(), "{length}");
            }
        }
    }

    #[test]
    fn later_changes_take_the_place_of_earlier_ones() {
        let mut all = changes();
        all.add(Changes {
            stamp: Stamp::default(),
            records: [(Key::Lease(LeaseId(1)), None)].into(),
        });
        let mut found = Recovered::default();
        found
            .records
            .insert(Key::Lease(LeaseId(1)), b"old".to_vec().into());
        all.apply(&mut found);
        assert_eq!(found.records, [(Key::Host(300), Vec::new().into())].into());
        let stamp = (found.written_unix_ms, found.last_boot_id.as_deref());
        assert_eq!(stamp, (5, Some("b")));
    }
}
