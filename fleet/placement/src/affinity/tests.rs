use fabricbios_wire::{
    InventoryExtension, LeaseAllocRequest, LeaseIntent, LeasePhase, LeaseReport, ReportPart,
    ReportedLease, ResourceType,
};

use super::*;
use crate::{
    Asking,
    view::tests::{from, node, report},
};

const ALL: u64 = 1 << 30;

/// Nodes 1 to 4, the first the emptiest: two in each rack. Node 2 has a lease of tenant blue, and node 4 one of red.
fn view() -> View {
    let mut view = View::default();
    for number in 1..=4_u8 {
        let mut reporter = from(number, number.into());
        let rack = if number <= 2 { "rack=r7" } else { "rack=r8" };
        reporter.labels = vec![rack.into(), format!("zone={number}")];
        let mut told = report(number, 1, ALL / 8 * (9 - u64::from(number)));
        let id = told.inventory.mem_arenas[0].resource_id;
        let name = InventoryExtension::Name(id, format!("mem{number}"));
        told.inventory.extensions.push(name);
        view.report(&reporter, 0, told).unwrap();
        let tenant = match number {
            2 => "blue",
            4 => "red",
            _ => continue,
        };
        let lease = ReportedLease {
            lease_id: LeaseId(u128::from(number) + 100),
            resource_id: id,
            resource_type: ResourceType::Mem,
            phase: LeasePhase::Active,
            capacity: 1,
            expires_at_unix_ms: 0,
            tenant: tenant.into(),
        };
        let whole = LeaseReport {
            sequence: 2,
            part: ReportPart::Whole,
            leases: vec![lease],
            gone: vec![],
        };
        view.report_leases(&reporter, whole).unwrap();
    }
    view
}

const STRENGTHS: [&str; 3] = ["required", "preferred", "avoid"];

fn affinity(strength: &str, category: &str, target_type: u8, target: &[u8]) -> Affinity {
    let number = |of: &[&str], word: &str| {
        let at = of.iter().position(|it| *it == word).unwrap();
        u8::try_from(at).unwrap() + 1
    };
    Affinity {
        category: number(&category::NAMES, category),
        strength: number(&STRENGTHS, strength),
        target_type,
        target: target.to_vec(),
    }
}

fn label(strength: &str, category: &str, text: &str) -> Affinity {
    affinity(strength, category, 4, text.as_bytes())
}

/// The numbers of the nodes that tenant blue is named, in their order.
fn placed(affinities: Vec<Affinity>) -> Result<Vec<u8>, Refusal> {
    let request = LeaseAllocRequest {
        intent: LeaseIntent {
            affinities,
            ..LeaseIntent::default()
        },
        ..LeaseAllocRequest::new(ResourceType::Mem, 1, 60)
    };
    let asking = Asking {
        tenant: "blue",
        ..Asking::default()
    };
    let found = view().place_for(&request, &asking)?;
    Ok(found.iter().map(|it| it.node_id.0[0]).collect())
}

#[test]
fn a_rack_is_required_preferred_or_avoided() {
    let of = |strength| placed(vec![label(strength, "rack", "r8")]).unwrap();
    assert_eq!(placed(vec![]), Ok(vec![1, 2, 3, 4]));
    assert_eq!(of("required"), [3, 4]);
    assert_eq!(of("preferred"), [3, 4, 1, 2]);
    assert_eq!(of("avoid"), [1, 2, 3, 4]);
    let away = placed(vec![label("avoid", "rack", "r7")]);
    assert_eq!(away, Ok(vec![3, 4, 1, 2]));
    let whole_label = placed(vec![label("required", "node", "zone=3")]);
    assert_eq!(whole_label, Ok(vec![3]));
}

#[test]
fn ids_name_nodes_resources_and_the_callers_own_leases_and_the_racks_of_these() {
    let resource = ResourceId(4).0.to_be_bytes();
    let own = 102_u128.to_be_bytes();
    let cases = [
        ("node", 3, &node(4).0[..], vec![4]),
        ("rack", 3, &node(4).0[..], vec![3, 4]),
        ("resource", 1, &resource[..], vec![3]),
        ("node", 1, &resource[..], vec![3]),
        ("rack", 1, &resource[..], vec![3, 4]),
        ("data", 2, &own[..], vec![2]),
        ("resource", 2, &own[..], vec![2]),
        ("rack", 2, &own[..], vec![1, 2]),
        ("resource", 4, b"mem3", vec![3]),
        ("tenant", 4, b"blue", vec![2]),
    ];
    for (category, target_type, target, expected) in cases {
        let required = affinity("required", category, target_type, target);
        assert_eq!(
            placed(vec![required.clone()]),
            Ok(expected.clone()),
            "{category}"
        );
        let preferred = Affinity {
            strength: PREFERRED,
            ..required
        };
        let found = placed(vec![preferred]).unwrap();
        assert_eq!(found[..expected.len()], expected, "{category}");
        assert_eq!(found.len(), 4);
    }
}

#[test]
fn what_nobody_has_is_refused_for_now_if_it_is_required_and_else_ignored() {
    let others_lease = 104_u128.to_be_bytes();
    let nothing = [
        (label("required", "rack", "r9"), "rack names: \"r9\""),
        (label("required", "data", "model-7"), "model-7"),
        (label("required", "tenant", "red"), "red"),
        (affinity("required", "data", 2, &others_lease), "of yours"),
        (affinity("required", "node", 3, &[9; 32]), "0909"),
        (affinity("required", "resource", 1, &[9; 16]), "0909"),
    ];
    for (required, says) in nothing {
        let refused = placed(vec![required.clone()]).unwrap_err();
        let is = (refused.error, refused.class);
        assert_eq!(is, (LeaseError::Unavailable, RefusalClass::Transient));
        assert!(refused.message.contains(says), "{says} in {refused}");
        for strength in [PREFERRED, 3] {
            let wished = Affinity {
                strength,
                ..required.clone()
            };
            assert_eq!(placed(vec![wished]), Ok(vec![1, 2, 3, 4]));
        }
    }
}

#[test]
fn another_tenants_lease_is_refused_in_the_words_of_one_that_nobody_has() {
    let refused = |id: u128| {
        let target = id.to_be_bytes();
        let refused = placed(vec![affinity("required", "data", 2, &target)]).unwrap_err();
        refused.message.replace(&format!("{id:032x}"), "ID")
    };
    assert_eq!(refused(104), refused(999));
}

#[test]
fn all_that_is_required_must_be_there_and_a_refusal_says_how_many_lack_it() {
    let both = [
        label("required", "rack", "r7"),
        label("required", "node", "zone=3"),
    ];
    let refused = placed(both.to_vec()).unwrap_err();
    let says = "4 by affinity";
    assert!(refused.message.contains(says), "{refused}");
    assert_eq!(refused.class, RefusalClass::Transient);
}

#[test]
fn wishes_add_up() {
    let wishes = vec![
        label("preferred", "rack", "r8"),
        label("avoid", "node", "zone=3"),
        label("preferred", "tenant", "blue"),
        label("preferred", "node", "zone=2"),
    ];
    assert_eq!(placed(wishes), Ok(vec![2, 4, 1, 3]));
}
