//! The task that owns the view: it takes reports, answers requests, and forgets nodes whose connection has ended.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fabricbios_control::{PeerConnection, PeerRequest};
use fabricbios_placement::{Asking, NotTaken, Policy, Reporter, View, Whose};
use fabricbios_wire::{
    Answer, Epoch, LeaseAllocRequest, LeaseError, LeaseId, LeaseReport, NodeId, NodeIdentity,
    NodeReport, Refusal, RefusalClass, Reply, Request, Role,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    figures::{Ask, Figures, Fleet, Tally},
    health::Health,
    queue::{Queue, Turns, Waiting, transient},
    store::{Knowledge, News, Store, Told},
};

/// A node that comes and goes more often has no more lines in the log.
const ONE_LINE_PER: Duration = Duration::from_secs(10);

/// Reports that are taken after each request of a client, if so many wait.
const REPORTS_PER_REQUEST: usize = 64;

/// Starts the task, with etcd or without. It ends when the last clone of the queue is dropped.
pub(crate) fn start(
    scheduler_id: NodeId,
    policy: Policy,
    etcd: Option<(Store, mpsc::Receiver<News>)>,
    asks: mpsc::Receiver<Ask>,
) -> Queue {
    let (store, news) = etcd.unzip();
    // Without etcd there are no news.
    let news = news.unwrap_or_else(|| mpsc::channel(1).1);
    let (queue, of_nodes, of_clients) = Queue::new();
    let task = Task::new(scheduler_id, policy, store);
    tokio::spawn(task.run(of_nodes, of_clients, news, asks));
    queue
}

/// A connection of a node has ended.
struct Ended {
    node_id: NodeId,
    connection: u64,
}

pub(crate) struct Task {
    scheduler_id: NodeId,
    /// When this scheduler started: its identity says so.
    epoch: Epoch,
    view: View,
    /// The policy of the command line.
    own_policy: Policy,
    /// The one that etcd has for all schedulers, which comes first.
    common_policy: Option<Policy>,
    /// Where it is kept who belongs to the fabric; `None`: without etcd.
    store: Option<Store>,
    /// How far etcd says who belongs to the fabric.
    knowledge: Knowledge,
    /// When each node that reports said its last word.
    heard: HashMap<NodeId, Instant>,
    tally: Tally,
    /// What the last warning of each node was, and when.
    told: HashMap<NodeId, (String, Instant)>,
    /// When the log said last that a node comes or goes.
    said: HashMap<NodeId, Instant>,
    /// The connections whose end is awaited.
    awaited: HashSet<u64>,
    ended: mpsc::UnboundedSender<Ended>,
    /// One message for each connection that has reported.
    ends: mpsc::UnboundedReceiver<Ended>,
}

impl Task {
    pub(crate) fn new(scheduler_id: NodeId, policy: Policy, store: Option<Store>) -> Self {
        let (ended, ends) = mpsc::unbounded_channel();
        Self {
            scheduler_id,
            epoch: Epoch(now_unix_ms()),
            view: View::default(),
            own_policy: policy,
            common_policy: None,
            store,
            knowledge: Knowledge::Lost,
            heard: HashMap::new(),
            tally: Tally::default(),
            told: HashMap::new(),
            said: HashMap::new(),
            awaited: HashSet::new(),
            ended,
            ends,
        }
    }

    async fn run(
        mut self,
        mut of_nodes: mpsc::UnboundedReceiver<Waiting>,
        mut of_clients: Turns,
        mut news: mpsc::Receiver<News>,
        mut asks: mpsc::Receiver<Ask>,
    ) {
        loop {
            tokio::select! {
                // They take turns, so that nodes cannot keep clients waiting, and clients do not keep nodes waiting either:
                // a request may take as long as many reports.
                Some(ended) = self.ends.recv() => self.forget(&ended),
                Some((report, _place)) = of_nodes.recv() => self.take(report),
                Some(news) = news.recv() => self.hear(news),
                // Who has asked may be gone.
                Some(ask) = asks.recv() => drop(ask.send(self.figures())),
                request = of_clients.recv() => match request {
                    Some((request, _place)) => {
                        self.answer(request);
                        for _ in 0..REPORTS_PER_REQUEST {
                            let Ok((report, _place)) = of_nodes.try_recv() else { break };
                            self.take(report);
                        }
                    }
                    None => return,
                },
            }
        }
    }

    /// Answers a client.
    pub(crate) fn answer(&mut self, request: PeerRequest) {
        let answer = match &request.request {
            Request::Ping(number) => Ok(Reply::Pong(*number)),
            Request::GetIdentity => Ok(Reply::Identity(self.identity(&request))),
            Request::LeaseAlloc(wanted) => self.place(wanted, &request.principal.tenant),
            Request::NodeList(after) => Ok(Reply::Nodes(self.view.page(*after))),
            Request::NodeForget(id) => {
                let id = *id;
                return self.forget_member(id, request.reply);
            }
            Request::FleetLeases { after, after_node } => Ok(Reply::FleetLeases(
                self.view.lease_page((*after, *after_node), whose(&request)),
            )),
            about => match about.lease_id() {
                Some(id) => self.find(id, &request),
                // The server refuses what a scheduler does not answer.
                None => Err(Refusal::new(
                    LeaseError::Unsupported,
                    RefusalClass::Permanent,
                    "a scheduler does not answer this request",
                )),
            },
        };
        if let Err(refusal) = &answer {
            self.tally.refused(refusal);
        }
        // The peer may be gone.
        request.reply.send(answer).ok();
    }

    fn identity(&self, asked: &PeerRequest) -> NodeIdentity {
        let ip = asked.local_ip.unwrap_or(asked.listen.ip());
        NodeIdentity {
            node_id: self.scheduler_id,
            epoch: self.epoch,
            endpoint: SocketAddr::new(ip, asked.listen.port()).into(),
            role: asked.principal.role,
            tenant: asked.principal.tenant.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn place(&mut self, wanted: &LeaseAllocRequest, tenant: &str) -> Answer {
        let begin = Instant::now();
        let answer = self.choose(wanted, tenant);
        self.tally.decisions.add(begin.elapsed());
        match &answer {
            Ok(Reply::Explained { .. }) => self.tally.explained += 1,
            Ok(_) => self.tally.placed += 1,
            Err(_) => {}
        }
        answer
    }

    fn choose(&self, wanted: &LeaseAllocRequest, tenant: &str) -> Answer {
        if !wanted.follows_redirect {
            let why = "this is a scheduler, which grants nothing, and the client does not follow a redirect to a node: use a \
                newer client, or ask a node itself; `fabricctl node list` names the nodes";
            return Err(transient(why));
        }
        let mut seed = [0; 8];
        // Without randomness the order of equal nodes is the same each time.
        getrandom::fill(&mut seed).ok();
        let asking = Asking {
            tenant,
            policy: self.policy(),
            seed: u64::from_ne_bytes(seed),
        };
        let placed = match wanted.explain {
            true => { self.view.explain(wanted, &asking) }
                .map(|(candidates, why)| Reply::Explained { candidates, why }),
            false => self.view.place_for(wanted, &asking).map(Reply::Redirect),
        };
        placed.map_err(|refusal| self.view.with_away(refusal))
    }

    /// Removes a member that is away from etcd; the task that has the connection answers.
    fn forget_member(&mut self, id: NodeId, reply: oneshot::Sender<Answer>) {
        let why = match &self.store {
            None => (
                LeaseError::Unsupported,
                RefusalClass::Permanent,
                format!(
                    "this scheduler has no etcd (--etcd), so it remembers no node that does not report: there is nothing to forget of {id}"
                ),
            ),
            Some(_) if self.view.reports(id) => (
                LeaseError::ResourceBusy,
                RefusalClass::Transient,
                format!(
                    "node {id} reports to this scheduler: stop it first, or start it without --scheduler"
                ),
            ),
            Some(store) if self.view.is_known(id) => return store.forget(id, reply),
            Some(_) => (
                LeaseError::NotFound,
                RefusalClass::Transient,
                format!(
                    "no member {id} is away, as far as this scheduler knows; see `fabricctl node list`"
                ),
            ),
        };
        let refusal = Refusal::new(why.0, why.1, why.2);
        self.tally.refused(&refusal);
        // The operator may be gone.
        reply.send(Err(refusal)).ok();
    }

    fn find(&mut self, id: LeaseId, request: &PeerRequest) -> Answer {
        let found = self.view.find(id, whose(request));
        self.tally.found += u64::from(found.is_ok());
        found.map(Reply::Redirect)
    }

    /// Takes a report of a node.
    fn take(&mut self, report: PeerRequest) {
        let PeerRequest {
            peer,
            request,
            reply,
            ..
        } = report;
        let from = Reporter {
            node_id: peer.key,
            labels: peer.labels.iter().map(ToString::to_string).collect(),
            connection: peer.connection.number,
        };
        let taken = match request {
            Request::NodeReport(report) => self.take_inventory(&from, &peer.connection, report),
            Request::NodeLeases(report) => self.take_leases(&from, report),
            _ => Ok(()),
        };
        if taken.is_ok() {
            self.heard.insert(from.node_id, Instant::now());
        }
        let answer = taken.map(|()| Reply::Reported).map_err(|why| {
            self.tally.not_taken(&why);
            self.tell_once(from.node_id, format!("a report was refused: {why}"));
            not_taken(&why)
        });
        // The node may be gone.
        reply.send(answer).ok();
    }

    fn take_inventory(
        &mut self,
        from: &Reporter,
        connection: &PeerConnection,
        report: NodeReport,
    ) -> Result<(), NotTaken> {
        let endpoint = report.endpoint;
        let is_first = self.view.report(from, now_unix_ms(), report)?;
        self.tally.reports[0] += 1;
        if is_first {
            let nodes = self.view.len();
            if self.may_say(from.node_id) {
                tracing::info!(node_id = %from.node_id, %endpoint, nodes, "a node reports");
            }
            // A connection that another one has replaced may be the node's again.
            if self.awaited.insert(from.connection) {
                self.await_end(from, connection.clone());
            }
            if let Some(store) = &self.store {
                let (endpoint, labels) = (endpoint.to_string(), from.labels.clone());
                store.reports(from.node_id, Told { endpoint, labels }, now_unix_ms());
            }
        }
        Ok(())
    }

    fn take_leases(&mut self, from: &Reporter, report: LeaseReport) -> Result<(), NotTaken> {
        let claimed = self.view.report_leases(from, report)?;
        self.tally.reports[1] += 1;
        if let Some((lease, other)) = claimed {
            let told = format!("it reports lease {lease}, which node {other} reports too");
            self.tell_once(from.node_id, told);
        }
        Ok(())
    }

    /// Warns of a node, in one line however often it repeats itself, and not more often than [`ONE_LINE_PER`].
    fn tell_once(&mut self, node_id: NodeId, why: String) {
        let now = Instant::now();
        let last = self.told.get(&node_id);
        let is_new =
            last.is_none_or(|(told, at)| *told != why && now.duration_since(*at) >= ONE_LINE_PER);
        if is_new {
            tracing::warn!(%node_id, why, "a node reports what cannot be");
            self.told.insert(node_id, (why, now));
        }
    }

    fn await_end(&self, of: &Reporter, connection: PeerConnection) {
        let ended = self.ended.clone();
        let (node_id, number) = (of.node_id, of.connection);
        tokio::spawn(async move {
            connection.closed().await;
            let connection = number;
            // The scheduler may be stopping.
            ended
                .send(Ended {
                    node_id,
                    connection,
                })
                .ok();
        });
    }

    fn forget(&mut self, ended: &Ended) {
        self.awaited.remove(&ended.connection);
        if self.store.is_some() {
            // Until etcd has it, too.
            self.view.know_reporting(ended.node_id, now_unix_ms());
        }
        if self.view.gone(ended.node_id, ended.connection) {
            self.heard.remove(&ended.node_id);
            let nodes = self.view.len();
            let members_away = self.view.away();
            if self.may_say(ended.node_id) {
                tracing::info!(node_id = %ended.node_id, nodes, members_away, "a node is gone: its connection has ended");
            }
            if let Some(store) = &self.store {
                store.gone(ended.node_id, now_unix_ms());
            }
        }
    }

    fn figures(&self) -> Figures {
        let knowledge = self.store.as_ref().map(|_| self.knowledge);
        let policy_from = self.common_policy.map_or("flag", |_| "etcd");
        Figures {
            health: Health::of(&self.view, knowledge, self.policy(), policy_from),
            fleet: Fleet::of(&self.view, &self.heard, Instant::now()),
            tally: self.tally.clone(),
        }
    }

    fn policy(&self) -> Policy {
        self.common_policy.unwrap_or(self.own_policy)
    }

    fn hear(&mut self, news: News) {
        tracing::debug!(?news, "news of etcd");
        match news {
            News::Policy(common) => {
                self.common_policy = common;
                let policy = self.policy();
                match common {
                    Some(_) => {
                        tracing::info!(%policy, "the placement policy is now the one in etcd");
                    }
                    None => {
                        tracing::info!(%policy, "etcd has no placement policy any more: it is now that of --policy");
                    }
                }
            }
            News::Known(node) => self.view.know(node),
            News::Forgotten(id) => self.view.forget(id),
            News::Knowledge(now) => {
                self.knowledge = now;
                self.view.members_are_known(now == Knowledge::Whole);
            }
        }
    }

    /// Whether the log says that this node comes or goes.
    fn may_say(&mut self, node_id: NodeId) -> bool {
        let now = Instant::now();
        let last = self.said.get(&node_id);
        let may = last.is_none_or(|last| now.duration_since(*last) >= ONE_LINE_PER);
        if may {
            self.said.insert(node_id, now);
        }
        may
    }
}

/// Whose leases the request may be about.
fn whose(request: &PeerRequest) -> Whose<'_> {
    match request.principal.role {
        Role::Operator => Whose::All,
        _ => Whose::Tenant(&request.principal.tenant),
    }
}

fn not_taken(why: &NotTaken) -> Refusal {
    let (error, class) = match why {
        NotTaken::OtherNode { .. } => (LeaseError::NotPermitted, RefusalClass::Permanent),
        NotTaken::TooLarge => (LeaseError::InvalidArgs, RefusalClass::Permanent),
        NotTaken::Sequence { .. } | NotTaken::Leases(_) => {
            (LeaseError::InvalidArgs, RefusalClass::Transient)
        }
        NotTaken::LaterConnection => (LeaseError::ResourceBusy, RefusalClass::Transient),
    };
    Refusal::new(error, class, why.to_string())
}

pub(crate) fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX))
}
