//! `cargo xtask blktests`: the NVMe group of blktests against a node in a guest.
//!
//! blktests is not part of this project (GPL-3): the caller has a checkout, and a copy of it is built
//! under the target directory.

use crate::cargo::{self, Profile, program};
use crate::lab::{BootArguments, say};
use anyhow::{Context, Result, ensure};
use clap::Args;
use fabricbios_testbed::requirements::Need;
use fabricbios_testbed::{Job, Layout, Prelude};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const RUNNER: &str = "testbed/blktests/run.py";
const TIMEOUT: Duration = Duration::from_secs(7200);

/// What `cargo xtask blktests` takes.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A checkout of blktests; it stays as it is
    #[arg(long, value_name = "PATH")]
    checkout: PathBuf,
    #[command(flatten)]
    boot: BootArguments,
    /// Only these tests, for example nvme/010; all of the group without
    #[arg(last = true, value_name = "TEST")]
    tests: Vec<String>,
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let lab = arguments
        .boot
        .prepare(layout, &[Need::Guest, Need::Build], &say)?;
    cargo::run(cargo::build_programs(layout, Profile::Debug)?)?;
    let copy = copy(layout, &arguments.checkout)?;
    say("building blktests");
    // -k: some of its programs want libraries that its NVMe tests do without.
    if cargo::run(program(layout, "make", &["-k", "-C", &copy])).is_err() {
        say("not all of blktests was built; its own checks will name what is missing");
    }
    let runner = layout.repository().join(RUNNER).display().to_string();
    let mut words = vec![runner.as_str(), copy.as_str()];
    words.extend(arguments.tests.iter().map(String::as_str));
    let mut job = Job::new("blktests", &words);
    job.timeout = Some(TIMEOUT);
    job.preludes.push(Prelude::SoftRoce);
    let programs = Profile::Debug.programs(layout).display().to_string();
    job.environment
        .push(("FABRICBIOS_BIN".to_owned(), programs));
    Ok(if lab.run(&job)?.code == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A fresh copy under the target directory.
fn copy(layout: &Layout, checkout: &Path) -> Result<String> {
    let shown = checkout.display();
    // The copying program is called in the repository.
    let absolute =
        std::path::absolute(checkout).with_context(|| format!("cannot resolve {shown}"))?;
    ensure!(
        checkout.join("check").is_file() && checkout.join("tests/nvme").is_dir(),
        "{shown} is no checkout of blktests: there is no `check` with tests/nvme in it. Get one with \
         git clone, or name another directory"
    );
    let place = layout.target().join("blktests");
    if place.exists() {
        std::fs::remove_dir_all(&place)
            .with_context(|| format!("cannot remove {}", place.display()))?;
    }
    let (from, to) = (absolute.display().to_string(), place.display().to_string());
    cargo::run(program(layout, "cp", &["-a", &from, &to]))?;
    Ok(to)
}
