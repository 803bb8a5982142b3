//! Attach codes: LEASE_BIND with 0x0213 tells one, and whoever presents it to the node's rdma_cm listener may join the
//! lease once. The listener presents every code here, right or wrong.
//!
//! A code is gone when it is presented, and at the end of the lease. It is in no record: a restart ends it too.

use alloc::{format, sync::Arc};

use fabricbios_wire::{AttachCode, LeaseId, RdmaAttach, Reply};

use crate::{
    Asked, LeaseTable, Now, State,
    lease::Lease,
    requests::Decision,
    standing::{busy, not_allowed},
};

/// Maximum of unspent codes of one lease.
const CODES_MAX: usize = 8;

impl LeaseTable {
    pub(crate) fn tell_attach_code(&mut self, now: Now, asked: &Asked, id: LeaseId) -> Decision {
        let lease = self.check_takes_peers(asked, id)?;
        let endpoint = self.policy.attach_at.ok_or_else(|| {
            not_allowed(
                "this node has no rdma_cm listener: its operator sets one with --rdma-cm-listen",
            )
        })?;
        if self.attach_lost {
            return Err(not_allowed(
                "the node's rdma_cm listener has ended with its RDMA device; its operator opens it again with a restart of the daemon",
            ));
        }
        if !lease.may_be_joined() || lease.binding().is_none() {
            return Err(lease.busy());
        }
        if lease.attach_codes.len() >= CODES_MAX {
            return Err(busy(format!(
                "lease {id} has {CODES_MAX} attach codes that nobody has used; use one of them first"
            )));
        }
        // As random as the id of a lease, and not used as one.
        let code = AttachCode(asked.fresh_id.0.to_be_bytes());
        let lease = self.live_mut(id)?;
        let mut told = lease.info(now, true);
        let Some(rdma) = told.binding.rdma_mut() else {
            return Err(busy(format!(
                "lease {id} is not reached over RDMA now; bind it to a queue pair (--rdma-peer) and ask again"
            )));
        };
        rdma.attach = Some(RdmaAttach {
            code: code.clone(),
            endpoint: endpoint.into(),
        });
        lease.attach_codes.push(code.clone());
        self.attach_codes.insert(code, id);
        Ok(Some(Reply::Lease(told)))
    }

    /// The node's rdma_cm listener has ended: no more codes are told.
    pub fn on_attach_lost(&mut self) {
        self.attach_lost = true;
    }

    /// Takes a code that a caller presents: it works once. Returns the lease that the caller may join, and its tenant;
    /// `None`: no live lease has this code. Wrong codes change nothing.
    pub fn spend_attach_code(&mut self, code: &AttachCode) -> Option<(LeaseId, Arc<str>)> {
        let id = self.attach_codes.remove(code)?;
        let lease = self.leases.get_mut(&id)?;
        lease.attach_codes.retain(|it| it != code);
        Some((id, lease.tenant.clone()))
    }

    /// Drops the codes of a lease that nobody can join any more.
    pub(crate) fn drop_attach_codes(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        if lease.may_be_joined() {
            return;
        }
        for code in core::mem::take(&mut lease.attach_codes) {
            self.attach_codes.remove(&code);
        }
    }
}

impl Lease {
    /// Whether queue pairs may join, now or as soon as the work under way is done.
    fn may_be_joined(&self) -> bool {
        matches!(self.state(), State::Active | State::Rebinding)
    }

    /// Whether the codes fit the state.
    pub(crate) fn codes_fit(&self) -> bool {
        self.attach_codes.is_empty() || self.may_be_joined()
    }
}
