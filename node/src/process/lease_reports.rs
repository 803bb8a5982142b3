//! What one scheduler is told of the leases: the whole list at first, and then what has changed.

use std::{sync::Arc, time::Duration};

use fabricbios_control::Caller;
use fabricbios_fabric::Fabric;
use fabricbios_lease::{Changes, LeaseSummary, LogPosition};
use fabricbios_wire::{
    LEASES_PER_REPORT_MAX, LeaseError, LeaseId, LeaseReport, ReportPart, ReportedLease, Request,
};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::reports::{DRIVER_TIMEOUT, EVERY, Ended};
use crate::driver::{
    Input,
    lease_list::AboutLeases,
    mailbox::{NoPlace, Sender},
};

/// The pause before a scheduler that is too busy is told the same again.
const BUSY: Duration = Duration::from_secs(1);
/// Most reports of changes before the inventory is looked at again.
const IN_A_ROW: usize = 16;

/// The reports over one connection. They have one sequence.
pub(super) struct Reports {
    pub(super) caller: Caller,
    /// The node's fabric, and the scheduler's, when the connection began.
    fabric: Arc<Fabric>,
    /// The number of the last report that was taken.
    pub(super) taken: u64,
    /// The changes of leases before this are told. `None`: nothing is.
    told: Option<LogPosition>,
}

impl Reports {
    pub(super) fn new(caller: Caller, fabric: Arc<Fabric>) -> Self {
        Self {
            caller,
            fabric,
            taken: 0,
            told: None,
        }
    }

    /// Sends the report that `make` makes of its number, again and again while the scheduler is too busy.
    pub(super) async fn send(&mut self, make: impl Fn(u64) -> Request) -> Result<(), Ended> {
        let request = make(self.taken + 1);
        loop {
            match self.caller.call(&request).await? {
                Ok(_taken) => break,
                Err(why) if why.error == LeaseError::Unavailable => sleep(BUSY).await,
                Err(why) => return Err(why.into()),
            }
        }
        self.taken += 1;
        Ok(())
    }

    /// Tells what has changed since the last time, or the whole list. Returns whether there is more to tell.
    pub(super) async fn tell_leases(&mut self, of: &Leases<'_>) -> Result<bool, Ended> {
        for _ in 0..IN_A_ROW {
            let changes = match self.told {
                Some(from) => of.since(from).await?,
                None => None,
            };
            let Some(changes) = changes else {
                self.told = Some(self.tell_whole_list(of).await?);
                continue;
            };
            if !(changes.leases.is_empty() && changes.gone.is_empty()) {
                self.send_leases(ReportPart::Changes, changes.leases, changes.gone)
                    .await?;
            }
            self.told = Some(changes.next);
            if !changes.more {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns where the changes since the list began to be read are.
    async fn tell_whole_list(&mut self, of: &Leases<'_>) -> Result<LogPosition, Ended> {
        let (mut leases, began) = of.above(LeaseId(0)).await?;
        let mut is_first = true;
        loop {
            let last = leases.last().map(|it| it.lease_id);
            let goes_on = last.filter(|_| leases.len() == LEASES_PER_REPORT_MAX);
            let part = match (is_first, goes_on) {
                (true, None) => ReportPart::Whole,
                (true, Some(_)) => ReportPart::Begin,
                (false, Some(_)) => ReportPart::Next,
                (false, None) => ReportPart::End,
            };
            self.send_leases(part, leases, Vec::new()).await?;
            let Some(last) = goes_on else {
                return Ok(began);
            };
            is_first = false;
            (leases, _) = of.above(last).await?;
        }
    }

    async fn send_leases(
        &mut self,
        part: ReportPart,
        leases: Vec<LeaseSummary>,
        gone: Vec<LeaseId>,
    ) -> Result<(), Ended> {
        let reported = leases.into_iter().map(|it| ReportedLease {
            lease_id: it.lease_id,
            resource_id: it.resource_id,
            resource_type: it.resource_type,
            phase: it.phase,
            capacity: it.capacity,
            expires_at_unix_ms: it.expires_at_unix_ms,
            tenant: self.fabric.tenant_in_fabric(&it.tenant),
        });
        let report = LeaseReport {
            sequence: 0,
            part,
            leases: reported.collect(),
            gone,
        };
        self.send(|sequence| {
            Request::NodeLeases(LeaseReport {
                sequence,
                ..report.clone()
            })
        })
        .await
    }
}

/// The leases of this node, which the driver tells.
pub(super) struct Leases<'a>(pub(super) &'a Sender<Input>);

impl Leases<'_> {
    async fn above(&self, after: LeaseId) -> Result<(Vec<LeaseSummary>, LogPosition), Ended> {
        self.ask(|reply| AboutLeases::Above(after, reply)).await
    }

    async fn since(&self, from: LogPosition) -> Result<Option<Changes>, Ended> {
        self.ask(|reply| AboutLeases::Since(from, reply)).await
    }

    /// Asks the driver; waits for a place in its queue.
    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> AboutLeases,
    ) -> Result<T, Ended> {
        let (reply, answer) = oneshot::channel();
        let mut input = Input::AboutLeases(question(reply));
        let asked = async {
            while let Err((why, back)) = self.0.request(None, input) {
                if why == NoPlace::Gone {
                    return Err(Ended::Stopped);
                }
                input = back;
                sleep(EVERY).await;
            }
            answer.await.map_err(|_gone| Ended::Stopped)
        };
        timeout(DRIVER_TIMEOUT, asked)
            .await
            .unwrap_or(Err(Ended::Hung))
    }
}
