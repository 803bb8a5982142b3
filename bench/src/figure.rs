//! Figures: what a bench has measured, one line of JSON each, for `cargo xtask bench`, which knows the goals.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
    sync::{Mutex, OnceLock},
    time::Duration,
};

use anyhow::{Context, anyhow};
use serde::Serialize;

use crate::{
    pairs::{Pairs, Ratio},
    report::{median, sorted},
};

/// The file of `--json`. Benches record at the end of nested calls; the figures have one place in the whole program.
static LINES: OnceLock<Mutex<File>> = OnceLock::new();

/// Lines of figures are appended to this file from now on.
pub(crate) fn append_to(path: &Path) -> anyhow::Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    LINES
        .set(Mutex::new(file))
        .map_err(|_second| anyhow!("one file of figures is open"))
}

/// Which of two numbers is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// What a figure is about.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Of<'a> {
    /// The bench, a slash, and the figure: `churn/1`. It stays the same from run to run.
    pub(crate) name: &'a str,
    /// A line for readers.
    pub(crate) what: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) better: Better,
}

/// One figure. With a peer, `low` and `high` are the 95 % interval of `ratio`, which is `ours` in times `peer`; without
/// one, of `ours`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure<'a> {
    #[serde(flatten)]
    of: Of<'a>,
    /// The median.
    ours: f64,
    peer: Option<f64>,
    peer_name: Option<&'a str>,
    ratio: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    /// How many pairs, or rounds without a peer; `None`: one number, or statistics over requests.
    pairs: Option<usize>,
}

impl<'a> Of<'a> {
    /// Both sides of interleaved pairs; of no pair there is no figure.
    pub(crate) fn compared(self, ours: &[f64], name: &'a str, peer: &[f64]) -> Option<Figure<'a>> {
        let ratio = Ratio::of_pairs(ours, peer)?;
        Some(Figure {
            of: self,
            ours: middle(ours),
            peer: Some(middle(peer)),
            peer_name: Some(name),
            ratio: Some(ratio.median),
            low: ratio.interval.map(|it| it.0),
            high: ratio.interval.map(|it| it.1),
            pairs: Some(ours.len()),
        })
    }

    /// One number, without a peer.
    pub(crate) fn alone(self, ours: f64) -> Figure<'a> {
        Figure {
            of: self,
            ours,
            peer: None,
            peer_name: None,
            ratio: None,
            low: None,
            high: None,
            pairs: None,
        }
    }

    /// Rounds without a peer; of no round there is no figure.
    pub(crate) fn rounds(self, ours: &[f64]) -> Option<Figure<'a>> {
        let ratio = Ratio::of(sorted(ours.iter().copied()))?;
        Some(Figure {
            low: ratio.interval.map(|it| it.0),
            high: ratio.interval.map(|it| it.1),
            pairs: Some(ours.len()),
            ..self.alone(ratio.median)
        })
    }
}

impl Figure<'_> {
    /// Records times of A against those of B, in microseconds; less is better.
    pub(crate) fn record_times(
        name: &str,
        what: &str,
        pairs: &Pairs,
        peer: &str,
    ) -> anyhow::Result<()> {
        let of = Of {
            name,
            what,
            unit: "µs",
            better: Better::Lower,
        };
        record(of.compared(&micros(&pairs.a), peer, &micros(&pairs.b)))
    }

    /// Records how often a second something was done in rounds of `count`; more is better.
    pub(crate) fn record_rates(
        name: &str,
        what: &str,
        (ours, peer, peer_name): (&[Duration], &[Duration], &str),
        count: f64,
        unit: &str,
    ) -> anyhow::Result<()> {
        let of = Of {
            name,
            what,
            unit,
            better: Better::Higher,
        };
        record(of.compared(&rates(ours, count), peer_name, &rates(peer, count)))
    }
}

/// Appends the line of this figure, if lines are wanted.
pub(crate) fn record<'a>(figure: impl Into<Option<Figure<'a>>>) -> anyhow::Result<()> {
    match figure.into() {
        Some(figure) => line(&figure),
        None => Ok(()),
    }
}

/// Says that something was not measured, and why, on the output and in the lines. `name` is a figure or a whole bench.
pub(crate) fn skipped(name: &str, why: &str) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Skipped<'a> {
        name: &'a str,
        skipped: &'a str,
    }
    println!("\nnot run: {name}: {why}");
    line(&Skipped { name, skipped: why })
}

fn line(it: &impl Serialize) -> anyhow::Result<()> {
    let Some(lines) = LINES.get() else {
        return Ok(());
    };
    let text = serde_json::to_string(it)? + "\n";
    let mut lines = lines
        .lock()
        .map_err(|_poisoned| anyhow!("a bench panicked"))?;
    lines.write_all(text.as_bytes()).context("write a figure")
}

pub(crate) fn micros(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|it| it.as_secs_f64() * 1e6).collect()
}

/// Operations a second of each round; a round has `count` of them.
pub(crate) fn rates(times: &[Duration], count: f64) -> Vec<f64> {
    times.iter().map(|it| count / it.as_secs_f64()).collect()
}

fn middle(values: &[f64]) -> f64 {
    median(&sorted(values.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Of<'static> = Of {
        name: "churn/1",
        what: "grant and free",
        unit: "a second",
        better: Better::Higher,
    };

    #[test]
    fn a_line_has_every_field_and_ours_in_times_the_peer() {
        let ours: Vec<f64> = (1..=20).map(|it| 3.0 * f64::from(it)).collect();
        let peer: Vec<f64> = (1..=20).map(f64::from).collect();
        let line = serde_json::to_value(OF.compared(&ours, "etcd", &peer)).unwrap();
        let expected = serde_json::json!({
            "name": "churn/1", "what": "grant and free", "unit": "a second", "better": "higher",
            "ours": 31.5, "peer": 10.5, "peer_name": "etcd",
            "ratio": 3.0, "low": 3.0, "high": 3.0, "pairs": 20,
        });
        assert_eq!(line, expected);
    }

    #[test]
    fn without_a_peer_the_interval_is_that_of_the_rounds() {
        let rounds: Vec<f64> = (0..20).map(f64::from).collect();
        let line = serde_json::to_value(OF.rounds(&rounds)).unwrap();
        assert_eq!((&line["low"], &line["high"]), (&5.0.into(), &14.0.into()));
        assert_eq!((&line["ours"], &line["pairs"]), (&9.5.into(), &20.into()));
        assert!(line["peer"].is_null() && line["ratio"].is_null());
        let one = serde_json::to_value(OF.alone(7.0)).unwrap();
        assert!(one["ours"] == 7.0 && one["low"].is_null() && one["pairs"].is_null());
    }

    #[test]
    fn of_nothing_there_is_no_figure() {
        assert!(OF.compared(&[], "etcd", &[]).is_none());
        assert!(OF.rounds(&[]).is_none());
    }

    #[test]
    fn rates_and_times_of_rounds() {
        let half = [Duration::from_millis(500)];
        assert_eq!(rates(&half, 100.0), [200.0]);
        assert_eq!(micros(&half), [500_000.0]);
    }
}
