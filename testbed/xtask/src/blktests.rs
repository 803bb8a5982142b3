//! `cargo xtask blktests`: the NVMe group of blktests against a node in a guest.
//!
//! blktests is not part of this project (GPL-3).

use crate::cargo::{self, Profile, program};
use crate::lab::{BootArguments, say};
use crate::upstream::{self, Guests};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use fabricbios_testbed::Layout;
use fabricbios_testbed::requirements::Need;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const RUNNER: &str = "testbed/blktests/run.py";
const GROUP: &str = "nvme";
const TESTS_PER_GUEST: usize = 16;

/// The arguments of `cargo xtask blktests`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A checkout of blktests; it stays as it is
    #[arg(long, value_name = "PATH")]
    checkout: PathBuf,
    /// The transports
    #[arg(long, value_enum, default_values_t = [Transport::Tcp, Transport::Rdma])]
    transport: Vec<Transport>,
    /// Without a node: blktests wires the kernel's target itself. A test that fails here too is not the node's
    #[arg(long)]
    by_hand: bool,
    #[command(flatten)]
    boot: BootArguments,
    /// Only these tests, for example nvme/010; by default the whole group
    #[arg(last = true, value_name = "TEST")]
    tests: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Tcp,
    Rdma,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        })
    }
}

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let copy = upstream::copy(layout, &arguments.checkout, "blktests", "tests/nvme")?;
    let lab = arguments
        .boot
        .prepare(layout, &[Need::Guest, Need::Build, Need::Blktests], &say)?;
    cargo::run(cargo::build_programs(layout, Profile::Debug)?)?;
    say("building blktests");
    // -k: some of its programs need libraries that its NVMe tests do not need.
    if cargo::run(program(layout, "make", &["-k", "-C", &copy])).is_err() {
        say("not all of blktests was built; its own checks will name what is missing");
    }
    let tests = tests(Path::new(&copy), &arguments.tests)?;
    let target = if arguments.by_hand {
        ("kernel", "the kernel's target")
    } else {
        ("node", "a node")
    };
    let mut ours = 0;
    for transport in &arguments.transport {
        let transport = transport.to_string();
        println!("\n| test | {} over {transport} | | why |", target.1);
        println!("|---|---|---|---|");
        let guests = Guests {
            lab: &lab,
            layout,
            name: "blktests",
            runner: [RUNNER, &copy, &transport, target.0]
                .map(str::to_owned)
                .to_vec(),
            tests_per_guest: TESTS_PER_GUEST,
        };
        let rows = guests.rows(&tests)?;
        println!("\nover {transport}: {}", upstream::counts(&rows));
        ours += upstream::not_a_tests(&rows);
    }
    if ours > 0 {
        say(&format!(
            "{ours} rows are failures of the node or of its guest, not of a test"
        ));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The chosen tests, or the whole group, in the order of their numbers.
fn tests(checkout: &Path, asked: &[String]) -> Result<Vec<String>> {
    if !asked.is_empty() {
        for test in asked {
            let known = checkout.join("tests").join(test).is_file();
            ensure!(
                known,
                "{test} is no test of this checkout; one is called, for example, {GROUP}/010"
            );
        }
        return Ok(asked.to_vec());
    }
    let place = checkout.join("tests").join(GROUP);
    let entries =
        std::fs::read_dir(&place).with_context(|| format!("cannot list {}", place.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_test = |name: &String| name.len() == 3 && name.bytes().all(|byte| byte.is_ascii_digit());
    let mut tests: Vec<String> = names
        .filter(is_test)
        .map(|name| format!("{GROUP}/{name}"))
        .collect();
    tests.sort();
    Ok(tests)
}
