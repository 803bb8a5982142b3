//! Requests about a lease through a scheduler: it names the node that has the lease, and the node is asked.

use std::{
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_wire::{Candidate, LeaseError, LeaseId, Reply, Request};

use crate::{Error, Node, alloc::DIAL_WITHIN};

/// How long each of several nodes that are named for a lease may take to say whether it has the lease.
const PROBE: Duration = Duration::from_secs(5);
/// Leases whose nodes a handle remembers; those used last stay.
const ROUTES_MAX: usize = 64;

/// The nodes of leases that a scheduler has named, the last used one last. Nodes stay connected.
#[derive(Debug, Default)]
pub(crate) struct Routes(Mutex<Vec<(LeaseId, Node)>>);

impl Routes {
    fn lock(&self) -> MutexGuard<'_, Vec<(LeaseId, Node)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, id: LeaseId) -> Option<Node> {
        let routes = self.lock();
        let route = routes.iter().find(|(of, _)| *of == id);
        route.map(|(_, node)| node.clone())
    }

    fn set(&self, id: LeaseId, node: Option<Node>) {
        let mut routes = self.lock();
        routes.retain(|(of, _)| *of != id);
        routes.extend(node.map(|node| (id, node)));
        if routes.len() > ROUTES_MAX {
            routes.remove(0);
        }
    }

    /// Forgets all, and returns the nodes.
    pub(crate) fn take(&self) -> Vec<Node> {
        let routes = std::mem::take(&mut *self.lock());
        routes.into_iter().map(|(_, node)| node).collect()
    }
}

impl Node {
    /// The node that has this lease, if this is a scheduler that has named it for a request before; else this node.
    pub(crate) fn of_lease(&self, id: LeaseId) -> Self {
        let node = self.routes.of(id).unwrap_or_else(|| self.clone());
        node.as_patient_as(self)
    }

    /// Sends a request about a lease: to the node that has it, if this is a scheduler.
    pub(crate) async fn call_about(&self, id: LeaseId, request: Request) -> Result<Reply, Error> {
        let mut before = None;
        if let Some(node) = self.routes.of(id) {
            match node.as_patient_as(self).call_here(request.clone()).await {
                Err(error) if is_elsewhere(&error) => {
                    self.routes.set(id, None);
                    before = Some(error);
                }
                outcome => return outcome,
            }
        }
        let answer = self.call_here(request.clone()).await;
        match (answer, self.is_scheduler()) {
            (Ok(Reply::Redirect(candidates)), true) => {
                self.follow_lease(id, &request, &candidates).await
            }
            (Ok(Reply::Redirect(_)), false) => {
                let why = "it redirects a request about a lease, and is no scheduler";
                Err(self.protocol(why.to_owned()))
            }
            (Ok(_), true) => {
                let why = "it is a scheduler, and answers about a lease as only a node does";
                Err(self.protocol(why.to_owned()))
            }
            // A scheduler that knows nothing now says less than the node did.
            (Err(_), true) if before.is_some() => before.map_or_else(|| self.never(), Err),
            (answer, _) => answer,
        }
    }

    /// Asks the node that this scheduler has named. Of several it must be one alone that has the lease: a node may report
    /// a lease that it does not have.
    async fn follow_lease(
        &self,
        id: LeaseId,
        request: &Request,
        candidates: &[Candidate],
    ) -> Result<Reply, Error> {
        let (mut having, mut last) = (Vec::new(), None);
        for it in candidates {
            let address = SocketAddr::from(it.endpoint);
            let node = self.other(address, it.node_id)?;
            let has_it = match candidates {
                [_] => Ok(()),
                _ => node.says_that_it_has(id).await,
            };
            match has_it {
                Err(error) if is_elsewhere(&error) => last = Some(self.names(&node, error)),
                _ => having.push(node),
            }
        }
        let node = match &having[..] {
            [node] => node,
            [] => return last.map_or_else(|| self.never(), Err),
            [one, other, ..] => {
                let (one, other) = (one.address(), other.address());
                let why = format!(
                    "it names nodes {one} and {other} for lease {id}, and neither says that it does not have it: ask the one \
                     that granted the lease, by its address and id"
                );
                return Err(self.protocol(why));
            }
        };
        match node.call_here(request.clone()).await {
            Ok(Reply::Redirect(_)) => {
                let why = "a scheduler has named it, and it redirects again";
                Err(node.protocol(why.to_owned()))
            }
            Err(error) if is_elsewhere(&error) => Err(self.names(node, error)),
            answer => {
                self.routes.set(id, Some(node.clone()));
                answer
            }
        }
    }

    async fn says_that_it_has(&self, id: LeaseId) -> Result<(), Error> {
        self.connected_within(DIAL_WITHIN).await?;
        let asked = self.answers_within(PROBE);
        asked.call_here(Request::LeaseQuery(id)).await.map(drop)
    }

    fn names(&self, node: &Self, error: Error) -> Error {
        let (node, scheduler) = (node.address(), self.address());
        error.with(&format!(
            " (node {node}, which scheduler {scheduler} named)"
        ))
    }

    fn never(&self) -> Result<Reply, Error> {
        Err(self.protocol("it named no node".to_owned()))
    }
}

/// Whether the lease may be at another node: this one does not have it, or was asked nothing.
fn is_elsewhere(error: &Error) -> bool {
    match error {
        Error::Refused(refusal) => refusal.error == LeaseError::NotFound,
        Error::UntrustedNode { .. } | Error::IdentityRefused { .. } => true,
        Error::Unreachable { .. } => !error.may_have_happened(),
        _ => false,
    }
}
