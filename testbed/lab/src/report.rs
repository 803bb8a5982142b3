//! The results of all steps, the reasons of skips, and the verdict. Pure.

use std::fmt::{self, Write as _};
use std::time::Duration;

/// From this number of flaky suites on, a run fails.
const FLAKY_TOO_MANY: usize = 3;

/// How one step or suite ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and passed.
    Passed,
    /// It did not run, because this is missing.
    Skipped(String),
    /// It ran and failed, or could not be started.
    Failed(String),
    /// It ran and failed for this reason, then ran once more and passed.
    Flaky(String),
}

impl Outcome {
    /// The outcome of a suite that failed because of `first` and ran once more with the outcome `second`.
    #[must_use]
    pub fn of_two_runs(first: &str, second: Self) -> Self {
        match second {
            Self::Passed | Self::Flaky(_) => Self::Flaky(first.to_owned()),
            Self::Failed(why) => Self::Failed(format!("{why}\nin the first run: {first}")),
            Self::Skipped(why) => {
                Self::Failed(format!("{first}\nskipped in the second run: {why}"))
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Row {
    name: String,
    outcome: Outcome,
    took: Duration,
    may_skip: bool,
}

/// The list of steps with their results.
#[derive(Debug, Clone, Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds one ended step. With `may_skip`, a skip of the step is no failure.
    pub fn record(&mut self, name: &str, outcome: Outcome, took: Duration, may_skip: bool) {
        self.rows.push(Row {
            name: name.to_owned(),
            outcome,
            took,
            may_skip,
        });
    }

    /// The reason why this run has failed, if it has. A run in which no step ran has failed, and so has one with three
    /// flaky suites. With `must_run`, a run with a skip has failed too, unless the step has `may_skip`.
    pub fn verdict(&self, must_run: bool) -> Result<(), String> {
        let failed = self.names(|row| matches!(row.outcome, Outcome::Failed(_)));
        if !failed.is_empty() {
            return Err(format!("failed: {}", failed.join(" ")));
        }
        let flaky = self.flaky();
        if flaky.len() >= FLAKY_TOO_MANY {
            return Err(format!(
                "flaky, {} in one run, {FLAKY_TOO_MANY} are too many: {}",
                flaky.len(),
                flaky.join(" ")
            ));
        }
        let minded = |row: &Row| matches!(row.outcome, Outcome::Skipped(_)) && !row.may_skip;
        let skipped = self.names(minded);
        if must_run && !skipped.is_empty() {
            return Err(format!(
                "skipped where everything must run: {}",
                skipped.join(" ")
            ));
        }
        if flaky.is_empty() && self.names(|row| row.outcome == Outcome::Passed).is_empty() {
            return Err("nothing ran".to_owned());
        }
        Ok(())
    }

    /// `N passed, N failed, N skipped`, on a line of its own. If there are flaky suites, a line before it has their
    /// number and their names. They count as passed, or as failed if there are too many.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |keep: fn(&Outcome) -> bool| self.names(|row| keep(&row.outcome)).len();
        let (mut passed, mut failed) = (
            count(|outcome| *outcome == Outcome::Passed),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
        );
        let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        let flaky = self.flaky();
        if flaky.len() >= FLAKY_TOO_MANY {
            failed += flaky.len();
        } else {
            passed += flaky.len();
        }
        let totals = format!("{passed} passed, {failed} failed, {skipped} skipped");
        if flaky.is_empty() {
            return totals;
        }
        let names = flaky.join(" ");
        format!("{} flaky: {names}\n{totals}", flaky.len())
    }

    fn flaky(&self) -> Vec<&str> {
        self.names(|row| matches!(row.outcome, Outcome::Flaky(_)))
    }

    fn names(&self, keep: impl Fn(&Row) -> bool) -> Vec<&str> {
        self.rows
            .iter()
            .filter(|row| keep(row))
            .map(|row| row.name.as_str())
            .collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .rows
            .iter()
            .map(|row| row.name.len())
            .max()
            .unwrap_or(0);
        for row in &self.rows {
            let (word, why) = match &row.outcome {
                Outcome::Passed => ("ran", ""),
                Outcome::Skipped(why) => ("skipped", why.as_str()),
                Outcome::Failed(why) => ("FAILED", why.as_str()),
                Outcome::Flaky(why) => ("flaky", why.as_str()),
            };
            let mut line = format!(
                "{:width$}  {word:8}{:>7.1} s",
                row.name,
                row.took.as_secs_f64()
            );
            // The table has one line per step; the full output was shown when the step ran.
            if let Some(first) = why.lines().next() {
                write!(line, "  {first}")?;
            }
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcomes: &[(Outcome, bool)]) -> Report {
        let mut report = Report::default();
        for (index, (outcome, may_skip)) in outcomes.iter().enumerate() {
            let name = format!("step{index}");
            report.record(
                &name,
                outcome.clone(),
                Duration::from_millis(1500),
                *may_skip,
            );
        }
        report
    }

    fn skipped() -> Outcome {
        Outcome::Skipped("missing device\nmore".to_owned())
    }

    #[test]
    fn a_run_in_which_nothing_ran_is_a_failure() {
        assert_eq!(report(&[]).verdict(false), Err("nothing ran".to_owned()));
        assert_eq!(
            report(&[(skipped(), true)]).verdict(false),
            Err("nothing ran".to_owned())
        );
    }

    #[test]
    fn one_failure_outweighs_everything() {
        let failed = Outcome::Failed("exit code 1".to_owned());
        let report = report(&[(Outcome::Passed, false), (failed, true)]);
        assert_eq!(report.verdict(false), Err("failed: step1".to_owned()));
    }

    #[test]
    fn a_skip_counts_where_everything_must_run() {
        let minded = report(&[(Outcome::Passed, false), (skipped(), false)]);
        assert_eq!(minded.verdict(false), Ok(()));
        assert!(minded.verdict(true).is_err());
        let optional = report(&[(Outcome::Passed, false), (skipped(), true)]);
        assert_eq!(optional.verdict(true), Ok(()));
    }

    #[test]
    fn the_table_says_why_in_one_line() {
        let report = report(&[(Outcome::Passed, false), (skipped(), false)]);
        let table = "step0  ran         1.5 s\nstep1  skipped     1.5 s  missing device\n";
        assert_eq!(report.to_string(), table);
        assert_eq!(report.summary(), "1 passed, 0 failed, 1 skipped");
    }
    fn flaky(count: usize) -> Report {
        let failed_first = Outcome::of_two_runs("exit code 1", Outcome::Passed);
        report(&vec![(failed_first, false); count])
    }

    #[test]
    fn two_flaky_suites_pass_and_are_named_and_three_fail_the_run() {
        let two = flaky(2);
        assert_eq!(two.verdict(true), Ok(()));
        let summary = "2 flaky: step0 step1\n2 passed, 0 failed, 0 skipped";
        assert_eq!(two.summary(), summary);
        assert!(two.to_string().contains("flaky       1.5 s  exit code 1\n"));
        let three = flaky(3);
        let why = three.verdict(false).unwrap_err();
        assert!(why.ends_with("too many: step0 step1 step2"), "{why}");
        let summary = "3 flaky: step0 step1 step2\n0 passed, 3 failed, 0 skipped";
        assert_eq!(three.summary(), summary);
    }

    #[test]
    fn a_second_run_that_does_not_pass_is_a_failure_with_both_reasons() {
        let failed = Outcome::Failed("exit code 2".to_owned());
        for second in [failed, skipped()] {
            let (Outcome::Failed(other) | Outcome::Skipped(other)) = second.clone() else {
                unreachable!()
            };
            let Outcome::Failed(why) = Outcome::of_two_runs("exit code 1", second) else {
                panic!("it did not pass")
            };
            assert!(why.contains("exit code 1") && why.contains(&other), "{why}");
        }
    }
}
