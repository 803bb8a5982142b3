//! Processes that have the device open without a lease.

use std::collections::BTreeSet;

use fabricbios_cgroup::{
    DeviceNumber, Process,
    nodes::{Holder, Holders, Node},
};
use fabricbios_lease::{BindOrder, StepError};
use fabricbios_wire::LeaseId;

use super::{GpuStore, is_shared};
use crate::record::Record;

impl GpuStore {
    /// The processes that have the device open before a lease for this order: daemons of the node's root, for
    /// persistence and monitoring; and processes that may have it and could not be examined.
    ///
    /// # Errors
    /// Another process has the device open: its user would have the device beside the lease.
    pub(super) fn holders_before(
        &self,
        order: &BindOrder,
        progress: &dyn Fn(),
    ) -> Result<Vec<Process>, StepError> {
        if !self.counts_holders(!is_shared(order)) {
            return Ok(Vec::new());
        }
        let holders = self.holders(None, progress)?;
        let others = holders.iter().filter(|it| it.has_device && !it.is_roots());
        let others: Vec<String> = others.map(Holder::describe).collect();
        if others.is_empty() {
            return Ok(holders.into_iter().map(|it| it.process).collect());
        }
        let why = format!(
            "{}: before the lease {}: end it",
            self.device.uuid,
            others.join(", ")
        );
        Err(StepError::new("look for holders", why))
    }

    /// Ends the processes of the lease's users that have the device. The cut has done so already, but another process may
    /// have passed the device on to them since, and of a shared lease the cut ends the worker alone.
    ///
    /// # Errors
    /// Another process has the device open and did not have it before the grant. It may have received the device
    /// without its own doing, so it is not killed.
    pub(super) fn end_holders(
        &self,
        lease: LeaseId,
        record: &Record,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        if !self.counts_holders(record.is_exclusive) {
            return Ok(());
        }
        let cutter = &self.gpus.cutter;
        cutter.end_users(lease, record, self.numbers(), progress)?;
        let mut others = self.holders(Some(record), progress)?;
        others.retain(|it| !record.baseline.holders.contains(&it.process));
        if others.is_empty() {
            return Ok(());
        }
        let others: Vec<String> = others.iter().map(Holder::describe).collect();
        let why = format!(
            "{}: {}, and did not have it before the lease: end it",
            self.device.uuid,
            others.join(", ")
        );
        Err(StepError::new("look for holders", why))
    }

    /// If everybody may open the device, its holders say nothing about a shared lease.
    fn counts_holders(&self, is_exclusive: bool) -> bool {
        is_exclusive || self.state().is_owned
    }

    fn numbers(&self) -> BTreeSet<DeviceNumber> {
        let nodes = self.device.own_nodes();
        nodes.iter().map(Node::number).collect()
    }

    /// The processes that have the device open, or may have it, except workers of leases and the users of `over`, a
    /// lease that is over.
    fn holders(
        &self,
        over: Option<&Record>,
        progress: &dyn Fn(),
    ) -> Result<Vec<Holder>, StepError> {
        let call = Holders {
            devices: self.numbers(),
            without: over.map(|it| it.users.clone()).unwrap_or_default(),
            // Before a grant the search need not be complete: the end of the previous lease has shown that only
            // permitted users have the device.
            is_complete: over.is_some() || !self.state().is_owned,
        };
        let mut holders = self.gpus.cutter.call("look for holders", &call, progress)?;
        let records = self.gpus.records.leases().unwrap_or_default();
        let records = records
            .into_iter()
            .filter_map(|it| self.gpus.records.find(it).ok()?);
        let workers: Vec<Process> = records
            .filter(|it| it.uuid == self.device.uuid)
            .filter_map(|it| Some(it.worker?.process))
            .collect();
        holders.retain(|it| !workers.contains(&it.process));
        Ok(holders)
    }
}
