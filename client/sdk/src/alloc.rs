//! LEASE_ALLOC: at the node itself, or at a scheduler, which names the nodes to ask.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use fabricbios_wire::{
    Candidate, LeaseAllocRequest, LeaseId, LeaseInfo, RefusalClass, Reply, Request, RequestToken,
};
use tokio::time::timeout;

use crate::{
    Error, Node,
    passed_over::{PassedOver, comes_back, may_pass_over},
    patience::patiently,
    runtime::{run, wait},
    unmet::unmet,
};

/// How long connecting to a candidate may take while more candidates follow.
pub(crate) const DIAL_WITHIN: Duration = Duration::from_secs(2);

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

/// The answer to a request for a lease.
enum Answer {
    Lease(Box<LeaseInfo>),
    /// The nodes to ask, the best first.
    Redirect(Vec<Candidate>),
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
    /// These are asked one after the other, each once and by its id, until one grants the lease. A node that refuses for
    /// now or does not have the resource any more, that cannot be reached (within 2 s while more nodes follow), or at whose
    /// address another one answers, is passed over. Another refusal is returned at once, and so is a lost reply, also of a
    /// node that does not answer in time: the lease may be there. If no node grants the lease, the last refusal is returned;
    /// while that is one for a moment only, the scheduler is asked anew, for up to the patience.
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
        let (began, token) = (Instant::now(), request.request_token);
        // The inner result is final.
        let search = || async {
            let request = LeaseAllocRequest {
                request_token: Some(token.map_or_else(random_token, Ok)?),
                ..request.clone()
            };
            let node = self.patient(self.patience.saturating_sub(began.elapsed()));
            match node.ask(&request, node.patience).await {
                Ok(Answer::Redirect(_)) if !request.follows_redirect => {
                    Ok(Err(self.redirects_wrongly()))
                }
                Ok(Answer::Redirect(_)) if token.is_some() => Ok(Err(self.takes_no_token())),
                Ok(Answer::Redirect(candidates)) => node.follow(&request, &candidates).await,
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
    ) -> Result<Result<Granted, Error>, Error> {
        let mut passed = PassedOver::default();
        for (at, it) in candidates.iter().enumerate() {
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
                ..request.clone()
            };
            let address = SocketAddr::from(it.endpoint);
            let is_last = at + 1 == candidates.len();
            let dial_within = (!is_last).then_some(DIAL_WITHIN);
            let node = match self.other(address, it.node_id, dial_within) {
                Ok(node) => node,
                Err(error) => return Ok(Err(error)),
            };
            let error = match node.ask(&request, Duration::ZERO).await {
                Ok(Answer::Lease(info)) => return Ok(Ok(Granted { node, info: *info })),
                Ok(Answer::Redirect(_)) => node.redirects_wrongly(),
                Err(error) => error,
            };
            node.close_async().await;
            tracing::debug!("node {address} did not grant the lease: {error}");
            if !may_pass_over(&error) {
                return Ok(Err(error.with(&format!(" (node {address})"))));
            }
            passed.add(it.node_id, address, error);
        }
        Err(passed.into_error(self.address()))
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

    /// Asks for a lease, and gives it back if it enforces less than requested. `patience`: how long a refusal for a moment
    /// is repeated; a lost reply is settled for up to the patience of this handle.
    async fn ask(&self, request: &LeaseAllocRequest, patience: Duration) -> Result<Answer, Error> {
        let info = match self.settled(request, patience).await? {
            Answer::Lease(_) if self.is_scheduler() => {
                let why = "it is a scheduler, and answers with a lease: only a node grants one";
                return Err(self.protocol(why.to_owned()));
            }
            Answer::Lease(info) => info,
            Answer::Redirect(_) if !self.is_scheduler() => {
                let why = "it redirects a request for a lease, and is no scheduler";
                return Err(self.protocol(why.to_owned()));
            }
            redirect => return Ok(redirect),
        };
        let missing = unmet(request, &info);
        if missing.is_empty() {
            return Ok(Answer::Lease(info));
        }
        let freed = self.give_back(info.lease_id).await;
        Err(Error::FailedClosed {
            lease_id: info.lease_id,
            missing,
            freed,
        })
    }

    async fn settled(
        &self,
        request: &LeaseAllocRequest,
        patience: Duration,
    ) -> Result<Answer, Error> {
        let began = Instant::now();
        let rest = || self.patient(self.patience.saturating_sub(began.elapsed()));
        let lost = match self.patient(patience).answer(request).await {
            Err(error) if error.may_have_happened() => error,
            outcome => return outcome,
        };
        // A scheduler grants nothing, so nothing can have happened.
        if !self.is_scheduler() {
            // All pages together have the time of one answer: a node must not keep its clients with ever more.
            let asked = rest();
            let knows = timeout(asked.answer_limit(), asked.knows_request_tokens());
            if knows.await != Ok(true) {
                return Err(lost);
            }
        }
        let again = || async { rest().answer(request).await };
        match patiently(rest().patience, Error::may_have_happened, again).await {
            Ok(answer) => Ok(answer),
            Err(Error::Refused(refusal)) if refusal.class != RefusalClass::Transient => {
                Err(Error::Refused(refusal))
            }
            // Nothing is known of the first request: it may have been granted.
            Err(_without_a_decision) => Err(lost),
        }
    }

    async fn answer(&self, request: &LeaseAllocRequest) -> Result<Answer, Error> {
        match self
            .call_async(Request::LeaseAlloc(request.clone()))
            .await?
        {
            Reply::Lease(info) => Ok(Answer::Lease(Box::new(info))),
            Reply::Redirect(candidates) => Ok(Answer::Redirect(candidates)),
            other => Err(self.unexpected("a lease", &other)),
        }
    }

    /// Whether the node knows request tokens: then the caller's leases show them, and LEASE_LIST is asked for one that
    /// does. A node of an earlier version skips the token of a request, so a repeat could get a second lease there. The
    /// reply that was lost would have told, and the version in GET_IDENTITY is for display. If no lease shows a token,
    /// the caller decides.
    async fn knows_request_tokens(&self) -> bool {
        let mut after = Some(LeaseId(0));
        while let Some(last) = after {
            let list = Request::LeaseList {
                after: last,
                ended: true,
            };
            let Ok(Reply::Leases(page)) = self.call_async(list).await else {
                return false;
            };
            if page.leases.iter().any(|it| it.request_token.is_some()) {
                return true;
            }
            after = page.next.filter(|next| *next > last);
        }
        false
    }

    async fn give_back(&self, lease_id: LeaseId) -> bool {
        let freed = self.call_async(Request::LeaseFree(lease_id)).await;
        if let Err(error) = &freed {
            tracing::warn!(%lease_id, "lease that failed closed was not given back: {error}");
        }
        freed.is_ok()
    }
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
