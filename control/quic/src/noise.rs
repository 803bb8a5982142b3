//! Logs failed connections of unauthenticated peers, with a rate limit.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

const ONE_LINE_PER: Duration = Duration::from_secs(10);

/// Logs one failed peer in ten seconds, and the number of others.
#[derive(Debug, Default)]
pub(crate) struct Noise {
    state: Mutex<NoiseState>,
}

#[derive(Debug, Default)]
struct NoiseState {
    last_logged: Option<Instant>,
    untold: u64,
}

impl Noise {
    /// `why` may contain text of the peer, so it is logged quoted.
    pub(crate) fn record(&self, from: impl fmt::Display, why: &(impl fmt::Display + ?Sized)) {
        let why = &*why.to_string();
        tracing::debug!(%from, why, "a peer was turned away");
        if let Some(untold) = self.to_log(Instant::now()) {
            tracing::info!(%from, why, untold, "peer turned away");
        }
    }

    /// Whether to log now, and the number of failures that were not logged.
    fn to_log(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state
            .last_logged
            .is_some_and(|last| now.duration_since(last) < ONE_LINE_PER)
        {
            state.untold += 1;
            return None;
        }
        state.last_logged = Some(now);
        Some(std::mem::take(&mut state.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_of_the_peers_own_is_quoted_and_begins_no_line() {
        let (lines, to) = std::io::pipe().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(Mutex::new(to))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let why = "closed by peer: x\n2026-11-22T00:00:00Z  INFO granted lease_id=\"1\"";
            Noise::default().record("10.0.0.1:7", why);
        });
        let said = std::io::read_to_string(lines).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(r#"why="closed by peer: x\n2026"#), "{said}");
        assert!(said.contains(r#"lease_id=\"1\"""#), "{said}");
    }

    #[test]
    fn a_flood_makes_one_line_and_the_next_one_counts_it() {
        let (noise, start) = (Noise::default(), Instant::now());
        assert_eq!(noise.to_log(start), Some(0));
        for _ in 0..1_000 {
            assert_eq!(noise.to_log(start + ONE_LINE_PER / 2), None);
        }
        assert_eq!(noise.to_log(start + ONE_LINE_PER), Some(1_000));
    }
}
