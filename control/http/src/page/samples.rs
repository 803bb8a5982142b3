//! Rates as small charts. A sample is taken when somebody looks, so a program that nobody watches does nothing for them.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use maud::{Markup, html};

/// The time that a chart shows.
const SHOWN: Duration = Duration::from_secs(180);
/// The least time between samples.
const APART: Duration = Duration::from_millis(1500);
const WIDTH: f64 = 240.0;
const HEIGHT: f64 = 48.0;

/// The last samples of `N` counts.
#[derive(Debug)]
pub(super) struct Samples<const N: usize>(VecDeque<(Instant, [u64; N])>);

impl<const N: usize> Default for Samples<N> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<const N: usize> Samples<N> {
    pub(super) fn push(&mut self, now: Instant, counts: [u64; N]) {
        if { self.0.back() }.is_some_and(|(last, _)| now.saturating_duration_since(*last) < APART) {
            return;
        }
        // The oldest that a line begins at may lie before the chart.
        while { self.0.get(1) }.is_some_and(|(at, _)| now.saturating_duration_since(*at) > SHOWN) {
            self.0.pop_front();
        }
        self.0.push_back((now, counts));
    }

    /// `names`: of the counts, with the unit of their amounts.
    pub(super) fn charts(&self, now: Instant, names: &[(&str, &str); N]) -> Markup {
        html! {
            section aria-labelledby="rates" {
                h2 id="rates" { "Rates of the last 3 minutes" }
                div class="charts" {
                    @for (index, (name, unit)) in names.iter().enumerate() {
                        (chart(name, unit, &self.rates(now, index)))
                    }
                }
                p class="note" { "A sample is taken every two seconds while somebody looks." }
            }
        }
    }

    /// The age of the end of each span between samples, and the rate in it.
    fn rates(&self, now: Instant, index: usize) -> Vec<(Duration, f64)> {
        let spans = self.0.iter().zip(self.0.iter().skip(1));
        let rates = spans.map(|((begin, before), (end, after))| {
            let took = end.saturating_duration_since(*begin).as_secs_f64();
            let count = after[index].saturating_sub(before[index]);
            let age = now.saturating_duration_since(*end);
            (age, count as f64 / took.max(APART.as_secs_f64()))
        });
        rates.filter(|(age, _)| *age <= SHOWN).collect()
    }
}

fn chart(name: &str, unit: &str, rates: &[(Duration, f64)]) -> Markup {
    let most = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let last = rates.last().map_or(0.0, |(_, rate)| *rate);
    let point = |(age, rate): &(Duration, f64)| {
        let x = WIDTH * (1.0 - age.as_secs_f64() / SHOWN.as_secs_f64());
        let y = HEIGHT - 1.0 - (HEIGHT - 2.0) * rate / most.max(1.0);
        format!("{x:.1},{y:.1}")
    };
    let points: Vec<String> = rates.iter().map(point).collect();
    let said = format!("{} now, at most {}", rate(last, unit), rate(most, unit));
    html! {
        figure {
            figcaption { b { (name) } " " (said) }
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label={ (name) ": " (said) } {
                polyline points=(points.join(" ")) {}
            }
        }
    }
}

/// Per second, with a decimal prefix.
fn rate(mut per_second: f64, unit: &str) -> String {
    let mut prefixes = ["", "k", "M", "G"].into_iter().peekable();
    let mut prefix = prefixes.next().unwrap_or_default();
    while per_second >= 1000.0
        && let Some(next) = prefixes.next()
    {
        (per_second, prefix) = (per_second / 1000.0, next);
    }
    let space = if prefix.is_empty() && unit.is_empty() {
        ""
    } else {
        " "
    };
    format!("{per_second:.1}{space}{prefix}{unit}/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_bounded_and_a_rate_is_over_its_span() {
        let (start, mut samples) = (Instant::now(), Samples::<4>::default());
        let second = Duration::from_secs(1);
        for n in 0..2000 {
            samples.push(start + second * n, [u64::from(n) * 5; 4]);
        }
        let now = start + second * 1999;
        assert!(samples.0.len() <= 182, "{}", samples.0.len());
        let rates = samples.rates(now, 0);
        assert!(rates.len() > 80 && rates.iter().all(|(_, rate)| (*rate - 5.0).abs() < 0.01));
        // Nobody looked for an hour: one span, whose begin is kept.
        let later = now + second * 3600;
        samples.push(later, [1999 * 5 + 3600; 4]);
        let rates = samples.rates(later, 0);
        assert_eq!(rates.len(), 1);
        assert!((rates[0].1 - 1.0).abs() < 0.01, "{rates:?}");
        assert_eq!(rate(12_345_678.0, "B"), "12.3 MB/s");
        assert_eq!(rate(0.5, ""), "0.5/s");
    }
}
