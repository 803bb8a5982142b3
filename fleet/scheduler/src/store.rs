//! What only a fleet can agree on, in etcd: who belongs to the fabric, which schedulers are there, and what the operator wants of
//! all of them.
//!
//! One task has the connection. The owner of the view never waits for it: it leaves changes in a mailbox, which has one
//! entry for each node, and hears news of a channel. Whatever etcd does, clients are answered from memory.
//!
//! Read first: `members.rs`, what is known and written, and `intent.rs`, what is wanted; then `session.rs`, how.

mod calls;
mod client;
mod identity;
mod intent;
mod members;
mod record;
mod rpc;
mod session;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_fabric::FabricId;
use fabricbios_placement::Policy;
use fabricbios_wire::{Answer, AwayNode, LeaseError, NodeId, Refusal, RefusalClass, Reply};
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tonic::transport::Endpoint;

pub(crate) use calls::{Calls, OfCall};
use client::{Client, Failure};
use intent::Intent;
pub(crate) use members::Told;
use members::{Became, Change, Members};
use record::Keys;

/// What the owner of the view learns from etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The node belongs to the fabric, and was last seen so.
    Known(AwayNode),
    /// The node does not belong to it any more, as far as etcd says.
    Forgotten(NodeId),
    /// The operator wants this placement policy of all schedulers; `None`: no more.
    Policy(Option<Policy>),
    /// How far the members can be relied on has changed.
    Knowledge(Knowledge),
}

/// How far etcd says who belongs to the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// All who belong to it are told, and changes will be.
    Whole,
    /// The same, but other schedulers may still be filling an etcd that is new, wiped or restored.
    Settling,
    /// Not all: some records cannot be read, or there are too many.
    Unreadable,
    /// Changes will not be told: etcd cannot be used, or has not answered yet.
    Lost,
}

/// Members to be removed that wait for the task.
const FORGETS_MAX: usize = 64;
/// News that wait for the owner of the view.
const NEWS_MAX: usize = 256;
/// The pause after the first failure, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(15)];
/// How long a stop tries to give back the lease of this scheduler's presence.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Changes that the task has not taken yet.
#[derive(Debug, Default)]
struct Mailbox {
    waiting: Mutex<BTreeMap<NodeId, Change>>,
    changed: Notify,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Change>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A member to be removed from etcd.
#[derive(Debug)]
struct Forget {
    id: NodeId,
    reply: oneshot::Sender<Answer>,
}

/// Where the owner of the view leaves changes. Never waits.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    mailbox: Arc<Mailbox>,
    forgets: mpsc::Sender<Forget>,
}

impl Store {
    /// A node reports: for the first time over this connection.
    pub(crate) fn reports(&self, id: NodeId, told: Told, at_unix_ms: u64) {
        self.leave(id, |change| {
            *change = Change {
                told: Some(told),
                reports: true,
                at_unix_ms,
            };
        });
    }

    /// The connection of a node has ended.
    pub(crate) fn gone(&self, id: NodeId, at_unix_ms: u64) {
        self.leave(id, |change| {
            change.reports = false;
            change.at_unix_ms = at_unix_ms;
        });
    }

    /// An operator says that a node does not belong to the fabric any more. The task answers him.
    pub(crate) fn forget(&self, id: NodeId, reply: oneshot::Sender<Answer>) {
        if let Err(refused) = self.forgets.try_send(Forget { id, reply }) {
            refused
                .into_inner()
                .refuse("too many members wait to be forgotten");
        }
    }

    fn leave(&self, id: NodeId, change: impl FnOnce(&mut Change)) {
        change(self.mailbox.lock().entry(id).or_default());
        self.mailbox.changed.notify_one();
    }
}

/// The task that runs.
#[derive(Debug)]
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    /// Ends the task, whatever etcd does.
    pub(crate) async fn stop(self) {
        // The task may have ended.
        self.stop.send(()).ok();
        self.task.await.ok();
    }
}

/// Starts the task.
///
/// # Errors
/// The identity or an address cannot be used.
pub(crate) fn start(
    urls: &[String],
    identity: &Path,
    fabric: FabricId,
    scheduler_id: NodeId,
    settles_after: Duration,
    calls: &Calls,
) -> anyhow::Result<(Store, mpsc::Receiver<News>, Running)> {
    let endpoints = identity::endpoints(urls, identity)?;
    let mailbox = Arc::new(Mailbox::default());
    let (news, heard) = mpsc::channel(NEWS_MAX);
    let (forgets, to_forget) = mpsc::channel(FORGETS_MAX);
    let (stop, stopped) = oneshot::channel();
    let task = Task {
        keys: Keys::of(fabric),
        scheduler_id,
        endpoints,
        calls: calls.clone(),
        mailbox: Arc::clone(&mailbox),
        news,
        forgets: to_forget,
        told: Knowledge::Lost,
        settles_after,
        has_read: false,
        settling: None,
        members: Members::default(),
        intent: Intent::default(),
        schedulers: BTreeSet::new(),
        presence: None,
        refused_until: None,
        is_answering: None,
    };
    let task = tokio::spawn(task.run(stopped));
    Ok((Store { mailbox, forgets }, heard, Running { stop, task }))
}

/// A session that lasts longer was a good one: the next one begins after a short pause.
const STEADY: Duration = Duration::from_secs(30);

struct Task {
    keys: Keys,
    scheduler_id: NodeId,
    endpoints: Vec<Endpoint>,
    /// What this task's calls are counted in.
    calls: Calls,
    mailbox: Arc<Mailbox>,
    news: mpsc::Sender<News>,
    forgets: mpsc::Receiver<Forget>,
    /// What the owner was told last.
    told: Knowledge,
    /// How long others may take to fill an etcd that has lost members.
    settles_after: Duration,
    /// Whether everything was read before.
    has_read: bool,
    /// Until when nothing is whole for that; `None`: no more.
    settling: Option<Instant>,
    members: Members,
    intent: Intent,
    /// The schedulers that are present.
    schedulers: BTreeSet<NodeId>,
    /// The lease of this scheduler's presence.
    presence: Option<(Client, i64)>,
    /// etcd has refused to write: when this tries again.
    refused_until: Option<Instant>,
    /// What the last log line has said.
    is_answering: Option<bool>,
}

impl Task {
    async fn run(mut self, stopped: oneshot::Receiver<()>) {
        tokio::select! {
            () = self.work() => {}
            // Also if the scheduler was dropped.
            _ = stopped => {}
        }
        if let Some((client, lease)) = self.presence.take() {
            // Otherwise it ends by itself.
            drop(timeout(STOP_TIMEOUT, client.revoke(lease)).await);
        }
    }

    async fn work(&mut self) {
        let endpoints = self.endpoints.clone();
        let mut pause = PAUSES[0];
        for (at, endpoint) in endpoints.iter().enumerate().cycle() {
            let began = Instant::now();
            let failure = self.session(endpoint).await;
            if began.elapsed() > STEADY {
                pause = PAUSES[0];
            }
            self.is_lost(endpoint, &failure);
            while let Ok(forget) = self.forgets.try_recv() {
                forget.refuse(&format!("etcd cannot be used: {failure}"));
            }
            self.tell_knowledge(Knowledge::Lost).await;
            self.take_changes();
            // The other servers are tried at once.
            let is_last = at + 1 == endpoints.len();
            sleep(jittered(if is_last { pause } else { PAUSES[0] })).await;
            if is_last {
                pause = PAUSES[1].min(2 * pause);
            }
        }
    }

    fn answers(&mut self, endpoint: &Endpoint) {
        let (at, members) = (endpoint.uri(), self.members.len());
        if self.is_answering.replace(true) != Some(true) {
            tracing::info!(%at, members, "etcd answers: the scheduler knows who belongs to the fabric");
        }
    }

    fn is_lost(&mut self, endpoint: &Endpoint, why: &Failure) {
        let at = endpoint.uri();
        if self.is_answering.replace(false) != Some(false) {
            tracing::warn!(%at, %why, "etcd cannot be used: the scheduler goes on from memory and tries again");
        } else {
            tracing::debug!(%at, %why, "etcd cannot be used");
        }
    }

    fn take_changes(&mut self) {
        let changes = mem::take(&mut *self.mailbox.lock());
        for (id, change) in changes {
            self.members.change(id, change);
        }
    }

    async fn tell_of(&self, became: Option<Became>) {
        let news = match became {
            Some(Became::Known(id)) => self.members.as_away(id).map(News::Known),
            Some(Became::Forgotten(id)) => Some(News::Forgotten(id)),
            None => None,
        };
        if let Some(news) = news {
            self.tell(news).await;
        }
    }

    /// Takes the record of the policy as it is now.
    async fn take_policy(&mut self, record: Option<(i64, &[u8])>) {
        if self.intent.take(record) {
            self.tell(News::Policy(self.intent.policy())).await;
        }
    }

    /// Everything was read, and changes are told.
    async fn tell_read(&mut self) {
        self.tell_knowledge(match self.settling {
            Some(_) => Knowledge::Settling,
            None if self.members.are_whole() => Knowledge::Whole,
            None => Knowledge::Unreadable,
        })
        .await;
    }

    async fn tell_knowledge(&mut self, now: Knowledge) {
        if mem::replace(&mut self.told, now) != now {
            self.tell(News::Knowledge(now)).await;
        }
    }

    async fn tell(&self, news: News) {
        // The owner may be stopping.
        self.news.send(news).await.ok();
    }
}

impl Forget {
    fn done(self) {
        // The operator may be gone.
        self.reply.send(Ok(Reply::Forgotten)).ok();
    }

    fn refuse(self, why: &str) {
        let why = format!(
            "node {}: {why}; see `fabricctl node list`, and try again if it is still away",
            self.id
        );
        let refusal = Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, why);
        self.reply.send(Err(refusal)).ok();
    }
}

/// Between a half and the whole of the pause.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests;
