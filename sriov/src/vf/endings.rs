//! What of an end waits for others: each lease's on threads of its own, so that no other lease waits for it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseId, PciFunction};

use super::pci::Pci;

/// How long between two times that bus mastering is switched off while somebody may switch it on.
const OFF_EVERY: Duration = Duration::from_millis(3);

/// The pause is at least so many times as long as switching it off took.
const PAUSES: u32 = 4;

/// How long a cut waits for what has just begun, if nothing else is under way.
const MOMENT: Duration = Duration::from_millis(100);

/// For people: what was found.
pub(super) type Outcome = Result<String, StepError>;

/// The ends that are under way, and those whose outcome nobody has taken.
#[derive(Debug, Default)]
pub(super) struct Endings(Mutex<BTreeMap<LeaseId, Arc<Ending>>>);

#[derive(Debug, Default)]
struct Ending {
    outcome: Mutex<Option<Outcome>>,
    is_over: Condvar,
}

impl Endings {
    fn all(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Arc<Ending>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the end of this lease has begun, and its outcome was not taken.
    pub(super) fn has(&self, lease: LeaseId) -> bool {
        self.all().contains_key(&lease)
    }

    /// How long a cut may wait for an end: other leases are due too.
    pub(super) fn moment(&self) -> Duration {
        match self.all().values().any(|it| it.outcome().is_none()) {
            true => Duration::ZERO,
            false => MOMENT,
        }
    }

    /// Begins the lease's end, unless it is under way or has failed, and waits for it for so long. [`Endings::wait`] takes the
    /// outcome.
    pub(super) fn start(
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
    pub(super) fn wait(
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
        let thread = thread::Builder::new().name("vf end".into());
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

/// Does the work, and switches bus mastering off again and again until it is done, and once after it.
pub(super) fn kept_off<T: Send>(
    pci: &Pci,
    function: PciFunction,
    work: impl FnOnce() -> T + Send,
) -> T {
    let (over, is_over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let keep = move || {
            let mut pause = OFF_EVERY;
            while is_over.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                let began = Instant::now();
                pci.keep_off(function);
                // An emulated card is slow, and the work needs the processor too.
                pause = OFF_EVERY.max(began.elapsed() * PAUSES);
            }
            pci.keep_off(function);
        };
        let thread = thread::Builder::new().name("bus master off".into());
        if let Err(error) = thread.spawn_scoped(scope, keep) {
            tracing::error!(%function, %error, "bus mastering is not kept off: no thread can be started");
        }
        let done = work();
        drop(over);
        done
    })
}
