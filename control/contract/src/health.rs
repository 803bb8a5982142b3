//! The health of a store: the result of the latest call, and of a thread that checks the store periodically. Each
//! change is reported.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fabricbios_lease::{Condition, StepError};

use crate::TellCondition;

/// A check only reads a few names; if it takes longer than this, the store has a problem.
const CHECK_MAX: Duration = Duration::from_secs(5);

/// Checks a store and returns its condition. The kernel may block the check for any time.
pub type Check = Box<dyn Fn() -> Condition + Send>;

/// The known health of a store; reading it never blocks.
#[derive(Debug)]
pub struct Health {
    known: Arc<Mutex<Known>>,
    /// Dropping this ends the checking threads.
    _stop: Sender<()>,
}

#[derive(Default)]
struct Known {
    call_trouble: Option<String>,
    checked: Condition,
    tell: Option<TellCondition>,
    /// The last condition that was reported.
    told: Condition,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.condition().fmt(f)
    }
}

impl Health {
    /// Starts with `checked` as the condition of the store. A thread repeats `check` after each period `every`.
    #[must_use]
    pub fn watch(checked: Condition, every: Duration, check: Check) -> Self {
        let known = Arc::new(Mutex::new(Known {
            checked,
            ..Known::default()
        }));
        let (stop, stopped) = channel();
        let (ask, asked) = channel();
        let (answer, answers) = channel();
        let shared = Arc::clone(&known);
        let threads = thread::Builder::new()
            .name("health".to_owned())
            .spawn(
                move || {
                    while asked.recv().is_ok() && answer.send(check()).is_ok() {}
                },
            )
            .and_then(|_checks| {
                let watches = thread::Builder::new().name("health".to_owned());
                watches.spawn(move || {
                    while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout)
                        && ask.send(()).is_ok()
                        && await_result(&shared, &answers, CHECK_MAX).is_some()
                    {
                    }
                })
            });
        if let Err(error) = threads {
            tracing::warn!(%error, "no thread to look after a store: its loss shows when it is used");
        }
        Self { known, _stop: stop }
    }

    /// Records the result of a call and returns it.
    ///
    /// # Errors
    /// `result` is an error.
    pub fn note<T>(&self, result: Result<T, StepError>) -> Result<T, StepError> {
        let trouble = result.as_ref().err().map(ToString::to_string);
        change(&self.known, |known| known.call_trouble = trouble);
        result
    }

    /// Sets the receiver of reports. It receives one at once if the store has a problem.
    pub fn tell(&self, tell: TellCondition) {
        change(&self.known, |known| {
            known.told = Condition::Good;
            known.tell = Some(tell);
        });
    }

    /// The known condition: of the latest call or check.
    #[must_use]
    pub fn condition(&self) -> Condition {
        lock(&self.known).condition()
    }
}

impl Known {
    fn condition(&self) -> Condition {
        match (&self.checked, &self.call_trouble) {
            (Condition::Good, Some(why)) => Condition::Degraded(why.clone()),
            (checked, _) => checked.clone(),
        }
    }
}

/// Waits for the result of a check. `None`: the thread has ended.
fn await_result(
    known: &Mutex<Known>,
    answers: &Receiver<Condition>,
    at_most: Duration,
) -> Option<()> {
    let checked = match answers.recv_timeout(at_most) {
        Ok(checked) => checked,
        Err(RecvTimeoutError::Disconnected) => return None,
        Err(RecvTimeoutError::Timeout) => {
            // The disk may only be busy: the next request for a lease finds out.
            let silent = Condition::Degraded("it does not answer".to_owned());
            change(known, |known| known.checked = silent);
            answers.recv().ok()?
        }
    };
    change(known, |known| known.checked = checked);
    Some(())
}

/// Reports under the lock, so that reports come in the order of the changes.
fn change(known: &Mutex<Known>, change: impl FnOnce(&mut Known)) {
    let mut known = lock(known);
    change(&mut known);
    let condition = known.condition();
    if let Some(tell) = known.tell.as_ref().filter(|_| known.told != condition) {
        tell(condition.clone());
        known.told = condition;
    }
}

/// A panic under this lock leaves no incomplete change.
fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    const NEVER: Duration = Duration::from_secs(3600);

    fn well() -> Health {
        Health::watch(Condition::Good, NEVER, Box::new(|| Condition::Good))
    }

    fn degraded(why: &str) -> Condition {
        Condition::Degraded(why.to_owned())
    }

    fn told(health: &Health) -> Receiver<Condition> {
        let (tell, told) = channel();
        health.tell(Box::new(move |condition| tell.send(condition).unwrap()));
        told
    }

    #[test]
    fn trouble_of_a_call_ends_with_the_next_that_works() {
        let health = well();
        let told = told(&health);
        let fails = || {
            let failed: Result<(), _> = Err(StepError::new("volume", "no space"));
            health.note(failed).unwrap_err();
        };
        fails();
        fails();
        assert_eq!(health.condition(), degraded("volume: no space"));
        health.note(Ok(())).unwrap();
        let all: Vec<_> = told.try_iter().collect();
        assert_eq!(
            all,
            [degraded("volume: no space"), Condition::Good],
            "changes only"
        );
    }

    #[test]
    fn who_comes_later_is_told_of_the_trouble_that_there_is() {
        let health = well();
        health
            .note(Err::<(), _>(StepError::new("volume", "no space")))
            .unwrap_err();
        let all: Vec<_> = told(&health).try_iter().collect();
        assert_eq!(all, [degraded("volume: no space")]);
    }

    #[test]
    fn trouble_that_a_look_finds_outlives_calls_that_work() {
        let health = well();
        let told = told(&health);
        let (answer, answers) = channel();
        let looks = |found: Condition| {
            answer.send(found).unwrap();
            await_result(&health.known, &answers, CHECK_MAX).unwrap();
        };
        looks(Condition::Unavailable("gone".to_owned()));
        health.note(Ok(())).unwrap();
        looks(Condition::Good);
        let all: Vec<_> = told.try_iter().collect();
        assert_eq!(
            all,
            [Condition::Unavailable("gone".to_owned()), Condition::Good]
        );
    }

    #[test]
    fn a_look_that_does_not_come_back_is_trouble_until_it_does() {
        let health = well();
        let told = told(&health);
        let (answer, answers) = channel();
        thread::scope(|scope| {
            let known = &health.known;
            scope.spawn(move || await_result(known, &answers, Duration::ZERO));
            let silent = degraded("it does not answer");
            assert_eq!(told.recv().unwrap(), silent);
            answer.send(Condition::Good).unwrap();
            assert_eq!(told.recv().unwrap(), Condition::Good);
        });
    }
}
