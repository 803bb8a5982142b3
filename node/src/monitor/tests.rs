//! The pages of made-up figures, byte by byte. With `GOLDEN=write` in the environment these tests write what they would
//! otherwise compare.

use std::{env, fs, path::PathBuf, time::Duration};

use fabricbios_fallback_udp::Tally as Datagrams;
use fabricbios_http::{
    metrics::{Format, Metric, encode},
    process::Process,
};
use fabricbios_lease::{
    Availability, BindingId, CutTime, Histogram, Note, Proof, State, StateFigures, StepError,
};
use fabricbios_wire::{
    EndCause, Epoch, Generation, InventoryExtension, LeaseError, LeaseId, NodeId, Refusal,
    RefusalClass, ResourceId, ResourceInventory, ResourceType, admission_flags, health as healths,
};

use super::{Figures, machine::MachineFigures, metrics::METRICS};
use crate::{
    driver::{
        load::PoolFigures,
        tally::{DriverFigures, Tally},
    },
    journal::JournalFigures,
};

const MEMORY: ResourceId = ResourceId(1);
const POOL: ResourceId = ResourceId(2);

/// Compares `text` with this file of the repository, or writes it.
fn golden(file: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(file);
    if env::var_os("GOLDEN").is_some_and(|it| it == "write") {
        fs::write(&path, text).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap();
    assert!(
        there == text,
        "{file} is not what the code says: run this test with GOLDEN=write, and look at the change"
    );
}

fn available(resource_id: ResourceId, resource_type: ResourceType, fenced: bool) -> Availability {
    Availability {
        resource_id,
        resource_type,
        capacity: 1 << 30,
        available: 1 << 20,
        classes: None,
        available_by_class: Vec::new(),
        free_dimensions: Vec::new(),
        fenced,
        trouble: None,
        fenced_part: 0,
        admission: InventoryExtension::Available(resource_id, 0),
    }
}

/// A node with memory in use, and a fenced pool whose name has every character that a format escapes.
pub(super) fn figures() -> Figures {
    let mut tally = Tally::default();
    let mut of = Histogram::default();
    for us in [80, 90, 250, 2_000_000_000] {
        of.add(Duration::from_micros(us));
    }
    let memory = tally.resources.entry(MEMORY).or_default();
    (memory.grants, memory.cleaned, memory.cut_times) = (7, 12288, of.clone());
    let binding_id = BindingId {
        lease_id: LeaseId(9),
        generation: Generation(1),
        resource_id: MEMORY,
    };
    let took = Duration::from_micros(140);
    for cause in [EndCause::Expired, EndCause::Freed] {
        tally.note(&Note::Cut {
            binding_id,
            cause,
            time: CutTime {
                took,
                after_deadline: (cause == EndCause::Expired).then_some(took),
            },
            proof: Proof::default(),
        });
    }
    tally.note(&Note::Fenced {
        resource_id: POOL,
        lease_id: LeaseId(9),
        reason: StepError::new("unlink port", "nvme0: <script>"),
        by_release: false,
    });
    let refusal = Refusal::new(
        LeaseError::CapacityExceeded,
        RefusalClass::Transient,
        "full",
    );
    for kind in [
        Some(ResourceType::Mem),
        Some(ResourceType::Unknown(77)),
        None,
    ] {
        tally.refused(kind, &refusal);
    }
    let named = |id, name: &str| InventoryExtension::Name(id, name.to_owned());
    let in_state = |state, leases, above_bound| StateFigures {
        resource_id: MEMORY,
        resource_type: ResourceType::Mem,
        state,
        leases,
        above_bound,
        stays: of.clone(),
    };
    let states = vec![
        in_state(State::Active, 5, None),
        in_state(State::Cutting, 2, Some(1)),
    ];
    let inventory = ResourceInventory {
        node_id: NodeId([0xab; 32]),
        epoch: Epoch(3),
        health: healths::FENCED,
        mem_arenas: Vec::new(),
        block_devs: Vec::new(),
        cpu_caps: Vec::new(),
        nics: Vec::new(),
        gpus: Vec::new(),
        extensions: vec![named(MEMORY, "mem0"), named(POOL, "a \"b\\c\nd</script>")],
    };
    Figures {
        driver: DriverFigures {
            offered: vec![
                available(MEMORY, ResourceType::Mem, false),
                available(POOL, ResourceType::Block, true),
            ],
            states,
            inventory,
            tally,
            waiting: Default::default(),
            held: 3,
            pools: vec![PoolFigures {
                kind: ResourceType::Mem,
                pool: "ending",
                waiting: 2,
                running: 1,
            }],
            journal: JournalFigures {
                commit_times: of,
                ..JournalFigures::default()
            },
            unwritable: None,
            is_draining: false,
        },
        machine: MachineFigures {
            node_id: NodeId([0xab; 32]),
            fabric: "cd".repeat(16),
            certificate_ends: Some(1_800_000_000),
            data_paths: vec![(
                ResourceType::Mem,
                Datagrams {
                    received: 5,
                    ..Datagrams::default()
                },
            )],
            helper_calls: vec![("read", 1)],
            log_lines_dropped: 0,
            descriptors: 40,
            descriptors_max: 1024,
            process: Some(Process {
                cpu: Duration::from_millis(1500),
                resident_bytes: 1 << 24,
            }),
        },
        pages: Default::default(),
    }
}

#[test]
fn the_pages_of_metrics_are_as_they_were() {
    for (file, format) in [
        ("metrics.txt", Format::Text),
        ("metrics.openmetrics", Format::OpenMetrics),
    ] {
        let version = env!("CARGO_PKG_VERSION");
        let page = encode(METRICS, &figures(), format).replace(version, "VERSION");
        golden(&format!("node/src/monitor/golden/{file}"), &page);
    }
}

#[test]
fn every_metric_is_on_the_page_of_the_docs() {
    let rows: String = METRICS.iter().map(Metric::row).collect();
    let file = "docs/metrics.md";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(file);
    let page = fs::read_to_string(path).unwrap();
    let (head, rest) = page.split_once("|---|---|---|---|\n").unwrap();
    let (_, tail) = rest.split_once("\n\n").unwrap();
    golden(file, &format!("{head}|---|---|---|---|\n{rows}\n{tail}"));
}

#[test]
fn names_are_unique_and_words_of_the_formats() {
    let mut names: Vec<String> = METRICS.iter().map(Metric::full_name).collect();
    let is_word = |it: &String| it.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    assert!(names.iter().all(is_word), "{names:?}");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), METRICS.len());
    assert!(
        METRICS
            .iter()
            .all(|it| !it.name.ends_with("_total") && it.help.ends_with('.'))
    );
}

/// The page of /healthz for who asks, as JSON.
fn health(figures: &Figures, is_operator: bool) -> String {
    serde_json::to_string(&super::health::Health::of(figures, is_operator)).unwrap()
}

#[test]
fn a_reason_that_may_name_a_lease_is_for_operators() {
    let mut figures = figures();
    let why = InventoryExtension::HealthReason(POOL, "destroy volume: lease 1aa8".into());
    figures.driver.inventory.extensions.push(why);
    assert!(health(&figures, true).contains("lease 1aa8"));
    let told = health(&figures, false);
    assert!(
        !told.contains("1aa8") && told.contains("fabricctl fence list"),
        "{told}"
    );
}

#[test]
fn a_node_whose_resources_are_all_fenced_or_away_is_not_ready() {
    let mut figures = figures();
    assert!(health(&figures, false).contains(r#""ready":true"#));
    figures.driver.offered[0].admission = InventoryExtension::Admission {
        resource_id: MEMORY,
        flags: admission_flags::ABSENT,
        forbidden: Vec::new(),
        most: Vec::new(),
    };
    assert!(health(&figures, false).contains(r#""ready":false"#));
}
