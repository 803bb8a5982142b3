//! From orders to backends, in the worker pools that they belong to, and back as reports.

use std::{collections::HashMap, fmt, sync::Arc};

use fabricbios_lease::{
    Availability, Backend, BindError, BindOrder, Condition, Extent, Order, Report, Tag,
};
use fabricbios_wire::{ResourceId, ResourceType};

use crate::{
    descriptors,
    fair::Owner,
    healing::{self, Healing, Unfinished},
    inventory::Standing,
    workers::{Urgency, WorkerPool},
};

/// Where reports go, with whose lease they are about. Called on the threads of the pools.
pub type OnReport = Arc<dyn Fn(Owner, Report) + Send + Sync>;

/// The backends of a node, by the resources that they own.
pub struct Backends {
    resources: HashMap<ResourceId, Resource>,
    kinds: HashMap<ResourceType, OfKind>,
    on_report: OnReport,
}

/// What ends and opens access to leases of a kind. Each thread can be lost to one stuck call; the table fences
/// long before all are.
#[derive(Clone)]
struct OfKind {
    ending: WorkerPool,
    proving: WorkerPool,
    opening: WorkerPool,
}

impl OfKind {
    fn new() -> Self {
        Self {
            ending: WorkerPool::new("ending", 64, Urgency::Deadline),
            proving: WorkerPool::new("proving", 64, Urgency::Deadline),
            opening: WorkerPool::new("opening", 64, Urgency::Usual),
        }
    }
}

/// What makes and unmakes leases of one resource. Where that is stuck, or takes long, only this resource waits.
#[derive(Clone)]
struct Resource {
    backend: Arc<dyn Backend>,
    of_kind: OfKind,
    preparing: WorkerPool,
    cleaning: WorkerPool,
    healing: Healing,
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backends")
            .field("resources", &self.resources.keys())
            .finish_non_exhaustive()
    }
}

impl Backends {
    /// No backends yet.
    #[must_use]
    pub fn new(on_report: OnReport) -> Self {
        Self {
            resources: HashMap::new(),
            kinds: HashMap::new(),
            on_report,
        }
    }

    /// `backend` owns `resource_id`, which is of this kind.
    pub fn add(&mut self, resource_id: ResourceId, kind: ResourceType, backend: Arc<dyn Backend>) {
        let resource = Resource {
            backend,
            of_kind: self.kinds.entry(kind).or_insert_with(OfKind::new).clone(),
            preparing: WorkerPool::new("preparing", 16, Urgency::Usual),
            cleaning: WorkerPool::new("cleaning", 16, Urgency::Usual),
            healing: Healing::start(self.on_report.clone(), healing::PAUSE),
        };
        self.resources.insert(resource_id, resource);
    }

    /// A release that failed in an earlier run is tried again until it is done.
    pub fn release_later(&self, tag: Tag, extent: Extent) {
        if let Some(resource) = self.resources.get(&tag.resource_id) {
            resource.healing.try_later(Unfinished {
                backend: resource.backend.clone(),
                tag,
                extent,
            });
        }
    }

    /// How it is with an offered resource.
    pub fn standing(&self, available: Availability) -> Standing {
        let resource = self.resources.get(&available.resource_id);
        let condition = resource.map(|resource| resource.backend.condition(available.resource_id));
        Standing {
            available,
            degraded: matches!(condition, Some(Condition::Degraded(_))),
        }
    }

    /// Has an order for a lease of `owner` carried out. Never blocks.
    pub fn dispatch(&self, owner: Owner, order: Order) {
        let Some(resource) = self.resources.get(&order.resource_id()).cloned() else {
            // Only a fence of an earlier run can name a resource that nobody owns any more.
            tracing::error!(?order, "no backend owns this resource");
            return;
        };
        let Resource {
            backend,
            of_kind,
            preparing,
            cleaning,
            healing,
        } = resource;
        let pool = match order {
            // Neither blocks, and what they say has to be so before anybody is answered.
            Order::Extend(tag, deadline) => return backend.extend(tag, deadline),
            Order::Fenced(tag) => return backend.fenced(tag),
            Order::Cut(..) | Order::RetireKey(_) => &of_kind.ending,
            // What needs no answer from the network does not wait behind what does.
            Order::Bind(BindOrder { ref peers, .. }) if peers.is_empty() => &preparing,
            Order::Rotate(_) => &preparing,
            Order::Bind(_) => &of_kind.opening,
            Order::Release(..) | Order::Reset(..) => &cleaning,
        };
        let (whose, reports) = (owner.clone(), self.on_report.clone());
        let on_report = move |report| reports(whose.clone(), report);
        let (again, proving) = (owner.clone(), of_kind.proving.clone());
        pool.run(owner, move || match order {
            Order::Release(tag, placement) => {
                let extent = placement.extent();
                release(&backend, tag, extent, &on_report, |failed| {
                    healing.try_later(failed);
                });
            }
            Order::Cut(tag, farewell) => {
                on_report(Report::EndBegan(tag));
                if !backend.sever(tag) {
                    return on_report(Report::Cut(tag, backend.cut(tag, farewell)));
                }
                on_report(Report::CutMoves(tag));
                proving.run(again, move || {
                    let outcome = backend.cut(tag, farewell);
                    // Who waits behind it learns that it is done.
                    on_report(Report::CutMoves(tag));
                    on_report(Report::Cut(tag, outcome));
                });
            }
            order => carry_out(&*backend, order, &on_report),
        });
    }
}

fn carry_out(backend: &dyn Backend, order: Order, on_report: &dyn Fn(Report)) {
    on_report(match order {
        Order::Bind(order) => {
            let progress = || on_report(Report::BindProgress(order.tag));
            progress();
            let bound = descriptors::for_a_grant()
                .and_then(|granting| backend.prepare(&order, &progress).map(|()| granting))
                .map_err(BindError::Failed)
                .and_then(|_granting| backend.bind(&order));
            Report::Bind(order.tag, bound)
        }
        Order::Rotate(tag) => Report::Rotate(tag, backend.rotate(tag)),
        Order::RetireKey(tag) => {
            on_report(Report::EndBegan(tag));
            Report::RetireKey(tag, backend.retire_key(tag))
        }
        Order::Reset(resource_id, leases) => {
            let leases = leases.into_iter();
            let leases: Vec<_> = leases.map(|(tag, it)| (tag, it.extent())).collect();
            Report::Reset(resource_id, backend.reset(resource_id, &leases))
        }
        // Carried out where they are dispatched.
        Order::Extend(..) | Order::Fenced(_) | Order::Release(..) | Order::Cut(..) => return,
    });
}

/// One that fails is tried again later, where that can help.
fn release(
    backend: &Arc<dyn Backend>,
    tag: Tag,
    extent: Extent,
    on_report: &dyn Fn(Report),
    try_later: impl FnOnce(Unfinished),
) {
    let progress = || on_report(Report::ReleaseProgress(tag));
    progress();
    let outcome = backend.release(tag, extent, &progress);
    let failed = outcome.is_err();
    on_report(Report::Release(tag, outcome));
    if failed && backend.may_release_later() {
        try_later(Unfinished {
            backend: backend.clone(),
            tag,
            extent,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    };

    use fabricbios_lease::{Farewell, Offer, Proof, StepError};
    use fabricbios_wire::{Binding, Generation, LeaseId};

    use super::*;

    /// Ends access at once; the proof waits to be let on.
    struct Slow {
        severed: Sender<Tag>,
        let_on: Mutex<Receiver<()>>,
    }

    impl Backend for Slow {
        fn probe(&self) -> Result<Vec<Offer>, StepError> {
            Ok(Vec::new())
        }
        fn bind(&self, _: &BindOrder) -> Result<Binding, BindError> {
            Err(BindError::Cancelled)
        }
        fn rotate(&self, _: Tag) -> Result<Binding, BindError> {
            Err(BindError::Cancelled)
        }
        fn retire_key(&self, _: Tag) -> Result<Binding, StepError> {
            Ok(Binding::default())
        }
        fn sever(&self, tag: Tag) -> bool {
            self.severed.send(tag).unwrap();
            true
        }
        fn cut(&self, _: Tag, _: Farewell) -> Result<Proof, StepError> {
            let let_on = self.let_on.lock();
            let let_on = let_on.unwrap_or_else(PoisonError::into_inner).recv();
            let_on.map_or_else(
                |_| Err(StepError::new("cut", "on purpose")),
                |()| Ok(Proof::default()),
            )
        }
        fn release(&self, _: Tag, _: Extent, _: &dyn Fn()) -> Result<(), StepError> {
            Ok(())
        }
        fn reset(&self, _: ResourceId, _: &[(Tag, Extent)]) -> Result<(), StepError> {
            Ok(())
        }
    }

    fn tag(lease: u128) -> Tag {
        Tag {
            lease_id: LeaseId(lease),
            generation: Generation(1),
            resource_id: ResourceId(1),
        }
    }

    #[test]
    fn no_end_of_access_waits_for_a_proof_however_many_there_are() {
        let (report, reports) = channel();
        let (severed, ends) = channel();
        let (let_on, wait) = channel();
        let mut backends = Backends::new(Arc::new(move |_, it| report.send(it).unwrap()));
        let slow = Slow {
            severed,
            let_on: Mutex::new(wait),
        };
        backends.add(ResourceId(1), ResourceType::Block, Arc::new(slow));
        let all = 1..=300;
        let dispatch = |lease| {
            let owner = Some(format!("{}", lease % 7).into());
            backends.dispatch(owner, Order::Cut(tag(lease), Farewell::None));
        };
        all.clone().for_each(dispatch);
        assert_eq!(ends.iter().take(300).count(), 300, "nobody was let on yet");
        all.clone().for_each(|_| let_on.send(()).unwrap());
        let mut moved = Vec::new();
        let mut cut = 0;
        while cut < 300 {
            match reports.recv().unwrap() {
                Report::EndBegan(_) => {}
                Report::CutMoves(tag) => moved.push(tag),
                Report::Cut(tag, outcome) => {
                    assert_eq!(outcome, Ok(Proof::default()));
                    let moves = moved.iter().filter(|it| **it == tag).count();
                    assert_eq!(moves, 2, "severed, and proved");
                    cut += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
