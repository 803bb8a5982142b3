//! Documents of made-up figures.

use std::sync::Arc;

use fabricbios_wire::{
    Binding, Effective, EndCause, Fence, Generation, LeaseEnd, LeaseId, LeaseInfo, LeasePage,
    LeasePhase, LeaseStatus, ProofStep, ResourceId, ResourceType,
};
use maud::html;

use super::*;
use crate::monitor::tests::figures;

const SCRIPT: &str = "\"><script>alert(1)</script>";
const NOW: u64 = 1_800_000_000_000;

fn lease(id: u128, is_over: bool) -> LeaseInfo {
    let step = |step: &str| ProofStep {
        step: step.to_owned().into(),
        took_us: 120,
        found: SCRIPT.to_owned(),
    };
    let end = LeaseEnd {
        at_unix_ms: NOW - 5000,
        cause: EndCause::Revoked,
        by: Some(SCRIPT.to_owned()),
        proof: vec![step("unlink"), step("drain"), step("check")],
        cleaning: vec![step("scrub")],
    };
    LeaseInfo {
        lease_id: LeaseId(id),
        resource_id: ResourceId(1),
        status: LeaseStatus::Active,
        phase: LeasePhase::Active,
        generation: Generation(1),
        capacity: 4096,
        granted_at_unix_ms: NOW - 60_000,
        expires_at_unix_ms: NOW,
        renewable_at_unix_ms: 0,
        grace_ends_unix_ms: 0,
        remaining_ms: 3_725_000,
        effective: Effective::default(),
        intent: None,
        request_token: None,
        binding: Binding::plain(ResourceType::Mem),
        tenant: Some(format!("{SCRIPT}{}", "t".repeat(30))),
        end: is_over.then(|| Arc::new(end)),
    }
}

fn fence() -> Fence {
    Fence {
        resource_id: ResourceId(2),
        resource_type: ResourceType::Block,
        lease_id: LeaseId(9),
        since_unix_ms: NOW - 90_061_000,
        reason: format!("unlink port: {SCRIPT}"),
    }
}

/// The largest page that there can be, but for fences.
fn overview() -> String {
    let figures = figures();
    let leases = LeasePage {
        leases: (1..=128).map(|id| lease(id, false)).collect(),
        next: Some(LeaseId(128)),
    };
    let told = Told {
        fences: vec![fence()],
        ends: (200..212).map(|id| lease(id, true)).collect(),
        leases,
    };
    let view = View {
        health: Health::of(&figures, true),
        figures: &figures,
        charts: html! {},
        now_unix_ms: NOW,
        told: Some(Some(Arc::new(told))),
    };
    let page = Page::new(figures.machine.node_id, false).unwrap();
    let document = page.shell.document(WORDS.title, &view.live());
    document.into_string()
}

#[test]
fn no_text_becomes_markup() {
    let of_lease = render::lease(&lease(3, true), NOW).into_string();
    let page = overview();
    for html in [&of_lease, &page] {
        assert!(!html.contains("<script"), "{html}");
        assert!(
            html.contains("&lt;script&gt;alert(1)&lt;/script&gt;"),
            "{html}"
        );
        assert!(!html.contains("\"\">"), "{html}");
    }
    // The name of the resource has a quotation mark, and is in an attribute.
    assert!(
        page.contains("aria-label=\"a &quot;b\\c\nd&lt;/script&gt; in use\""),
        "{page}"
    );
}

#[test]
fn a_page_says_what_an_operator_needs_and_is_small() {
    let page = overview();
    assert!(page.len() < 100 << 10, "{} bytes", page.len());
    for part in [
        "fabricctl fence clear 00000000000000000000000000000002",
        "1 d 1 h",
        "1 h 2 min",
        "/leases?after=00000000000000000000000000000080",
        "<meter min=\"0\" max=\"100\" value=\"99\"",
        "(120 µs)",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}
