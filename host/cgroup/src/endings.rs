//! What of an end waits for others: each lease's on a thread of its own, so that no other lease's end waits for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

/// How long a cut waits for what has just begun, if nothing else is under way.
const MOMENT: Duration = Duration::from_millis(100);

/// For people: what was found.
type Outcome = Result<String, StepError>;

/// The ends that are under way, and those whose outcome nobody has taken.
#[derive(Debug, Default)]
pub struct Endings(Mutex<BTreeMap<LeaseId, Arc<Ending>>>);

#[derive(Debug, Default)]
struct Ending {
    outcome: Mutex<Option<Outcome>>,
    is_over: Condvar,
}

impl Endings {
    fn all(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Arc<Ending>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a lease when other leases are due too. `end` kills all of it first, then waits for its end, at most for the time that it
    /// gets, and proves it: at first without any time; what has not ended then is waited for on another thread, for `patience`.
    ///
    /// # Errors
    /// The lease has not ended. If it may yet, the next call goes on.
    pub fn end<T>(
        &self,
        lease: LeaseId,
        patience: Duration,
        end: impl Fn(Duration) -> Result<T, StepError> + Clone + Send + 'static,
    ) -> Result<T, StepError> {
        if !self.has(lease)
            && let Ok(ended) = end(Duration::ZERO)
        {
            return Ok(ended);
        }
        let its = end.clone();
        let work = move || its(patience).map(|_| String::new());
        match self.wait(lease, self.moment(), work)? {
            // Something may have come since.
            Some(_) => end(Duration::ZERO),
            None => Err(StepError::new(
                "wait",
                "it was killed and has not ended yet",
            )),
        }
    }

    /// Whether the end of this lease has begun, and its outcome was not taken.
    #[must_use]
    pub fn has(&self, lease: LeaseId) -> bool {
        self.all().contains_key(&lease)
    }

    /// How long a cut may wait for an end: other leases are due too.
    #[must_use]
    pub fn moment(&self) -> Duration {
        match self.all().values().any(|it| it.outcome().is_none()) {
            true => Duration::ZERO,
            false => MOMENT,
        }
    }

    /// Begins the lease's end, unless it is under way or has failed, and waits for it for so long. [`Endings::wait`] takes the
    /// outcome.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        &self,
        lease: LeaseId,
        patience: Duration,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Result<(), StepError> {
        // What an earlier end has found may have changed.
        self.all()
            .retain(|it, ending| *it != lease || !matches!(*ending.outcome(), Some(Ok(_))));
        self.begun(lease, work)?.outcome_within(patience);
        Ok(())
    }

    /// Takes the outcome of the lease's end, and waits for it for so long. `None`: it goes on. If none has begun, `work` begins
    /// now.
    ///
    /// # Errors
    /// The end has failed, or no thread can be started.
    pub fn wait(
        &self,
        lease: LeaseId,
        patience: Duration,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Result<Option<String>, StepError> {
        let outcome = self.begun(lease, work)?.outcome_within(patience);
        if outcome.is_some() {
            self.all().remove(&lease);
        }
        outcome.transpose()
    }

    fn begun(
        &self,
        lease: LeaseId,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Result<Arc<Ending>, StepError> {
        let mut all = self.all();
        if let Some(ending) = all.get(&lease) {
            return Ok(Arc::clone(ending));
        }
        let ending = Arc::new(Ending::default());
        let its = Arc::clone(&ending);
        let run = move || {
            let outcome = work();
            *its.outcome() = Some(outcome);
            its.is_over.notify_all();
        };
        let thread = thread::Builder::new().name("end".into());
        let begun = thread.spawn(run);
        begun.map_err(|error| StepError::new("start a thread", error))?;
        all.insert(lease, Arc::clone(&ending));
        Ok(ending)
    }
}

impl Ending {
    fn outcome(&self) -> MutexGuard<'_, Option<Outcome>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcome_within(&self, patience: Duration) -> Option<Outcome> {
        let waited = self
            .is_over
            .wait_timeout_while(self.outcome(), patience, |it| it.is_none());
        let (outcome, _) = waited.unwrap_or_else(PoisonError::into_inner);
        outcome.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn an_end_that_waits_holds_up_no_other_and_is_proved_when_it_is_over() {
        let endings = Endings::default();
        let (over, is_over) = mpsc::channel::<()>();
        let is_over = Arc::new(Mutex::new(is_over));
        let proved = Arc::new(Mutex::new(false));
        let its = proved.clone();
        let waits = move |patience: Duration| {
            let mut proved = its.lock().unwrap();
            if !patience.is_zero() {
                is_over.lock().unwrap().recv().unwrap_err();
                *proved = true;
            }
            let left = StepError::new("kill", "a process is left");
            proved.then_some(()).ok_or(left)
        };
        let end = || endings.end(LeaseId(1), MOMENT, waits.clone());
        let first = end().unwrap_err();
        assert!(first.detail.contains("not ended yet"), "{first}");
        endings.end(LeaseId(2), MOMENT, Ok).unwrap();
        assert_eq!(endings.moment(), Duration::ZERO, "the first one goes on");
        end().unwrap_err();
        drop(over);
        while end().is_err() {
            thread::yield_now();
        }
        assert!(!endings.has(LeaseId(1)));
    }
}
