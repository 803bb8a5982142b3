//! The calls of etcd, counted for metrics.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use fabricbios_lease::Histogram;

use super::client::Failure;

/// Counts since the start, by the call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls(Arc<Mutex<BTreeMap<&'static str, OfCall>>>);

/// The counts of one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfCall {
    /// How long each took, whatever came of it.
    pub(crate) times: Histogram,
    /// Those that failed: `silent`, `lost` or `refused`.
    pub(crate) failed: BTreeMap<&'static str, u64>,
}

impl Calls {
    pub(super) async fn count<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let begin = Instant::now();
        let done = call.await;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = all.entry(what).or_default();
        of.times.add(begin.elapsed());
        if let Err(failure) = &done {
            let why = match failure {
                Failure::Silent { .. } => "silent",
                Failure::Lost { .. } => "lost",
                Failure::Refused { .. } => "refused",
            };
            *of.failed.entry(why).or_default() += 1;
        }
        done
    }

    pub(crate) fn now(&self) -> BTreeMap<&'static str, OfCall> {
        let all = self.0.lock();
        all.unwrap_or_else(PoisonError::into_inner).clone()
    }
}
