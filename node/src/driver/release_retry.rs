//! Retries failed releases, because stuck storage may come back. A late success clears the fence that the failure made.

use std::{
    sync::{
        Arc, Weak,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use fabricbios_contract::Provider;
use fabricbios_lease::{BindingId, Placement, Proof, Report};

use crate::driver::dispatcher::OnReport;

/// Pause between two rounds, in a daemon.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// A release that failed.
pub(crate) type FailedRelease = (BindingId, Placement);

/// Takes failed releases. One thread retries them one after the other; no client waits for them.
#[derive(Clone)]
pub(crate) struct ReleaseRetry(Arc<dyn Fn(FailedRelease) + Send + Sync>);

impl ReleaseRetry {
    /// Starts the thread, which ends when the last clone of this is dropped.
    pub(crate) fn start(provider: &Arc<Provider>, on_report: OnReport, pause: Duration) -> Self {
        // A waiting thread must not keep devices and ports open.
        let provider = Arc::downgrade(provider);
        let (hand_in, unfinished) = mpsc::channel();
        let started = thread::Builder::new()
            .name("healing".into())
            .spawn(move || work(&unfinished, &provider, &on_report, pause));
        if let Err(error) = started {
            tracing::error!(%error, "cannot start a thread: fences of releases stay until cleared");
        }
        // If the thread is gone, an operator clears the fence.
        Self::by(move |failed| drop(hand_in.send(failed)))
    }

    /// Hands failed releases to `later`.
    pub(crate) fn by(later: impl Fn(FailedRelease) + Send + Sync + 'static) -> Self {
        Self(Arc::new(later))
    }

    /// Retries a release from now on.
    pub(crate) fn try_later(&self, binding_id: BindingId, placement: Placement) {
        (self.0)((binding_id, placement));
    }
}

fn work(
    handed_in: &Receiver<FailedRelease>,
    provider: &Weak<Provider>,
    on_report: &OnReport,
    pause: Duration,
) {
    let mut list = Vec::new();
    loop {
        // While the list is empty, the thread waits without a limit.
        let pause = if list.is_empty() {
            Duration::MAX
        } else {
            pause
        };
        match handed_in.recv_timeout(pause) {
            Ok(unfinished) => list.push(unfinished),
            Err(RecvTimeoutError::Timeout) => list.retain(|it| !is_done(it, provider, on_report)),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Retries a release. Returns whether it needs no other try.
pub(crate) fn is_done(
    (binding_id, placement): &FailedRelease,
    provider: &Weak<Provider>,
    on_report: &OnReport,
) -> bool {
    let Some(provider) = provider.upgrade() else {
        return true;
    };
    let released = provider.release(*binding_id, placement.clone(), &|| ());
    if released.is_ok() {
        // No tenant waits for the release any more: its owner is the node.
        on_report(None, Report::Release(*binding_id, Ok(Proof::default())));
    }
    released.is_ok()
}

#[cfg(test)]
mod tests {
    use fabricbios_lease::Extent;
    use fabricbios_testbed::fakes::{FakeMemory, Step};
    use fabricbios_wire::{Generation, LeaseId, ResourceId};

    use super::*;

    #[test]
    fn what_failed_is_done_when_the_storage_is_back() {
        let memory = Arc::new(FakeMemory::new(ResourceId(1), 4096));
        memory.fail(Step::Release, true);
        let (tell, told) = mpsc::channel();
        let provider = memory.provider();
        let release_retry = ReleaseRetry::start(
            &provider,
            Arc::new(move |_, report| tell.send(report).unwrap()),
            Duration::from_millis(1),
        );
        let binding_id = BindingId {
            lease_id: LeaseId(1),
            generation: Generation(1),
            resource_id: ResourceId(1),
        };
        let placement = Placement::Stretch(Extent {
            offset: 0,
            length: 4096,
        });
        release_retry.try_later(binding_id, placement);
        memory.wait_for(Step::Release, 1);
        memory.fail(Step::Release, false);
        assert_eq!(
            told.recv().unwrap(),
            Report::Release(binding_id, Ok(Proof::default()))
        );
    }

    #[test]
    fn a_waiting_thread_keeps_no_path_open() {
        let memory = Arc::new(FakeMemory::new(ResourceId(1), 4096));
        let provider = memory.provider();
        let retry = ReleaseRetry::start(&provider, Arc::new(|_, _| ()), PAUSE);
        assert!(Arc::into_inner(provider).is_some());
        drop(retry);
    }
}
