//! Says what strangers do at the port, without letting them write the log.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const ONE_LINE_PER: Duration = Duration::from_secs(10);

/// Tells the operator about one failed peer in ten seconds and how many more there were.
#[derive(Debug, Default)]
pub(crate) struct Noise {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_told: Option<Instant>,
    untold: u64,
}

impl Noise {
    pub(crate) fn heard(&self, from: impl fmt::Display, what: impl fmt::Display) {
        tracing::debug!(%from, "{what}");
        if let Some(untold) = self.tell(Instant::now()) {
            tracing::info!(%from, untold, "peer turned away: {what}");
        }
    }

    /// Whether to speak now, and for how many that were not told.
    fn tell(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state
            .last_told
            .is_some_and(|last| now.duration_since(last) < ONE_LINE_PER)
        {
            state.untold += 1;
            return None;
        }
        state.last_told = Some(now);
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_makes_one_line_and_the_next_one_counts_it() {
        let (noise, start) = (Noise::default(), Instant::now());
        assert_eq!(noise.tell(start), Some(0));
        for _ in 0..1_000 {
            assert_eq!(noise.tell(start + ONE_LINE_PER / 2), None);
        }
        assert_eq!(noise.tell(start + ONE_LINE_PER), Some(1_000));
    }
}
