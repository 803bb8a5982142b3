//! `cargo xtask bench`: the measurements in bench/ and those that need the lab.

use crate::cargo::{self, Profile, cargo};
use crate::lab::{BootArguments, say};
use crate::pip;
use crate::suites::{GUEST_DIRECTORY, run_program};
use crate::wheels;
use anyhow::Result;
use clap::Args;
use fabricbios_testbed::requirements::{self, Need};
use fabricbios_testbed::{Layout, Outcome, Report, suite};
use std::process::ExitCode;
use std::time::Instant;

/// The arguments of `cargo xtask bench`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    boot: BootArguments,
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    requirements::ensure(layout, &[Need::Build], arguments.boot.consent(), &say)?;
    let mut report = Report::default();
    // Some benches start the daemon. It is optimised, because they compare it with other programs.
    cargo::run(cargo::build_programs(layout, Profile::Release)?)?;
    let scheduler = ["build", "--release", "-p", "fabricbios-scheduler"];
    cargo::run(cargo(layout, &scheduler)?)?;
    let start = Instant::now();
    let host = cargo::run(cargo(
        layout,
        &["run", "--release", "-p", "fabricbios-bench"],
    )?);
    report.record(
        "host",
        outcome(host.map(|()| Outcome::Passed)),
        start.elapsed(),
        false,
    );
    let start = Instant::now();
    report.record("python", outcome(python(layout)), start.elapsed(), true);
    let benches = suite::discover(&layout.repository().join(GUEST_DIRECTORY), "bench_")?;
    if !benches.is_empty() {
        let lab = arguments.boot.prepare(layout, &[Need::Guest], &say)?;
        for bench in benches {
            println!("\n== lab:{}", bench.name);
            if bench.wants.clients {
                wheels::fetch_clients(layout, false);
            }
            let start = Instant::now();
            let ended = outcome(run_program(&lab, &bench, layout, Profile::Release));
            report.record(
                &format!("lab:{}", bench.name),
                ended,
                start.elapsed(),
                false,
            );
        }
    }
    println!("\n{report}{}", report.summary());
    Ok(if report.verdict(false).is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The Python package, with an optimised wheel.
fn python(layout: &Layout) -> Result<Outcome> {
    if let Err(why) = pip::install_tools(layout) {
        return Ok(Outcome::Skipped(format!("{why:#}")));
    }
    pip::installed(layout, Profile::Release)?;
    let words = ["run", "--release", "-p", "fabricbios-bench", "--", "python"];
    cargo::run(cargo(layout, &words)?).map(|()| Outcome::Passed)
}

fn outcome(result: Result<Outcome>) -> Outcome {
    result.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
}
