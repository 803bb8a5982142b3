//! The queue pairs of leases that exist now, for the proof of a cut and for whoever tells clients of the end.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

/// See the module.
#[derive(Default)]
pub struct QueuePairs {
    live: Mutex<Live>,
    on_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct Live {
    /// By number. The kernel gives numbers out again, so each queue pair has a serial number too.
    serials: HashMap<u32, u64>,
    made: u64,
}

impl QueuePairs {
    /// Calls `on_end` after the end of each queue pair, on the thread that ends it: it must return at once. Only the first
    /// one is taken.
    pub fn on_end(&self, on_end: impl Fn() + Send + Sync + 'static) {
        self.on_end.set(Box::new(on_end)).ok();
    }

    /// The serial number of the queue pair that has this number now.
    pub fn serial(&self, number: u32) -> Option<u64> {
        self.lock().serials.get(&number).copied()
    }

    /// Whether this queue pair still exists.
    pub fn has(&self, number: u32, serial: u64) -> bool {
        self.serial(number) == Some(serial)
    }

    pub(crate) fn add(&self, number: u32) {
        let mut live = self.lock();
        live.made += 1;
        let serial = live.made;
        live.serials.insert(number, serial);
    }

    pub(crate) fn remove(&self, number: u32) {
        self.lock().serials.remove(&number);
    }

    pub(crate) fn tell_end(&self) {
        if let Some(on_end) = self.on_end.get() {
            on_end();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for QueuePairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuePairs").field(&self.lock()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_given_out_again_is_another_queue_pair() {
        let pairs = QueuePairs::default();
        pairs.add(17);
        let first = pairs.serial(17).unwrap();
        assert!(pairs.has(17, first));
        pairs.remove(17);
        assert!(!pairs.has(17, first));
        pairs.add(17);
        assert!(!pairs.has(17, first) && pairs.serial(17).is_some());
    }
}
