//! The verdict about what a node has reported is that of its table: random offers, leases, conditions and requests.
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod world;

use std::collections::BTreeSet;

use fabricbios_lease::{Filter, Removed, Wordless};
use fabricbios_placement::Shadow;
use fabricbios_wire::{
    LeaseAllocRequest, LeaseError, Refusal, RefusalClass, ResourceId, ResourceType,
};
use proptest::prelude::*;

use world::{Dice, Fate, World};

/// Why the table may answer otherwise than the shadow says, by design.
#[derive(Debug, PartialEq)]
enum Apart {
    /// A lease that is over is being cleaned: the table says when to ask again. The shadow says that it is full now, and a
    /// scheduler, which knows of the lease, that it is busy.
    Cleaning,
}

fn compared(
    shadow: Result<ResourceId, (Filter, Refusal)>,
    table: Result<ResourceId, Refusal>,
) -> Result<Option<Apart>, String> {
    match (&shadow, &table) {
        (Ok(shadow), Ok(table)) if shadow == table => Ok(None),
        (Err((by, shadow)), Err(table)) if table.retry_after_ms.is_some() => {
            let is_room = matches!(by, Filter::Capacity | Filter::Exclusivity);
            match is_room && shadow.class == RefusalClass::Transient {
                true => Ok(Some(Apart::Cleaning)),
                false => Err(format!("{shadow:?} and {table:?}")),
            }
        }
        (Err((_, shadow)), Err(table))
            if (shadow.error, shadow.class) == (table.error, table.class) =>
        {
            Ok(None)
        }
        _ => Err(format!("the shadow: {shadow:?}, the table: {table:?}")),
    }
}

/// The same with words and without.
fn shadow_says(
    shadow: &Shadow,
    request: &LeaseAllocRequest,
) -> Result<ResourceId, (Filter, Refusal)> {
    let says = shadow.verdict::<Refusal>(request);
    let wordless = says.clone().map_err(|Removed { by, refusal }| {
        let refusal = Wordless::from(refusal);
        Removed { by, refusal }
    });
    assert_eq!(shadow.verdict::<Wordless>(request), wordless);
    says.map(|it| it.resource_id)
        .map_err(|it| (it.by, it.refusal))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn shadow_and_table_give_the_same_verdict(bytes in prop::collection::vec(any::<u8>(), 1200)) {
        let mut dice = Dice::new(bytes);
        let mut world = World::random(&mut dice);
        for _ in 0..24 {
            world.happens(&mut dice);
            let request = world::request(&mut dice, &world);
            let shadow = Shadow::new(&world.reported());
            prop_assert!(shadow.is_whole());
            let shadow = shadow_says(&shadow, &request);
            let view = world.view();
            let table = world.ask("blue", &request, Fate::random(&mut dice));
            match compared(shadow, table) {
                Ok(Some(Apart::Cleaning)) => {
                    let refusal = view.place(&request, 1).unwrap_err();
                    prop_assert_eq!(refusal.error, LeaseError::ResourceBusy, "{}\n{:?}\n{:?}", refusal, &request, &world);
                }
                Ok(None) => {}
                Err(why) => {
                    return Err(TestCaseError::fail(format!("{request:?}: {why}\n{world:?}")));
                }
            }
        }
    }
}

/// The worlds of the test above have grants, each filter, and rooms that are being cleaned.
#[test]
fn random_worlds_reach_every_filter() {
    let mut seen = BTreeSet::new();
    let mut state = 1_u32;
    for _ in 0..150 {
        let bytes = (0..1200).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        });
        let mut dice = Dice::new(bytes.collect());
        let mut world = World::random(&mut dice);
        for _ in 0..24 {
            world.happens(&mut dice);
            let request = world::request(&mut dice, &world);
            let says = shadow_says(&Shadow::new(&world.reported()), &request);
            let table = world.ask("blue", &request, Fate::random(&mut dice));
            seen.insert(
                says.as_ref()
                    .map_or_else(|(by, _)| by.name(), |_| "granted"),
            );
            if compared(says, table) == Ok(Some(Apart::Cleaning)) {
                seen.insert("cleaning");
            }
        }
    }
    let all = [
        "capacity",
        "class",
        "cleaning",
        "exclusivity",
        "granted",
        "health",
        "kind",
        "terms",
        "transport",
    ];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
}

/// What depends on the tenant stays with the table: the shadow says yes, and the client goes on to the next node.
#[test]
fn the_quota_and_the_rights_of_a_tenant_are_the_tables_alone() {
    let mut world = World::of_each_kind(|policy| {
        policy.tenant_capacity_max = [(ResourceType::Mem, 10)].into();
    });
    for (kind, tenant) in [(ResourceType::Mem, "blue"), (ResourceType::Net, "red")] {
        let request = LeaseAllocRequest::new(kind, 20, 60);
        let shadow = Shadow::new(&world.reported());
        assert!(shadow.verdict::<Refusal>(&request).is_ok(), "{kind}");
        let refusal = world.ask(tenant, &request, Fate::Holds).unwrap_err();
        assert_eq!(refusal.class, RefusalClass::Policy, "{refusal}");
    }
}

#[test]
fn a_busy_gpu_is_busy_in_the_shadow_too() {
    let mut world = World::of_each_kind(|_| {});
    let whole = world::gpu(100, Some(2), None);
    world.ask("blue", &whole, Fate::Holds).unwrap();
    let shared = world::gpu(10, Some(0), None);
    let shadow = Shadow::new(&world.reported());
    let removed = shadow.verdict::<Refusal>(&shared).unwrap_err();
    assert_eq!(
        (removed.by, removed.refusal.error),
        (Filter::Exclusivity, LeaseError::ResourceBusy)
    );
}

/// What a node of an earlier version does not say refuses nothing.
#[test]
fn what_a_node_does_not_say_refuses_nothing_and_never_for_good() {
    let mut world = World::of_each_kind(|policy| policy.lease_secs_max = 60);
    let mut told = world.reported();
    world::forget_what_is_new(&mut told);
    let shadow = Shadow::new(&told);
    assert!(!shadow.is_whole());
    let long = LeaseAllocRequest::new(ResourceType::Mem, 5, 3600);
    assert!(shadow.verdict::<Refusal>(&long).is_ok());
    assert!(world.ask("blue", &long, Fate::Holds).is_err());
    let too_much = LeaseAllocRequest::new(ResourceType::Mem, 1 << 60, 60);
    let refusal = shadow.verdict::<Refusal>(&too_much).unwrap_err().refusal;
    assert_eq!(refusal.class, RefusalClass::Transient, "{refusal}");
    let few_slices = world::gpu(100, Some(0), Some(1));
    assert!(shadow.verdict::<Refusal>(&few_slices).is_ok());
}
