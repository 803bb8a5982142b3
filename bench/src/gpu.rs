//! Launches on sessions of a GPU that nothing waits for until one wait at the end, against the bare driver. `gpu-test` beside this
//! program measures the pairs, on stand-ins of the vendors' libraries: what a kernel takes there is fixed.

use std::{
    env,
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Deserialize;

use crate::{
    figure::{Better, Of, record},
    pairs::Ratio,
};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pairs of rounds
    #[arg(long, default_value_t = 60)]
    rounds: u16,
}

/// What is read of the report of `gpu-test`.
#[derive(Debug, Deserialize)]
struct Report {
    pairs: Vec<Pairs>,
}

#[derive(Debug, Deserialize)]
struct Pairs {
    name: String,
    what: String,
    ours: Vec<f64>,
    peer: Vec<f64>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let beside = env::current_exe()?.with_file_name("gpu-test");
    ensure!(
        beside.is_file(),
        "{} is not there: cargo build --release -p fabricbios-gpu-test",
        beside.display()
    );
    ensure!(
        env::var_os("FABRICBIOS_STAND_IN_DIR").is_some(),
        "there are no stand-ins of GPU libraries: cargo xtask bench --only gpu has them"
    );
    let rounds = options.rounds.to_string();
    let measured = Command::new(beside)
        .args(["--only", "launches", "--json", "--rounds", &rounds])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(measured.status.success(), "gpu-test: {}", measured.status);
    let report: Report = serde_json::from_slice(&measured.stdout).context("gpu-test's report")?;
    ensure!(!report.pairs.is_empty(), "gpu-test has measured nothing");
    for pairs in &report.pairs {
        if let Some(ratio) = Ratio::of_pairs(&pairs.ours, &pairs.peer) {
            println!("{}: {ratio} in times the bare driver", pairs.what);
        }
        let of = Of {
            name: &format!("gpu/{}", pairs.name),
            what: &pairs.what,
            unit: "µs",
            better: Better::Lower,
        };
        record(of.compared(&pairs.ours, "the bare driver", &pairs.peer))?;
    }
    Ok(())
}
