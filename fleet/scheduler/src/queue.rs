//! What waits for the task that owns the view: reports in a queue of their own, tenants and operators in turn, and a bound
//! for each of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_control::{FairQueue, PeerRequest};
use fabricbios_fabric::Principal;
use fabricbios_wire::{LeaseError, Refusal, RefusalClass, Request, Role};
use tokio::{sync::mpsc, task::coop::consume_budget};

/// Reports that wait for the owner, and requests of all clients that do. Beyond it only a tenant or operator of whom no
/// request waits gets a place, so that others cannot take it away.
const WAITING_MAX: usize = 4_096;
/// Requests of one tenant or operator that wait.
const WAITING_OF_TENANT_MAX: usize = 256;
/// Reports of one node that wait. A node sends the next one when the last one was answered.
const WAITING_OF_NODE_MAX: usize = 4;

/// Passes requests to the task that owns the view: reports in a queue of their own, so that clients cannot make a node
/// look as if it were gone.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    reports: Lane,
    requests: Lane,
}

/// One of the queues.
#[derive(Clone, Debug)]
struct Lane {
    sender: mpsc::UnboundedSender<Waiting>,
    places: Arc<Mutex<Places>>,
    /// Most that wait of one node, tenant or operator.
    of_one_max: usize,
    /// So many of one have a place, however many wait of others.
    of_one_min: usize,
}

/// The places that are taken.
#[derive(Debug, Default)]
struct Places {
    of: HashMap<Principal, usize>,
    all: usize,
    /// Requests that got none.
    turned_away: u64,
}

/// The places of both queues, for who watches.
#[derive(Clone, Debug)]
pub(crate) struct Depths([Arc<Mutex<Places>>; 2]);

impl Depths {
    /// Of reports and of requests: how many wait, and how many were turned away.
    pub(crate) fn now(&self) -> [(usize, u64); 2] {
        self.0.each_ref().map(|it| {
            let places = lock(it);
            (places.all, places.turned_away)
        })
    }
}

/// The requests of clients, which come out so that tenants and operators take turns: one that asks hundreds of times does
/// not hold up the others.
#[derive(Debug)]
pub(crate) struct Turns {
    coming: mpsc::UnboundedReceiver<Waiting>,
    waiting: FairQueue<Principal, Waiting>,
}

impl Turns {
    /// The next request; `None`: no more come. Can be cancelled.
    pub(crate) async fn recv(&mut self) -> Option<Waiting> {
        match self.waiting.is_empty() {
            true => {
                let first = self.coming.recv().await?;
                self.push(first);
            }
            false => consume_budget().await,
        }
        while let Ok(next) = self.coming.try_recv() {
            self.push(next);
        }
        self.waiting.pop()
    }

    fn push(&mut self, waiting: Waiting) {
        self.waiting.push(waiting.1.of.clone(), waiting);
    }
}

/// A request that waits, with its place.
pub(crate) type Waiting = (PeerRequest, Place);

/// The place of a request that waits, of a tenant, an operator or a node; dropping this gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    of: Principal,
    places: Arc<Mutex<Places>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = lock(&self.places);
        places.all -= 1;
        match places.of.get_mut(&self.of) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(places.of.remove(&self.of)),
        }
    }
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    fn new(of_one_max: usize, of_one_min: usize) -> (Self, mpsc::UnboundedReceiver<Waiting>) {
        let (sender, waiting) = mpsc::unbounded_channel();
        let lane = Self {
            sender,
            places: Arc::default(),
            of_one_max,
            of_one_min,
        };
        (lane, waiting)
    }

    /// A place for a request, if there is one.
    fn place(&self, of: Principal) -> Option<Place> {
        let mut places = lock(&self.places);
        let waiting = places.of.get(&of).copied().unwrap_or_default();
        let is_full = places.all >= WAITING_MAX && waiting >= self.of_one_min;
        if is_full || waiting >= self.of_one_max {
            places.turned_away += 1;
            return None;
        }
        places.of.insert(of.clone(), waiting + 1);
        places.all += 1;
        let places = Arc::clone(&self.places);
        Some(Place { of, places })
    }
}

impl Queue {
    /// The queue, and what comes out of it: reports of nodes, and requests of clients.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Waiting>, Turns) {
        let (reports, of_nodes) = Lane::new(WAITING_OF_NODE_MAX, 0);
        let (requests, coming) = Lane::new(WAITING_OF_TENANT_MAX, 1);
        let of_clients = Turns {
            coming,
            waiting: FairQueue::default(),
        };
        (Self { reports, requests }, of_nodes, of_clients)
    }

    pub(crate) fn depths(&self) -> Depths {
        Depths([&self.reports, &self.requests].map(|it| Arc::clone(&it.places)))
    }

    /// Passes a request on, or refuses it. Never blocks.
    pub(crate) fn pass_on(&self, request: PeerRequest) {
        let (lane, of) = match &request.request {
            Request::NodeReport(_) | Request::NodeLeases(_) => {
                // All nodes have one name.
                let node = Principal {
                    tenant: request.peer.key.to_string().into(),
                    role: Role::Node,
                };
                (&self.reports, node)
            }
            _ => (&self.requests, request.principal.clone()),
        };
        match lane.place(of) {
            // If the scheduler is stopping, the server says so.
            Some(place) => drop(lane.sender.send((request, place))),
            None => {
                let busy = "the scheduler has too many requests waiting: try again a little later, or ask a node itself";
                // The client may be gone.
                request.reply.send(Err(transient(busy))).ok();
            }
        }
    }
}

/// Why nothing is done about a request at the moment.
pub(crate) fn transient(why: &str) -> Refusal {
    Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, why)
}

#[cfg(test)]
mod tests;
