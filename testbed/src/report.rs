//! The results of all steps, the reasons of skips, and the verdict. Pure.

use std::fmt::{self, Write as _};
use std::time::Duration;

/// How one step or suite ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and passed.
    Passed,
    /// It did not run, because this is missing.
    Skipped(String),
    /// It ran and failed, or could not be started.
    Failed(String),
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

    /// The reason why this run has failed, if it has. A run in which no step ran has failed. With
    /// `must_run`, a run with a skip has failed too, unless the step has `may_skip`.
    pub fn verdict(&self, must_run: bool) -> Result<(), String> {
        let failed = self.names(|row| matches!(row.outcome, Outcome::Failed(_)));
        if !failed.is_empty() {
            return Err(format!("failed: {}", failed.join(" ")));
        }
        let minded = |row: &Row| matches!(row.outcome, Outcome::Skipped(_)) && !row.may_skip;
        let skipped = self.names(minded);
        if must_run && !skipped.is_empty() {
            return Err(format!(
                "skipped where everything must run: {}",
                skipped.join(" ")
            ));
        }
        if self.names(|row| row.outcome == Outcome::Passed).is_empty() {
            return Err("nothing ran".to_owned());
        }
        Ok(())
    }

    /// `N passed, N failed, N skipped`.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |keep: fn(&Outcome) -> bool| self.names(|row| keep(&row.outcome)).len();
        format!(
            "{} passed, {} failed, {} skipped",
            count(|outcome| *outcome == Outcome::Passed),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        )
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
}
