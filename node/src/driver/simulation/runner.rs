//! Runs seeds, and shrinks a run that fails.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use clap::Parser;

/// Set by `cargo xtask sim`: the arguments of [`Plan`].
const ARGUMENTS: &str = "FABRICBIOS_SIM";

/// Which seeds run, and which part of each run. An act is a step of somebody outside of the node, see `acts.rs`.
#[derive(Clone, Debug, Default, Parser)]
#[command(no_binary_name = true)]
pub(super) struct Plan {
    #[arg(long)]
    pub(super) seed: u64,
    /// For this long, with one seed after the other.
    #[arg(long)]
    secs: Option<u64>,
    /// Prints what happens.
    #[arg(long)]
    trace: bool,
    /// Only this many acts.
    #[arg(long)]
    acts: Option<usize>,
    /// Without these acts.
    #[arg(long, value_delimiter = ',')]
    without: Vec<usize>,
}

impl Plan {
    /// A whole run.
    pub(super) fn of(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// The plan in the environment, if there is one.
    pub(super) fn asked() -> Option<Self> {
        let asked = std::env::var(ARGUMENTS).ok()?;
        let parsed = Self::try_parse_from(asked.split_whitespace());
        Some(parsed.unwrap_or_else(|error| panic!("{ARGUMENTS}: {error}")))
    }

    /// Whether a run has this act; `None`: neither this one nor a later one.
    pub(super) fn has(&self, act: usize) -> Option<bool> {
        let goes_on = self.acts.is_none_or(|acts| act < acts);
        goes_on.then(|| !self.without.contains(&act))
    }

    fn command(&self) -> String {
        let seed = self.seed;
        let acts = self.acts.map(|acts| format!(" --acts {acts}"));
        let without: Vec<String> = self.without.iter().map(usize::to_string).collect();
        let without = match without.is_empty() {
            true => String::new(),
            false => format!(" --without {}", without.join(",")),
        };
        let acts = acts.unwrap_or_default();
        format!("cargo xtask sim --seed {seed}{acts}{without} --trace")
    }
}

/// What happened in a run. Survives a panic of the run.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Logged>>);

#[derive(Debug, Default)]
struct Logged {
    is_on: bool,
    lines: Vec<String>,
    acts: usize,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Logged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, if somebody wants to read it.
    pub(super) fn line(&self, line: impl FnOnce() -> String) {
        let mut logged = self.lock();
        if logged.is_on {
            let line = line();
            logged.lines.push(line);
        }
    }

    /// Counts an act that begins.
    pub(super) fn act(&self, act: usize) {
        self.lock().acts = act + 1;
    }
}

/// A run that failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// Begins with the name of the invariant.
    pub(super) why: String,
    /// The acts that had begun.
    acts: usize,
}

/// Runs one seed with `run`. Returns its result and the log.
pub(super) fn run_one<T>(
    plan: &Plan,
    is_logged: bool,
    run: impl Fn(&Plan, &Log) -> T,
) -> (Result<T, Failure>, Vec<String>) {
    let log = Log::default();
    log.lock().is_on = is_logged;
    let outcome = catch_unwind(AssertUnwindSafe(|| run(plan, &log)));
    let outcome = outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        Failure {
            why: text.unwrap_or_else(|| "a panic without words".to_owned()),
            acts: log.lock().acts,
        }
    });
    let lines = std::mem::take(&mut log.lock().lines);
    (outcome, lines)
}

/// The smallest plan found that fails in the same way: first as few acts as possible, then without each act that is not
/// needed.
fn shrink<T>(plan: &Plan, failure: &Failure, run: impl Fn(&Plan, &Log) -> T) -> Plan {
    let of = |why: &str| why.split([':', ' ']).next().map(str::to_owned);
    let fails = |plan: &Plan| {
        let (outcome, _) = run_one(plan, false, &run);
        outcome.is_err_and(|it| of(&it.why) == of(&failure.why))
    };
    let with = |acts| Plan {
        acts: Some(acts),
        ..plan.clone()
    };
    let (mut few, mut enough) = (0, failure.acts);
    while few < enough {
        let half = few.midpoint(enough);
        match fails(&with(half)) {
            true => enough = half,
            false => few = half + 1,
        }
    }
    let mut least = with(enough);
    for act in (0..enough).rev() {
        let mut without = least.clone();
        without.without.push(act);
        if fails(&without) {
            least = without;
        }
    }
    least.without.sort_unstable();
    least
}

/// Runs the seeds of `plan`, and says what happened.
pub(super) fn run_all<T>(plan: &Plan, run: impl Fn(&Plan, &Log) -> T) {
    let time = Duration::from_secs(plan.secs.unwrap_or(0));
    let began = Instant::now();
    let mut seeds = 0;
    loop {
        let plan = Plan {
            seed: plan.seed.wrapping_add(seeds),
            ..plan.clone()
        };
        let (outcome, lines) = run_one(&plan, plan.trace, &run);
        lines.iter().for_each(|line| println!("{line}"));
        seeds += 1;
        if let Err(failure) = outcome {
            let least = shrink(&plan, &failure, &run);
            let (_, lines) = run_one(&least, true, &run);
            println!("the shortest run that fails:");
            lines.iter().for_each(|line| println!("{line}"));
            let (seed, why, again) = (plan.seed, failure.why, least.command());
            panic!("seed {seed}: {why}\nagain: {again}");
        }
        if began.elapsed() >= time {
            break;
        }
    }
    println!("{seeds} seeds from {} on: every invariant held", plan.seed);
}
