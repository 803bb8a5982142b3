//! Encodes records for the journal. [`fabricbios_lease::FORMAT`] is the version of this encoding.

use anyhow::{Context, ensure};
use serde::{Serialize, de::DeserializeOwned};

/// Bytes of most records; a longer one grows its buffer.
const USUAL_BYTES: usize = 384;

/// A record as bytes.
pub(crate) fn encode(record: &impl Serialize) -> postcard::Result<Vec<u8>> {
    postcard::to_extend(record, Vec::with_capacity(USUAL_BYTES))
}

/// Decodes a whole record.
///
/// # Errors
/// The bytes are no record of this sort, or more than one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> anyhow::Result<T> {
    let (record, behind) = postcard::take_from_bytes(bytes).context(DAMAGED)?;
    ensure!(behind.is_empty(), "{DAMAGED}: bytes follow it");
    Ok(record)
}

const DAMAGED: &str = "the journal holds a damaged record; move the journal away to start anew";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fabricbios_lease::{
        BootTime, Extent, FORMAT, FenceRecord, LeaseRecord, Placement, Quantity, Requested,
        StepError,
    };
    use fabricbios_wire::{
        Affinity, BlockTerms, CpuIsolationClass, CpuTerms, Effective, EndCause, Generation,
        GpuTerms, LeaseEnd, LeaseId, LeaseIntent, LeasePhase, LeaseTerms, MemTerms, NetTerms,
        ProofStep, RequestToken, ResourceId, ResourceType, Transport,
    };

    use super::*;

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

    /// A lease record in which every optional part has a value.
    fn lease() -> LeaseRecord {
        let terms = CpuTerms {
            isolation: Some(CpuIsolationClass::WholeCore),
            execution_width: Some(4),
            ..CpuTerms::default()
        };
        let intent = LeaseIntent {
            affinities: vec![Affinity {
                category: 3,
                strength: 2,
                target_type: 4,
                target: b"rack 7".to_vec(),
            }],
            ..LeaseIntent::default()
        };
        let end = LeaseEnd {
            at_unix_ms: 5,
            cause: EndCause::Revoked,
            by: Some("anna".into()),
            proof: vec![ProofStep {
                step: "Connect".into(),
                took_us: 6,
                found: "refused".into(),
            }],
            cleaning: Vec::new(),
        };
        LeaseRecord {
            lease_id: LeaseId(1),
            tenant: "blue".into(),
            resource_id: ResourceId(2),
            resource_type: ResourceType::Cpu,
            capacity: 4096,
            placement: Some(Placement::Stretch(Extent {
                offset: 8192,
                length: 4096,
            })),
            generation: Generation(3),
            granted_at_unix_ms: 1_000,
            expires_at_unix_ms: 61_000,
            effective: Effective {
                transport: Some(Transport::Udp),
                cpu_execution_width: Some(4),
                ..Effective::default()
            },
            term_secs: 60,
            grace_secs: 10,
            deadline: BootTime(7),
            ended: Some(LeasePhase::Revoked),
            end: Some(Arc::new(end)),
            cannot_go_on: true,
            fenced_by_release: false,
            terms: Some(Box::new(terms.into())),
            intent: Some(Box::new(intent)),
            requested: Some(Requested {
                token: RequestToken(8),
                sum: 9,
            }),
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = encode(&fence()).unwrap();
        assert_eq!(decode::<FenceRecord>(&bytes).unwrap(), fence());
        let bytes = encode(&lease()).unwrap();
        assert_eq!(decode::<LeaseRecord>(&bytes).unwrap(), lease());
    }

    #[test]
    fn records_are_written_as_the_number_of_the_format_says() {
        let placements = [
            Placement::Amount(4096),
            Placement::Cores([1, 2].into()),
            Placement::Vector(
                [Quantity {
                    name: "vfs".into(),
                    amount: 1,
                }]
                .into(),
            ),
        ];
        let terms: [LeaseTerms; 6] = [
            MemTerms::default().into(),
            BlockTerms::default().into(),
            CpuTerms::default().into(),
            NetTerms::default().into(),
            GpuTerms::default().into(),
            LeaseTerms::Other(ResourceType::Vendor),
        ];
        let whole = [encode(&lease()).unwrap(), encode(&fence()).unwrap()].concat();
        let parts = [encode(&placements).unwrap(), encode(&terms).unwrap()].concat();
        let whole = [whole, parts].concat();
        let hex: String = whole.iter().map(|byte| format!("{byte:02x}")).collect();
        let of_format_9 = concat!(
            "0104626c75650200802001008040802003e807c8dc0300000102000000000104000000003c0a0701040105020104616e6e61",
            "0107436f6e6e65637406077265667573656401000102010100010400010001030204067261636b2037",
            "010809",
            "010102030a6465616c6c6f635f6d770345494f00",
            "018020020201020301037666730100000100000000020000000003000000040000000506",
        );
        assert_eq!(
            (FORMAT, hex.as_str()),
            (9, of_format_9),
            "another shape needs another number: docs/compatibility.md"
        );
    }

    #[test]
    fn of_a_step_that_failed_a_record_has_the_name_with_its_path_and_the_detail() {
        let reason = StepError::new("bind", "EIO").with_errno(5).over("UDP");
        let bytes = encode(&FenceRecord { reason, ..fence() }).unwrap();
        let shape = ("UDP transport: bind", "EIO", false);
        assert!(bytes.ends_with(&postcard::to_allocvec(&shape).unwrap()));
        let read: FenceRecord = decode(&bytes).unwrap();
        assert_eq!(read.reason.to_string(), "UDP transport: bind: EIO");
    }

    #[test]
    fn damage_is_told_and_not_guessed_at() {
        let good = encode(&fence()).unwrap();
        let longer = [good.as_slice(), &[0]].concat();
        let shorter = &good[..good.len() - 1];
        for bytes in [longer.as_slice(), shorter, &[]] {
            let error = decode::<FenceRecord>(bytes).unwrap_err().to_string();
            assert!(error.contains("damaged"), "{error}");
        }
    }
}
