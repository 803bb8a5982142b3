//! What waits for the task that owns the view: reports in a queue of their own, and a bound for each node, tenant and operator.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_control::PeerRequest;
use fabricbios_fabric::Principal;
use fabricbios_wire::{LeaseError, Refusal, RefusalClass, Request, Role};
use tokio::sync::mpsc;

/// Reports that wait for the owner, and requests of all clients that do.
const WAITING_MAX: usize = 4_096;
/// Requests of one tenant or operator that wait.
const WAITING_OF_TENANT_MAX: usize = 256;
/// Reports of one node that wait. A node sends the next one when the last one was answered.
const WAITING_OF_NODE_MAX: usize = 4;

/// Passes requests to the task that owns the view: reports in a queue of their own, so that clients cannot make a node
/// look as if it were gone.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    reports: mpsc::Sender<Waiting>,
    requests: mpsc::Sender<Waiting>,
    waiting: Arc<Mutex<HashMap<Principal, usize>>>,
}

/// A request that waits, with its place.
pub(crate) type Waiting = (PeerRequest, Place);

/// The place of a request that waits, of a tenant, an operator or a node; dropping this gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    of: Principal,
    waiting: Arc<Mutex<HashMap<Principal, usize>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = lock(&self.waiting);
        match waiting.get_mut(&self.of) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(waiting.remove(&self.of)),
        }
    }
}

fn lock(waiting: &Mutex<HashMap<Principal, usize>>) -> MutexGuard<'_, HashMap<Principal, usize>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    /// The queue, and what comes out of it: reports of nodes, and requests of clients.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Waiting>, mpsc::Receiver<Waiting>) {
        let (reports, of_nodes) = mpsc::channel(WAITING_MAX);
        let (requests, of_clients) = mpsc::channel(WAITING_MAX);
        let queue = Self {
            reports,
            requests,
            waiting: Arc::default(),
        };
        (queue, of_nodes, of_clients)
    }

    /// Passes a request on, or refuses it. Never blocks.
    pub(crate) fn pass_on(&self, request: PeerRequest) {
        let (queue, place) = match &request.request {
            Request::NodeReport(_) | Request::NodeLeases(_) => {
                // All nodes have one name.
                let node = Principal {
                    tenant: request.peer.key.to_string(),
                    role: Role::Node,
                };
                (&self.reports, self.place(node, WAITING_OF_NODE_MAX))
            }
            _ => {
                let of = request.principal.clone();
                (&self.requests, self.place(of, WAITING_OF_TENANT_MAX))
            }
        };
        let refused = match place {
            Some(place) => {
                { queue.try_send((request, place)) }.map_err(|error| error.into_inner().0)
            }
            None => Err(request),
        };
        if let Err(request) = refused {
            let busy = "the scheduler has too many requests waiting: try again a little later, or ask a node itself";
            // The client may be gone.
            request.reply.send(Err(transient(busy))).ok();
        }
    }

    fn place(&self, of: Principal, max: usize) -> Option<Place> {
        let mut waiting = lock(&self.waiting);
        let count = waiting.entry(of.clone()).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Place {
            of,
            waiting: Arc::clone(&self.waiting),
        })
    }
}

/// Why nothing is done about a request at the moment.
pub(crate) fn transient(why: &str) -> Refusal {
    Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, why)
}
