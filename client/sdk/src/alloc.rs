//! LEASE_ALLOC: at the node itself, or at a scheduler, which names the nodes to ask.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use fabricbios_wire::{
    CANDIDATES_MAX, Candidate, LeaseAllocRequest, LeaseInfo, NodeId, RequestToken, ResourceType,
    Tried,
};

use crate::{
    Error, Node,
    dial::CONNECT_TIMEOUT,
    link::END_TIMEOUT,
    passed_over::{PassedOver, comes_back, may_pass_over},
    patience::patiently,
    runtime::{run, wait},
    settle::Answer,
    tried::Search,
};

/// How long connecting to a candidate may take while more candidates follow.
pub(crate) const DIAL_WITHIN: Duration = Duration::from_secs(2);

/// How long a node that a scheduler has named may take to grant a lease of another kind than blocks, which it may have to
/// zero first. A node ends a grant that takes more than 30 s itself.
const GRANT_WITHIN: Duration = Duration::from_secs(45);

/// A new lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Granted {
    /// The node that granted it, and that all further requests of the lease go to: another one than the asked one, if that
    /// is a scheduler.
    pub node: Node,
    /// The lease.
    pub info: LeaseInfo,
}

impl Node {
    /// Requests a lease of this node itself and fails closed: a lease that enforces less than requested is freed. A request
    /// without a token gets a random one. If the reply was lost, the request is repeated and gets the same lease: once, and
    /// for up to the [patience](Node::patient) of this handle. It is not repeated at a node that is not seen to know tokens.
    pub async fn alloc_async(&self, mut request: LeaseAllocRequest) -> Result<LeaseInfo, Error> {
        request.follows_redirect = false;
        let node = self.clone();
        run(async move { node.search(request).await.map(|it| it.info) }).await
    }

    /// Requests a lease of this node itself, blocking; see [`Node::alloc_async`].
    pub fn alloc(&self, request: LeaseAllocRequest) -> Result<LeaseInfo, Error> {
        wait(self.alloc_async(request))
    }

    /// Requests a lease as [`Node::alloc_async`], of this node, or through this scheduler, which names nodes.
    ///
    /// These are asked one after the other, each once and by its id, until one grants the lease. A node that refuses, that
    /// cannot be reached (within 2 s while more nodes follow), that names other nodes, or at whose address another one
    /// answers, is passed over. A lost reply is returned at once, also of a node that does not answer in time, and so is an
    /// answer that is none: the lease may be there. If no node grants
    /// the lease, a refusal for a moment is returned, else one for now, else one of a policy;
    /// while it is one for a moment only, the scheduler is asked anew, for up to the patience; if it has named as many
    /// nodes as it can, once in any case. It is told who was tried, and names others first; so it does for some minutes
    /// after a node gave no answer of use to a request of this handle or its clones.
    ///
    /// Without [`Node::answers_within`] a node that a scheduler has named has 45 s to answer (11 minutes for blocks, which
    /// it may have to zero), and then 15 s for each answer that settles whether there is a lease.
    ///
    /// # Errors
    /// [`Error::Usage`] if the request has a token and this is a scheduler: a token is the promise of one node, and another
    /// one would grant a second lease. A program that repeats a request after its own restart chooses a node
    /// ([`Node::nodes`], [`Node::reporting`]), keeps its address and id with the token, and asks that node itself.
    pub async fn acquire_async(&self, mut request: LeaseAllocRequest) -> Result<Granted, Error> {
        request.follows_redirect = true;
        let node = self.clone();
        run(async move { node.search(request).await }).await
    }

    /// Requests a lease, blocking; see [`Node::acquire_async`].
    pub fn acquire(&self, request: LeaseAllocRequest) -> Result<Granted, Error> {
        wait(self.acquire_async(request))
    }

    async fn search(&self, request: LeaseAllocRequest) -> Result<Granted, Error> {
        if request.explain {
            let why = "a request for an explanation is none for a lease: use `Node::explain`, or `fabricctl lease alloc --explain`";
            return Err(Error::Usage(why.to_owned()));
        }
        let (began, token) = (Instant::now(), request.request_token);
        let (tried, callers) = (Search::default(), request.tried.clone());
        // The inner result is final.
        let search = || async {
            let node = self.patient(self.patience.saturating_sub(began.elapsed()));
            if !request.tried.is_empty() {
                if let Err(error) = node.connected().await {
                    return Ok(Err(error));
                }
                self.is_left_out(&request)?;
            }
            let request = LeaseAllocRequest {
                request_token: Some(token.map_or_else(random_token, Ok)?),
                tried: match self.is_scheduler() {
                    true => tried.told(&callers, &self.unanswering),
                    false => Vec::new(),
                },
                ..request.clone()
            };
            match node.ask(&request, node.patience).await {
                Ok(Answer::Redirect(_)) if !self.is_scheduler() => {
                    let why = "it redirects a request for a lease, and is no scheduler";
                    Ok(Err(self.protocol(why.to_owned())))
                }
                Ok(Answer::Redirect(_)) if !request.follows_redirect => {
                    Ok(Err(self.redirects_wrongly()))
                }
                Ok(Answer::Redirect(_)) if token.is_some() => Ok(Err(self.takes_no_token())),
                Ok(Answer::Redirect(candidates)) => {
                    match node.follow(&request, &candidates, &tried).await {
                        // As many as an answer can have: the scheduler may know others.
                        Err(error) if candidates.len() == CANDIDATES_MAX => {
                            let told = tried.told(&callers, &self.unanswering);
                            node.follow_others(request, told, &tried, error).await
                        }
                        outcome => outcome,
                    }
                }
                Ok(Answer::Lease(info)) => Ok(Ok(Granted {
                    node: self.clone(),
                    info: *info,
                })),
                Err(error) => Ok(Err(error)),
            }
        };
        patiently(self.patience, comes_back, search).await?
    }

    /// Asks the candidates of this scheduler. `Err`: all of them refused for now.
    async fn follow(
        &self,
        request: &LeaseAllocRequest,
        candidates: &[Candidate],
        tried: &Search,
    ) -> Result<Result<Granted, Error>, Error> {
        let mut passed = PassedOver::default();
        // A scheduler of an earlier version names whom it is to leave out.
        let is_left_out = |it: &Candidate| {
            let mut told = request.tried.iter();
            told.any(|told| told.node_id == it.node_id && told.is_left_out())
        };
        let asked: Vec<&Candidate> = candidates.iter().filter(|it| !is_left_out(it)).collect();
        if let (true, Some(it)) = (asked.is_empty(), candidates.first()) {
            let why = format!("it names node {}, which is to be left out", it.node_id);
            return Ok(Err(self.protocol(why)));
        }
        for (at, it) in asked.iter().enumerate() {
            if let Some(named) = request.resource_id.filter(|id| *id != it.resource_id) {
                let why = format!(
                    "it names resource {} for a request of resource {named}",
                    it.resource_id
                );
                return Ok(Err(self.protocol(why)));
            }
            let request = LeaseAllocRequest {
                resource_id: Some(it.resource_id),
                follows_redirect: false,
                tried: Vec::new(),
                ..request.clone()
            };
            let address = SocketAddr::from(it.endpoint);
            let is_last = at + 1 == asked.len();
            let dial_within = if is_last {
                CONNECT_TIMEOUT
            } else {
                DIAL_WITHIN
            };
            let node = match self.other(address, it.node_id) {
                Ok(node) => node,
                Err(error) => return Ok(Err(error)),
            };
            let within = (self.answer_within).unwrap_or_else(|| grant_within(&request));
            let asked = node.answers_within(within);
            let answer = match node.reached(dial_within).await {
                Ok(()) => asked.ask(&request, Duration::ZERO).await,
                Err(error) => Err(error),
            };
            let (error, is_passed_over) = match answer {
                Ok(Answer::Lease(info)) => {
                    self.unanswering.forget(it.node_id);
                    self.keep(&node);
                    return Ok(Ok(Granted { node, info: *info }));
                }
                // An honest node has decided nothing, so there is no lease to settle.
                Ok(Answer::Redirect(_)) => (node.redirects_wrongly(), true),
                Err(error) => {
                    let may = may_pass_over(&error);
                    (error, may)
                }
            };
            tried.add(it.node_id, &error);
            match error {
                Error::Unreachable { .. } | Error::Protocol { .. } => {
                    self.unanswering.add(it.node_id);
                }
                _ => self.unanswering.forget(it.node_id),
            }
            node.close_unless_used().await;
            tracing::debug!("node {address} did not grant the lease: {error}");
            if !is_passed_over {
                let held = match error {
                    Error::Unreachable { .. } | Error::Protocol { .. } => {
                        may_be_held(it.node_id, &request)
                    }
                    _ => String::new(),
                };
                return Ok(Err(error.with(&format!(" (node {address}{held})"))));
            }
            passed.add(it.node_id, address, error);
        }
        Err(passed.into_error(self.address()))
    }

    /// Asks this scheduler again, after all that it has named have refused, and then the nodes that were not asked before.
    async fn follow_others(
        &self,
        request: LeaseAllocRequest,
        told: Vec<Tried>,
        tried: &Search,
        refused: Error,
    ) -> Result<Result<Granted, Error>, Error> {
        let request = LeaseAllocRequest {
            tried: told,
            ..request
        };
        match self.ask(&request, Duration::ZERO).await {
            Ok(Answer::Redirect(mut others)) if self.is_scheduler() => {
                others.retain(|it| !tried.has(it.node_id));
                match others.is_empty() {
                    true => Err(refused),
                    false => self.follow(&request, &others, tried).await,
                }
            }
            _ => Err(refused),
        }
    }

    /// Refuses a request that leaves out the node which is asked itself.
    fn is_left_out(&self, request: &LeaseAllocRequest) -> Result<(), Error> {
        let mut tried = request.tried.iter();
        match self.id() {
            Some(id)
                if !self.is_scheduler() && tried.any(|it| it.node_id == id && it.is_left_out()) =>
            {
                Err(Error::Usage(format!(
                    "node {id} is to be left out, and {} is this node: ask a scheduler, or another node",
                    self.address()
                )))
            }
            _ => Ok(()),
        }
    }

    fn takes_no_token(&self) -> Error {
        Error::Usage(format!(
            "{} is a scheduler, and the request has a token: only one node knows a token, and another one would grant a second \
             lease; leave the token out, or ask a node itself",
            self.address()
        ))
    }

    fn redirects_wrongly(&self) -> Error {
        let why = "it redirects a request that says that it is not to be redirected, or not again";
        self.protocol(why.to_owned())
    }
}

/// How long a node that a scheduler has named may take to grant the request.
fn grant_within(request: &LeaseAllocRequest) -> Duration {
    match request.resource_type() {
        ResourceType::Block => END_TIMEOUT,
        _ => GRANT_WITHIN,
    }
}

/// What a node that took the request and gave no answer of use may do, and how to ask elsewhere meanwhile.
fn may_be_held(node: NodeId, request: &LeaseAllocRequest) -> String {
    let grace = match request.grace_secs {
        0 => String::new(),
        secs => format!(" and {secs} s of grace"),
    };
    format!(
        ", id {node}, which a scheduler named: it may have a lease, or grant one late, for {} s{grace} from the grant; to ask \
         elsewhere meanwhile, leave it out by `--avoid-node {node}` or `avoid_node`",
        request.lease_secs
    )
}

fn random_token() -> Result<RequestToken, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Local {
        what: "make a random request token",
        why: error.to_string(),
    })?;
    // Zero is no token.
    Ok(RequestToken(u128::from_ne_bytes(bytes).max(1)))
}
