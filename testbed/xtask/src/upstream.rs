//! Public test suites that are not part of this project: the caller has a checkout, and a copy of it is built under the
//! target directory.
//!
//! Each guest runs a few tests. If a test damages or ends its guest, no other row of the table is lost: the remaining
//! tests run in the next guest.

use crate::cargo::{self, Profile, program};
use crate::lab::say;
use anyhow::{Context, Result, bail};
use fabricbios_testbed::{Echo, Job, Lab, Layout, Prelude};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Exit status of a runner when the next test has to run in another guest.
const FRESH: i32 = 75;
/// A runner gives up a test before this time.
const TEST_LIMIT: Duration = Duration::from_secs(300);
/// Text in the row of a test during which the guest died.
const DIED: &str = "the guest died in it";

/// The guests of one table.
pub(crate) struct Guests<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) layout: &'a Layout,
    /// The name of the runs in messages and logs.
    pub(crate) name: &'a str,
    /// The runner, a path in the repository, and its arguments before the tests.
    pub(crate) runner: Vec<String>,
    /// Tests per guest: a guest that hangs costs at most the time of this many tests.
    pub(crate) tests_per_guest: usize,
}

impl Guests<'_> {
    /// Prints a row for each test when it ends, and returns the rows. The row of a test has its name, something about it,
    /// `pass`, `fail` or `skip`, and the reason.
    pub(crate) fn rows(&self, tests: &[String]) -> Result<String> {
        let mut printed = String::new();
        let mut rest = tests;
        while !rest.is_empty() {
            let (rows, done) = self.some(&rest[..rest.len().min(self.tests_per_guest)])?;
            printed.push_str(&rows);
            rest = &rest[done..];
        }
        Ok(printed)
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
        let (runner, arguments) = self.runner.split_first().expect("a runner");
        let runner = self.layout.repository().join(runner).display().to_string();
        let mut job = Job::new(self.name, &[&runner]);
        job.command.extend(arguments.iter().chain(tests).cloned());
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
pub(crate) fn not_a_tests(rows: &str) -> usize {
    let of_node = |row: &&str| row.starts_with("| the node |") || row.contains(DIED);
    rows.lines().filter(of_node).count()
}

/// For example `41 pass, 3 fail, 20 skip`.
pub(crate) fn counts(rows: &str) -> String {
    let of = |word: &str| {
        rows.lines()
            .filter(|row| row.contains(&format!(" | {word} | ")))
            .count()
    };
    let counted = ["pass", "fail", "skip"].map(|word| format!("{} {word}", of(word)));
    counted.join(", ")
}

/// A fresh copy of the checkout, as `target/NAME`. A checkout has `check`, and this path in it.
pub(crate) fn copy(layout: &Layout, checkout: &Path, name: &str, has: &str) -> Result<String> {
    let shown = checkout.display();
    // The program that copies runs in the repository.
    let absolute =
        std::path::absolute(checkout).with_context(|| format!("cannot resolve {shown}"))?;
    if !checkout.join("check").is_file() || !checkout.join(has).is_dir() {
        bail!(
            "{shown} is no checkout of {name}: there is no `check` with {has} in it. Get one with git clone, or name \
             another directory"
        );
    }
    let place = layout.target().join(name);
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

    #[test]
    fn a_guest_that_died_has_finished_what_has_rows() {
        let tests = ["nvme/002", "nvme/003", "nvme/004"].map(str::to_owned);
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

    /// Tests the guests' parsers of what `check` prints on recorded output.
    #[test]
    fn the_guests_parsers_read_what_check_prints() {
        for (place, tests) in [("blktests", "test_rows"), ("fstests", "test_results")] {
            let ran = std::process::Command::new("python3")
                .args(["-B", "-m", "unittest", tests])
                .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(place))
                .output()
                .expect("python3 runs");
            let said = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success() && said.contains("OK"), "{said}");
        }
    }
}
