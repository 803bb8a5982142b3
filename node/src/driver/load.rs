//! How many jobs wait and run in the worker pools, for metrics. Counting takes no lock: the ends of leases are jobs too.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use fabricbios_wire::ResourceType;

use crate::driver::workers::Job;

/// The jobs in all pools of one name that a kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFigures {
    /// The kind.
    pub kind: ResourceType,
    /// The name of the pools: what their jobs do.
    pub pool: &'static str,
    /// Jobs that no thread has begun.
    pub waiting: u64,
    /// Jobs that have begun.
    pub running: u64,
}

/// The counts of a dispatcher, by kind and name of the pool.
#[derive(Default)]
pub(super) struct Loads(BTreeMap<(ResourceType, &'static str), Arc<Load>>);

#[derive(Default)]
pub(super) struct Load {
    waiting: AtomicU64,
    running: AtomicU64,
}

/// One job, until it is dropped, also by a panic.
struct Counted(Arc<Load>, fn(&Load) -> &AtomicU64);

impl Loads {
    pub(super) fn of(&mut self, kind: ResourceType, pool: &'static str) -> Arc<Load> {
        Arc::clone(self.0.entry((kind, pool)).or_default())
    }

    pub(super) fn now(&self) -> Vec<PoolFigures> {
        let figures =
            |(&(kind, pool), load): (&(ResourceType, &'static str), &Arc<Load>)| PoolFigures {
                kind,
                pool,
                waiting: load.waiting.load(Ordering::Relaxed),
                running: load.running.load(Ordering::Relaxed),
            };
        self.0.iter().map(figures).collect()
    }
}

impl fmt::Debug for Loads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.now()).finish()
    }
}

impl Load {
    /// This job, counted as one that waits until it begins.
    pub(super) fn counts(self: &Arc<Self>, job: Job) -> Job {
        let load = Arc::clone(self);
        let waits = Counted::new(&load, |it| &it.waiting);
        Box::new(move || {
            let _runs = Counted::new(&load, |it| &it.running);
            drop(waits);
            job();
        })
    }
}

impl Counted {
    fn new(load: &Arc<Load>, which: fn(&Load) -> &AtomicU64) -> Self {
        which(load).fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(load), which)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_job_waits_runs_and_is_gone_even_if_it_panics() {
        let mut loads = Loads::default();
        let load = loads.of(ResourceType::Mem, "ending");
        let inside = Arc::clone(&load);
        let job = load.counts(Box::new(move || {
            let now = |it: &AtomicU64| it.load(Ordering::Relaxed);
            assert_eq!((now(&inside.waiting), now(&inside.running)), (0, 1));
            panic!("on purpose");
        }));
        let counts = |loads: &Loads| {
            loads
                .now()
                .iter()
                .map(|it| (it.waiting, it.running))
                .collect::<Vec<_>>()
        };
        assert_eq!(counts(&loads), [(1, 0)]);
        let why = catch_unwind(AssertUnwindSafe(job)).unwrap_err();
        assert_eq!(why.downcast_ref(), Some(&"on purpose"));
        assert_eq!(counts(&loads), [(0, 0)]);
    }
}
