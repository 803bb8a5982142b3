//! What only an operator is told, as the driver tells it to an operator over the control plane: bounded answers, in the
//! queue of requests, so that no cut waits for a page.

use std::sync::Arc;

use fabricbios_wire::{Answer, Fence, LeaseId, LeaseInfo, LeasePage, Reply, Request, Role};
use tokio::sync::oneshot;

use crate::driver::{Input, Requester, mailbox::Sender};

/// What an operator is told besides the figures.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) fences: Vec<Fence>,
    /// The last leases that ended clean, with their proofs, the last first.
    pub(super) ends: Vec<LeaseInfo>,
    /// The first page of leases.
    pub(super) leases: LeasePage,
}

impl Told {
    /// `None`: the node is busy or stops.
    pub(super) async fn now(
        driver: &Sender<Input>,
        ended: impl Iterator<Item = LeaseId>,
    ) -> Option<Arc<Self>> {
        let leases = leases(driver, LeaseId(0)).await?;
        let Ok(Reply::Fences(fences)) = ask(driver, Request::FenceList).await? else {
            return None;
        };
        let mut ends = Vec::new();
        for id in ended {
            // The node forgets leases that ended long ago.
            if let Ok(Reply::Lease(lease)) = ask(driver, Request::LeaseQuery(id)).await? {
                ends.push(lease);
            }
        }
        Some(Arc::new(Self {
            fences,
            ends,
            leases,
        }))
    }
}

/// A page of live leases with ids above `after`; `None`: the node is busy or stops.
pub(super) async fn leases(driver: &Sender<Input>, after: LeaseId) -> Option<LeasePage> {
    let ended = false;
    match ask(driver, Request::LeaseList { after, ended }).await? {
        Ok(Reply::Leases(page)) => Some(page),
        _ => None,
    }
}

/// Asks as an operator who is no tenant, so that no answer has keys. `None`: the node is busy or stops.
pub(super) async fn ask(driver: &Sender<Input>, request: Request) -> Option<Answer> {
    let (reply, answer) = oneshot::channel();
    let requester = Requester {
        tenant: "".into(),
        reached: None,
        control: None,
        reply,
    };
    let input = Input::Request {
        requester,
        role: Role::Operator,
        request,
    };
    driver.request(None, input).ok()?;
    answer.await.ok()
}
