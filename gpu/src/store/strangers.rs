//! Those who have the device open without a lease.

use fabricbios_cgroup::Process;
use fabricbios_lease::{BindOrder, StepError};

use super::{GpuStore, is_shared};
use crate::{
    holders::{EndUser, Holder, Holders},
    record::Record,
    sessions::ENDS_WITHIN,
    steps::passed,
};

/// So often holders are looked for and killed: one may have passed the device on meanwhile.
const ROUNDS: u32 = 16;

/// After so many rounds all processes of a lease's user end with those who hold the device.
const SINGLE_ROUNDS: u32 = 4;

impl GpuStore {
    /// Those who have the device open before a lease for this order: root's daemons for persistence and monitoring.
    ///
    /// # Errors
    /// Another user has it open: he would have it beside the lease.
    pub(super) fn holders_before(
        &self,
        order: &BindOrder,
        progress: &dyn Fn(),
    ) -> Result<Vec<Process>, StepError> {
        if !self.counts_holders(!is_shared(order)) {
            return Ok(Vec::new());
        }
        let holders = self.holders(None, progress)?;
        let others: Vec<Holder> = holders.iter().filter(|it| it.user != 0).copied().collect();
        if others.is_empty() {
            return Ok(holders.into_iter().map(|it| it.process).collect());
        }
        let why = format!(
            "{}: {} has the device open, and had so before the lease: end it",
            self.device.uuid,
            described(&others)
        );
        Err(StepError::new("look for holders", why))
    }

    /// Ends those who have the device open and had not before the grant: nothing of the lease's processes is left by now, but
    /// its users may have opened the device elsewhere, or passed it on.
    ///
    /// # Errors
    /// One of root's has it open, which is not killed; or others go on opening it.
    pub(super) fn end_holders(
        &self,
        record: &Record,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        if !self.counts_holders(record.is_exclusive) {
            return Ok(());
        }
        for round in 0..ROUNDS {
            let mut strange = self.holders(Some(record), progress)?;
            strange.retain(|it| !record.baseline.holders.contains(&it.process));
            if strange.is_empty() {
                return Ok(());
            }
            let (of_root, others): (Vec<_>, Vec<_>) =
                strange.into_iter().partition(|it| it.user == 0);
            for holder in &others {
                self.end_holder(holder, record, round)?;
            }
            if others.is_empty() {
                let why = format!(
                    "{}: {} has the device open, and had not before the lease: end it",
                    self.device.uuid,
                    described(&of_root)
                );
                return Err(StepError::new("look for holders", why));
            }
            passed("end holders");
        }
        let why = format!(
            "{}: processes that hold the device were killed {ROUNDS} times, and others had it each time",
            self.device.uuid
        );
        Err(StepError::new("end holders", why))
    }

    fn end_holder(&self, holder: &Holder, record: &Record, round: u32) -> Result<(), StepError> {
        let Holder { process, user } = *holder;
        let what = process.describe();
        tracing::warn!(
            device = self.device.uuid,
            user,
            "killing {what}, which has the device open after its lease"
        );
        if round >= SINGLE_ROUNDS && record.users.contains(&user) {
            tracing::warn!(
                user,
                "killing all processes of this user: they pass the device on"
            );
            self.gpus.call("end holders", &EndUser(user), &|| ())?;
        }
        process.kill("end holders", ENDS_WITHIN)
    }

    /// Where everybody may open the device, those who do say nothing about leases beside them.
    fn counts_holders(&self, is_exclusive: bool) -> bool {
        is_exclusive || self.state().is_owned
    }

    /// Who has the device open, besides workers of leases; or may have it, of the users of a lease that is over.
    fn holders(
        &self,
        over: Option<&Record>,
        progress: &dyn Fn(),
    ) -> Result<Vec<Holder>, StepError> {
        let call = Holders {
            devices: self
                .device
                .own_nodes()
                .iter()
                .map(crate::Node::number)
                .collect(),
            users: over.map(|it| it.users.clone()).unwrap_or_default(),
        };
        let mut holders = self.gpus.call("look for holders", &call, progress)?;
        let records = self.gpus.records.leases().unwrap_or_default();
        let records = records
            .into_iter()
            .filter_map(|it| self.gpus.records.find(it).ok()?);
        let workers: Vec<Process> = records.filter_map(|it| Some(it.worker?.process)).collect();
        holders.retain(|it| !workers.contains(&it.process));
        Ok(holders)
    }
}

fn described(holders: &[Holder]) -> String {
    let each = holders
        .iter()
        .map(|it| format!("{} of user {}", it.process.describe(), it.user));
    each.collect::<Vec<_>>().join(", ")
}
