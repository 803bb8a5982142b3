//! One line that shows the current step: a spinner on a terminal, plain lines elsewhere.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(120);
const ERROR_LINES: usize = 40;
/// Cargo's message when another cargo holds the target directory: it may wait for minutes.
const WAITING: &str = "Blocking waiting for file lock";

/// The line. It leaves one finished line for each step.
#[derive(Clone)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn start() -> Self {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}");
        bar.set_style(style.expect("the template is a constant"));
        Self { bar }
    }

    /// Shows that a step has begun.
    pub(crate) fn step(&self, what: &str) {
        if self.bar.is_hidden() {
            eprintln!("{what}");
        }
        self.bar.reset_elapsed();
        self.bar.set_message(what.to_owned());
        self.bar.enable_steady_tick(TICK);
    }

    /// Leaves the line of a step that has ended.
    pub(crate) fn done(&self, what: &str) {
        self.bar.println(format!(
            "✓ {what} ({:.1} s)",
            self.bar.elapsed().as_secs_f64()
        ));
    }

    /// Clears the line, so that other output can follow.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Runs a command and shows its latest output line; if it fails, shows the end of its output.
    pub(crate) fn run(&self, what: &str, mut command: Command) -> Result<()> {
        self.step(what);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let mut said = String::new();
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).lines() {
                let line = line?;
                self.bar.set_message(format!("{what}: {}", line.trim()));
                if self.bar.is_hidden() && line.contains(WAITING) {
                    eprintln!("{}", line.trim());
                }
                said.push_str(&line);
                said.push('\n');
            }
        }
        let status = child.wait()?;
        if !status.success() {
            self.clear();
            bail!(
                "{what}: {status}\n{}",
                fabricbios_testbed::tail(&said, ERROR_LINES)
            );
        }
        self.done(what);
        Ok(())
    }
}
