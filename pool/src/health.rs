//! How a pool does: what the latest call found, and what a thread that looks from time to time finds.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fabricbios_lease::{Condition, StepError};

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A look that takes longer than this is trouble by itself: a look reads a few names.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Looks at a pool; says what is wrong with it. It may be stuck for as long as the kernel likes.
pub(crate) type Check = Box<dyn Fn() -> Result<(), String> + Send>;

/// What is known of a pool without asking the kernel.
#[derive(Debug)]
pub(crate) struct Health {
    known: Arc<Mutex<Known>>,
    /// Dropped, it ends the thread that looks.
    _stop: Sender<()>,
}

#[derive(Debug, Default)]
struct Known {
    call_trouble: Option<String>,
    look_trouble: Option<String>,
    looks_since: Option<Instant>,
}

impl Health {
    /// Good, and looked at from now on.
    pub(crate) fn watch(check: Check) -> Self {
        let known = Arc::new(Mutex::new(Known::default()));
        let (stop, stopped) = channel();
        let shared = Arc::clone(&known);
        let looking = thread::Builder::new()
            .name("pool".to_owned())
            .spawn(move || {
                while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                    look(&shared, &check);
                }
            });
        if let Err(error) = looking {
            tracing::warn!(%error, "no thread to look after a pool: its loss shows when it is used");
        }
        Self { known, _stop: stop }
    }

    /// Remembers how a call went.
    pub(crate) fn note<T>(&self, result: Result<T, StepError>) -> Result<T, StepError> {
        let trouble = result.as_ref().err().map(ToString::to_string);
        lock(&self.known).call_trouble = trouble;
        result
    }

    pub(crate) fn condition(&self) -> Condition {
        match lock(&self.known).trouble() {
            Some(trouble) => Condition::Degraded(trouble),
            None => Condition::Good,
        }
    }
}

impl Known {
    fn trouble(&self) -> Option<String> {
        let silent = self
            .looks_since
            .is_some_and(|since| since.elapsed() > LOOK_MAX);
        let silence = silent.then(|| "does not answer".to_owned());
        let look_trouble = self.look_trouble.clone().or(silence);
        look_trouble.or_else(|| self.call_trouble.clone())
    }
}

fn look(known: &Mutex<Known>, check: &Check) {
    lock(known).looks_since = Some(Instant::now());
    let trouble = check().err();
    let mut known = lock(known);
    known.looks_since = None;
    known.look_trouble = trouble;
}

/// Nothing is ever left half changed under this lock.
fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_of_a_call_ends_with_the_next_that_works() {
        let health = Health::watch(Box::new(|| Ok(())));
        assert_eq!(health.condition(), Condition::Good);
        let failed: Result<(), _> = Err(StepError::new("volume", "no space"));
        health.note(failed).unwrap_err();
        let degraded = Condition::Degraded("volume: no space".to_owned());
        assert_eq!(health.condition(), degraded);
        health.note(Ok(())).unwrap();
        assert_eq!(health.condition(), Condition::Good);
    }

    #[test]
    fn trouble_that_a_look_finds_outlives_calls_that_work() {
        let known = Mutex::new(Known::default());
        look(&known, &(Box::new(|| Err("gone".to_owned())) as Check));
        assert_eq!(lock(&known).trouble().unwrap(), "gone");
        look(&known, &(Box::new(|| Ok(())) as Check));
        assert_eq!(lock(&known).trouble(), None);
    }

    #[test]
    fn a_look_that_does_not_come_back_is_trouble() {
        let Some(long_ago) = Instant::now().checked_sub(LOOK_MAX * 2) else {
            return;
        };
        let known = Known {
            looks_since: Some(long_ago),
            ..Known::default()
        };
        assert_eq!(known.trouble().unwrap(), "does not answer");
    }
}
