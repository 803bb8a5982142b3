//! `cargo xtask fleet-sim`: many nodes in one process with real schedulers and a real etcd, under faults
//! (`testbed/fleet-sim`).

use crate::cargo::{self, Scope, cargo, program};
use crate::lab::say;
use crate::sim;
use anyhow::Result;
use clap::Args;
use fabricbios_testbed::requirements::{self, Consent, Need};
use fabricbios_testbed::{Layout, Outcome};
use std::process::{Command, ExitCode};

/// What it consists of.
const PACKAGES: [&str; 4] = ["-p", "fabricbios-fleet-sim", "-p", "fabricbios-scheduler"];
/// The size of the step of `cargo xtask test`.
const STEP: [&str; 4] = [
    "--nodes=120",
    "--leases=1200",
    "--secs=20",
    "--etcd-servers=3",
];

/// The arguments of `cargo xtask fleet-sim`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    /// Optimised programs (first argument): for thousands of nodes
    #[arg(long)]
    release: bool,
    /// Those of the simulation; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    requirements::ensure(layout, &[Need::Build, Need::Etcd], Consent::Ask, &say)?;
    let (profile, release): (_, &[_]) = match arguments.release {
        true => ("release", &["--release"]),
        false => ("debug", &[]),
    };
    cargo::run(cargo(
        layout,
        &[&["build"], &PACKAGES[..], release].concat(),
    )?)?;
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    let status = simulation(layout, profile, &words).status()?;
    Ok(match status.success() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The step of `cargo xtask test`: with the seed of this commit. Other steps run beside it, so its output comes at its end.
pub(crate) fn step(layout: &Layout, scope: Scope) -> Result<Outcome> {
    scope.build(layout, &PACKAGES)?;
    let seed = format!("--seed={}", sim::seed_of_commit(layout));
    let words = [&STEP[..], &[&seed]].concat();
    cargo::run_beside("fleet-sim", simulation(layout, "debug", &words))
}

fn simulation(layout: &Layout, profile: &str, words: &[&str]) -> Command {
    let built = layout.target().join(profile);
    let mut command = program(layout, &built.join("fleet-sim").to_string_lossy(), &[]);
    command.arg("--scheduler-program");
    command.arg(built.join("fabricbios-scheduler"));
    command.args(words);
    command
}
