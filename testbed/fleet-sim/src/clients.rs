//! Clients: the SDK's searches through schedulers, with requests that fit and requests that never could; some end in the
//! middle of a request, as a killed program does.

use std::{
    net::SocketAddr,
    ops::AddAssign,
    sync::Arc,
    time::{Duration, Instant},
};

use fabricbios_client::{Error, Identity, Node};
use fabricbios_wire::{LeaseAllocRequest, LeaseId, RefusalClass, Request, ResourceType};
use tokio::{sync::watch, task::JoinSet, time::timeout};

use crate::{
    fleet::{Fleet, LONG_TERM_SECS},
    invariants::{Invariant, Invariants},
    node::{MIB, Make},
};

/// A node that does not answer for this long is left, once it is settled what it has granted.
const ANSWER: Duration = Duration::from_secs(4);
/// Leases that one client holds.
const HELD_MAX: usize = 8;

/// What became of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) granted: u64,
    pub(crate) renewed: u64,
    pub(crate) freed: u64,
    pub(crate) refused_for_now: u64,
    pub(crate) refused_for_good: u64,
    /// No answer, or none in time.
    pub(crate) failed: u64,
    pub(crate) given_up: u64,
}

impl Counts {
    /// Whether the run says anything.
    pub(crate) fn are_of_every_sort(&self) -> bool {
        [self.granted, self.renewed, self.freed]
            .iter()
            .all(|it| *it > 0)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.granted += other.granted;
        self.renewed += other.renewed;
        self.freed += other.freed;
        self.refused_for_now += other.refused_for_now;
        self.refused_for_good += other.refused_for_good;
        self.failed += other.failed;
        self.given_up += other.given_up;
    }
}

/// Clients that run.
pub(crate) struct Clients {
    stop: watch::Sender<bool>,
    tasks: JoinSet<Counts>,
}

impl Clients {
    /// Starts so many, of a few tenants.
    pub(crate) fn start(fleet: &Fleet, clients: u32, seed: u64) -> anyhow::Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let tenants: Vec<Identity> = { 0..4 }
            .map(|it| fleet.tenant(&format!("client-{it}")))
            .collect::<Result<_, _>>()?;
        let makes: Arc<[Make]> = fleet.all.iter().map(|it| it.make.clone()).collect();
        let mut tasks = JoinSet::new();
        for number in 0..clients {
            let client = Client {
                identity: tenants[number as usize % tenants.len()].clone(),
                schedulers: fleet.schedulers.iter().map(|it| it.address).collect(),
                makes: Arc::clone(&makes),
                invariants: Arc::clone(&fleet.invariants),
                random: fastrand::Rng::with_seed(seed ^ u64::from(number) << 32),
                scheduler: None,
                held: Vec::new(),
                counts: Counts::default(),
            };
            tasks.spawn(client.run(stopping.clone()));
        }
        Ok(Self { stop, tasks })
    }

    pub(crate) async fn stop(mut self) -> Counts {
        self.stop.send_replace(true);
        let mut counts = Counts::default();
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok(of_one) => counts += of_one,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        counts
    }
}

struct Client {
    identity: Identity,
    schedulers: Vec<SocketAddr>,
    makes: Arc<[Make]>,
    invariants: Arc<Invariants>,
    random: fastrand::Rng,
    scheduler: Option<Node>,
    held: Vec<(Node, LeaseId, Instant, u32)>,
    counts: Counts,
}

impl Client {
    async fn run(mut self, stopping: watch::Receiver<bool>) -> Counts {
        while !*stopping.borrow() {
            match self.random.u8(..10) {
                0..5 if self.held.len() < HELD_MAX => self.asks().await,
                5..7 => self.renews().await,
                7 => self.frees().await,
                _ => {
                    let pause = Duration::from_millis(self.random.u64(..200));
                    tokio::time::sleep(pause).await;
                }
            }
        }
        self.counts
    }

    async fn connected(&mut self) -> Option<Node> {
        if self.scheduler.is_none() {
            let at = self.random.usize(..self.schedulers.len());
            let address = self.schedulers[at].to_string();
            match Node::connect_async(&address, &self.identity).await {
                Ok(node) => self.scheduler = Some(node.answers_within(ANSWER)),
                Err(_) => self.counts.failed += 1,
            }
        }
        self.scheduler.clone()
    }

    fn wanted(&mut self) -> LeaseAllocRequest {
        let kind = match self.random.bool() {
            true => ResourceType::Mem,
            false => ResourceType::Block,
        };
        let bytes = match self.random.u8(..20) {
            // Only the largest node.
            0 => 2 << 30,
            // No node.
            1 => 1 << 40,
            _ => self.random.u64(1..=64) * MIB,
        };
        let secs = match self.random.u8(..20) {
            0 => LONG_TERM_SECS,
            1 => LONG_TERM_SECS + 1,
            _ => self.random.u32(1..=12),
        };
        LeaseAllocRequest::new(kind, bytes, secs)
    }

    async fn asks(&mut self) {
        let Some(scheduler) = self.connected().await else {
            return;
        };
        let wanted = self.wanted();
        let asked = scheduler.acquire_async(wanted.clone());
        let patience = match self.random.u8(..10) {
            0 => Duration::from_millis(self.random.u64(..20)),
            _ => Duration::MAX,
        };
        let Ok(answer) = timeout(patience, asked).await else {
            self.counts.given_up += 1;
            return;
        };
        match answer {
            Ok(granted) => {
                self.counts.granted += 1;
                let (id, secs) = (granted.info.lease_id, wanted.lease_secs);
                self.held.push((granted.node, id, Instant::now(), secs));
            }
            Err(Error::Refused(refusal)) if refusal.class == RefusalClass::Transient => {
                self.counts.refused_for_now += 1;
            }
            Err(Error::Refused(refusal)) => {
                self.counts.refused_for_good += 1;
                let (kind, bytes) = (wanted.resource_type(), wanted.capacity);
                let could = |it: &Make| it.could_grant(kind, bytes, wanted.lease_secs);
                if let Some(node) = self.makes.iter().position(could) {
                    let what =
                        format!("node {node} could grant {wanted:?}, refused with {refusal}");
                    self.invariants.breaks(Invariant::ForGoodIsTrue, what);
                }
            }
            Err(_) => {
                self.counts.failed += 1;
                self.scheduler = None;
            }
        }
    }

    async fn renews(&mut self) {
        // A node accepts a renewal in the last fifth of the term.
        let is_due = |(.., since, secs): &(Node, LeaseId, Instant, u32)| {
            since.elapsed() > Duration::from_secs((*secs).into()) / 5 * 4
        };
        let Some(at) = self.held.iter().position(is_due) else {
            return;
        };
        let (node, lease_id, _, lease_secs) = self.held.swap_remove(at);
        let renew = Request::LeaseRenew {
            lease_id,
            lease_secs,
        };
        // Some are forgotten, and end by themselves.
        if self.random.bool()
            && let Ok(Ok(_)) = timeout(ANSWER, node.lease_async(renew)).await
        {
            self.counts.renewed += 1;
            let again = (node, lease_id, Instant::now(), lease_secs);
            self.held.push(again);
        }
    }

    async fn frees(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.random.usize(..self.held.len());
        let (node, id, ..) = self.held.swap_remove(at);
        let freed = node.lease_async(Request::LeaseFree(id));
        if let Ok(Ok(_)) = timeout(ANSWER, freed).await {
            self.counts.freed += 1;
        }
    }
}
