//! What figures are to reach, and whether they do.

use super::figures::{Better, Figure};

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
pub(super) const GOALS: [(&str, Goal); 30] = [
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
    ("bench_rdma_cut/window", Goal::Ratio(2.0)),
    ("bench_rdma_cut/region", Goal::Ratio(2.0)),
    ("gpu/launches-local", Goal::Ratio(1.2)),
    ("gpu/launches-network", Goal::Ratio(2.0)),
];

impl Figure {
    pub(super) fn judge(&mut self, quick: bool) {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::tests::figure;

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
