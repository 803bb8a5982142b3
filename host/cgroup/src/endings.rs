//! The parts of an end that wait for processes: each lease has its own thread, so that leases do not wait for each
//! other.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use fabricbios_lease::StepError;
use fabricbios_wire::LeaseId;

/// How long a cut waits for an end that has just begun, if no other end is in progress.
const MOMENT: Duration = Duration::from_millis(100);

/// `Ok`: the finding, for people.
type Outcome = Result<String, StepError>;

/// The ends in progress, and those whose outcome has not been taken.
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

    /// Ends a lease when other leases are due too. `end` kills the lease's processes, waits for their end for at most
    /// the given time, and proves it. The first call gives `end` no time. If that is not enough, another thread calls
    /// `end` with `patience`.
    ///
    /// # Errors
    /// The lease has not ended. If the thread still waits, the next call takes its outcome.
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
            // Processes may have come since: check once more.
            Some(_) => end(Duration::ZERO),
            None => Err(StepError::new(
                "wait",
                "it was killed and has not ended yet",
            )),
        }
    }

    /// Whether the end of this lease has begun and its outcome has not been taken.
    #[must_use]
    pub fn has(&self, lease: LeaseId) -> bool {
        self.all().contains_key(&lease)
    }

    /// How long a cut may wait for an end: zero if another end is in progress, because other leases are due too.
    #[must_use]
    pub fn moment(&self) -> Duration {
        match self.all().values().any(|it| it.outcome().is_none()) {
            true => Duration::ZERO,
            false => MOMENT,
        }
    }

    /// Begins the lease's end, unless it is in progress or has failed, and waits for it at most `patience`.
    /// [`Endings::wait`] takes the outcome.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        &self,
        lease: LeaseId,
        patience: Duration,
        work: impl FnOnce() -> Outcome + Send + 'static,
    ) -> Result<(), StepError> {
        // The findings of an earlier successful end may be out of date.
        self.all()
            .retain(|it, ending| *it != lease || !matches!(*ending.outcome(), Some(Ok(_))));
        self.begun(lease, work)?.outcome_within(patience);
        Ok(())
    }

    /// Waits at most `patience` for the lease's end and takes its outcome. `None`: the end is still in progress. If no
    /// end has begun, `work` begins one.
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
