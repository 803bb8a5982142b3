//! What the table asks the outside to do, and what the outside reports back.

use alloc::{sync::Arc, vec::Vec};

use fabricbios_wire::{Answer, Binding, Fence, LeaseId, ResourceId};
use serde::{Deserialize, Serialize};

use crate::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Condition, LeaseRecord, Linger, Note,
    Placement, Proof, StepError,
};

/// Whom an answer is for: chosen by the driver, given back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One thing for the driver to do. In order of emission; see each for what it may overtake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Hand to the backend of the resource.
    Order {
        /// What to do.
        order: Order,
        /// For whose lease; `None` for the node's own. Tenants take turns.
        tenant: Option<Arc<str>>,
        /// Not before every change so far is durable: a restart must not adopt a lease whose bytes are
        /// scrubbed. A cut waits for nothing, nor does the release of a lease that is not on record.
        after_journal: bool,
    },
    /// Write down.
    Journal(Change),
    /// Tell the asker.
    Answer {
        /// Who asked.
        ticket: Ticket,
        /// What to say.
        answer: Answer,
        /// When.
        after: After,
    },
    /// For the log.
    Note(Note),
}

/// What an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing: it rests on no change.
    Nothing,
    /// Every change so far is durable.
    Journal,
    /// The same, and it grants this lease: an [`Order::Confirm`] comes before the answer. Where the changes cannot be
    /// written, the asker is refused and [`crate::LeaseTable::on_grant_lost`] takes the lease back.
    Grant(BindingId),
}

/// What whoever makes leases real is to do; plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make a lease's access real.
    Bind(BindOrder),
    /// The lease may be used until then, on the boot-time clock: for paths that look at the clock at every request. Comes
    /// when a binding has been made, before anybody is told of it, at every renewal, and before a lease is bound
    /// anew. The newest counts. What waits for the report goes on then.
    Extend(BindingId, BootTime),
    /// Given by the driver: the grant of the lease is in the journal, and its answer waits for the report.
    Confirm(BindingId),
    /// The end of the lease could not be proved: whoever still asks may be told.
    Fenced(BindingId),
    /// Give the binding a new key beside the old one.
    Rotate(BindingId),
    /// End the key before the last rotation, with proof.
    RetireKey(BindingId),
    /// End access, with proof. Idempotent.
    Cut(BindingId, Linger),
    /// After a cut: take away what is left, clean the part, take it back. Idempotent.
    Release(BindingId, Placement),
    /// Remediation of a fenced resource, with every lease that keeps it fenced: each is cut, released and looked for again.
    Reset(ResourceId, Vec<(BindingId, Placement)>),
}

impl Order {
    /// About which lease; `None` for a remediation.
    #[must_use]
    pub fn lease_id(&self) -> Option<LeaseId> {
        self.target().ok().map(|binding_id| binding_id.lease_id)
    }

    /// On which resource.
    #[must_use]
    pub fn resource_id(&self) -> ResourceId {
        self.target()
            .map_or_else(|id| id, |binding_id| binding_id.resource_id)
    }

    /// The binding, or the resource of a remediation.
    fn target(&self) -> Result<BindingId, ResourceId> {
        match self {
            Self::Bind(order) => Ok(order.binding_id),
            Self::Extend(binding_id, _)
            | Self::Confirm(binding_id)
            | Self::Fenced(binding_id)
            | Self::Rotate(binding_id)
            | Self::RetireKey(binding_id)
            | Self::Cut(binding_id, _)
            | Self::Release(binding_id, _) => Ok(*binding_id),
            Self::Reset(resource_id, _) => Err(*resource_id),
        }
    }
}

/// What came of an [`Order`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Of [`Order::Bind`].
    Bind(BindingId, Result<Binding, BindError>),
    /// What an [`Order::Bind`] takes time for is still moving: bytes are made clean.
    BindProgress(BindingId),
    /// Of [`Order::Extend`], with its deadline.
    Extended(BindingId, BootTime, Result<(), AlreadyCut>),
    /// Of [`Order::Confirm`].
    Confirmed(BindingId, Result<(), StepError>),
    /// Of [`Order::Rotate`].
    Rotate(BindingId, Result<Binding, BindError>),
    /// Of [`Order::RetireKey`].
    RetireKey(BindingId, Result<Binding, StepError>),
    /// Of [`Order::Cut`]; `Ok` carries the proof.
    Cut(BindingId, Result<Proof, StepError>),
    /// A thread has begun with an [`Order::Cut`] or an [`Order::RetireKey`].
    EndBegan(BindingId),
    /// A cut has come a step further, where cuts of one kind of resource wait for each other: neither it
    /// nor those behind it are stuck.
    CutMoves(BindingId),
    /// A release is still moving.
    ReleaseProgress(BindingId),
    /// Of [`Order::Release`].
    Release(BindingId, Result<(), StepError>),
    /// Of [`Order::Reset`].
    Reset(ResourceId, Result<(), StepError>),
    /// How well a resource does has changed. Of no order; it is for inventories, and the table does nothing about it.
    Condition(ResourceId, Condition),
}

impl Report {
    /// About which lease; `None` where it is about a resource.
    #[must_use]
    pub fn lease_id(&self) -> Option<LeaseId> {
        match self {
            Self::Bind(binding_id, _)
            | Self::BindProgress(binding_id)
            | Self::Extended(binding_id, ..)
            | Self::Confirmed(binding_id, _)
            | Self::Rotate(binding_id, _)
            | Self::RetireKey(binding_id, _)
            | Self::EndBegan(binding_id)
            | Self::CutMoves(binding_id)
            | Self::Cut(binding_id, _)
            | Self::ReleaseProgress(binding_id)
            | Self::Release(binding_id, _) => Some(binding_id.lease_id),
            Self::Reset(..) | Self::Condition(..) => None,
        }
    }
}

/// A change of what must survive a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// This is what is known of a lease.
    PutLease(LeaseRecord),
    /// Forget it.
    RemoveLease(LeaseId),
    /// This resource is fenced.
    PutFence(FenceRecord),
    /// It is not any more.
    RemoveFence(ResourceId),
}

/// A fence, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceRecord {
    /// Which resource.
    pub resource_id: ResourceId,
    /// Of what kind.
    pub resource_type: fabricbios_wire::ResourceType,
    /// Which lease left it so.
    pub lease_id: LeaseId,
    /// Since when, wall clock.
    pub since_unix_ms: u64,
    /// What failed.
    #[serde(with = "crate::step::recorded")]
    pub reason: StepError,
    /// Whether it was only the release that failed: then its late success clears the fence.
    pub by_release: bool,
}

impl FenceRecord {
    /// As it is told to people.
    #[must_use]
    pub fn to_wire(&self) -> Fence {
        Fence {
            resource_id: self.resource_id,
            resource_type: self.resource_type,
            lease_id: self.lease_id,
            since_unix_ms: self.since_unix_ms,
            reason: alloc::format!("{}", self.reason),
        }
    }
}
