//! How many calls are being made, by name: for metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Handler;

/// Counts of the calls in flight, by name. Counting takes no lock, because the end of a lease may be such a call.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<BTreeMap<&'static str, AtomicU64>>);

/// A call in flight, until it is dropped.
pub(crate) struct Begun<'a>(Option<&'a AtomicU64>);

impl InFlight {
    /// Counts the calls of these handlers; others are not counted.
    pub(crate) fn of(handlers: &[Handler]) -> Self {
        let names = handlers.iter().map(|it| (it.name, AtomicU64::default()));
        Self(Arc::new(names.collect()))
    }

    pub(crate) fn begin(&self, name: &str) -> Begun<'_> {
        let count = self.0.get(name);
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Begun(count)
    }

    /// Each name of [`crate::Call::NAME`], and how many of its calls have no answer yet. A call that was given up does not
    /// count, even if its process still waits in the kernel.
    pub fn now(&self) -> impl Iterator<Item = (&'static str, u64)> {
        { self.0.iter() }.map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
