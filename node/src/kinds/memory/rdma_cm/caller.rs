//! One caller: from the code that it presents until its queue pair has ended.

use std::{sync::Arc, time::Duration};

use fabricbios_verbs::cm::{CmCaller, CmConnection};
use fabricbios_wire::{
    Answer, AttachCode, LeaseError, LeaseId, PeerChange, RdmaPeer, Refusal, RefusalClass, Reply,
    Request, Role,
};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout},
};

use super::{BUSY, Callers, Heard, Place, Stage, refuse, told::Joined};
use crate::driver::{Input, Requester, requests::pass_on};

/// For wrong, used and ended codes alike: the reason tells nobody which codes there were.
const REFUSED: &str =
    "attach code refused: it is wrong or used, or its lease has ended; ask for another one";

/// As `BUSY`, for a caller whose code is spent.
const BUSY_AND_SPENT: &str = "the node is too busy; ask for another attach code";

/// How long a caller that was accepted may take to say that it has heard it.
const ESTABLISH_WITHIN: Duration = Duration::from_secs(10);
/// How long the node tries to let a caller join while the lease is busy with something else.
const JOIN_WITHIN: Duration = Duration::from_secs(10);
/// How long the answer of a peer to the end of its connection is waited for.
const GOODBYE: Duration = Duration::from_secs(3);
/// Pauses between the tries at a lease that is busy.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Whose lease the caller joins.
struct Let {
    lease_id: LeaseId,
    tenant: Arc<str>,
}

impl Callers {
    pub(super) async fn serve(
        &self,
        heard: Heard,
        code: Option<AttachCode>,
        caller: Option<CmCaller>,
        responder_reads: u8,
        mut place: Place,
    ) {
        let Some(caller) = caller else {
            return refuse(
                &heard.connection,
                "the node's kernel does not tell the queue pair",
            );
        };
        let (let_in, first_answer) = match self.attach(code, &caller).await {
            Ok(attached) => attached,
            Err(reason) => return refuse(&heard.connection, reason),
        };
        if !place.is_of(&let_in.tenant) {
            refuse(&heard.connection, BUSY_AND_SPENT);
            drop((heard, place));
            return self.leave_again(&let_in, first_answer).await;
        }
        let joined = match self.join(&let_in, &caller, first_answer).await {
            Ok(joined) => joined,
            Err(reason) => return refuse(&heard.connection, &reason),
        };
        let Some(serial) = self.queue_pairs.serial(joined.qp_num, let_in.lease_id) else {
            // A cut has ended it already.
            return refuse(&heard.connection, REFUSED);
        };
        if joined.mtu_bytes == caller.mtu_bytes {
            let reads = responder_reads.min(joined.responder_reads);
            self.connected(heard, place, &let_in, &joined, (reads, serial))
                .await;
        } else {
            let reason = format!(
                "the path MTU of the lease is {} bytes, and the caller's is {}; both must be the same",
                joined.mtu_bytes, caller.mtu_bytes
            );
            refuse(&heard.connection, &reason);
            drop((heard, place));
        }
        // Here the caller has no place and no connection: how long this takes is the tenant's affair.
        self.leave(&let_in, joined.qp_num, serial).await;
    }

    /// Accepts the caller, and ends the connection when the caller has gone or its queue pair has.
    async fn connected(
        &self,
        mut heard: Heard,
        place: Place,
        let_in: &Let,
        joined: &Joined,
        (reads, serial): (u8, u64),
    ) {
        let lease_id = let_in.lease_id;
        let connection = &heard.connection;
        let accepted = connection.accept(joined.qp_num, reads, &joined.descriptor);
        if let Err(error) = &accepted {
            tracing::debug!(%error, %lease_id, "a caller of rdma_cm went away before it was accepted");
        }
        let established = accepted.is_ok() && is_established(&mut heard.stage).await;
        drop(place);
        if established {
            tracing::debug!(%lease_id, qp_num = joined.qp_num, "joined through rdma_cm");
            self.until_over(joined.qp_num, serial, &mut heard.stage)
                .await;
        }
        goodbye(&heard.connection, &mut heard.stage).await;
    }

    /// Presents a code to the driver, which spends it and lets the caller join in the same turn. Returns whose lease it is,
    /// and where the answer comes.
    async fn attach(
        &self,
        code: Option<AttachCode>,
        caller: &CmCaller,
    ) -> Result<(Let, oneshot::Receiver<Answer>), &'static str> {
        let (spent, is_spent) = oneshot::channel();
        let (reply, answer) = oneshot::channel();
        let input = Input::Attach {
            code: code.ok_or(REFUSED)?,
            peer: peer(caller),
            spent,
            reply,
        };
        // In the queue of requests this is a tenant of its own, with a name that no tenant has.
        let presented = self.driver.request(Some("".into()), input);
        presented.map_err(|_no_place| BUSY)?;
        // Without an answer the node is stopping.
        let of_code = is_spent.await.unwrap_or(None);
        let (lease_id, tenant) = of_code.ok_or(REFUSED)?;
        Ok((Let { lease_id, tenant }, answer))
    }

    /// Lets the caller's queue pair join, as its tenant could with LEASE_BIND. `first_answer`: of the first try. `Err`: the
    /// reason for the caller.
    async fn join(
        &self,
        let_in: &Let,
        caller: &CmCaller,
        first_answer: oneshot::Receiver<Answer>,
    ) -> Result<Joined, String> {
        let until = Instant::now() + JOIN_WITHIN;
        let mut pause = FIRST_PAUSE;
        let mut answer = answered(first_answer).await;
        loop {
            match answer {
                Ok(Reply::Lease(info)) => {
                    let joined = Joined::last_of(&info);
                    return joined.ok_or_else(|| "the node did not make a queue pair".into());
                }
                Err(refusal) if is_busy(&refusal) && Instant::now() < until => {
                    sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
                Err(refusal) if is_over(&refusal) => return Err(REFUSED.into()),
                Err(refusal) => return Err(refusal.message),
                Ok(other) => return Err(format!("the node answered {other:?}")),
            }
            let change = PeerChange::Add(vec![peer(caller)]);
            answer = self.ask(let_in, change).await;
        }
    }

    /// Waits until the caller has gone, or its queue pair has.
    async fn until_over(&self, qp_num: u32, serial: u64, stage: &mut watch::Receiver<Stage>) {
        let mut ended = self.ended.subscribe();
        while self.queue_pairs.has(qp_num, serial) {
            tokio::select! {
                _ = stage.wait_for(|is| *is == Stage::Over) => return,
                _ = ended.changed() => {}
            }
        }
    }

    /// Lets the queue pair of a refused caller leave, if it joins.
    async fn leave_again(&self, let_in: &Let, answer: oneshot::Receiver<Answer>) {
        let Ok(Reply::Lease(info)) = answered(answer).await else {
            return;
        };
        if let Some(joined) = Joined::last_of(&info)
            && let Some(serial) = self.queue_pairs.serial(joined.qp_num, let_in.lease_id)
        {
            self.leave(let_in, joined.qp_num, serial).await;
        }
    }

    /// Lets the node's queue pair leave, unless it has ended already.
    async fn leave(&self, let_in: &Let, qp_num: u32, serial: u64) {
        let mut pause = FIRST_PAUSE;
        while self.queue_pairs.has(qp_num, serial) {
            match self.ask(let_in, PeerChange::Remove(vec![qp_num])).await {
                Ok(_) => return,
                Err(refusal) if is_over(&refusal) => return,
                Err(refusal) => {
                    tracing::debug!(%refusal, lease_id = %let_in.lease_id, qp_num, "a queue pair of a caller that has gone leaves later");
                }
            }
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    async fn ask(&self, let_in: &Let, change: PeerChange) -> Answer {
        let (reply, answer) = oneshot::channel();
        let tenant = &let_in.tenant;
        let input = Input::Request {
            requester: Requester {
                tenant: Arc::clone(tenant),
                reached: None,
                control: None,
                reply,
            },
            role: Role::Tenant,
            request: Request::LeasePeers {
                lease_id: let_in.lease_id,
                change,
            },
        };
        pass_on(&self.driver, Some(Arc::clone(tenant)), input);
        answered(answer).await
    }
}

/// The caller's queue pair as a peer of LEASE_BIND.
fn peer(caller: &CmCaller) -> RdmaPeer {
    RdmaPeer {
        qpn: caller.qp_num,
        psn: caller.psn,
        gid: caller.gid,
        path_mtu: caller.mtu_bytes,
    }
}

/// The driver's answer. The driver goes without one only when the node stops.
async fn answered(answer: oneshot::Receiver<Answer>) -> Answer {
    answer.await.unwrap_or_else(|_stopping| {
        Err(Refusal::new(
            LeaseError::Unavailable,
            RefusalClass::Transient,
            "the node is stopping",
        ))
    })
}

/// Whether the caller has heard in time that it was accepted.
async fn is_established(stage: &mut watch::Receiver<Stage>) -> bool {
    let made = stage.wait_for(|is| *is != Stage::Making);
    let made = timeout(ESTABLISH_WITHIN, made).await;
    made.is_ok_and(|stage| stage.is_ok_and(|is| *is == Stage::Established))
}

/// Tells the caller that the connection has ended, or answers that the caller has ended it.
async fn goodbye(connection: &CmConnection, stage: &mut watch::Receiver<Stage>) {
    if let Err(error) = connection.disconnect() {
        tracing::debug!(%error, "a connection of rdma_cm had ended before");
        return;
    }
    // Without an answer the connection ends with its object.
    let over = stage.wait_for(|is| *is == Stage::Over);
    timeout(GOODBYE, over).await.map(drop).unwrap_or_default();
}

/// Whether another try soon may succeed.
fn is_busy(refusal: &Refusal) -> bool {
    matches!(
        refusal.error,
        LeaseError::ResourceBusy | LeaseError::Unavailable
    )
}

/// Whether the lease has ended, so that nothing of it is left to ask for.
fn is_over(refusal: &Refusal) -> bool {
    matches!(
        refusal.error,
        LeaseError::NotFound | LeaseError::Expired | LeaseError::Revoked | LeaseError::Fenced
    )
}
