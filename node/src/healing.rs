//! Releases that failed and may work later: storage that was stuck comes back. Each is tried again until
//! it is done; its late success clears the fence that its failure made.

use std::{
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use fabricbios_contract::Provider;
use fabricbios_lease::{BindingId, Placement, Report};

use crate::backends::OnReport;

/// Between two rounds, in a daemon.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// A release that failed.
pub(crate) struct Unfinished {
    pub(crate) provider: Arc<Provider>,
    pub(crate) binding_id: BindingId,
    pub(crate) placement: Placement,
}

/// Where to hand them in. One thread tries them all, one after the other: nobody waits for them.
#[derive(Clone)]
pub(crate) struct Healing(Sender<Unfinished>);

impl Healing {
    /// Starts the thread; it ends when the last of these is gone.
    pub(crate) fn start(on_report: OnReport, pause: Duration) -> Self {
        let (hand_in, unfinished) = mpsc::channel();
        let started = thread::Builder::new()
            .name("healing".into())
            .spawn(move || work(&unfinished, &on_report, pause));
        if let Err(error) = started {
            tracing::error!(%error, "cannot start a thread: fences of releases stay until cleared");
        }
        Self(hand_in)
    }

    /// Takes one in.
    pub(crate) fn try_later(&self, unfinished: Unfinished) {
        // Without the thread an operator has to clear the fence.
        self.0.send(unfinished).ok();
    }
}

fn work(handed_in: &Receiver<Unfinished>, on_report: &OnReport, pause: Duration) {
    let mut list = Vec::new();
    loop {
        match next(handed_in, list.is_empty(), pause) {
            Ok(unfinished) => list.push(unfinished),
            Err(RecvTimeoutError::Timeout) => list.retain(|it| !is_done(it, on_report)),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn next(
    handed_in: &Receiver<Unfinished>,
    is_idle: bool,
    pause: Duration,
) -> Result<Unfinished, RecvTimeoutError> {
    match is_idle {
        true => handed_in
            .recv()
            .map_err(|_gone| RecvTimeoutError::Disconnected),
        false => handed_in.recv_timeout(pause),
    }
}

fn is_done(it: &Unfinished, on_report: &OnReport) -> bool {
    let released = it
        .provider
        .release(it.binding_id, it.placement.clone(), &|| ());
    if released.is_ok() {
        // The node's own affair by now: nobody waits for it.
        on_report(None, Report::Release(it.binding_id, Ok(())));
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
        let healing = Healing::start(
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
        healing.try_later(Unfinished {
            provider: memory.provider(),
            binding_id,
            placement,
        });
        memory.wait_for(Step::Release, 1);
        memory.fail(Step::Release, false);
        assert_eq!(told.recv().unwrap(), Report::Release(binding_id, Ok(())));
    }
}
