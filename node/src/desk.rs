//! Where requests arrive from the control plane: what needs no table is answered here, the rest
//! goes to the driver.

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
    driver::{Asker, Input},
    mailbox::Sender,
    refusals,
};

/// What the node says of itself, and who may be given an identity.
#[derive(Debug)]
pub struct Desk {
    /// To sign with.
    pub ca: Arc<Ca>,
    /// Who the node is.
    pub node_id: NodeId,
    /// This start.
    pub epoch: Epoch,
    /// Where it listens.
    pub listen: SocketAddr,
    /// What the operator wants endpoints to say.
    pub advertise: Option<IpAddr>,
}

impl Desk {
    /// Serves until the control plane or the driver is gone.
    pub async fn serve(self, mut asked: mpsc::Receiver<PeerRequest>, driver: Sender<Input>) {
        while let Some(asked) = asked.recv().await {
            if !self.handle(asked, &driver) {
                break;
            }
        }
    }

    fn handle(&self, asked: PeerRequest, driver: &Sender<Input>) -> bool {
        if let Some(answer) = self.answer(&asked) {
            if asked.reply.send(answer).is_err() {
                tracing::debug!("an asker went away before its answer");
            }
            return true;
        }
        let tenant: Arc<str> = asked.principal.tenant.into();
        driver.ask(
            Some(tenant.clone()),
            Input::Asked {
                asker: Asker {
                    tenant,
                    reached: self.advertise.or(asked.local_ip),
                    reply: asked.reply,
                },
                role: asked.principal.role,
                request: asked.request,
            },
        )
    }

    fn answer(&self, asked: &PeerRequest) -> Option<Answer> {
        match &asked.request {
            Request::GetIdentity => Some(Ok(Reply::Identity(self.identity(asked)))),
            Request::IdentityIssue(request) => {
                let issued = may_issue(&asked.principal)
                    .and_then(|()| self.ca.issue(request, SystemTime::now()));
                log_issue(&asked.principal, request, &issued);
                Some(issued)
            }
            _ => None,
        }
    }

    fn identity(&self, asked: &PeerRequest) -> NodeIdentity {
        NodeIdentity {
            node_id: self.node_id,
            epoch: self.epoch,
            endpoint: self.endpoint(asked.local_ip),
            tenant: asked.principal.tenant.clone(),
            role: asked.principal.role,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The advertised address, else the one that the client reached, else the one that the node is
    /// bound to; a wildcard only when even the kernel does not know better.
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
