//! Leases that are over: their holder, the cause and time of their end, and the proof.

use std::sync::Arc;

use fabricbios_wire::{
    Binding, EndCause, LeaseEnd, LeaseId, LeaseInfo, LeasePage, LeasePhase, LeaseStatus, ProofStep,
    Reply, ResourceType, TENANT_BYTES_MAX,
};
use serde_json::{Value, json};

use crate::{LEASE_TEXT, common::lease, json_of, saying, text_of};

/// An ended lease as the node shows it to an operator.
fn revoked() -> LeaseInfo {
    let step = |step: &str, took_us, found: &str| ProofStep {
        step: step.to_owned().into(),
        took_us,
        found: found.to_owned(),
    };
    LeaseInfo {
        status: LeaseStatus::Revoked,
        phase: LeasePhase::Revoked,
        remaining_ms: 0,
        renewable_at_unix_ms: 0,
        binding: Binding::plain(ResourceType::Mem),
        tenant: Some("blue".into()),
        end: Some(Arc::new(LeaseEnd {
            at_unix_ms: 1_800_000_031_000,
            cause: EndCause::Revoked,
            by: Some("anna".into()),
            proof: vec![
                step("dealloc_mw", 312, ""),
                step("Connect", 4_097, "refused\u{1b}[2J with status 0x4182"),
            ],
            cleaning: vec![step(
                "zero memory",
                5_400,
                "4096 bytes overwritten with zeroes",
            )],
        })),
        ..lease(60_000)
    }
}

/// The same lease as the node shows it to its tenant.
fn as_tenant(mut info: LeaseInfo) -> LeaseInfo {
    info.tenant = None;
    let end = info.end.iter_mut().map(Arc::make_mut);
    end.for_each(|end| end.by = None);
    info
}

/// The JSON of the end.
fn told(json: &Value) -> Value {
    let keys = [
        "tenant",
        "ended_at_unix_ms",
        "end_cause",
        "ended_by",
        "proof",
        "cleaning",
    ];
    let told = keys.iter().filter_map(|key| Some((*key, json.get(key)?)));
    told.map(|(key, value)| (key.to_owned(), value.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn a_query_tells_how_the_lease_ended_with_the_proof() {
    let query = format!("lease query {LEASE_TEXT}");
    let proof = json!([
        { "step": "dealloc_mw", "took_us": 312 },
        { "step": "Connect", "found": "refused\u{1b}[2J with status 0x4182", "took_us": 4_097 },
    ]);
    let cleaning = json!([
        { "step": "zero memory", "found": "4096 bytes overwritten with zeroes", "took_us": 5_400 },
    ]);
    let node = saying(Ok(Reply::Lease(revoked())));
    let expected = json!({
        "tenant": "blue",
        "ended_at_unix_ms": 1_800_000_031_000_u64,
        "end_cause": "revoked",
        "ended_by": "anna",
        "proof": proof,
        "cleaning": cleaning,
    });
    assert_eq!(told(&json_of(&node, &query)), expected);
    let text = text_of(&node, &query);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|it| !it.is_empty())
                .collect()
        })
        .collect();
    for line in [
        &["tenant", "blue"][..],
        &["ended", "2027-01-15T08:00:31Z"],
        &["cause", "revoked, by operator anna"],
        &["dealloc_mw", "0.31", "ok"],
        &["Connect", "4.10", "refused [2J with status 0x4182"],
        &["STEP OF THE CLEANING", "MS", "FOUND"],
        &["zero memory", "5.40", "4096 bytes overwritten with zeroes"],
    ] {
        assert!(lines.contains(&line.to_vec()), "{line:?} in\n{text}");
    }

    let node = saying(Ok(Reply::Lease(as_tenant(revoked()))));
    let expected = json!({
        "ended_at_unix_ms": 1_800_000_031_000_u64,
        "end_cause": "revoked",
        "proof": proof,
        "cleaning": cleaning,
    });
    assert_eq!(told(&json_of(&node, &query)), expected);
    let text = text_of(&node, &query);
    assert!(
        text.contains("dealloc_mw") && !text.contains("anna"),
        "{text}"
    );

    let node = saying(Ok(Reply::Lease(lease(60_000))));
    assert_eq!(told(&json_of(&node, &query)), json!({}));
    assert!(!text_of(&node, &query).contains("ended"));
}

#[test]
fn a_list_tells_operators_whose_each_was_and_why_and_when_it_ended_in_120_columns() {
    let mut ended = revoked();
    ended.capacity = (1 << 30) - 1;
    ended.tenant = Some("t".repeat(TENANT_BYTES_MAX));
    if let Some(end) = ended.end.as_mut().map(Arc::make_mut) {
        end.cause = EndCause::KeyNotRetired;
        end.proof.clear();
        end.cleaning.clear();
    }
    let alive = LeaseInfo {
        lease_id: LeaseId(u128::MAX),
        tenant: Some("red".into()),
        ..lease(59_500)
    };
    let page = |leases: &[LeaseInfo]| {
        saying(Ok(Reply::Leases(LeasePage {
            leases: leases.to_vec(),
            next: None,
        })))
    };
    let node = page(&[ended.clone(), alive.clone()]);
    let json = json_of(&node, "lease list --all");
    let first = told(&json["leases"][0]);
    assert_eq!(first["tenant"], "t".repeat(TENANT_BYTES_MAX));
    assert_eq!(first["end_cause"], "key_not_retired");
    assert!(first.get("proof").is_none(), "{first}");

    let text = text_of(&node, "lease list --all");
    let cells = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.iter().all(|line| line.chars().count() <= 120),
        "{text}"
    );
    let headings = [
        "LEASE", "TENANT", "STATE", "TYPE", "CAPACITY", "END", "CAUSE",
    ];
    assert_eq!(cells(lines[0]), headings);
    let cut = format!("{}…", "t".repeat(17));
    let rest = [
        "revoked",
        "mem",
        "1023.9",
        "MiB",
        "2027-01-15T08:00:31Z",
        "key_not_retired",
    ];
    assert_eq!(cells(lines[1])[1..], [&[&*cut], &rest[..]].concat());
    assert_eq!(
        cells(lines[2])[1..],
        ["red", "active", "mem", "1", "MiB", "in", "59", "s"]
    );

    // Columns without any text are omitted, which leaves room for the resource column.
    let text = text_of(&page(&[as_tenant(ended)]), "lease list --all");
    let headings = ["LEASE", "STATE", "TYPE", "CAPACITY", "END", "CAUSE"];
    assert_eq!(cells(text.lines().next().unwrap_or_default()), headings);
    let text = text_of(&page(&[as_tenant(alive)]), "lease list");
    let headings = ["LEASE", "STATE", "TYPE", "CAPACITY", "END", "RESOURCE"];
    assert_eq!(cells(text.lines().next().unwrap_or_default()), headings);
}
