//! A simulated process of the daemon: the real table, driver, dispatcher and providers, on a simulated machine.

use std::{
    sync::{
        Arc, Weak,
        mpsc::{Receiver, TryRecvError},
    },
    time::Duration,
};

use fabricbios_contract::{Bindings, Provider};
use fabricbios_lease::{LeaseRecord, LeaseTable, NetworkRights, Now, Order, Policy, Report};
use fabricbios_wire::{Epoch, LeaseId, NodeId, Transport};

use super::{
    MILLISECOND, TENANTS,
    invariants::{Invariant, Mistake},
    kinds::{KINDS, Kind},
    machine::{Event, World},
    path::SimPath,
    store::SimStore,
    threads::{self, NewJob, Pause},
};
use crate::{
    driver::{
        Driver, Environment,
        dispatcher::{Dispatcher, OnReport, Pool, Threads},
        fair::Owner,
        mailbox::Mailbox,
        release_retry::{self, FailedRelease, ReleaseRetry},
        workers::Urgency,
    },
    inventory::{
        Described, Inventory, ResourceStatus,
        detection::{Detection, Found},
    },
    journal::{Change, CommitError, Key, Recovered, Seq, Value, records},
    kinds::{Continuity, Offered, OfferedResource},
    process::service,
};

/// The driver's environment.
pub(super) struct Simulated {
    world: World,
    dispatcher: Dispatcher,
}

impl Environment for Simulated {
    fn now(&self) -> Now {
        self.world.lock().now()
    }

    fn random_lease_id(&mut self) -> Option<LeaseId> {
        let number = self.world.lock().below(u64::MAX);
        Some(LeaseId(u128::from(number) + 2))
    }

    fn dispatch(&mut self, owner: Owner, order: Order) -> Option<Report> {
        let (mistake, was_in_trouble) = {
            let mut machine = self.world.lock();
            machine.ordered(&order);
            let in_trouble = &machine.in_trouble_until;
            let of = order.lease_id();
            (
                machine.mistake,
                of.is_some_and(|it| in_trouble.contains_key(&it)),
            )
        };
        let report = match (order, mistake) {
            (Order::Confirm(_), Some(Mistake::SwallowsConfirmations))
            | (Order::Cut(..), Some(Mistake::SwallowsCuts)) => None,
            (Order::Cut(..), Some(Mistake::SwallowsCutsOfTheSlow)) if was_in_trouble => None,
            (Order::Reset(id, _), Some(Mistake::ResetsNothing)) => Some(Report::Reset(id, Ok(()))),
            (order @ Order::Cut(..), Some(Mistake::LosesInlineCuts)) => {
                self.dispatcher.dispatch(owner, order);
                None
            }
            (order, _) => self.dispatcher.dispatch(owner, order),
        };
        if let (Some(report), false) = (&report, mistake == Some(Mistake::ResetsNothing)) {
            self.world.lock().reported(report);
        }
        report
    }

    fn submit(&mut self, changes: Vec<Change>) -> Seq {
        self.world.lock().submit(changes)
    }

    fn has_room(&self) -> bool {
        true
    }

    fn close(self) -> Result<(), CommitError> {
        Ok(())
    }
}

/// The threads of a simulated process.
impl Threads for World {
    fn pool(&self, name: &'static str, _: usize, _: Urgency) -> Pool {
        let world = self.clone();
        Arc::new(move |_owner, job| world.lock().job(name, job))
    }

    fn retry(&self, provider: &Arc<Provider>, on_report: OnReport) -> ReleaseRetry {
        let (world, provider) = (self.clone(), Arc::downgrade(provider));
        ReleaseRetry::by(move |failed| try_later(&world, &provider, &on_report, failed))
    }

    fn wait(&self, done: &Receiver<()>, at_most: Duration) {
        let until = self.lock().now + at_most.as_nanos() as u64;
        while done.try_recv() == Err(TryRecvError::Empty) {
            let now = self.lock().now;
            if now >= until {
                break;
            }
            threads::pause(Pause::Until(now + 10 * MILLISECOND));
        }
    }
}

fn try_later(
    world: &World,
    provider: &Weak<Provider>,
    on_report: &OnReport,
    failed: FailedRelease,
) {
    let about = [failed.0.lease_id].into();
    let again = (world.clone(), provider.clone(), on_report.clone());
    let work = move || {
        let (world, provider, on_report) = again;
        if !release_retry::is_done(&failed, &provider, &on_report) {
            try_later(&world, &provider, &on_report, failed);
        }
    };
    let job = NewJob {
        name: "healing",
        about,
        locks: true,
        work: Box::new(work),
    };
    let mut machine = world.lock();
    let at = machine.now + release_retry::PAUSE.as_nanos() as u64;
    machine.at(at, Event::Begin(job));
}

/// Starts the daemon on the machine as it is, up to the first turn of its driver.
pub(super) fn start(world: &World) -> anyhow::Result<Driver<Simulated>> {
    let (mailbox, sender) = Mailbox::new().expect("the host has descriptors");
    let (now, boot, recovered, is_short) = {
        let mut machine = world.lock();
        machine.driver = Some(sender);
        let boot = machine.boot;
        let mut records = machine.records.clone();
        let is_short = machine.tears() && !records.is_empty();
        for record in records.values_mut().take(is_short.into()) {
            let half = record.len() / 2;
            record.truncate(half);
        }
        if machine.has(Mistake::ForgetsRequests) {
            records.iter_mut().for_each(forget_request);
        }
        let recovered = Recovered {
            epoch: Epoch(2),
            last_boot_id: machine.written_on.map(|it| it.to_string()),
            written_unix_ms: machine.written_unix_ms,
            records,
            ..Recovered::default()
        };
        (machine.now(), boot.to_string(), recovered, is_short)
    };
    let to = world.clone();
    let on_report = Arc::new(move |owner, report| to.lock().report(owner, report));
    let mut dispatcher = Dispatcher::over(Box::new(world.clone()), on_report);
    let detection = Detection::fixed(Found::default()).into();
    let mut inventory = Inventory::new(NodeId([0; 32]), Epoch(2), detection);
    let offered = KINDS.iter().filter_map(|kind| offered(world, kind));
    let offered: Vec<Offered> = offered.collect();
    let mut table = LeaseTable::new(policy());
    offered.iter().for_each(|it| it.offer(&mut table, true));
    let knows = |id| offered.iter().any(|it| it.knows(id));
    service::restore(&mut table, now, &boot, &recovered, &knows)?;
    if is_short {
        let why = "a start has read half a record";
        world.lock().breaks(Invariant::NothingLostOverRestart, why);
    }
    let again = world.lock().has(Mistake::OffersAgain);
    offered.iter().for_each(|it| it.offer(&mut table, again));
    for it in offered {
        it.start(&mut table, &mut dispatcher, &mut inventory, now)?;
    }
    let environment = Simulated {
        world: world.clone(),
        dispatcher,
    };
    Ok(Driver::new(table, environment, inventory, mailbox))
}

fn forget_request((key, value): (&Key, &mut Value)) {
    let record = records::decode::<LeaseRecord>(value).ok();
    if let (Key::Lease(_), Some(record)) = (key, record) {
        let record = LeaseRecord {
            requested: None,
            ..record
        };
        *value = records::encode(&record).expect("bytes").into();
    }
}

fn policy() -> Policy {
    let untagged = |tenant: &str| (tenant.to_owned(), "0".parse().expect("a list"));
    Policy {
        network: NetworkRights {
            vlans: TENANTS.map(untagged).into(),
            ..NetworkRights::default()
        },
        ..Policy::default()
    }
}

#[derive(Debug)]
struct Plain;

impl Described for Plain {
    fn overlay(&self, _: &mut fabricbios_wire::ResourceInventory, _: ResourceStatus, _: &Found) {}
}

/// The resources of a kind, with their stores and paths; `None`: this machine has none.
fn offered(world: &World, kind: &'static Kind) -> Option<Offered> {
    let offers = (kind.offers)();
    if !world.lock().offers.contains_key(&offers[0].resource_id) {
        return None;
    }
    let mut provider = Provider::new();
    for &(name, transport) in kind.paths {
        let path = SimPath {
            name,
            kind,
            is_udp: transport == Transport::Udp,
            world: world.clone(),
            bindings: Bindings::default(),
        };
        provider = provider.with_path(name, &[transport], Arc::new(path));
    }
    let (mut resources, mut stores) = (Vec::new(), Vec::new());
    for offer in offers {
        let store = Arc::new(SimStore::new(world, offer.resource_id));
        provider = provider.with_store(offer.resource_id, store.clone());
        stores.push(store);
        resources.push(OfferedResource {
            offer,
            described: Arc::new(Plain),
            continuity: Continuity::Known,
        });
    }
    let mut offered = Offered::new(kind.resource_type, resources, Arc::new(provider));
    offered.ready = Box::new(move |held| {
        stores.iter().for_each(|it| it.ready(held));
        Ok(())
    });
    Some(offered)
}
