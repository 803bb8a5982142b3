//! Reports that are lost, late, repeated and reordered, over connections that are cut: random nodes with real tables, and
//! schedulers with real views. One seed determines a whole run. `invariants.rs` has what is checked.
//!
//! A failure names its seed; with `FABRICBIOS_REPORTS_SEED=7` one seed runs alone, and prints what happens.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "all of this is a test, with small numbers"
)]

mod invariants;
mod network;
mod node;
mod scheduler;
#[path = "../verdict/world.rs"]
#[allow(dead_code, reason = "the tests of the verdict use more of it")]
mod world;

use invariants::{Broken, MISTAKES, Mistake};
use network::Run;

/// How often it has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) lost: usize,
    pub(crate) repeated: usize,
    pub(crate) refused: usize,
    pub(crate) taken: usize,
    /// Reports that came more than 30 s late.
    pub(crate) late: usize,
    /// Reports that came when a later connection had reported.
    pub(crate) of_older: usize,
    /// Leases that the tables had at the end, and requests that nodes granted and were named for.
    pub(crate) leases: usize,
    pub(crate) placed: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.refused += other.refused;
        self.taken += other.taken;
        self.late += other.late;
        self.of_older += other.of_older;
        self.leases += other.leases;
        self.placed += other.placed;
    }
}

const SEED: &str = "FABRICBIOS_REPORTS_SEED";

fn run(seed: u64, mistake: Option<Mistake>) -> Result<Counts, Broken> {
    let mut run = Run::new(seed, mistake, false);
    run.run().map(|()| run.counts)
}

#[test]
fn whatever_is_lost_late_repeated_or_reordered_every_view_becomes_what_the_tables_are() {
    if let Ok(seed) = std::env::var(SEED) {
        let mut run = Run::new(seed.parse().unwrap(), None, true);
        let ended = run.run();
        run.log
            .into_iter()
            .flatten()
            .for_each(|it| println!("{it}"));
        return ended.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
    let mut all = Counts::default();
    for seed in 1..=200 {
        let counts = run(seed, None);
        let counts = counts.unwrap_or_else(|broken| {
            panic!("{SEED}={seed} runs it again: {broken}");
        });
        all += counts;
    }
    println!("{all:?}");
    // Otherwise the runs test nothing.
    let Counts {
        lost,
        repeated,
        refused,
        taken,
        late,
        of_older,
        leases,
        placed,
    } = all;
    for (count, least) in [
        (lost, 1_000),
        (repeated, 1_000),
        (refused, 1_000),
        (taken, 10_000),
        (late, 100),
        (of_older, 50),
        (leases, 1_000),
        (placed, 100),
    ] {
        assert!(count > least, "{all:?}");
    }
}

#[test]
fn a_seed_determines_a_whole_run() {
    for seed in 1..=3 {
        let log = || {
            let mut run = Run::new(seed, None, true);
            run.run().unwrap();
            run.log.unwrap()
        };
        let first = log();
        assert!(first.len() > 100, "{} lines", first.len());
        assert!(first == log(), "seed {seed}");
    }
}

#[test]
fn each_mistake_is_found_as_what_it_breaks() {
    for (mistake, invariant) in MISTAKES {
        let finds = |seed: &u64| {
            let ended = run(*seed, Some(mistake));
            ended.is_err_and(|Broken(broken, _)| broken == invariant)
        };
        let found = (1..=200).find(finds);
        assert!(found.is_some(), "{mistake:?} is not found");
        println!("{mistake:?}: seed {found:?}");
    }
}
