//! A node's machine in memory: orders are carried out at once, but for releases, which take a moment as cleaning does. Its
//! journal outlives the daemon, as a disk does.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_lease::{Now, Order, Proof, Report};
use fabricbios_node::{
    driver::{Environment, Input, fair::Owner, mailbox::Sender},
    journal::{Change, CommitError, Key, Recovered, Seq, Value},
    process::clock,
};
use fabricbios_wire::{Binding, Epoch, LeaseId, ResourceId, ResourceType};

use crate::invariants::{Asks, Invariants, Watched};

/// Cleaning takes at most so long.
const CLEANING_MS: u64 = 50;

/// What a node has written, and who watches it.
#[derive(Debug)]
pub(crate) struct Disk {
    contents: Mutex<Contents>,
    invariants: Arc<Invariants>,
}

#[derive(Debug, Default)]
struct Contents {
    records: BTreeMap<Key, Value>,
    starts: u64,
    seq: u64,
    watched: Watched,
}

impl Disk {
    pub(crate) fn new(number: u32, invariants: &Arc<Invariants>) -> Self {
        Self {
            contents: Mutex::new(Contents {
                watched: Watched::new(number),
                ..Contents::default()
            }),
            invariants: Arc::clone(invariants),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a start of the daemon reads.
    pub(crate) fn read(&self) -> Recovered {
        let mut contents = self.lock();
        contents.starts += 1;
        contents.watched.starts(clock::now().boot);
        let is_first = contents.starts == 1;
        Recovered {
            epoch: Epoch(contents.starts),
            last_boot_id: (!is_first).then(clock::boot_id),
            written_unix_ms: clock::now().unix_ms,
            records: contents.records.clone(),
            ..Recovered::default()
        }
    }

    fn write(&self, changes: Vec<Change>) -> Seq {
        let contents = &mut *self.lock();
        let now = clock::now().boot;
        for change in changes {
            contents.watched.changes(&change, now, &self.invariants);
            match change.value {
                Some(value) => contents.records.insert(change.key, value),
                None => contents.records.remove(&change.key),
            };
        }
        contents.seq += 1;
        Seq(contents.seq)
    }

    /// A request of this tenant about a lease reaches the node.
    pub(crate) fn is_asked(&self, lease_id: LeaseId, tenant: &str, asks: Asks) {
        self.lock().watched.is_asked(lease_id, tenant, asks);
    }

    /// Looks for leases that should be over.
    pub(crate) fn look_for_late(&self) {
        let now = clock::now().boot;
        self.lock().watched.look_for_late(now, &self.invariants);
    }

    /// What the journal says of leases, in order of their ids.
    pub(crate) fn leases(&self) -> Vec<crate::views::Held> {
        self.lock().watched.leases()
    }
}

/// The node of one start of its daemon.
pub(crate) struct Machine {
    pub(crate) disk: Arc<Disk>,
    pub(crate) driver: Sender<Input>,
    pub(crate) kinds: BTreeMap<ResourceId, ResourceType>,
    /// The wall clock is so much ahead, milliseconds.
    pub(crate) ahead_ms: i64,
}

impl Machine {
    fn binding(&self, resource_id: ResourceId) -> Binding {
        let kind = self.kinds.get(&resource_id);
        Binding::plain(kind.copied().unwrap_or(ResourceType::Mem))
    }
}

impl Environment for Machine {
    fn now(&self) -> Now {
        let now = clock::now();
        Now {
            unix_ms: now.unix_ms.saturating_add_signed(self.ahead_ms),
            ..now
        }
    }

    fn random_lease_id(&mut self) -> Option<LeaseId> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(LeaseId(u128::from_be_bytes(bytes))).filter(|id| id.0 != 0)
    }

    fn dispatch(&mut self, owner: Owner, order: Order) -> Option<Report> {
        Some(match order {
            Order::Bind(order) => {
                let binding = self.binding(order.binding_id.resource_id);
                Report::Bind(order.binding_id, Ok(binding))
            }
            Order::Extend(id, deadline) => Report::Extended(id, deadline, Ok(())),
            Order::Confirm(id) => Report::Confirmed(id, Ok(())),
            Order::Fenced(_) => return None,
            Order::Rotate(id) => Report::Rotate(id, Ok(self.binding(id.resource_id))),
            Order::RetireKey(id) => Report::RetireKey(id, Ok(self.binding(id.resource_id))),
            Order::ChangePeers(id, _) => Report::PeersChanged(id, Ok(self.binding(id.resource_id))),
            Order::Cut(id, _) => Report::Cut(id, Ok(Proof::default())),
            Order::Release(id, _) => {
                let driver = self.driver.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(..CLEANING_MS))).await;
                    let at = clock::now().boot;
                    let report = Report::Release(id, Ok(Proof::default()));
                    driver.report(owner, Input::Report { at, report });
                });
                return None;
            }
            Order::Reset(id, _) => Report::Reset(id, Ok(())),
        })
    }

    fn submit(&mut self, changes: Vec<Change>) -> Seq {
        let seq = self.disk.write(changes);
        self.driver.notify(Input::Durable(Ok(seq)));
        seq
    }

    fn has_room(&self) -> bool {
        true
    }

    fn close(self) -> Result<(), CommitError> {
        Ok(())
    }
}
