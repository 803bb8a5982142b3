//! Permissions of requests, and the refusals.

use alloc::{collections::BTreeMap, format, string::String};

use fabricbios_wire::{EndCause, LeaseError, LeaseId, LeasePhase, Refusal, RefusalClass, Role};

use crate::{Asked, LeaseTable, State, lease::Lease, record::Ended};

impl LeaseTable {
    /// Whether the asker holds the lease (`true`) or may only look at it (`false`). Other tenants are answered that
    /// there is no such lease.
    pub(crate) fn visible(&self, asked: &Asked, id: LeaseId) -> Result<bool, Refusal> {
        let live = self.leases.get(&id).map(|lease| &lease.tenant);
        let tenant = live.or_else(|| self.ended.get(&id).map(|ended| &ended.record.tenant));
        match tenant {
            Some(tenant) if **tenant == *asked.tenant => Ok(true),
            Some(_) if asked.role == Role::Operator => Ok(false),
            _ => Err(not_found(format!(
                "no lease {id} of tenant {}",
                asked.tenant
            ))),
        }
    }

    pub(crate) fn check_holder(&self, asked: &Asked, id: LeaseId) -> Result<(), Refusal> {
        if self.visible(asked, id)? {
            return Ok(());
        }
        Err(not_permitted(format!(
            "lease {id} answers only to its tenant; an operator can revoke it"
        )))
    }

    pub(crate) fn live(&self, id: LeaseId) -> Result<&Lease, Refusal> {
        self.leases
            .get(&id)
            .map(|it| &**it)
            .ok_or_else(|| not_live(&self.ended, id))
    }

    pub(crate) fn live_mut(&mut self, id: LeaseId) -> Result<&mut Lease, Refusal> {
        self.leases
            .get_mut(&id)
            .map(|it| &mut **it)
            .ok_or_else(|| not_live(&self.ended, id))
    }
}

fn not_live(ended: &BTreeMap<LeaseId, Ended>, id: LeaseId) -> Refusal {
    match ended.get(&id) {
        Some(ended) => over(ended.phase, format!("lease {id} is {}", ended.phase)),
        None => not_found(format!("no lease {id}")),
    }
}

impl Lease {
    /// Why a request does not fit the state.
    pub(crate) fn busy(&self) -> Refusal {
        match self.state() {
            State::Binding | State::Rebinding | State::Grace if self.is_on_its_way() => {
                busy(format!(
                    "lease {} is being bound; ask again when that is done",
                    self.id
                ))
            }
            State::Active => busy(format!(
                "lease {} is being renewed; ask again when that is done",
                self.id
            )),
            State::Binding | State::Rebinding => {
                busy(format!("lease {} is getting a new key; ask again", self.id))
            }
            State::Cutting if !self.is_told_over() => busy(format!(
                "access to lease {} is being taken away; ask again",
                self.id
            )),
            State::Grace => over(
                LeasePhase::Expired,
                format!("lease {} is in grace: renew it first", self.id),
            ),
            _ => self.over(),
        }
    }

    /// The refusal of a request for a lease that is over: how the lease ended.
    pub(crate) fn over(&self) -> Refusal {
        let (id, cause) = (self.id, self.end.as_deref().map(|end| end.cause));
        let message = match self.fence() {
            Some(fence) => format!("lease {id} could not be proved clean: {}", fence.reason),
            None if cause == Some(EndCause::BindingFailed) => format!(
                "lease {id} is {}: this node had cut its access before it could be renewed",
                self.ending()
            ),
            None => format!("lease {id} is {}", self.ending()),
        };
        over(self.phase(), message)
    }
}

pub(crate) fn check_operator(asked: &Asked, what: &str) -> Result<(), Refusal> {
    if asked.role == Role::Operator {
        return Ok(());
    }
    Err(not_permitted(format!(
        "tenant {} may not {what}: that takes an operator identity",
        asked.tenant
    )))
}

fn over(phase: LeasePhase, message: String) -> Refusal {
    let error = match phase {
        LeasePhase::Revoked => LeaseError::Revoked,
        LeasePhase::Fenced => LeaseError::Fenced,
        _ => LeaseError::Expired,
    };
    Refusal::new(error, RefusalClass::Permanent, message)
}

/// The request can never be met.
pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::InvalidArgs, RefusalClass::Permanent, message)
}

/// The operator's configuration does not allow it.
pub(crate) fn not_allowed(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::InvalidArgs, RefusalClass::Policy, message)
}

/// The role does not allow it.
fn not_permitted(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::NotPermitted, RefusalClass::Policy, message)
}

pub(crate) fn not_found(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::NotFound, RefusalClass::Permanent, message)
}

/// The lease or the tenant has something under way: ask again soon.
pub(crate) fn busy(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::ResourceBusy, RefusalClass::Transient, message)
}

/// The node cannot do it now.
pub(crate) fn unavailable(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, message)
}

/// An operator must clear a fence first.
pub(crate) fn fenced(message: impl Into<String>) -> Refusal {
    Refusal::new(LeaseError::Fenced, RefusalClass::Transient, message)
}
