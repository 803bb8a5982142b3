//! Why a scheduler would name which nodes for a lease.

use fabricbios_wire::{Candidate, LeaseAllocRequest, Reply, Request};

use crate::{Error, Node, runtime::wait};

/// What a scheduler would answer to a request for a lease, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The nodes that it would name, the best first. Among about equal ones chance decides, each time anew.
    pub candidates: Vec<Candidate>,
    /// Lines for people: what was left out, then what decided about each candidate.
    pub why: String,
}

impl Node {
    /// Asks a scheduler which nodes it would name for a lease, and why. No node is asked, and there is no lease.
    ///
    /// # Errors
    /// [`Error::Usage`] if this is no scheduler. If no node may grant the lease, the refusal counts the reasons.
    pub async fn explain_async(
        &self,
        mut request: LeaseAllocRequest,
    ) -> Result<Explanation, Error> {
        self.connected().await?;
        if !self.is_scheduler() {
            return Err(Error::Usage(format!(
                "{} is a node, and no scheduler: it chooses among no nodes; name a scheduler of the fabric instead",
                self.address()
            )));
        }
        (request.explain, request.follows_redirect) = (true, true);
        match self.call_async(Request::LeaseAlloc(request)).await? {
            Reply::Explained { candidates, why } => Ok(Explanation { candidates, why }),
            other => Err(self.unexpected("an explanation", &other)),
        }
    }

    /// Asks a scheduler for its reasons, blocking; see [`Node::explain_async`].
    pub fn explain(&self, request: LeaseAllocRequest) -> Result<Explanation, Error> {
        wait(self.explain_async(request))
    }
}
