//! The suites that each store and each path passes, on the lab's device.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    thread,
};

use fabricbios_arena::{Arena, ArenaStore, Source};
use fabricbios_contract::{
    DataPath, Part, Revoked,
    testing::{Calls, Faulty, Fixture, Watching, World},
};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_rdma::{RdmaPath, RdmaRequester};
use fabricbios_wire::{Binding, LeaseId, MemTerms, RdmaBinding, Transport};

use crate::{
    STRATEGY,
    lab::{self, ARENA_BYTES, binding_id, kernel_objects, open_path, pages, turn},
};

/// The clients that have objects in the kernel.
static CLIENTS: AtomicI64 = AtomicI64::new(0);

struct Machine {
    arena: Arc<Arena>,
    calls: Arc<Calls>,
    /// The kernel's objects without leases and clients.
    before: OnceLock<BTreeMap<String, i64>>,
    _turn: MutexGuard<'static, ()>,
}

/// The path, for clients of which each connects a queue pair of its own.
struct Connecting {
    rdma: Option<RdmaPath>,
    /// The clients that are bound and not connected.
    bound: Mutex<BTreeMap<LeaseId, Client>>,
}

/// A client that writes to its lease.
struct Client {
    requester: Option<RdmaRequester>,
    binding: Option<RdmaBinding>,
}

impl Client {
    fn new() -> Self {
        CLIENTS.fetch_add(1, Ordering::Relaxed);
        Self {
            requester: Some(lab::client()),
            binding: None,
        }
    }

    fn requester(&self) -> &RdmaRequester {
        self.requester.as_ref().unwrap()
    }

    fn connect(&mut self, binding: &RdmaBinding) {
        self.requester().connect(binding).unwrap();
        self.binding = Some(binding.clone());
    }

    fn writes(&mut self) -> bool {
        let binding = self.binding.as_ref().unwrap();
        let requester = self.requester.as_mut().unwrap();
        let written = requester.write(binding.rkey.unwrap(), binding.remote_addr, b"left");
        written.is_ok()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        CLIENTS.fetch_sub(1, Ordering::Relaxed);
        if let Some(requester) = self.requester.take() {
            requester.close().unwrap();
        }
    }
}

impl Connecting {
    fn rdma(&self) -> &RdmaPath {
        self.rdma.as_ref().unwrap()
    }
}

impl DataPath for Connecting {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let client = Client::new();
        let terms = MemTerms {
            rdma_peers: vec![client.requester().peer()],
        };
        let order = BindOrder {
            terms: terms.into(),
            ..order.clone()
        };
        let binding = self.rdma().bind(&order, part)?;
        let lease = order.binding_id.lease_id;
        self.bound.lock().unwrap().insert(lease, client);
        Ok(binding)
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        self.rdma().extend(binding_id, deadline)
    }

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        self.rdma().rotate(binding_id)
    }

    fn revoke(&self, binding_id: BindingId, linger: Linger) -> Result<Revoked, StepError> {
        self.rdma().revoke(binding_id, linger)
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        self.rdma().verify(binding_id, revoked)
    }

    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        self.rdma().remove(binding_id, progress)
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.rdma().leases()
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if let Some(rdma) = self.rdma.take().filter(|_| !thread::panicking()) {
            rdma.close().unwrap();
        }
    }
}

impl Fixture for Machine {
    type Store = ArenaStore;
    type Path = Connecting;
    type Client = Client;

    fn new() -> Self {
        let turn = turn();
        Self {
            arena: Arc::new(Arena::open(&Source::default(), ARENA_BYTES).unwrap()),
            calls: Arc::default(),
            before: OnceLock::new(),
            _turn: turn,
        }
    }

    /// A guard of this path does not end leases by name: see `guard.rs`.
    fn start(&self, _: Arc<Watching>) -> (Arc<ArenaStore>, Arc<Connecting>) {
        let calls = Arc::clone(&self.calls);
        let rdma = open_path(&self.arena, STRATEGY, move |step| {
            // A bind goes on after a key that counts as retired.
            step != "fresh_key" && calls.begin(step).is_err()
        });
        self.before.get_or_init(objects);
        let path = Connecting {
            rdma: Some(rdma),
            bound: Mutex::default(),
        };
        (
            Arc::new(ArenaStore::new(Arc::clone(&self.arena))),
            Arc::new(path),
        )
    }

    fn order(lease: u128) -> BindOrder {
        let first = u64::try_from(lease).unwrap() * 4;
        BindOrder {
            tenant: "ann".into(),
            ..BindOrder::new(binding_id(lease, 1), pages(first, 4), Transport::Rdma)
        }
    }

    /// The client with which the lease was bound, or else another one with the same coordinates.
    fn client(world: &World<Self>, lease: LeaseId) -> Option<Client> {
        let binding = world.binding(lease)?.rdma()?.clone();
        let bound = world.path.bound.lock().unwrap().remove(&lease);
        let mut client = bound.unwrap_or_else(Client::new);
        client.connect(&binding);
        client.writes().then_some(client)
    }

    fn has_access(&self, client: &mut Client) -> bool {
        client.writes()
    }

    fn left(&self) -> Vec<String> {
        let before = self.before.get().unwrap();
        let mut left: Vec<String> = objects()
            .into_iter()
            .filter(|(kind, count)| before.get(kind) != Some(count))
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        let mut bytes = vec![0; usize::try_from(ARENA_BYTES).unwrap()];
        self.arena.read(0, &mut bytes).unwrap();
        let written = bytes.iter().position(|it| *it != 0);
        left.extend(written.map(|at| format!("byte {at}")));
        left
    }
}

impl Faulty for Machine {
    fn calls(&self) -> &Calls {
        &self.calls
    }
}

/// The number of the kernel's objects of each kind, without those of clients.
fn objects() -> BTreeMap<String, i64> {
    let text = kernel_objects();
    let words: Vec<&str> = text.split_whitespace().collect();
    let counts = words.windows(2).filter_map(|pair| {
        let of_clients = match pair[0] {
            "pd" | "cq" | "qp" | "mr" | "ctx" => CLIENTS.load(Ordering::Relaxed),
            _ => 0,
        };
        let count: i64 = pair[1].parse().ok()?;
        Some((pair[0].to_owned(), count - of_clients))
    });
    counts.collect()
}

fabricbios_contract::suites!([#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]] Machine: life, failures);
