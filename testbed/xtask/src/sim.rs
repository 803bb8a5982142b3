//! `cargo xtask sim`: the simulation of the node (`node/src/driver/simulation.rs`), from chosen seeds or for a chosen time.

use crate::cargo::{self, Scope, cargo, output, program};
use crate::lab::say;
use anyhow::Result;
use clap::Args;
use fabricbios_testbed::requirements::{self, Consent, Need};
use fabricbios_testbed::{Layout, Outcome};
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

/// The test that runs the seeds.
const TEST: &str = "package(fabricbios-node) & test(/^driver::simulation::tests::whatever_fails/)";
/// Time of the step of `cargo xtask test`, without the build.
const TEST_SECS: u64 = 40;

/// The arguments of `cargo xtask sim`.
#[derive(Debug, Default, Args)]
pub(crate) struct Arguments {
    /// The seed; a new one if absent
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Go on with the next seeds for this long
    #[arg(long, value_name = "N")]
    secs: Option<u64>,
    /// Print what happens
    #[arg(long)]
    trace: bool,
    /// Only the first acts, as a failure says
    #[arg(long, value_name = "N")]
    acts: Option<usize>,
    /// Without these acts, as a failure says
    #[arg(long, value_name = "N", value_delimiter = ',')]
    without: Vec<usize>,
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    requirements::ensure(layout, &[Need::Build, Need::Nextest], Consent::Ask, &say)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let plan = arguments.plan(since.as_secs());
    cargo::run(simulation(layout, Scope::Needed, &plan)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The step of `cargo xtask test`: the seeds of this commit. Other steps run beside it, so its output comes at its end.
pub(crate) fn step(layout: &Layout, scope: Scope) -> Result<Outcome> {
    let seed = seed_of_commit(layout);
    let arguments = Arguments {
        secs: Some(TEST_SECS),
        ..Arguments::default()
    };
    cargo::run_beside("sim", simulation(layout, scope, &arguments.plan(seed))?)
}

/// The seed that the hash of the present commit gives.
pub(crate) fn seed_of_commit(layout: &Layout) -> u64 {
    let commit = output(program(layout, "git", &["rev-parse", "HEAD"]));
    let seed = commit.and_then(|commit| seed_of(&commit));
    seed.unwrap_or_else(|why| {
        eprintln!("no commit is known here, so the seeds begin at 1: {why:#}");
        1
    })
}

/// The seed that the hash of a commit gives.
fn seed_of(commit: &str) -> Result<u64> {
    let digits: String = commit.chars().take(12).collect();
    Ok(u64::from_str_radix(&digits, 16)?)
}

fn simulation(layout: &Layout, scope: Scope, plan: &str) -> Result<Command> {
    let packages: &[&str] = match scope {
        Scope::Needed => &["-p", "fabricbios-node", "--lib"],
        Scope::Workspace => &["--workspace"],
    };
    let words = ["nextest", "run", "--profile", "sim", "--no-capture"];
    let mut command = cargo(layout, &[&words, packages, &["-E", TEST]].concat())?;
    command.env("FABRICBIOS_SIM", plan);
    Ok(command)
}

impl Arguments {
    /// The arguments of the test; `seed` is used if none is named.
    fn plan(&self, seed: u64) -> String {
        let mut plan = format!("--seed {}", self.seed.unwrap_or(seed));
        let secs = self.secs.map(|secs| format!(" --secs {secs}"));
        let acts = self.acts.map(|acts| format!(" --acts {acts}"));
        let without = self.without.iter().map(|act| format!(" --without {act}"));
        plan.extend(secs.into_iter().chain(acts).chain(without));
        if self.trace {
            plan.push_str(" --trace");
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_seeds_of_its_own_and_a_named_seed_counts() {
        let commit = "0123456789abcdef0123456789abcdef01234567\n";
        assert_eq!(seed_of(commit).unwrap(), 0x0123_4567_89ab);
        let mut arguments = Arguments {
            secs: Some(5),
            ..Arguments::default()
        };
        assert_eq!(arguments.plan(7), "--seed 7 --secs 5");
        arguments.seed = Some(9);
        arguments.without = vec![1, 2];
        assert_eq!(
            arguments.plan(7),
            "--seed 9 --secs 5 --without 1 --without 2"
        );
    }
}
