//! Routes requests of the control plane: answers requests that need no table, and passes the others to the driver.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::SystemTime,
};

use fabricbios_control::{Ca, PeerRequest, Principal};
use fabricbios_wire::{
    Answer, Endpoint, Epoch, IssueRequest, LeaseError, NodeId, NodeIdentity, Refusal, RefusalClass,
    Reply, Request, Role,
};
use tokio::sync::mpsc;

use crate::{
    driver::{Input, Requester, mailbox::Sender, refusals},
    inventory::detection::Detection,
};

/// See the module.
#[derive(Debug)]
pub struct RequestRouter {
    /// Signs identities.
    pub ca: Arc<Ca>,
    /// The node.
    pub node_id: NodeId,
    /// This start of the daemon.
    pub epoch: Epoch,
    /// The address that the control plane listens on.
    pub listen: SocketAddr,
    /// The address in endpoints, if the operator set one.
    pub advertise: Option<IpAddr>,
    /// The detected hardware; the router refreshes it before an inventory.
    pub detection: Arc<Detection>,
}

impl RequestRouter {
    /// Serves until the control plane or the driver is gone.
    pub async fn serve(self, mut peer_request: mpsc::Receiver<PeerRequest>, driver: Sender<Input>) {
        while let Some(peer_request) = peer_request.recv().await {
            if !self.handle(peer_request, &driver) {
                break;
            }
        }
    }

    fn handle(&self, peer_request: PeerRequest, driver: &Sender<Input>) -> bool {
        if let Some(answer) = self.answer(&peer_request) {
            if peer_request.reply.send(answer).is_err() {
                tracing::debug!("a client went away before its answer");
            }
            return true;
        }
        let tenant: Arc<str> = peer_request.principal.tenant.into();
        let looks = matches!(peer_request.request, Request::GetInventory(_));
        let input = Input::Request {
            requester: Requester {
                tenant: tenant.clone(),
                reached: self.advertise.or(peer_request.local_ip),
                control: Some(self.endpoint(peer_request.local_ip)).filter(|it| !it.is_wildcard()),
                reply: peer_request.reply,
            },
            role: peer_request.principal.role,
            request: peer_request.request,
        };
        if looks && !self.detection.is_fresh() {
            let (detection, driver) = (self.detection.clone(), driver.clone());
            tokio::spawn(async move {
                detection.refresh().await;
                driver.request(Some(tenant), input);
            });
            return true;
        }
        driver.request(Some(tenant), input)
    }

    fn answer(&self, peer_request: &PeerRequest) -> Option<Answer> {
        match &peer_request.request {
            Request::GetIdentity => Some(Ok(Reply::Identity(self.identity(peer_request)))),
            Request::IdentityIssue(request) => {
                let issued = may_issue(&peer_request.principal)
                    .and_then(|()| self.ca.issue(request, SystemTime::now()));
                log_issue(&peer_request.principal, request, &issued);
                Some(issued)
            }
            _ => None,
        }
    }

    fn identity(&self, peer_request: &PeerRequest) -> NodeIdentity {
        NodeIdentity {
            node_id: self.node_id,
            epoch: self.epoch,
            endpoint: self.endpoint(peer_request.local_ip),
            tenant: peer_request.principal.tenant.clone(),
            role: peer_request.principal.role,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The advertised address, or else the address that the client reached, or else the bound address, which may be a
    /// wildcard.
    fn endpoint(&self, reached: Option<IpAddr>) -> Endpoint {
        let bound = Some(self.listen.ip()).filter(|ip| !ip.is_unspecified());
        let ip = self
            .advertise
            .or(reached)
            .or(bound)
            .unwrap_or(self.listen.ip());
        SocketAddr::new(ip, self.listen.port()).into()
    }
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
        Err(refusal) if refusals::gets_line(&principal.tenant) => {
            tracing::info!(by = %principal.tenant, %tenant, ?role, %refusal, "identity refused");
        }
        Err(_) => {}
    }
}
