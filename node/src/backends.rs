//! From orders to backends, on the lanes that they belong to, and back as reports.

use std::{collections::HashMap, fmt, sync::Arc};

use fabricbios_lease::{
    Availability, Backend, BindError, BindOrder, Condition, Extent, Order, Report, Tag,
};
use fabricbios_wire::ResourceId;

use crate::{
    healing::{self, Healing, Unfinished},
    inventory::Standing,
    lanes::{Lane, Urgency},
};

/// Where reports go. Called on the lanes' threads.
pub type OnReport = Arc<dyn Fn(Report) + Send + Sync>;

/// The backends of a node, by the resources that they own.
pub struct Backends {
    owners: HashMap<ResourceId, Owner>,
    ending: Lane,
    proving: Lane,
    opening: Lane,
    on_report: OnReport,
}

/// What makes and unmakes leases of one resource. Where that is stuck, or takes long, only this resource waits.
#[derive(Clone)]
struct Owner {
    backend: Arc<dyn Backend>,
    preparing: Lane,
    cleaning: Lane,
    healing: Healing,
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backends")
            .field("resources", &self.owners.keys())
            .finish_non_exhaustive()
    }
}

impl Backends {
    /// No backends yet.
    #[must_use]
    pub fn new(on_report: OnReport) -> Self {
        Self {
            owners: HashMap::new(),
            // Each thread can be lost to one stuck call; the table fences long before all are.
            ending: Lane::new("ending", 64, Urgency::Deadline),
            proving: Lane::new("proving", 64, Urgency::Deadline),
            opening: Lane::new("opening", 64, Urgency::Usual),
            on_report,
        }
    }

    /// `backend` owns `resource_id`.
    pub fn add(&mut self, resource_id: ResourceId, backend: Arc<dyn Backend>) {
        let owner = Owner {
            backend,
            preparing: Lane::new("preparing", 16, Urgency::Usual),
            cleaning: Lane::new("cleaning", 16, Urgency::Usual),
            healing: Healing::start(self.on_report.clone(), healing::PAUSE),
        };
        self.owners.insert(resource_id, owner);
    }

    /// A release that failed in an earlier run is tried again until it is done.
    pub fn release_later(&self, tag: Tag, extent: Extent) {
        if let Some(owner) = self.owners.get(&tag.resource_id) {
            owner.healing.try_later(Unfinished {
                backend: owner.backend.clone(),
                tag,
                extent,
            });
        }
    }

    /// How it is with an offered resource.
    pub fn standing(&self, available: Availability) -> Standing {
        let owner = self.owners.get(&available.resource_id);
        let condition = owner.map(|owner| owner.backend.condition(available.resource_id));
        Standing {
            available,
            degraded: matches!(condition, Some(Condition::Degraded(_))),
        }
    }

    /// Has an order carried out. Never blocks.
    pub fn dispatch(&self, order: Order) {
        let Some(owner) = self.owners.get(&order.resource_id()).cloned() else {
            // Only a fence of an earlier run can name a resource that nobody owns any more.
            tracing::error!(?order, "no backend owns this resource");
            return;
        };
        let Owner {
            backend,
            preparing,
            cleaning,
            healing,
        } = owner;
        let lane = match order {
            // Neither blocks, and what they say has to be so before anybody is answered.
            Order::Extend(tag, deadline) => return backend.extend(tag, deadline),
            Order::Fenced(tag) => return backend.fenced(tag),
            Order::Cut(..) | Order::RetireKey(_) => &self.ending,
            // What needs no answer from the network does not wait behind what does.
            Order::Bind(BindOrder { ref peers, .. }) if peers.is_empty() => &preparing,
            Order::Rotate(_) => &preparing,
            Order::Bind(_) => &self.opening,
            Order::Release(..) | Order::Reset(..) => &cleaning,
        };
        let on_report = self.on_report.clone();
        let proving = self.proving.clone();
        lane.run(move || match order {
            Order::Release(tag, extent) => release(backend, tag, extent, &on_report, &healing),
            Order::Cut(tag, _) if backend.sever(tag) => {
                on_report(Report::CutMoves(tag));
                proving.run(move || prove(&*backend, order, &*on_report));
            }
            order => carry_out(&*backend, order, &*on_report),
        });
    }
}

/// The second half of a cut. Who waits behind it learns that it is done.
fn prove(backend: &dyn Backend, order: Order, on_report: &dyn Fn(Report)) {
    if let Order::Cut(tag, farewell) = order {
        let outcome = backend.cut(tag, farewell);
        on_report(Report::CutMoves(tag));
        on_report(Report::Cut(tag, outcome));
    }
}

fn carry_out(backend: &dyn Backend, order: Order, on_report: &dyn Fn(Report)) {
    on_report(match order {
        Order::Bind(order) => {
            let progress = || on_report(Report::BindProgress(order.tag));
            let prepared = backend.prepare(&order, &progress);
            let bound = prepared.map_err(BindError::Failed);
            Report::Bind(order.tag, bound.and_then(|()| backend.bind(&order)))
        }
        // Carried out where they are dispatched.
        Order::Extend(..) | Order::Fenced(_) | Order::Release(..) => return,
        Order::Rotate(tag) => Report::Rotate(tag, backend.rotate(tag)),
        Order::RetireKey(tag) => Report::RetireKey(tag, backend.retire_key(tag)),
        Order::Cut(tag, farewell) => Report::Cut(tag, backend.cut(tag, farewell)),
        Order::Reset(resource_id, leases) => {
            Report::Reset(resource_id, backend.reset(resource_id, &leases))
        }
    });
}

/// One that fails is tried again later, where that can help.
fn release(
    backend: Arc<dyn Backend>,
    tag: Tag,
    extent: Extent,
    on_report: &OnReport,
    healing: &Healing,
) {
    let progress = || on_report(Report::ReleaseProgress(tag));
    progress();
    let outcome = backend.release(tag, extent, &progress);
    let failed = outcome.is_err();
    on_report(Report::Release(tag, outcome));
    if failed && backend.may_release_later() {
        healing.try_later(Unfinished {
            backend,
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

    use fabricbios_lease::{Farewell, Offer, StepError};
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
        fn cut(&self, _: Tag, _: Farewell) -> Result<String, StepError> {
            let let_on = self.let_on.lock();
            let let_on = let_on.unwrap_or_else(PoisonError::into_inner).recv();
            let_on.map_or_else(
                |_| Err(StepError::new("cut", "on purpose")),
                |()| Ok("proof".into()),
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
        let mut backends = Backends::new(Arc::new(move |it| report.send(it).unwrap()));
        let slow = Slow {
            severed,
            let_on: Mutex::new(wait),
        };
        backends.add(ResourceId(1), Arc::new(slow));
        let all = 1..=300;
        let dispatch = |lease| backends.dispatch(Order::Cut(tag(lease), Farewell::None));
        all.clone().for_each(dispatch);
        assert_eq!(ends.iter().take(300).count(), 300, "nobody was let on yet");
        all.clone().for_each(|_| let_on.send(()).unwrap());
        let mut moved = Vec::new();
        let mut cut = 0;
        while cut < 300 {
            match reports.recv().unwrap() {
                Report::CutMoves(tag) => moved.push(tag),
                Report::Cut(tag, outcome) => {
                    assert_eq!(outcome, Ok("proof".into()));
                    let moves = moved.iter().filter(|it| **it == tag).count();
                    assert_eq!(moves, 2, "severed, and proved");
                    cut += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
