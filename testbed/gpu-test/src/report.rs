//! The results.

use std::{collections::BTreeSet, process::ExitCode};

use serde::Serialize;

/// The checks and the measurements.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The devices, as the vendor's library names them.
    devices: BTreeSet<String>,
    checks: Vec<Check>,
    figures: Vec<Figure>,
    pairs: Vec<Pairs>,
    /// Limits of this machine that lowered the reached rung.
    limits: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Check {
    name: String,
    passed: bool,
    detail: String,
}

#[derive(Debug, Serialize)]
struct Figure {
    name: String,
    unit: &'static str,
    median: f64,
    least: f64,
    most: f64,
    rounds: usize,
}

/// Rounds in turns with the bare driver, less is better: `fabricbios-bench gpu` makes figures of them.
#[derive(Debug, Serialize)]
struct Pairs {
    name: String,
    what: String,
    /// Microseconds.
    ours: Vec<f64>,
    peer: Vec<f64>,
}

impl Report {
    /// Notes a device by the name that the vendor's library gives it.
    pub(crate) fn on(&mut self, device: &str) {
        self.devices.insert(device.to_owned());
    }

    /// Records a check and prints it at once. Returns whether it holds.
    pub(crate) fn check(&mut self, name: &str, holds: bool, detail: impl ToString) -> bool {
        let detail = detail.to_string();
        match holds {
            true => eprintln!("ok {name}{}", in_brackets(&detail)),
            false => eprintln!("FAILED {name}: {detail}"),
        }
        self.checks.push(Check {
            name: name.to_owned(),
            passed: holds,
            detail,
        });
        holds
    }

    pub(crate) fn failed(&mut self, name: &str, why: &str) {
        self.check(name, false, why);
    }

    /// Records a limit of this machine.
    pub(crate) fn limit(&mut self, what: impl ToString) {
        let what = what.to_string();
        eprintln!("   not on this machine: {what}");
        self.limits.push(what);
    }

    /// Records a measurement with the numbers of its rounds.
    pub(crate) fn figure(&mut self, name: &str, unit: &'static str, mut rounds: Vec<f64>) {
        rounds.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (rounds.first(), rounds.last()) else {
            return;
        };
        let median = rounds[rounds.len() / 2];
        eprintln!(
            "   {name}: {median:.3} {unit} ({least:.3}–{most:.3}, {} rounds)",
            rounds.len()
        );
        self.figures.push(Figure {
            name: name.to_owned(),
            unit,
            median,
            least,
            most,
            rounds: rounds.len(),
        });
    }

    /// Records rounds in turns with the bare driver, in microseconds.
    pub(crate) fn pairs(&mut self, name: &str, what: &str, ours: Vec<f64>, peer: Vec<f64>) {
        let ratios = ours.iter().zip(&peer).map(|(ours, peer)| ours / peer);
        let of_peer = format!("{what}, in times the bare driver");
        self.figure(what, "µs", ours.clone());
        self.figure("the same, bare driver", "µs", peer.clone());
        self.figure(&of_peer, "×", ratios.collect());
        self.pairs.push(Pairs {
            name: name.to_owned(),
            what: what.to_owned(),
            ours,
            peer,
        });
    }

    /// Prints the summary. A run without a check is a failure.
    pub(crate) fn print(&self, as_json: bool) -> ExitCode {
        if as_json {
            match serde_json::to_string_pretty(self) {
                Ok(text) => println!("{text}"),
                Err(error) => eprintln!("the report cannot be printed: {error}"),
            }
        }
        let failed = self.checks.iter().filter(|it| !it.passed).count();
        let devices: Vec<&str> = self.devices.iter().map(String::as_str).collect();
        eprintln!(
            "gpu-test: {} ok, {failed} failed, on {}",
            self.checks.len() - failed,
            devices.join(", ")
        );
        match failed == 0 && !self.checks.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

fn in_brackets(detail: &str) -> String {
    match detail.is_empty() {
        true => String::new(),
        false => format!(" ({detail})"),
    }
}
