//! Reports of inventory, health and leases to the schedulers of the fabric: one task for each. A scheduler that is slow, stopped or gone delays nothing
//! here.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use fabricbios_control::{CallError, Caller, Membership, Origin};
use fabricbios_wire::{
    InventoryForm, NodeReport, REPORT_BYTES_MAX, Refusal, Reply, Request, ResourceInventory, Role,
};
use tokio::{
    sync::{oneshot, watch},
    time::{interval, sleep, timeout},
};

use crate::{
    driver::{Input, Requester, mailbox::Sender, requests::pass_on},
    inventory::detection::Detection,
    process::lease_reports::{Leases, Reports},
};

/// Shortest time between two reports: what changes meanwhile is in one report.
pub(super) const EVERY: Duration = Duration::from_millis(50);
/// The health of hardware changes without a word: the node looks this often.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// A report that says nothing new follows so long after the one before: a scheduler that has heard another node with a
/// copy of this node's key hears this one again.
const AGAIN: Duration = Duration::from_secs(30);
/// A driver that does not answer for this time grants nothing.
pub(super) const DRIVER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failed connection, which doubles up to the second value. QUIC sends the first packet of an attempt again
/// after 1, 3 and 7 s, and an attempt takes 10 s, so a scheduler that is there again knows all nodes 10 s later. Half of the pause is
/// random, so that the nodes of a fabric do not come back all at once.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// The longest pause where the next attempt will most likely fail too.
const LONG_PAUSE: Duration = Duration::from_secs(30);

/// What a node needs to report.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// The node's identity.
    pub membership: Membership,
    /// The node's driver.
    pub driver: Sender<Input>,
    /// The detected hardware.
    pub detection: Arc<Detection>,
    /// Where the control plane listens.
    pub listen: SocketAddr,
    /// The address in endpoints, if the operator set one.
    pub advertise: Option<IpAddr>,
    /// From where it calls schedulers.
    pub origin: Origin,
    /// Changes whenever leases or resources may have.
    pub changed: watch::Receiver<()>,
}

/// Why reports to a scheduler have ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("it refused a report: {0}")]
    Refused(#[from] Refusal),
    #[error("the inventory has more than {REPORT_BYTES_MAX} bytes")]
    TooLarge,
    #[error(
        "{0}, the node's address on this connection, is of one link alone, and clients could not use it: set --advertise"
    )]
    OfOneLink(IpAddr),
    #[error("the node has joined another fabric")]
    OtherIdentity,
    #[error("the node does not answer itself")]
    Hung,
    /// The node is stopping.
    #[error("the driver has stopped")]
    Stopped,
}

impl Ended {
    /// Whether it is no matter of time.
    fn stays(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::TooLarge | Self::OfOneLink(_))
    }
}

impl Reporter {
    /// Reports to this scheduler until the node stops.
    pub async fn run(self, scheduler: String) {
        self.run_while(|_| Some(scheduler.clone())).await;
    }

    /// Reports until the node stops, over one connection after the other. `at` says where the scheduler is, for the attempt
    /// with this number; `None`: no more attempt.
    pub(super) async fn run_while(mut self, at: impl Fn(usize) -> Option<String>) {
        let mut identities = self.membership.changes();
        let (mut pause, mut told) = (PAUSES[0], String::new());
        for attempt in 0.. {
            let Some(scheduler) = at(attempt) else {
                return;
            };
            identities.mark_unchanged();
            let ended = self.report_to(&scheduler, &mut identities, &mut told).await;
            let Err((ended, was_taken)) = ended else {
                return;
            };
            let longest = if ended.stays() { LONG_PAUSE } else { PAUSES[1] };
            let why = ended.to_string();
            if told != why {
                tracing::warn!(
                    scheduler,
                    why,
                    "the node does not report to a scheduler; it tries again"
                );
                told = why;
            }
            pause = match was_taken {
                true => PAUSES[0],
                false => pause,
            };
            tokio::select! {
                () = sleep(jittered(pause)) => {}
                Ok(()) = identities.changed() => {}
            }
            pause = longest.min(2 * pause);
        }
    }

    /// Reports over one connection until it ends. `Ok`: the node stops. The error says also whether a report was taken.
    async fn report_to(
        &mut self,
        scheduler: &str,
        identities: &mut watch::Receiver<Arc<fabricbios_fabric::Fabric>>,
        told: &mut String,
    ) -> Result<(), (Ended, bool)> {
        let mut taken = 0;
        let ended = self.connected(scheduler, identities, told, &mut taken);
        match ended.await {
            Ended::Stopped => Ok(()),
            ended => Err((ended, taken > 0)),
        }
    }

    async fn connected(
        &mut self,
        scheduler: &str,
        identities: &mut watch::Receiver<Arc<fabricbios_fabric::Fabric>>,
        told: &mut String,
        taken: &mut u64,
    ) -> Ended {
        let fabric = self.membership.now();
        let caller =
            match Caller::connect_from(&self.origin, scheduler, &fabric, Role::Scheduler).await {
                Ok(caller) => caller,
                Err(error) => return error.into(),
            };
        let mut reports = Reports::new(caller, fabric);
        let ended = self.report(scheduler, &mut reports, identities, told);
        let ended = ended.await;
        *taken = reports.taken;
        ended.unwrap_or_else(|ended| ended)
    }

    /// Reports until it cannot: both results say why it has ended.
    async fn report(
        &mut self,
        scheduler: &str,
        reports: &mut Reports,
        identities: &mut watch::Receiver<Arc<fabricbios_fabric::Fabric>>,
        told: &mut String,
    ) -> Result<Ended, Ended> {
        let mut last = None;
        let mut look = interval(LOOK);
        let mut again = interval(AGAIN);
        loop {
            self.changed.mark_unchanged();
            let answer = match timeout(DRIVER_TIMEOUT, self.inventory()).await {
                Ok(Some(answer)) => answer,
                Ok(None) => return Ok(Ended::Stopped),
                Err(_late) => return Ok(Ended::Hung),
            };
            // Without a place in the driver's queue the last report stands a little longer.
            if let Ok(inventory) = answer
                && last.as_ref() != Some(&inventory)
            {
                let is_first = reports.taken == 0;
                self.tell_inventory(reports, &inventory).await?;
                if is_first {
                    tracing::info!(scheduler, at = %reports.caller.remote(), "the node reports to a scheduler");
                    told.clear();
                }
                last = Some(inventory);
            }
            // A scheduler takes leases of a node that it knows.
            if reports.taken > 0 {
                let there_are_more = reports.tell_leases(&Leases(&self.driver)).await?;
                if identities.has_changed().unwrap_or(true) {
                    return Ok(Ended::OtherIdentity);
                }
                if there_are_more {
                    continue;
                }
            }
            tokio::select! {
                changed = self.changed.changed() => if changed.is_err() {
                    return Ok(Ended::Stopped);
                },
                _ = look.tick() => self.detection.refresh().await,
                _ = again.tick() => last = None,
                ended = reports.caller.closed() => return Ok(ended.into()),
                Ok(()) = identities.changed() => return Ok(Ended::OtherIdentity),
            }
            sleep(EVERY).await;
        }
    }

    async fn tell_inventory(
        &self,
        reports: &mut Reports,
        inventory: &ResourceInventory,
    ) -> Result<(), Ended> {
        let listen = self.listen.ip();
        let of_listen = (!listen.is_unspecified()).then_some(listen);
        let chosen = self.advertise.or(of_listen);
        let ip = { chosen.or_else(|| reports.caller.local_ip()) }.unwrap_or(listen);
        if reports.taken == 0 && chosen.is_none() && ip.is_loopback() {
            tracing::warn!(
                at = %reports.caller.remote(),
                "the node reports a loopback address to a scheduler: clients on other machines do not reach it; set --advertise"
            );
        }
        if chosen.is_none() && matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            return Err(Ended::OfOneLink(ip));
        }
        let report = NodeReport {
            sequence: 0,
            endpoint: SocketAddr::new(ip, self.listen.port()).into(),
            inventory: inventory.clone(),
        };
        if !report.fits() {
            return Err(Ended::TooLarge);
        }
        let numbered = |sequence| NodeReport {
            sequence,
            ..report.clone()
        };
        reports
            .send(|sequence| Request::NodeReport(numbered(sequence)))
            .await
    }

    async fn inventory(&self) -> Option<Result<ResourceInventory, Refusal>> {
        match self.ask(InventoryForm::Structured).await? {
            Ok(Reply::Inventory(inventory)) => Some(Ok(inventory)),
            Ok(_) => None,
            Err(refusal) => Some(Err(refusal)),
        }
    }

    /// Asks the driver for an inventory as others may see it. `None`: it has stopped.
    pub(super) async fn ask(&self, form: InventoryForm) -> Option<Result<Reply, Refusal>> {
        let (reply, answer) = oneshot::channel();
        let input = Input::Request {
            requester: Requester {
                tenant: "node.fabricbios".into(),
                reached: None,
                control: None,
                reply,
            },
            role: Role::Node,
            request: Request::GetInventory(form),
        };
        pass_on(&self.driver, None, input);
        answer.await.ok()
    }
}

/// Between a half and the whole of the pause.
fn jittered(pause: Duration) -> Duration {
    let mut random = [0];
    // Without randomness nodes may come back at the same time.
    getrandom::fill(&mut random).ok();
    pause / 2 + pause / 2 * u32::from(random[0]) / 255
}
