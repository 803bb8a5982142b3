//! The bindings of leases that are used by processes on this node: who may enter, until when, and what a cut waits for.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fabricbios_contract::{LocalRefusal, Revoked};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Custody, Gate, Lookup, MovedOn, Proof,
    StepError,
};
use fabricbios_wire::{Generation, LeaseId};
use nix::time::{ClockId, clock_gettime};

/// The bindings of all leases of a path.
#[derive(Debug, Default)]
pub struct Bindings(Mutex<Custody<Arc<Entry>>>);

/// The bindings of one lease.
#[derive(Debug, Default)]
pub struct Entry {
    state: Mutex<State>,
    /// Held while a process enters or the cgroup is thawed, which may wait in the kernel.
    admission: Mutex<()>,
    /// Nanoseconds on the boot-time clock; 0 until the first `extend` after a bind.
    deadline: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    gate: Gate,
    tenant: Arc<str>,
    /// Bound, and no cut has been proved since.
    is_open: bool,
}

impl State {
    fn bound(&self) -> Result<Generation, LocalRefusal> {
        let bound = self.gate.generation();
        bound.ok_or_else(|| LocalRefusal::NotActive("it is not bound yet".into()))
    }
}

impl Bindings {
    fn custody(&self) -> MutexGuard<'_, Custody<Arc<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry of a lease, a new one if there is none. `None`: the lease was removed.
    #[must_use]
    pub fn entry(&self, lease: LeaseId) -> Option<Arc<Entry>> {
        self.custody().find_or_make(lease)
    }

    /// The entry of a lease that somebody wants to use.
    ///
    /// # Errors
    /// There is no such lease here, or it is over.
    pub fn in_use(&self, lease: LeaseId) -> Result<Arc<Entry>, LocalRefusal> {
        LocalRefusal::unless_here(self.custody().find(lease))
    }

    /// Moves the deadline of a binding; nothing waits for the kernel.
    ///
    /// # Errors
    /// The binding was cut.
    pub fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        match self.custody().find(binding_id.lease_id) {
            Lookup::Here(entry) if entry.state().gate.is_closed(binding_id.generation) => {
                Err(AlreadyCut)
            }
            Lookup::Here(entry) => {
                entry.deadline.store(deadline.0, Ordering::Release);
                Ok(())
            }
            Lookup::Released => Err(AlreadyCut),
            // The lease is bound later.
            Lookup::Unknown => Ok(()),
        }
    }

    /// Lets nobody enter any more, and ends with `end` what did. Who is entering meanwhile may arrive after the kill, and a
    /// cgroup be thawed after the freeze: then `end` is called again.
    ///
    /// # Errors
    /// Those of `end`.
    pub fn revoke(
        &self,
        binding_id: BindingId,
        end: impl Fn() -> Result<Proof, StepError>,
    ) -> Result<Revoked, StepError> {
        let Some(entry) = self.entry(binding_id.lease_id) else {
            return Ok(Revoked::proved(removed()));
        };
        let closed = entry.state().gate.revoke(binding_id.generation);
        if let Err(moved_on) = closed {
            return Ok(Revoked::proved(moved_on.into()));
        }
        let is_admitting = matches!(entry.admission.try_lock(), Err(TryLockError::WouldBlock));
        let mut steps = end()?;
        if is_admitting {
            drop(entry.admission());
            steps = steps.and(end()?);
        }
        let mut state = entry.state();
        state.gate.ended(binding_id.generation);
        state.is_open = false;
        Ok(Revoked {
            steps,
            ..Revoked::default()
        })
    }

    /// Whether a proof is still to be found for the cut of this binding; if not, what stands for it.
    ///
    /// # Errors
    /// The proof: the lease was removed, or has a newer binding.
    pub fn check_current(&self, binding_id: BindingId) -> Result<(), Proof> {
        let entry = self.entry(binding_id.lease_id).ok_or_else(removed)?;
        let current = entry.state().gate.check_current(binding_id.generation);
        current.map_err(MovedOn::into)
    }

    /// Forgets a lease. It never comes back.
    ///
    /// # Errors
    /// It was not revoked.
    pub fn remove(&self, binding_id: BindingId) -> Result<(), StepError> {
        let Some(entry) = self.entry(binding_id.lease_id) else {
            return Ok(());
        };
        let mut state = entry.state();
        if state.is_open {
            let why = format_args!("{binding_id}: it was not revoked");
            return Err(StepError::new("remove", why));
        }
        state.gate.remove();
        drop(state);
        self.custody().release(binding_id.lease_id);
        Ok(())
    }
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admission(&self) -> MutexGuard<'_, ()> {
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the gate for a binding, after `thaw`. Processes of an older binding that was not cut go on: there is no key that
    /// could have leaked.
    ///
    /// # Errors
    /// A cut came first, or `thaw` failed.
    pub fn open(
        &self,
        order: &BindOrder,
        thaw: impl FnOnce() -> Result<(), StepError>,
    ) -> Result<(), BindError> {
        let generation = order.binding_id.generation;
        let _admission = self.admission();
        if !self.state().gate.admits(generation) {
            return Err(BindError::Cancelled);
        }
        thaw().map_err(BindError::Failed)?;
        let mut state = self.state();
        if let Some(before) = state
            .gate
            .generation()
            .filter(|it| !state.gate.is_revoked(*it))
        {
            state.gate.ended(before);
        }
        state.gate.open(generation)?;
        state.tenant = Arc::clone(&order.tenant);
        state.is_open = true;
        self.deadline.store(0, Ordering::Release);
        Ok(())
    }

    /// The time until the deadline of a binding that is in use, whose tenant passes `check`.
    ///
    /// # Errors
    /// Those of `check`; the lease is not in use.
    pub fn remaining(
        &self,
        check: impl FnOnce(&str) -> Result<(), LocalRefusal>,
    ) -> Result<Duration, LocalRefusal> {
        let state = self.state();
        let generation = state.bound()?;
        check(&state.tenant)?;
        self.left(&state, generation)
    }

    fn left(&self, state: &State, generation: Generation) -> Result<Duration, LocalRefusal> {
        if !state.is_open || !state.gate.admits(generation) {
            return Err(LocalRefusal::NotActive("it was cut".into()));
        }
        match self.deadline.load(Ordering::Acquire).checked_sub(now()) {
            None | Some(0) => Err(LocalRefusal::NotActive("its deadline has passed".into())),
            Some(left) => Ok(Duration::from_nanos(left)),
        }
    }

    /// Lets somebody in, whose tenant passes `check`. The cut waits for whoever holds the admission, and then kills again.
    ///
    /// # Errors
    /// Those of `check`; the lease is not in use.
    pub fn admit(
        &self,
        check: impl FnOnce(&str) -> Result<(), LocalRefusal>,
    ) -> Result<Admission<'_>, LocalRefusal> {
        let guard = self.admission();
        let state = self.state();
        let generation = state.bound()?;
        check(&state.tenant)?;
        drop(state);
        let admission = Admission {
            entry: self,
            generation,
            _guard: guard,
        };
        admission.check()?;
        Ok(admission)
    }
}

/// Somebody enters. The binding stays the same meanwhile, and its cut, which may begin, waits for the end of this.
#[derive(Debug)]
pub struct Admission<'a> {
    entry: &'a Entry,
    generation: Generation,
    _guard: MutexGuard<'a, ()>,
}

impl Admission<'_> {
    /// Whether the lease is still in use. To be asked by whoever has entered, before a wait: the cut that has begun meanwhile may
    /// have killed everything before, and waits for this admission now.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self) -> Result<(), LocalRefusal> {
        let state = self.entry.state();
        self.entry.left(&state, self.generation).map(drop)
    }
}

fn removed() -> Proof {
    Proof::nothing_to_cut("the lease was removed before")
}

/// The time on the clock of deadlines.
fn now() -> u64 {
    // The call fails only if the kernel does not have the clock; then every lease counts as ended.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    now.map_or(u64::MAX, |it| {
        u64::try_from(it.as_nanos()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::mpsc, thread};

    use fabricbios_lease::Placement;
    use fabricbios_wire::{ResourceId, Transport};

    use super::*;

    fn bound() -> (Bindings, Arc<Entry>, BindingId) {
        let bindings = Bindings::default();
        let binding_id = BindingId {
            lease_id: LeaseId(1),
            generation: Generation(1),
            resource_id: ResourceId(5),
        };
        let order = BindOrder::new(binding_id, Placement::Amount(1), Transport::Auto);
        let entry = bindings.entry(LeaseId(1)).unwrap();
        entry.open(&order, || Ok(())).unwrap();
        bindings.extend(binding_id, BootTime(u64::MAX)).unwrap();
        (bindings, entry, binding_id)
    }

    #[test]
    fn who_enters_while_a_cut_runs_learns_of_it_and_the_cut_kills_again() {
        let (bindings, entry, binding_id) = bound();
        let admission = entry.admit(|_| Ok(())).unwrap();
        admission.check().unwrap();
        let (killed, kills) = mpsc::channel();
        thread::scope(|scope| {
            let bindings = &bindings;
            let cut = scope.spawn(move || {
                let times = Cell::new(0);
                let end = || {
                    times.set(times.get() + 1);
                    killed.send(()).unwrap();
                    Ok(Proof::default())
                };
                bindings.revoke(binding_id, end).unwrap();
                times.get()
            });
            kills.recv().unwrap();
            let refused = admission.check().unwrap_err();
            assert!(matches!(refused, LocalRefusal::NotActive(_)), "{refused}");
            drop(admission);
            assert_eq!(cut.join().unwrap(), 2);
        });
        assert!(entry.admit(|_| Ok(())).is_err());
    }

    #[test]
    fn the_time_that_is_left_is_told_to_the_tenant_until_the_cut() {
        let (bindings, entry, binding_id) = bound();
        let hour = Duration::from_secs(3_600);
        let at = now() + u64::try_from(hour.as_nanos()).unwrap();
        bindings.extend(binding_id, BootTime(at)).unwrap();
        let left = entry.remaining(|_| Ok(())).unwrap();
        assert!(!left.is_zero() && left <= hour, "{left:?}");
        let refused = entry.remaining(|_| Err(LocalRefusal::NotFound));
        assert_eq!(refused, Err(LocalRefusal::NotFound));
        bindings
            .revoke(binding_id, || Ok(Proof::default()))
            .unwrap();
        let over = entry.remaining(|_| Ok(())).unwrap_err();
        assert!(over.to_string().contains("cut"), "{over}");
    }

    #[test]
    fn a_deadline_that_passes_ends_an_admission() {
        let (bindings, entry, binding_id) = bound();
        let admission = entry.admit(|_| Ok(())).unwrap();
        bindings.extend(binding_id, BootTime(1)).unwrap();
        let refused = admission.check().unwrap_err();
        assert!(refused.to_string().contains("deadline"), "{refused}");
    }
}
