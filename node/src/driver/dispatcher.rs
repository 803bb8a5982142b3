//! Carries out orders by calling providers in worker pools, and reports the outcomes.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use fabricbios_contract::Provider;
use fabricbios_lease::{
    BindError, BindOrder, BindingId, Condition, Durability, Offer, Order, Placement, Report,
};
use fabricbios_wire::{Binding, PeerChange, ResourceId, ResourceType};

use crate::{
    driver::{
        fair::Owner,
        inline,
        load::{Loads, PoolFigures},
        release_retry::{self, ReleaseRetry},
        workers::{Job, Urgency, WorkerPool},
    },
    process::descriptors,
};

/// Receives reports, with the owner of the lease. Called on the threads of the pools.
pub type OnReport = Arc<dyn Fn(Owner, Report) + Send + Sync>;

/// Runs jobs for their owners.
pub(crate) type Pool = Arc<dyn Fn(Owner, Job) + Send + Sync>;

/// The threads of a dispatcher: those of the process, or simulated ones.
pub(crate) trait Threads: Send + Sync {
    /// See [`WorkerPool::new`].
    fn pool(&self, name: &'static str, threads_max: usize, urgency: Urgency) -> Pool;
    /// See [`ReleaseRetry::start`].
    fn retry(&self, provider: &Arc<Provider>, on_report: OnReport) -> ReleaseRetry;
    /// Waits until every sender of `done` is gone, but not for longer than `at_most`.
    fn wait(&self, done: &Receiver<()>, at_most: Duration);
}

/// Longest wait of a start for the removal of strays.
const STRAYS_PATIENCE: Duration = Duration::from_secs(3);

/// The threads of this process.
struct OfProcess;

impl Threads for OfProcess {
    fn pool(&self, name: &'static str, threads_max: usize, urgency: Urgency) -> Pool {
        let pool = WorkerPool::new(name, threads_max, urgency);
        Arc::new(move |owner, job| pool.run(owner, job))
    }

    fn retry(&self, provider: &Arc<Provider>, on_report: OnReport) -> ReleaseRetry {
        ReleaseRetry::start(provider, on_report, release_retry::PAUSE)
    }

    fn wait(&self, done: &Receiver<()>, at_most: Duration) {
        // Nothing is sent: the senders are gone, or the time is over.
        done.recv_timeout(at_most).ok();
    }
}

/// The providers of a node, by resource.
pub struct Dispatcher {
    threads: Box<dyn Threads>,
    resources: HashMap<ResourceId, Resource>,
    kinds: HashMap<ResourceType, OfKind>,
    loads: Loads,
    on_report: OnReport,
}

/// The pools that end and open access to leases of a kind. A stuck call keeps one thread; the table fences long before
/// all threads are stuck.
#[derive(Clone)]
struct OfKind {
    ending: Pool,
    proving: Pool,
    opening: Pool,
}

/// The provider and the pools of one resource: a stuck or slow call delays only this resource.
#[derive(Clone)]
struct Resource {
    provider: Arc<Provider>,
    of_kind: OfKind,
    preparing: Pool,
    cleaning: Pool,
    release_retry: ReleaseRetry,
    releases_later: bool,
    /// Grants are confirmed to the store, which can then detect a journal that was restored from an older copy.
    confirms: bool,
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("resources", &self.resources.keys())
            .finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// No providers yet.
    #[must_use]
    pub fn new(on_report: OnReport) -> Self {
        Self::over(Box::new(OfProcess), on_report)
    }

    /// No providers yet. Their calls run on `threads`.
    pub(crate) fn over(threads: Box<dyn Threads>, on_report: OnReport) -> Self {
        Self {
            threads,
            resources: HashMap::new(),
            kinds: HashMap::new(),
            loads: Loads::default(),
            on_report,
        }
    }

    /// Adds a resource of this kind. `provider` has its store.
    pub fn add(&mut self, kind: ResourceType, offer: &Offer, provider: Arc<Provider>) {
        let release_retry = self.threads.retry(&provider, self.on_report.clone());
        let resource = Resource {
            provider,
            releases_later: offer.durability.leases_stay(),
            confirms: offer.durability == Durability::Machine,
            of_kind: self.of_kind(kind),
            preparing: self.pool(kind, "preparing", 16, Urgency::Usual),
            cleaning: self.pool(kind, "cleaning", 16, Urgency::Usual),
            release_retry,
        };
        self.resources.insert(offer.resource_id, resource);
    }

    fn of_kind(&mut self, kind: ResourceType) -> OfKind {
        if let Some(there) = self.kinds.get(&kind) {
            return there.clone();
        }
        let made = OfKind {
            ending: self.pool(kind, "ending", 64, Urgency::Deadline),
            proving: self.pool(kind, "proving", 64, Urgency::Deadline),
            opening: self.pool(kind, "opening", 64, Urgency::Usual),
        };
        self.kinds.insert(kind, made.clone());
        made
    }

    /// A pool whose jobs are counted.
    fn pool(&mut self, kind: ResourceType, name: &'static str, most: usize, of: Urgency) -> Pool {
        let load = self.loads.of(kind, name);
        let pool = self.threads.pool(name, most, of);
        Arc::new(move |owner, job| pool(owner, load.counts(job)))
    }

    /// What waits and runs.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolFigures> {
        self.loads.now()
    }

    /// Runs the jobs of a start side by side. Waits for them, at most [`STRAYS_PATIENCE`].
    pub(crate) fn side_by_side(&self, jobs: Vec<Job>) {
        // A pool gives one owner half of its threads. A job that is stuck holds up no other one.
        let pool = self.threads.pool("strays", 2 * jobs.len(), Urgency::Usual);
        let (done, all_done) = channel();
        for job in jobs {
            let done = done.clone();
            let job = move || {
                job();
                drop(done);
            };
            pool(None, Box::new(job));
        }
        drop(done);
        self.threads.wait(&all_done, STRAYS_PATIENCE);
    }

    /// Retries a release that failed in an earlier run until it succeeds.
    pub fn release_later(&self, binding_id: BindingId, placement: Placement) {
        if let Some(resource) = self.resources.get(&binding_id.resource_id) {
            resource.release_retry.try_later(binding_id, placement);
        }
    }

    /// A callback for the conditions of resources.
    pub fn on_condition(&self) -> Arc<dyn Fn(ResourceId, Condition) + Send + Sync> {
        let on_report = self.on_report.clone();
        Arc::new(move |id, condition| on_report(None, Report::Condition(id, condition)))
    }

    /// Carries out an order for a lease of `owner`, or has a worker do it. Never blocks. Returns the report if the order is
    /// done already.
    pub fn dispatch(&self, owner: Owner, order: Order) -> Option<Report> {
        let Some(resource) = self.resources.get(&order.resource_id()) else {
            // Only a fence of an earlier run can name a resource that is no longer on offer.
            tracing::error!(?order, "no provider has this resource");
            return None;
        };
        if let (Order::Confirm(binding_id), false) = (&order, resource.confirms) {
            return Some(Report::Confirmed(*binding_id, Ok(())));
        }
        let pool = match resource.pool_for(&order) {
            Some(pool) if !resource.provider.is_inline(&order) => pool.clone(),
            _ => return inline::call(|| resource.outcome(order, &|| ())),
        };
        let (resource, reports) = (resource.clone(), self.on_report.clone());
        let whose = owner.clone();
        let job = move || {
            let whose = owner.clone();
            let on_report = move |report| reports(whose.clone(), report);
            resource.carry_out(owner, order, on_report);
        };
        pool(whose, Box::new(job));
        None
    }
}

impl Resource {
    /// The pool of an order; `None`: no path and no store waits in it.
    fn pool_for(&self, order: &Order) -> Option<&Pool> {
        Some(match order {
            Order::Extend(..) | Order::Fenced(_) => return None,
            Order::Cut(..) | Order::RetireKey(_) => &self.of_kind.ending,
            // A bind without peers does not wait behind binds that wait for the network.
            Order::Bind(order) if order.peers().is_empty() => &self.preparing,
            Order::Rotate(_) | Order::ChangePeers(_, PeerChange::Remove(_)) => &self.preparing,
            // A confirmation is one write and does not wait behind cleaning.
            Order::Confirm(_) | Order::Bind(_) | Order::ChangePeers(_, PeerChange::Add(_)) => {
                &self.of_kind.opening
            }
            Order::Release(..) | Order::Reset(..) => &self.cleaning,
        })
    }

    /// Carries out an order on the thread of a pool.
    fn carry_out(self, owner: Owner, order: Order, on_report: impl Fn(Report) + Send + 'static) {
        let moves = match &order {
            Order::Bind(order) => Some(Report::BindProgress(order.binding_id)),
            Order::RetireKey(id) | Order::Cut(id, _) => Some(Report::EndBegan(*id)),
            Order::Release(id, _) => Some(Report::ReleaseProgress(*id)),
            _ => None,
        };
        let progress = || moves.iter().for_each(|it| on_report(it.clone()));
        progress();
        match order {
            Order::Cut(id, linger) => {
                let cut = self.provider.revoke(id, linger);
                if cut.is_proved() {
                    return on_report(Report::Cut(id, self.provider.verify(cut)));
                }
                on_report(Report::CutMoves(id));
                let prove = move || {
                    let outcome = self.provider.verify(cut);
                    // This report extends the time of the cuts that wait behind this cut.
                    on_report(Report::CutMoves(id));
                    on_report(Report::Cut(id, outcome));
                };
                (self.of_kind.proving)(owner, Box::new(prove));
            }
            Order::Bind(order) => {
                let bound = descriptors::for_a_grant().map_err(BindError::Failed);
                let bound = bound.and_then(|_granting| self.bind(&order, &progress));
                on_report(Report::Bind(order.binding_id, bound));
            }
            order => self
                .outcome(order, &progress)
                .into_iter()
                .for_each(on_report),
        }
    }

    /// Carries out an order from its begin to its report, on this thread.
    fn outcome(&self, order: Order, progress: &dyn Fn()) -> Option<Report> {
        let provider = &self.provider;
        Some(match order {
            Order::Bind(order) => Report::Bind(order.binding_id, self.bind(&order, progress)),
            Order::Extend(id, deadline) => {
                Report::Extended(id, deadline, provider.extend(id, deadline))
            }
            Order::Confirm(id) => Report::Confirmed(id, provider.confirm(id)),
            Order::Fenced(id) => {
                provider.fenced(id);
                return None;
            }
            Order::Rotate(id) => Report::Rotate(id, provider.rotate(id)),
            Order::RetireKey(id) => Report::RetireKey(id, provider.retire_key(id)),
            Order::ChangePeers(id, change) => {
                Report::PeersChanged(id, provider.change_peers(id, &change))
            }
            Order::Cut(id, linger) => Report::Cut(id, provider.cut(id, linger)),
            Order::Release(id, placement) => {
                let released = provider.release(id, placement.clone(), progress);
                if released.is_err() && self.releases_later {
                    self.release_retry.try_later(id, placement);
                }
                Report::Release(id, released)
            }
            Order::Reset(id, leases) => Report::Reset(id, provider.reset(id, &leases)),
        })
    }

    fn bind(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<Binding, BindError> {
        let prepared = self.provider.prepare(order, progress);
        prepared.map_err(BindError::Failed)?;
        self.provider.bind(order)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Barrier, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    };

    use fabricbios_arena::{Arena, ArenaStore, Source};
    use fabricbios_contract::{DataPath, Part, Revoked};
    use fabricbios_fallback_udp::{FbmuConfig, FbmuPath};
    use fabricbios_lease::{
        AllocationMode, AlreadyCut, BootTime, Durability, Extent, FenceScope, Linger, Proof,
        StepError,
    };
    use fabricbios_wire::{Generation, LeaseId, Transport};

    use super::*;

    /// Ends access at once; the proof waits for `let_on`.
    struct Slow {
        revoked: Sender<BindingId>,
        let_on: Mutex<Receiver<()>>,
    }

    impl DataPath for Slow {
        fn bind(&self, _: &BindOrder, _: &Part) -> Result<Binding, BindError> {
            Err(BindError::Cancelled)
        }
        fn extend(&self, _: BindingId, _: BootTime) -> Result<(), AlreadyCut> {
            Ok(())
        }
        fn fenced(&self, _: BindingId) {}
        fn rotate(&self, _: BindingId) -> Result<Binding, BindError> {
            Err(BindError::Cancelled)
        }
        fn retire_key(&self, _: BindingId) -> Result<Binding, StepError> {
            Ok(Binding::plain(ResourceType::Mem))
        }
        fn revoke(&self, binding_id: BindingId, _: Linger) -> Result<Revoked, StepError> {
            self.revoked.send(binding_id).unwrap();
            Ok(Revoked::default())
        }
        fn verify(&self, _: BindingId, _: Option<&Revoked>) -> Result<Proof, StepError> {
            let let_on = self.let_on.lock();
            let let_on = let_on.unwrap_or_else(PoisonError::into_inner).recv();
            let_on.map_or_else(
                |_| Err(StepError::new("cut", "on purpose")),
                |()| Ok(Proof::nothing_to_cut("it is a fake")),
            )
        }
        fn remove(&self, _: BindingId, _: &dyn Fn()) -> Result<(), StepError> {
            Ok(())
        }
        fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
            Ok(Vec::new())
        }
    }

    fn binding_id(lease: u128) -> BindingId {
        BindingId {
            lease_id: LeaseId(lease),
            generation: Generation(1),
            resource_id: ResourceId(1),
        }
    }

    fn with_slow_path(
        report: Sender<Report>,
        revoked: Sender<BindingId>,
        let_on: Receiver<()>,
    ) -> Dispatcher {
        let mut dispatcher = Dispatcher::new(Arc::new(move |_, it| report.send(it).unwrap()));
        let slow = Slow {
            revoked,
            let_on: Mutex::new(let_on),
        };
        let offer = Offer {
            resource_id: ResourceId(1),
            capacity: 0,
            align: 1,
            transports: Vec::new(),
            durability: Durability::Machine,
            fence_scope: FenceScope::Part,
            cut_within: None,
            allocation_mode: AllocationMode::Stretches,
            read_only: false,
            classes: None,
            rate: None,
            needs_vlan: None,
        };
        let provider = Provider::new().with_path("slow", &[], Arc::new(slow));
        dispatcher.add(ResourceType::Block, &offer, Arc::new(provider));
        dispatcher
    }

    #[test]
    fn a_deadline_is_told_to_the_paths_in_the_turn_of_the_driver() {
        let (report, _reports) = channel();
        let (revoked, _ends) = channel();
        let (_let_on, wait) = channel();
        let dispatcher = with_slow_path(report, revoked, wait);
        let told = dispatcher.dispatch(None, Order::Extend(binding_id(1), BootTime(7)));
        let extended = Report::Extended(binding_id(1), BootTime(7), Ok(()));
        assert_eq!(told, Some(extended));
    }

    /// Memory over UDP: the store and the path of a real node, without a worker.
    #[test]
    fn memory_over_udp_is_leased_and_ended_where_the_order_arrives() {
        let arena = Arc::new(Arena::open(&Source::default(), 1 << 20).unwrap());
        let path = FbmuPath::open(FbmuConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            workers: None,
            arenas: [(ResourceId(1), Arc::clone(&arena))].into(),
            ops_per_second: FbmuConfig::OPS_PER_SECOND,
        });
        let store = Arc::new(ArenaStore::new(arena));
        let offer = store.offer(ResourceId(1), vec![Transport::Udp]);
        let provider = Provider::new().with_store(ResourceId(1), store).with_path(
            "UDP",
            &[Transport::Udp],
            Arc::new(path.unwrap()),
        );
        let mut dispatcher = Dispatcher::new(Arc::new(|_, report| panic!("{report:?}")));
        dispatcher.add(ResourceType::Mem, &offer, Arc::new(provider));
        let before = inline::timed::calls().count;
        for lease in 1..=20 {
            let (id, offset) = (binding_id(lease), 0);
            let extent = Extent {
                offset,
                length: 64 << 10,
            };
            let bind = Order::Bind(BindOrder::new(id, extent, Transport::Udp));
            let orders = [
                bind,
                Order::Extend(id, BootTime(u64::MAX)),
                Order::Cut(id, Linger::None),
                Order::Release(id, extent.into()),
            ];
            for order in orders {
                let report = dispatcher.dispatch(None, order.clone());
                let done = match report.as_ref().expect("it is done already") {
                    Report::Bind(_, outcome) => outcome.is_ok(),
                    Report::Extended(_, _, outcome) => outcome.is_ok(),
                    Report::Cut(_, outcome) | Report::Release(_, outcome) => outcome.is_ok(),
                    _ => false,
                };
                assert!(done, "{order:?}: {report:?}");
            }
        }
        let calls = inline::timed::calls();
        assert_eq!(calls.count - before, 80);
        // Even a debug build on a slow machine needs no more processor time than that for one of them.
        assert!(calls.longest < Duration::from_millis(100), "{calls:?}");
    }

    #[test]
    fn no_end_of_access_waits_for_a_proof_however_many_there_are() {
        let (report, reports) = channel();
        let (revoked, ends) = channel();
        let (let_on, wait) = channel();
        let dispatcher = with_slow_path(report, revoked, wait);
        let all = 1..=300;
        let dispatch = |lease| {
            let owner = Some(format!("{}", lease % 7).into());
            dispatcher.dispatch(owner, Order::Cut(binding_id(lease), Linger::None));
        };
        all.clone().for_each(dispatch);
        assert_eq!(ends.iter().take(300).count(), 300, "nobody was let on yet");
        all.clone().for_each(|_| let_on.send(()).unwrap());
        let mut moved = Vec::new();
        let mut cut = 0;
        while cut < 300 {
            match reports.recv().unwrap() {
                Report::EndBegan(_) => {}
                Report::CutMoves(binding_id) => moved.push(binding_id),
                Report::Cut(binding_id, outcome) => {
                    assert!(outcome.is_ok(), "{outcome:?}");
                    let moves = moved.iter().filter(|it| **it == binding_id).count();
                    assert_eq!(moves, 2, "revoked, and proved");
                    cut += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The threads of this process, for a start that waits for its jobs without a limit.
    struct Patient;

    impl Threads for Patient {
        fn pool(&self, name: &'static str, threads_max: usize, urgency: Urgency) -> Pool {
            OfProcess.pool(name, threads_max, urgency)
        }
        fn retry(&self, provider: &Arc<Provider>, on_report: OnReport) -> ReleaseRetry {
            OfProcess.retry(provider, on_report)
        }
        fn wait(&self, done: &Receiver<()>, _: Duration) {
            done.recv().ok();
        }
    }

    /// Without a thread for each of them, this test never ends.
    #[test]
    fn each_stray_is_removed_even_if_all_others_are_stuck() {
        const STRAYS: usize = 100;
        let dispatcher = Dispatcher::over(Box::new(Patient), Arc::new(|_, _| ()));
        let until_all_run = Arc::new(Barrier::new(STRAYS));
        let job = |_| {
            let until_all_run = Arc::clone(&until_all_run);
            let job = move || {
                until_all_run.wait();
            };
            Box::new(job) as Job
        };
        dispatcher.side_by_side((0..STRAYS).map(job).collect());
    }
}
