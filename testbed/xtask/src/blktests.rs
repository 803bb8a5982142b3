//! `cargo xtask blktests`: the NVMe group of blktests against a node in a guest.
//!
//! blktests is not part of this project (GPL-3): the caller has a checkout, and a copy of it is built under
//! the target directory. Each guest runs a few tests. If a test damages or ends its guest, no other row of
//! the table is lost: the remaining tests run in the next guest.

use crate::cargo::{self, Profile, program};
use crate::lab::{BootArguments, say};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use fabricbios_testbed::requirements::Need;
use fabricbios_testbed::{Echo, Job, Lab, Layout, Prelude};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const RUNNER: &str = "testbed/blktests/run.py";
const GROUP: &str = "nvme";
/// Exit status of the runner when the next test has to run in another guest.
const FRESH: i32 = 75;
/// Tests per guest: a guest that hangs costs at most the time of this many tests.
const TESTS_PER_GUEST: usize = 16;
/// The runner gives up a test before this time.
const TEST_LIMIT: Duration = Duration::from_secs(300);

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

/// Text in the row of a test during which the guest died.
const DIED: &str = "the guest died in it";

pub(crate) fn run(layout: &Layout, arguments: &Arguments) -> Result<ExitCode> {
    let lab = arguments
        .boot
        .prepare(layout, &[Need::Guest, Need::Build, Need::Blktests], &say)?;
    cargo::run(cargo::build_programs(layout, Profile::Debug)?)?;
    let copy = copy(layout, &arguments.checkout)?;
    say("building blktests");
    // -k: some of its programs need libraries that its NVMe tests do not need.
    if cargo::run(program(layout, "make", &["-k", "-C", &copy])).is_err() {
        say("not all of blktests was built; its own checks will name what is missing");
    }
    let tests = tests(Path::new(&copy), &arguments.tests)?;
    let mut ours = 0;
    for transport in &arguments.transport {
        let guests = Guests {
            lab: &lab,
            layout,
            checkout: &copy,
            transport: *transport,
            by_hand: arguments.by_hand,
        };
        ours += guests.table(&tests)?;
    }
    if ours > 0 {
        say(&format!(
            "{ours} rows are failures of the node or of its guest, not of a test"
        ));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Settings that all guests of one table share.
struct Guests<'a> {
    lab: &'a Lab,
    layout: &'a Layout,
    checkout: &'a str,
    transport: Transport,
    by_hand: bool,
}

impl Guests<'_> {
    /// Prints a row for each test when it ends, and the count of each result. Returns how many rows say that the
    /// node was not as before, or the guest died.
    fn table(&self, tests: &[String]) -> Result<usize> {
        let target = if self.by_hand {
            "the kernel's target"
        } else {
            "a node"
        };
        println!("\n| test | {target} over {} | | why |", self.transport);
        println!("|---|---|---|---|");
        let mut printed = String::new();
        let mut rest = tests;
        while !rest.is_empty() {
            let (rows, done) = self.some(&rest[..rest.len().min(TESTS_PER_GUEST)])?;
            printed.push_str(&rows);
            rest = &rest[done..];
        }
        println!("\nover {}: {}", self.transport, counts(&printed));
        Ok(not_a_tests(&printed))
    }

    /// One guest: prints its rows, and returns how many of the tests are finished.
    fn some(&self, tests: &[String]) -> Result<(String, usize)> {
        let output = Arc::new(Mutex::new(Vec::new()));
        let result = self.lab.run(&self.job(tests, Arc::clone(&output)));
        let output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows = String::from_utf8_lossy(&output).into_owned();
        let done = finished(&rows, tests);
        match result {
            Ok(ended) if ended.code == 0 && done == tests.len() => {}
            Ok(ended) if ended.code == FRESH && done > 0 => {}
            Ok(ended) => bail!(
                "the runner ended with exit code {} after {done} of {} tests:\n{}",
                ended.code,
                tests.len(),
                ended.output
            ),
            Err(died) => {
                let test = tests.get(done).context("the guest died after its tests")?;
                let row = format!("| {test} | | fail | {DIED}: {} |\n", first_line(&died));
                print!("{row}");
                say(&format!("{died:#}"));
                rows.push_str(&row);
                return Ok((rows, done + 1));
            }
        }
        Ok((rows, done))
    }

    fn job(&self, tests: &[String], output: Arc<Mutex<Vec<u8>>>) -> Job {
        let runner = self.layout.repository().join(RUNNER).display().to_string();
        let transport = self.transport.to_string();
        let target = if self.by_hand { "kernel" } else { "node" };
        let mut words = vec![runner.as_str(), self.checkout, &transport, target];
        words.extend(tests.iter().map(String::as_str));
        let mut job = Job::new("blktests", &words);
        job.timeout = u32::try_from(tests.len())
            .ok()
            .map(|count| TEST_LIMIT * count);
        job.preludes.push(Prelude::SoftRoce);
        let programs = Profile::Debug.programs(self.layout).display().to_string();
        job.environment
            .push(("FABRICBIOS_BIN".to_owned(), programs));
        job.echo = Echo::Call(Arc::new(move |bytes| {
            // A closed terminal must not stop the guest.
            drop(std::io::stdout().write_all(bytes));
            let mut kept = output.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(bytes);
        }));
        job
    }
}

fn first_line(error: &anyhow::Error) -> String {
    error
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// How many of `tests`, which ran in this order, are finished: the last test with a row, and all before it.
fn finished(output: &str, tests: &[String]) -> usize {
    let has_row = |test: &String| {
        output
            .lines()
            .any(|line| line.starts_with(&format!("| {test} |")))
    };
    tests.iter().rposition(has_row).map_or(0, |last| last + 1)
}

/// Rows about the node or the guest, not about a test.
fn not_a_tests(rows: &str) -> usize {
    let of_node = |row: &&str| row.starts_with("| the node |") || row.contains(DIED);
    rows.lines().filter(of_node).count()
}

/// For example `41 pass, 3 fail, 20 skip`.
fn counts(rows: &str) -> String {
    let of = |word: &str| {
        rows.lines()
            .filter(|row| row.contains(&format!(" | {word} | ")))
            .count()
    };
    let counted = ["pass", "fail", "skip"].map(|word| format!("{} {word}", of(word)));
    counted.join(", ")
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

/// A fresh copy under the target directory.
fn copy(layout: &Layout, checkout: &Path) -> Result<String> {
    let shown = checkout.display();
    // The program that copies runs in the repository.
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

#[cfg(test)]
mod tests_of_rows {
    use super::*;

    fn names(numbers: &[&str]) -> Vec<String> {
        numbers
            .iter()
            .map(|number| format!("nvme/{number}"))
            .collect()
    }

    #[test]
    fn a_guest_that_died_has_finished_what_has_rows() {
        let tests = names(&["002", "003", "004"]);
        let output = "| nvme/002 | a | pass |  |\n| nvme/003 | b (tcp) | fail | no: x |\nnoise\n";
        assert_eq!(finished(output, &tests), 2);
        assert_eq!(finished("lab: nothing\n", &tests), 0);
        assert_eq!(counts(output), "1 pass, 1 fail, 0 skip");
        assert_eq!(not_a_tests(output), 0);
        let of_node = "| the node | after nvme/003 | fail | a fence |\n";
        assert_eq!(
            not_a_tests(&format!(
                "{output}{of_node}| nvme/004 | | fail | {DIED}: x |"
            )),
            2
        );
    }

    /// Tests the guest's parser of blktests' output on recorded output.
    #[test]
    fn the_guests_parser_reads_what_check_prints() {
        let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../blktests");
        let ran = std::process::Command::new("python3")
            .args(["-B", "-m", "unittest", "test_rows"])
            .current_dir(place)
            .output()
            .expect("python3 runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && said.contains("OK"), "{said}");
    }
}
