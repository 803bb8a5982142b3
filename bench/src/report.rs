//! The output of a bench: its machine, and medians with their spread.

use std::fmt;
use std::time::Duration;

use fabricbios_kernfs::Tree;

/// The machine and the build of a run. A result means nothing without them.
pub(crate) struct Setting {
    command: String,
    cpu: String,
    kernel: String,
    build: &'static str,
}

impl Setting {
    pub(crate) fn of_this_run() -> Self {
        let proc = Tree::new("/proc");
        let unknown = || "unknown".to_owned();
        let cpuinfo = proc.read_head("cpuinfo", 8192).unwrap_or_default();
        let models = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let model = { models }.find(|(key, _)| key.trim() == "model name");
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        let model = model.map_or_else(unknown, |(_, name)| name.trim().to_owned());
        Self {
            command: std::env::args().collect::<Vec<_>>().join(" "),
            cpu: format!("{model}, {cpus} usable"),
            kernel: proc
                .read("sys/kernel/osrelease")
                .unwrap_or_else(|_absent| unknown()),
            build: if cfg!(debug_assertions) {
                "debug: these numbers mean nothing"
            } else {
                "release"
            },
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "command  {}", self.command)?;
        writeln!(f, "cpu      {}", self.cpu)?;
        writeln!(f, "kernel   {}", self.kernel)?;
        writeln!(f, "build    {}", self.build)
    }
}

/// Median and spread of the rounds of one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) rounds: usize,
    pub(crate) min: f64,
    pub(crate) p10: f64,
    pub(crate) median: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None`: there was no round.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(values);
        let at = |percent| percentile(&sorted, percent);
        (!sorted.is_empty()).then(|| Self {
            rounds: sorted.len(),
            min: at(0),
            p10: at(10),
            median: median(&sorted),
            p90: at(90),
            p99: at(99),
            max: at(100),
        })
    }

    pub(crate) fn of_times(times: &[Duration]) -> Option<Self> {
        Self::of(times.iter().map(|time| time.as_secs_f64() * 1e6))
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "median {:.1} (min {:.1}, p10 {:.1}, p90 {:.1}, p99 {:.1}, max {:.1}; {} rounds)",
            self.median, self.min, self.p10, self.p90, self.p99, self.max, self.rounds
        )
    }
}

/// Operations per second in the median round; a round has `count` operations.
pub(crate) fn per_second(times: &[Duration], count: usize) -> f64 {
    let seconds = sorted(times.iter().map(Duration::as_secs_f64));
    count as f64 / median(&seconds)
}

pub(crate) fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// This percentile of sorted values; there must be at least one value.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// The median of sorted values; there must be at least one value.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_sorted_rounds() {
        let spread = Spread::of((1..=11).rev().map(f64::from)).unwrap();
        let printed = "median 6.0 (min 1.0, p10 2.0, p90 10.0, p99 10.0, max 11.0; 11 rounds)";
        assert_eq!(spread.to_string(), printed);
        assert_eq!(Spread::of([1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of([]), None);
    }
}
