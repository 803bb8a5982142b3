//! Takes the requests of the control plane where they arrive, on its threads: answers requests that need no table, and
//! puts the others into the driver's mailbox.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use fabricbios_control::{Membership, PeerRequest};
use fabricbios_fabric::Principal;
use fabricbios_wire::{
    Answer, Endpoint, Epoch, IssueRequest, LeaseError, NodeId, NodeIdentity, Refusal, RefusalClass,
    Reply, Request, Role,
};

use crate::{
    driver::{
        Input, Requester,
        effects::unavailable,
        fair::Owner,
        mailbox::{NoPlace, REQUESTS_OF_OWNER_MAX, Sender},
    },
    inventory::detection::Detection,
};

/// See the module.
#[derive(Debug)]
pub struct Requests {
    /// The node's fabric. A node alone signs identities itself.
    pub membership: Membership,
    /// The node.
    pub node_id: NodeId,
    /// This start of the daemon.
    pub epoch: Epoch,
    /// The address in endpoints, if the operator set one.
    pub advertise: Option<IpAddr>,
    /// The detected hardware, which an inventory refreshes first.
    pub detection: Arc<Detection>,
    /// The driver's mailbox.
    pub driver: Sender<Input>,
}

impl Requests {
    /// Answers a request, or passes it to the driver. Never blocks. Must be called within a tokio runtime.
    pub fn take(&self, peer_request: PeerRequest) {
        if let Some(answer) = self.answer(&peer_request) {
            if peer_request.reply.send(answer).is_err() {
                tracing::debug!("a client went away before its answer");
            }
            return;
        }
        let control = self.endpoint(&peer_request);
        let tenant = peer_request.principal.tenant;
        let role = peer_request.principal.role;
        // An operator may have the name of a tenant who fills the queue.
        let owner = (role != Role::Operator).then(|| tenant.clone());
        let looks = matches!(peer_request.request, Request::GetInventory(_));
        let input = Input::Request {
            requester: Requester {
                tenant,
                reached: self.advertise.or(peer_request.local_ip),
                control: Some(control).filter(|it| !it.is_wildcard()),
                reply: peer_request.reply,
            },
            role,
            request: peer_request.request,
        };
        let driver = self.driver.clone();
        if looks && !self.detection.is_fresh() {
            let detection = self.detection.clone();
            tokio::spawn(async move {
                detection.refresh().await;
                pass_on(&driver, owner, input);
            });
        } else {
            pass_on(&driver, owner, input);
        }
    }

    fn answer(&self, peer_request: &PeerRequest) -> Option<Answer> {
        match &peer_request.request {
            Request::GetIdentity => Some(Ok(Reply::Identity(self.identity(peer_request)))),
            Request::IdentityIssue(request) => {
                let issued = may_issue(&peer_request.principal).and_then(|()| self.issue(request));
                log_issue(&peer_request.principal, request, &issued);
                Some(issued)
            }
            _ => None,
        }
    }

    fn issue(&self, request: &IssueRequest) -> Answer {
        let fabric = self.membership.now();
        let Some(ca) = fabric.ca() else {
            let (node, id) = (self.node_id, fabric.id());
            return Err(Refusal::new(
                LeaseError::NotPermitted,
                RefusalClass::Policy,
                format!(
                    "node {node} is one of fabric {id} and has no key to sign with: whoever has the directory of that fabric \
                     issues identities there, with `fabricctl identity issue --fabric-dir DIR`"
                ),
            ));
        };
        ca.issue(request, SystemTime::now())
    }

    fn identity(&self, peer_request: &PeerRequest) -> NodeIdentity {
        NodeIdentity {
            node_id: self.node_id,
            epoch: self.epoch,
            endpoint: self.endpoint(peer_request),
            tenant: name_of(&peer_request.principal.tenant).to_owned(),
            role: peer_request.principal.role,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The advertised address, or else the address that the client reached, or else the bound address, which may be a
    /// wildcard.
    fn endpoint(&self, peer_request: &PeerRequest) -> Endpoint {
        let listen = peer_request.listen;
        let ip = self.advertise.or(peer_request.local_ip);
        SocketAddr::new(ip.unwrap_or(listen.ip()), listen.port()).into()
    }
}

/// The name in a tenant's key, as its certificate has it.
fn name_of(tenant: &str) -> &str {
    tenant
        .split_once('@')
        .map_or(tenant, |(name, _fabric)| name)
}

fn may_issue(principal: &Principal) -> Result<(), Refusal> {
    if principal.role == Role::Operator {
        return Ok(());
    }
    Err(Refusal::new(
        LeaseError::NotPermitted,
        RefusalClass::Policy,
        format!(
            "tenant {} may not issue identities: that takes an operator",
            principal.tenant
        ),
    ))
}

fn log_issue(principal: &Principal, request: &IssueRequest, issued: &Answer) {
    let (tenant, role) = (request.tenant.as_str(), request.role);
    match issued {
        Ok(_) => tracing::info!(by = %principal.tenant, %tenant, ?role, "identity issued"),
        Err(refusal) => {
            tracing::info!(by = %principal.tenant, %tenant, ?role, %refusal, "identity refused");
        }
    }
}

/// Puts a request into the driver's mailbox, or refuses it because too many wait there. If the driver is gone, the
/// request's reply is dropped, and the client learns that the node is stopping.
pub(crate) fn pass_on(driver: &Sender<Input>, owner: Owner, input: Input) {
    let Err((why, Input::Request { requester, .. })) = driver.request(owner, input) else {
        return;
    };
    let refusal = match why {
        NoPlace::Gone => return,
        NoPlace::Full => unavailable("the node is too busy; try again, or another node"),
        NoPlace::OwnerFull => Refusal::new(
            LeaseError::ResourceBusy,
            RefusalClass::Transient,
            format!(
                "{REQUESTS_OF_OWNER_MAX} requests of tenant {} wait for the node already; try again",
                requester.tenant
            ),
        ),
    };
    requester.reply(Err(refusal));
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::{self, Receiver};

    use super::*;
    use crate::driver::mailbox::{Mailbox, REQUESTS_MAX};

    fn ask(driver: &Sender<Input>, tenant: &str) -> Receiver<Answer> {
        ask_as(driver, Some(tenant.into()))
    }

    fn ask_as(driver: &Sender<Input>, owner: Owner) -> Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        let requester = Requester {
            tenant: "who asks".into(),
            reached: None,
            control: None,
            reply,
        };
        let input = Input::Request {
            requester,
            role: Role::Tenant,
            request: Request::FenceList,
        };
        pass_on(driver, owner, input);
        answer
    }

    fn refused(mut answer: Receiver<Answer>) -> LeaseError {
        answer.try_recv().unwrap().unwrap_err().error
    }

    #[test]
    fn tenants_that_fill_the_queue_leave_each_other_tenant_and_the_operators_a_place() {
        let (mailbox, driver) = Mailbox::new().unwrap();
        let mut waiting: Vec<_> = (0..REQUESTS_MAX / 2)
            .map(|_| ask(&driver, "loud"))
            .collect();
        assert_eq!(refused(ask(&driver, "loud")), LeaseError::ResourceBusy);
        waiting.extend((0..REQUESTS_MAX / 2).map(|_| ask(&driver, "quiet")));
        waiting.extend([ask(&driver, "third"), ask_as(&driver, None)]);
        assert_eq!(refused(ask(&driver, "third")), LeaseError::Unavailable);
        for answer in &mut waiting {
            assert_eq!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        }
        // The driver takes one of each.
        (0..4).for_each(|_| drop(mailbox.take_request()));
        waiting.push(ask(&driver, "loud"));
        waiting.push(ask(&driver, "third"));
        let left = std::iter::from_fn(|| mailbox.take_request()).count();
        assert_eq!(left, REQUESTS_MAX);
    }
}
