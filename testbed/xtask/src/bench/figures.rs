//! The lines of a run: what describes the machine, figures, and what did not run; and the goals of figures.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// A gated figure has at least so many pairs or rounds, if it has any.
const PAIRS_MIN: usize = 15;
/// The peer of a figure whose goal is a number.
const THE_GOAL: &str = "the goal";

/// What a figure is to reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    /// Ours in times the peer.
    Ratio(f64),
    /// Ours itself, in the unit of the figure.
    Limit(f64),
    /// The same, of the full number of operations: a quick run does not judge it.
    FullLimit(f64),
}

/// The goals, by the names of figures. The benches know nothing of them.
pub(super) const GOALS: [(&str, Goal); 26] = [
    ("churn/1", Goal::Ratio(2.0)),
    ("churn/32", Goal::Ratio(3.0)),
    ("churn/128", Goal::Ratio(3.0)),
    ("churn/64-cpu", Goal::Limit(120.0)),
    ("churn/64-cpu-outside", Goal::Limit(50.0)),
    ("grant/one-sync", Goal::Ratio(1.5)),
    ("ends/grant-p99", Goal::Limit(20.0)),
    ("ends/cut-worst", Goal::Limit(10.0)),
    ("bench_block_setup/directory", Goal::Ratio(0.7)),
    ("bench_block_setup/device", Goal::Ratio(0.7)),
    ("fbmu/reads", Goal::Ratio(0.85)),
    ("fbmu/reads-tags", Goal::Ratio(0.97)),
    ("fbmu/bulk", Goal::Ratio(0.85)),
    ("fbbu-nbd/disk-read", Goal::Ratio(1.0)),
    ("fbbu-nbd/disk-write", Goal::Ratio(1.0)),
    ("fbbu-nbd/tmpfs-read", Goal::Ratio(1.0)),
    ("fbbu-nbd/tmpfs-write", Goal::Ratio(1.0)),
    ("rss/grants-and-frees", Goal::FullLimit(100.0)),
    ("programs/ready", Goal::Limit(100.0)),
    ("programs/fabricbiosd", Goal::Limit(12.0)),
    ("programs/fabricctl", Goal::Limit(6.0)),
    ("lease-table/bytes", Goal::Limit(1024.0)),
    ("fleet/lease", Goal::Ratio(1.5)),
    ("fleet/granted", Goal::Limit(0.9)),
    ("fleet/reports", Goal::Ratio(0.95)),
    ("bench_rdma_cm/window", Goal::Ratio(1.5)),
];

/// The first line of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) kernel: String,
    /// Processes that wanted a processor before the run, on average over a minute.
    pub(super) load: f64,
    pub(super) commit: String,
    pub(super) date: String,
    /// Fewer operations in a round, as many pairs.
    pub(super) quick: bool,
    /// Whether guests of the lab were emulated; `None`: none ran.
    pub(super) emulated: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    Higher,
    Lower,
}

/// One figure, as the benches write it, which leave the last three out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure {
    /// The bench, a slash, and the figure.
    pub(super) name: String,
    pub(super) what: String,
    pub(super) ours: f64,
    pub(super) peer: Option<f64>,
    pub(super) peer_name: Option<String>,
    pub(super) unit: String,
    pub(super) better: Better,
    /// Ours in times the peer.
    pub(super) ratio: Option<f64>,
    /// 95 % interval of the ratio; without a peer, of ours.
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
    /// Pairs, or rounds without a peer; `None`: one number, or statistics over requests.
    pub(super) pairs: Option<usize>,
    /// What the ratio is to reach.
    #[serde(default)]
    pub(super) goal: Option<f64>,
    /// `None`: no goal, or nothing that could be judged.
    #[serde(default)]
    pub(super) met: Option<bool>,
    /// Measured in an emulated guest: only the ratio says something.
    #[serde(default)]
    pub(super) emulated: bool,
}

/// A figure or a bench that was not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Skipped {
    pub(super) name: String,
    pub(super) skipped: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    Machine(Machine),
    Figure(Figure),
    Skipped(Skipped),
}

/// A whole run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    pub(super) machine: Machine,
    pub(super) figures: Vec<Figure>,
    pub(super) skipped: Vec<Skipped>,
}

impl Run {
    /// Of the lines of a file.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().map(Line::parse);
        let Some(Line::Machine(machine)) = lines.next().transpose()? else {
            bail!("the first line does not describe a machine");
        };
        let (mut figures, mut skipped) = (Vec::new(), Vec::new());
        for line in lines {
            match line? {
                Line::Figure(figure) => figures.push(figure),
                Line::Skipped(it) => skipped.push(it),
                Line::Machine(_) => bail!("a second machine; give each run a file of its own"),
            }
        }
        Ok(Self {
            machine,
            figures,
            skipped,
        })
    }

    /// The lines, as [`Run::parse`] reads them.
    pub(super) fn lines(&self) -> Result<String> {
        let figures = self.figures.iter().cloned().map(Line::Figure);
        let skipped = self.skipped.iter().cloned().map(Line::Skipped);
        let all = [Line::Machine(self.machine.clone())].into_iter();
        let lines = all.chain(figures).chain(skipped);
        let lines = lines.map(|line| Ok(serde_json::to_string(&line)? + "\n"));
        lines.collect()
    }

    /// Adds what a bench wrote, and judges it.
    pub(super) fn add(&mut self, text: &str, emulated: bool) -> Result<()> {
        for line in text.lines() {
            match Line::parse(line)? {
                Line::Figure(mut figure) => {
                    figure.emulated = emulated;
                    figure.judge(self.machine.quick);
                    self.figures.push(figure);
                }
                Line::Skipped(skipped) => self.skipped.push(skipped),
                Line::Machine(_) => bail!("a bench describes a machine: {line}"),
            }
        }
        Ok(())
    }

    pub(super) fn skip(&mut self, name: &str, why: &str) {
        self.skipped.push(Skipped {
            name: name.to_owned(),
            skipped: why.to_owned(),
        });
    }
}

impl Line {
    fn parse(line: &str) -> Result<Self> {
        serde_json::from_str(line).with_context(|| format!("no line of a run: {line}"))
    }
}

impl Figure {
    fn judge(&mut self, quick: bool) {
        let goal = GOALS.iter().find(|(name, _)| *name == self.name);
        if let Some((_, goal)) = goal {
            self.judge_by(*goal, quick);
        }
    }

    /// A goal is missed only if the whole interval lies on its wrong side, or the number itself without an interval.
    fn judge_by(&mut self, goal: Goal, quick: bool) {
        match goal {
            Goal::Ratio(ratio) => self.goal = Some(ratio),
            Goal::Limit(limit) | Goal::FullLimit(limit) => {
                self.peer = Some(limit);
                self.peer_name = Some(THE_GOAL.to_owned());
                self.ratio = Some(self.ours / limit);
                self.low = self.low.map(|it| it / limit);
                self.high = self.high.map(|it| it / limit);
                self.goal = Some(1.0);
            }
        }
        let is_enough = self.pairs.is_none_or(|it| it >= PAIRS_MIN);
        let is_whole = !(quick && matches!(goal, Goal::FullLimit(_)));
        let Some((ratio, goal)) = self.ratio.zip(self.goal).filter(|_| is_enough && is_whole)
        else {
            return;
        };
        self.met = Some(match self.better {
            Better::Higher => self.high.unwrap_or(ratio) >= goal,
            Better::Lower => self.low.unwrap_or(ratio) <= goal,
        });
    }

    /// How many times better than the peer, whichever way is better.
    pub(super) fn advantage(&self, ratio: f64) -> f64 {
        match self.better {
            Better::Higher => ratio,
            Better::Lower => 1.0 / ratio,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A line as `fabricbios-bench` writes it.
    const WRITTEN: &str = r#"{"name":"churn/1","what":"grant and free","unit":"a second","better":"higher","ours":900.0,
        "peer":450.0,"peer_name":"etcd 3.4.23","ratio":2.0,"low":1.5,"high":2.0,"pairs":15}"#;

    pub(in crate::bench) fn machine() -> Machine {
        Machine {
            cpu: "a & b".to_owned(),
            cores: 2,
            kernel: "6.1".to_owned(),
            load: 0.1,
            commit: "0123456".to_owned(),
            date: "2026-11-28".to_owned(),
            quick: false,
            emulated: None,
        }
    }

    pub(in crate::bench) fn figure(
        name: &str,
        better: Better,
        [low, ratio, high]: [f64; 3],
    ) -> Figure {
        Figure {
            name: name.to_owned(),
            better,
            ratio: Some(ratio),
            low: Some(low),
            high: Some(high),
            ..serde_json::from_str(WRITTEN).unwrap()
        }
    }

    #[test]
    fn what_benches_write_is_judged_and_read_again_with_every_field() {
        let mut run = Run {
            machine: machine(),
            figures: Vec::new(),
            skipped: Vec::new(),
        };
        let skipped = r#"{"name":"strategy","skipped":"no RDMA device"}"#;
        let written = WRITTEN.replace('\n', "");
        run.add(&format!("{written}\n{skipped}\n"), true).unwrap();
        run.skip("python", "no wheel");
        let lines = run.lines().unwrap();
        assert_eq!(Run::parse(&lines).unwrap(), run);
        let figure: serde_json::Value =
            serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
        for field in [
            "name",
            "ours",
            "peer",
            "peer_name",
            "unit",
            "better",
            "ratio",
            "low",
            "high",
            "goal",
            "met",
        ] {
            assert!(!figure[field].is_null(), "{field}: {figure}");
        }
        assert!(figure["goal"] == 2.0 && figure["met"] == true && figure["emulated"] == true);
        assert_eq!((run.figures.len(), run.skipped.len()), (1, 2));
    }

    #[test]
    fn lines_of_no_run_are_refused() {
        let first = Run {
            machine: machine(),
            figures: Vec::new(),
            skipped: Vec::new(),
        };
        let first = first.lines().unwrap();
        for wrong in [
            "",
            WRITTEN,
            &format!("{first}{first}"),
            &format!("{first}{{}}"),
            &format!("{first}x"),
        ] {
            assert!(Run::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_goal_is_missed_only_if_the_whole_interval_is_on_the_wrong_side() {
        let cases = [
            (Better::Higher, [1.5, 1.8, 1.99], false),
            (Better::Higher, [1.5, 1.8, 2.0], true),
            (Better::Higher, [2.1, 2.2, 2.3], true),
            (Better::Lower, [2.01, 2.2, 2.3], false),
            (Better::Lower, [2.0, 2.2, 2.3], true),
            (Better::Lower, [1.0, 1.2, 1.3], true),
        ];
        for (better, edges, met) in cases {
            let mut figure = figure("x/y", better, edges);
            figure.judge_by(Goal::Ratio(2.0), false);
            assert_eq!(figure.met, Some(met), "{better:?} {edges:?}");
        }
    }

    #[test]
    fn fewer_pairs_than_fifteen_judge_nothing() {
        let mut figure = figure("x/y", Better::Higher, [1.0, 1.0, 1.0]);
        figure.pairs = Some(PAIRS_MIN - 1);
        figure.judge_by(Goal::Ratio(2.0), false);
        assert_eq!((figure.goal, figure.met), (Some(2.0), None));
    }

    #[test]
    fn a_limit_is_the_peer_of_a_number() {
        for (ours, met) in [(100.0, true), (100.1, false)] {
            let mut figure = figure("x/y", Better::Lower, [0.0; 3]);
            figure = Figure {
                ours,
                ratio: None,
                low: None,
                high: None,
                pairs: None,
                ..figure
            };
            figure.judge_by(Goal::Limit(100.0), true);
            assert_eq!(
                (figure.ratio, figure.goal, figure.met),
                (Some(ours / 100.0), Some(1.0), Some(met))
            );
            figure.met = None;
            figure.judge_by(Goal::FullLimit(100.0), true);
            assert_eq!(figure.met, None, "a quick run has fewer operations");
        }
        let mut rounds = figure("x/y", Better::Lower, [90.0, 0.0, 130.0]);
        rounds.judge_by(Goal::Limit(100.0), false);
        assert_eq!(
            (rounds.low, rounds.high, rounds.met),
            (Some(0.9), Some(1.3), Some(true))
        );
    }

    #[test]
    fn each_goal_has_a_bench() {
        let benches = crate::bench::plan::names(&crate::bench::tests::layout()).unwrap();
        for (name, _) in GOALS {
            let (bench, _) = name.split_once('/').unwrap();
            assert!(benches.iter().any(|it| it == bench), "{name}");
        }
    }
}
