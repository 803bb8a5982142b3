//! Ends leases by name at the deadlines that the daemon has missed. Each kind has a thread, so a kind whose calls hang
//! delays no other.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context;
use fabricbios_contract::EndByName;
use fabricbios_lease::{BootTime, StepError};
use fabricbios_wire::{LeaseId, ResourceType};

use super::{
    deadlines::{DAEMON_PATIENCE, Deadlines},
    message::WatchdogMessage,
};

/// A kind, and the end of its leases by name.
pub type KindEnd = (ResourceType, Box<dyn EndByName>);

/// See the module.
#[derive(Debug)]
pub(super) struct Ends {
    kinds: Vec<Kind>,
    /// True: the daemon is gone, so only the watchdog can end leases.
    is_orphan: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Kind {
    deadlines: Deadlines,
    orders: mpsc::Sender<LeaseId>,
    /// The thread has an order.
    is_busy: bool,
}

/// The outcome of an order.
#[derive(Debug)]
pub(super) struct Ended {
    kind: ResourceType,
    lease: LeaseId,
    outcome: Result<(), StepError>,
}

impl Ends {
    /// Starts a thread for each kind. A thread reports the outcome of each order, and ends after `self` is dropped.
    pub(super) fn start(
        kinds: Vec<KindEnd>,
        is_orphan: Arc<AtomicBool>,
        tell: impl Fn(Ended) + Clone + Send + 'static,
    ) -> anyhow::Result<(Self, Vec<JoinHandle<()>>)> {
        let (mut started, mut threads) = (Vec::new(), Vec::new());
        for (kind, end) in kinds {
            let (orders, ordered) = mpsc::channel();
            let tell = tell.clone();
            let serve = move || {
                for lease in ordered {
                    let outcome = end.end(lease);
                    tell(Ended {
                        kind,
                        lease,
                        outcome,
                    });
                }
            };
            let thread = thread::Builder::new().name(format!("end {kind}"));
            threads.push(thread.spawn(serve).context("start a thread")?);
            started.push(Kind {
                deadlines: Deadlines::new(kind),
                orders,
                is_busy: false,
            });
        }
        let ends = Self {
            kinds: started,
            is_orphan,
        };
        Ok((ends, threads))
    }

    pub(super) fn note(&mut self, message: WatchdogMessage) {
        if let WatchdogMessage::Until(kind, lease, ..) = message
            && self.of(kind).is_none()
        {
            tracing::error!(%lease, %kind, "watchdog: nothing ends leases of this kind");
        }
        let kinds = self.kinds.iter_mut();
        kinds.for_each(|kind| kind.deadlines.note(message));
    }

    /// The daemon is gone.
    pub(super) fn orphan(&mut self) {
        self.is_orphan.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_orphan(&self) -> bool {
        self.is_orphan.load(Ordering::SeqCst)
    }

    /// True if no lease is left.
    pub(super) fn is_empty(&self) -> bool {
        self.kinds.iter().all(|kind| kind.deadlines.is_empty())
    }

    /// When [`Ends::end_due`] next has work. Outcomes of orders arrive separately.
    pub(super) fn next(&self) -> Option<BootTime> {
        let patience = self.patience();
        let idle = self.kinds.iter().filter(|kind| !kind.is_busy);
        idle.filter_map(|kind| kind.deadlines.next(patience)).min()
    }

    /// Orders the end of one lease of each kind. The caller reads messages of the daemon before the next end.
    pub(super) fn end_due(&mut self, now: BootTime) {
        let patience = self.patience();
        for kind in self.kinds.iter_mut().filter(|kind| !kind.is_busy) {
            if let Some(lease) = kind.deadlines.take_due(now, patience) {
                kind.is_busy = true;
                // The thread ends only after this sender is dropped.
                kind.orders.send(lease).ok();
            }
        }
    }

    pub(super) fn ended(&mut self, now: BootTime, ended: Ended) {
        let Ended {
            kind,
            lease,
            outcome,
        } = ended;
        let patience = self.patience();
        let Some(of_kind) = self.of(kind) else {
            return;
        };
        of_kind.is_busy = false;
        match outcome {
            Ok(()) => {
                tracing::info!(%lease, %kind, "watchdog: the lease has no access left");
                of_kind.deadlines.ended(lease);
            }
            Err(error) => {
                if let Some(times) = of_kind.deadlines.try_again(now, patience, lease)
                    && times.is_power_of_two()
                {
                    tracing::error!(%lease, %kind, %error, times, "watchdog: the lease has not ended yet; trying again");
                }
            }
        }
    }

    fn of(&mut self, kind: ResourceType) -> Option<&mut Kind> {
        let mut kinds = self.kinds.iter_mut();
        kinds.find(|it| it.deadlines.kind() == kind)
    }

    fn patience(&self) -> Duration {
        match self.is_orphan() {
            true => Duration::ZERO,
            false => DAEMON_PATIENCE,
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::Generation;

    use super::*;

    /// Test double: returns the outcome sent to it.
    struct StandIn(mpsc::Receiver<Result<(), StepError>>);

    impl EndByName for StandIn {
        fn end(&self, _lease: LeaseId) -> Result<(), StepError> {
            self.0.recv().unwrap_or(Ok(()))
        }
    }

    struct World {
        ends: Ends,
        cpu: mpsc::Sender<Result<(), StepError>>,
        net: mpsc::Sender<Result<(), StepError>>,
        told: mpsc::Receiver<Ended>,
    }

    const CPU: LeaseId = LeaseId(0xC);
    const NET: LeaseId = LeaseId(0xE);

    fn at(secs: u64) -> BootTime {
        BootTime(0) + Duration::from_secs(secs)
    }

    fn until(kind: ResourceType, lease: LeaseId, secs: u64) -> WatchdogMessage {
        WatchdogMessage::Until(kind, lease, Generation(1), at(secs))
    }

    impl World {
        fn new() -> Self {
            let (cpu, cpu_outcomes) = mpsc::channel();
            let (net, net_outcomes) = mpsc::channel();
            let (tell, told) = mpsc::channel();
            let kinds: Vec<KindEnd> = vec![
                (ResourceType::Cpu, Box::new(StandIn(cpu_outcomes))),
                (ResourceType::Net, Box::new(StandIn(net_outcomes))),
            ];
            let tell = move |ended| drop(tell.send(ended));
            let (ends, _threads) = Ends::start(kinds, Arc::default(), tell).unwrap();
            Self {
                ends,
                cpu,
                net,
                told,
            }
        }

        fn take_outcome(&mut self, secs: u64) -> LeaseId {
            let ended = self.told.recv().unwrap();
            let lease = ended.lease;
            self.ends.ended(at(secs), ended);
            lease
        }
    }

    #[test]
    fn a_kind_whose_call_hangs_delays_no_other() {
        let mut world = World::new();
        world.ends.note(until(ResourceType::Cpu, CPU, 10));
        world.ends.note(until(ResourceType::Net, NET, 11));
        world.ends.orphan();
        world.ends.end_due(at(10));
        assert_eq!(world.ends.next(), Some(at(11)), "CPU is under way");
        world.ends.end_due(at(11));
        world.net.send(Ok(())).unwrap();
        assert_eq!(world.take_outcome(11), NET);
        assert_eq!(world.ends.next(), None);
        assert!(!world.ends.is_empty(), "CPU has not ended");
        world.cpu.send(Ok(())).unwrap();
        assert_eq!(world.take_outcome(12), CPU);
        assert!(world.ends.is_empty());
    }

    #[test]
    fn a_daemon_that_lives_has_two_seconds_for_each_kind() {
        let mut world = World::new();
        world.ends.note(until(ResourceType::Cpu, CPU, 10));
        assert_eq!(world.ends.next(), Some(at(12)));
        world.ends.end_due(at(11));
        assert_eq!(world.ends.next(), Some(at(12)), "nothing was ordered");
        world.ends.orphan();
        assert_eq!(world.ends.next(), Some(at(10)));
    }

    #[test]
    fn what_fails_is_tried_again_until_it_ends() {
        let mut world = World::new();
        world.ends.note(until(ResourceType::Cpu, CPU, 10));
        world.ends.orphan();
        for secs in 10..14 {
            world.ends.end_due(at(secs));
            let failed = StepError::new("cgroup.kill", "a process waits in the kernel");
            world.cpu.send(Err(failed)).unwrap();
            assert_eq!(world.take_outcome(secs), CPU);
            assert_eq!(world.ends.next(), Some(at(secs + 1)));
        }
        world.ends.end_due(at(14));
        world.cpu.send(Ok(())).unwrap();
        world.take_outcome(14);
        assert!(world.ends.is_empty());
    }
}
