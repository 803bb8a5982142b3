//! Compares two things in alternating rounds; the result is their ratio with an interval.
//!
//! A disk or an emulated CPU drifts by tens of percent over seconds. Neighbouring rounds share the drift, so
//! the ratio within a pair is stable although the times are not. The order in the pair changes each time, so
//! that neither side is always second.

use std::fmt;
use std::time::Duration;

use crate::report::{Spread, median, sorted};

/// Rounds of A and of B, by pair.
#[derive(Debug)]
pub(crate) struct Pairs {
    pub(crate) a: Vec<Duration>,
    pub(crate) b: Vec<Duration>,
}

/// Runs `rounds` pairs. Each closure measures its own time, so that its preparation does not count.
pub(crate) fn interleaved_pairs(
    rounds: usize,
    mut a: impl FnMut() -> anyhow::Result<Duration>,
    mut b: impl FnMut() -> anyhow::Result<Duration>,
) -> anyhow::Result<Pairs> {
    let mut pairs = Pairs {
        a: Vec::with_capacity(rounds),
        b: Vec::with_capacity(rounds),
    };
    for round in 0..rounds {
        if round % 2 == 0 {
            pairs.a.push(a()?);
            pairs.b.push(b()?);
        } else {
            pairs.b.push(b()?);
            pairs.a.push(a()?);
        }
    }
    Ok(pairs)
}

impl Pairs {
    /// A over B. `None`: there was no pair.
    pub(crate) fn ratio(&self) -> Option<Ratio> {
        let seconds = |times: &[Duration]| times.iter().map(Duration::as_secs_f64).collect();
        let [a, b]: [Vec<f64>; 2] = [seconds(&self.a), seconds(&self.b)];
        Ratio::of_pairs(&a, &b)
    }

    /// Prints both sides, in microseconds, and the ratio.
    pub(crate) fn print(&self, a: &str, b: &str) {
        for (name, times) in [(a, &self.a), (b, &self.b)] {
            if let Some(spread) = Spread::of_times(times) {
                println!("{name}: µs {spread}");
            }
        }
        if let Some(ratio) = self.ratio() {
            println!("ratio of the first to the second: {ratio}");
        }
    }
}

/// The median ratio of the pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    /// The 95 % confidence interval of the true median; `None` with too few pairs.
    pub(crate) interval: Option<(f64, f64)>,
}

impl Ratio {
    /// A over B, by pair. `None`: there was no pair.
    pub(crate) fn of_pairs(a: &[f64], b: &[f64]) -> Option<Self> {
        Self::of(sorted(a.iter().zip(b).map(|(a, b)| a / b)))
    }

    /// Of sorted values.
    pub(crate) fn of(sorted: Vec<f64>) -> Option<Self> {
        let edge = |skip: usize| (sorted[skip], sorted[sorted.len() - 1 - skip]);
        let interval = outer_ranks(sorted.len()).map(edge);
        (!sorted.is_empty()).then(|| Self {
            median: median(&sorted),
            interval,
        })
    }
}

/// How many values to leave out at each end so that the rest covers the median with 95 %. The only
/// assumption is that the pairs are independent: each lies above the true median with probability one half.
fn outer_ranks(count: usize) -> Option<usize> {
    // Probabilities of 0, 1, 2, … of `count` tosses, as logarithms: for long runs 2^-count underflows.
    let tosses = count as f64;
    let mut log_chance = -tosses * std::f64::consts::LN_2;
    let mut tail = 0.0;
    let mut skip = None;
    for heads in 0..count / 2 {
        tail += log_chance.exp();
        if tail > 0.025 {
            break;
        }
        skip = Some(heads);
        log_chance += ((tosses - heads as f64) / (heads as f64 + 1.0)).ln();
    }
    skip
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "median {:.3}", self.median)?;
        match self.interval {
            Some((low, high)) => write!(f, ", 95 % interval {low:.3} to {high:.3}"),
            None => write!(f, ", too few pairs for an interval"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn sides_alternate_and_neither_always_comes_first() {
        let order = RefCell::new(String::new());
        let side = |name: char, millis: u64| {
            order.borrow_mut().push(name);
            Ok(Duration::from_millis(millis))
        };
        let pairs = interleaved_pairs(4, || side('a', 6), || side('b', 2)).unwrap();
        assert_eq!(order.into_inner(), "abbaabba");
        let ratio = pairs.ratio().unwrap();
        assert!((ratio.median - 3.0).abs() < 1e-9 && ratio.interval.is_none());
    }

    /// Ranks from published tables of the sign test (two-sided 5 %).
    #[test]
    fn the_interval_has_the_ranks_of_the_sign_test() {
        let known = [
            (5, None),
            (6, Some(0)),
            (9, Some(1)),
            (20, Some(5)),
            (50, Some(17)),
        ];
        for (count, skip) in known {
            assert_eq!(outer_ranks(count), skip, "{count} pairs");
        }
        assert!(outer_ranks(100_000).is_some_and(|skip| (49_600..49_750).contains(&skip)));
    }

    #[test]
    fn the_interval_encloses_the_median() {
        let ratio = Ratio::of((0..20).map(f64::from).collect()).unwrap();
        assert_eq!((ratio.median, ratio.interval), (9.5, Some((5.0, 14.0))));
        assert_eq!(Ratio::of(Vec::new()), None);
    }
}
