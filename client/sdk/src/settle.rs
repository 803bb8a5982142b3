//! LEASE_ALLOC to one node or scheduler. A lost reply is settled with the node: the lease may be there.

use std::time::{Duration, Instant};

use fabricbios_wire::{
    Candidate, LeaseAllocRequest, LeaseId, LeaseInfo, RefusalClass, Reply, Request,
};
use tokio::time::timeout;

use crate::{Error, Node, patience::patiently, unmet::unmet};

/// How long a node may take for each answer that settles a lost reply, when it was silent for the whole limit before.
const SETTLE_WITHIN: Duration = Duration::from_secs(15);

/// The answer to a request for a lease.
pub(crate) enum Answer {
    Lease(Box<LeaseInfo>),
    /// The nodes to ask, the best first; of a node, which is not followed, a word without meaning.
    Redirect(Vec<Candidate>),
}

impl Node {
    /// Asks for a lease, and gives it back if it enforces less than requested. `patience`: how long a refusal for a moment
    /// is repeated; a lost reply is settled for up to the patience of this handle.
    pub(crate) async fn ask(
        &self,
        request: &LeaseAllocRequest,
        patience: Duration,
    ) -> Result<Answer, Error> {
        let info = match self.settled(request, patience).await? {
            Answer::Lease(_) if self.is_scheduler() => {
                let why = "it is a scheduler, and answers with a lease: only a node grants one";
                return Err(self.protocol(why.to_owned()));
            }
            Answer::Lease(info) => info,
            redirect @ Answer::Redirect(_) => return Ok(redirect),
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
        // A node that was silent for the whole limit gets less time to settle: what it has granted, it answers at once.
        let settling = || match self.answer_within {
            Some(limit) => {
                let left = limit.saturating_sub(began.elapsed()).max(SETTLE_WITHIN);
                rest().answers_within(left.min(limit))
            }
            None => rest(),
        };
        // A scheduler grants nothing, so nothing can have happened.
        if !self.is_scheduler() {
            // All pages together have the time of one answer: a node must not keep its clients with ever more.
            let asked = settling();
            let knows = timeout(asked.answer_limit(), asked.knows_request_tokens());
            if knows.await != Ok(true) {
                return Err(lost);
            }
        }
        let again = || async { settling().answer(request).await };
        match patiently(rest().patience, Error::may_have_happened, again).await {
            Ok(Answer::Redirect(_)) if !self.is_scheduler() => Err(lost),
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
