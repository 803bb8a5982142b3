//! Limits how many queue pairs are being connected at once.
//!
//! The kernel can take seconds to resolve the GID of each queue pair. Cuts never take a permit; they only wake the
//! waiting threads, so that a cancelled bind stops waiting at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Number of permits: enough that a few wrong addresses do not delay other binds, few enough to leave threads for
/// others.
const BRING_UPS: usize = 48;

#[derive(Debug)]
pub(crate) struct Semaphore {
    free: Mutex<usize>,
    changed: Condvar,
}

/// One permit. A drop gives it back.
#[derive(Debug)]
pub(crate) struct Permit<'a>(&'a Semaphore);

impl Semaphore {
    pub(crate) fn new() -> Self {
        Self {
            free: Mutex::new(BRING_UPS),
            changed: Condvar::new(),
        }
    }

    /// Waits for a permit or until `give_up` returns true. Each [`Semaphore::wake`] makes the waiting threads call
    /// `give_up` again.
    pub(crate) fn acquire(&self, give_up: impl Fn() -> bool) -> Option<Permit<'_>> {
        let mut free = self.lock();
        while !give_up() {
            if *free > 0 {
                *free -= 1;
                return Some(Permit(self));
            }
            free = self
                .changed
                .wait(free)
                .unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Wakes all waiting threads, which call `give_up` again.
    pub(crate) fn wake(&self) {
        // Takes the lock once, so that no thread is between its check and its wait.
        drop(self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_queue_is_left_when_woken_to_give_up() {
        let permits = Semaphore::new();
        let all: Vec<_> = (0..BRING_UPS).map(|_| permits.acquire(|| false)).collect();
        assert!(all.iter().all(Option::is_some));
        let cancelled = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| {
                permits
                    .acquire(|| cancelled.load(Ordering::SeqCst))
                    .is_none()
            });
            cancelled.store(true, Ordering::SeqCst);
            permits.wake();
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn a_dropped_permit_is_free_again() {
        let permits = Semaphore::new();
        for _ in 0..=BRING_UPS {
            assert!(permits.acquire(|| false).is_some());
        }
    }
}
