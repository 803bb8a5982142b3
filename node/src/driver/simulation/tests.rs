//! Some fixed seeds, those of `cargo xtask sim`, and the planted mistakes.

use std::collections::BTreeSet;

use fabricbios_wire::LeaseTerms;

use super::{
    Run,
    invariants::{self, Mistake, Mistakes},
    kinds,
    runner::{self, Log, Plan},
};

/// Runs one simulation. Returns the number of granted leases.
fn run(plan: &Plan, log: &Log, mistake: Option<Mistake>) -> usize {
    let mut run = Run::new(plan.seed, mistake, log);
    run.acts(plan);
    let granted = run.world.lock().granted.len();
    run.ends();
    granted
}

fn without_a_mistake(plan: &Plan, log: &Log) -> usize {
    run(plan, log, None)
}

#[test]
fn whatever_fails_and_whenever_it_dies_every_invariant_holds() {
    if let Some(plan) = Plan::asked() {
        return runner::run_all(&plan, without_a_mistake);
    }
    let seeds = 1..=60;
    let granted = seeds.clone().map(|seed| {
        let (outcome, _) = runner::run_one(&Plan::of(seed), false, without_a_mistake);
        outcome.unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}"))
    });
    // Otherwise a simulated fault fences every resource at once, and the runs test nothing.
    let granted: usize = granted.sum();
    assert!(granted > 5 * seeds.count(), "{granted} leases");
}

#[test]
fn every_kind_that_the_node_leases_is_simulated() {
    let all = crate::kinds::KINDS.iter().map(|it| it.resource_type);
    let leased = all.filter(|it| !matches!(LeaseTerms::plain(*it), LeaseTerms::Other(_)));
    let simulated = kinds::KINDS.iter().map(|it| it.resource_type);
    let simulated: BTreeSet<String> = simulated.map(|it| it.to_string()).collect();
    let missing: Vec<String> = leased.map(|it| it.to_string()).collect();
    let missing: Vec<&String> = missing
        .iter()
        .filter(|it| !simulated.contains(*it))
        .collect();
    assert!(
        missing.is_empty(),
        "{missing:?}: no entry in KINDS of node/src/driver/simulation/kinds.rs"
    );
}

#[test]
fn a_seed_determines_a_whole_run() {
    for seed in 1..=5 {
        let logged = || runner::run_one(&Plan::of(seed), true, without_a_mistake).1;
        let first = logged();
        assert!(first.len() > 100, "{} lines", first.len());
        assert_eq!(first, logged());
    }
}

/// Checks that one of the first seeds finds each mistake, as what it breaks.
fn are_found(mistakes: Mistakes) {
    for &(mistake, invariant) in mistakes {
        let run = |plan: &Plan, log: &Log| run(plan, log, Some(mistake));
        let finds = |seed: &u64| {
            let (outcome, _) = runner::run_one(&Plan::of(*seed), false, run);
            outcome.is_err_and(|it| it.why.starts_with(&format!("{invariant}:")))
        };
        let found = (1..=200).find(finds);
        assert!(found.is_some(), "{mistake:?} is not found");
        println!("{mistake:?}: seed {found:?}");
    }
}

#[test]
fn mistakes_of_the_journal_and_the_driver_are_found() {
    are_found(invariants::OF_THE_JOURNAL_AND_THE_DRIVER);
}

#[test]
fn mistakes_of_paths_are_found() {
    are_found(invariants::OF_PATHS);
}

#[test]
fn mistakes_of_stores_are_found() {
    are_found(invariants::OF_STORES);
}
