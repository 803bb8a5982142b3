//! Effects that the table asks the driver to carry out, and reports of the results.

use alloc::{sync::Arc, vec::Vec};

use fabricbios_wire::{Answer, Binding, Fence, LeaseId, PeerChange, ResourceId};
use serde::{Deserialize, Serialize};

use crate::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Condition, LeaseRecord, Linger, Note,
    Placement, Proof, StepError,
};

/// The receiver of an answer: chosen by the driver, returned with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One thing for the driver to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "few live at once: the driver takes them after every step"
)]
pub enum Effect {
    /// Hand to the provider of the resource.
    Order {
        /// The order.
        order: Order,
        /// The tenant of the lease; `None` for the node. Tenants take turns.
        tenant: Option<Arc<str>>,
        /// The order waits until every change so far is durable: a restart must not adopt a lease whose bytes are
        /// scrubbed. Cuts never wait, nor does the release of a lease that is not on record.
        after_journal: bool,
    },
    /// Write a change to the journal.
    Journal(Change),
    /// Send an answer.
    Answer {
        /// The receiver.
        ticket: Ticket,
        /// The answer.
        answer: Answer,
        /// The condition to wait for.
        after: After,
    },
    /// For the log.
    Note(Note),
}

/// The condition before an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// No wait: the answer depends on no change.
    Nothing,
    /// Every change so far is durable.
    Journal,
    /// Every change so far is durable. The answer grants this lease, and an [`Order::Confirm`] comes before the answer.
    /// If the changes cannot be written, the client is refused and [`crate::LeaseTable::on_grant_lost`] takes the lease
    /// back.
    Grant(BindingId),
    /// Every change so far is durable, and the grant of this lease is confirmed. The answer is for a repeat of the
    /// request that got the lease.
    Repeat(LeaseId),
}

/// An order to a provider; plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make the binding of a lease.
    Bind(BindOrder),
    /// Use this deadline, on the boot-time clock. The order comes after a bind and before the client is answered, at
    /// every renewal, and before a lease is bound again. The newest order counts. The table goes on when the report
    /// comes.
    Extend(BindingId, BootTime),
    /// The grant is in the journal, and the answer waits for the report. The driver makes this order.
    Confirm(BindingId),
    /// The end of the lease could not be proved: the path may report this to a client that still asks.
    Fenced(BindingId),
    /// Give the binding a new key beside the old one.
    Rotate(BindingId),
    /// End the key before the last rotation, with proof.
    RetireKey(BindingId),
    /// Connect queue pairs of the client beside those of the binding, or end some of them, with proof.
    ChangePeers(BindingId, PeerChange),
    /// End access, with proof. Idempotent.
    Cut(BindingId, Linger),
    /// After a cut: remove the remaining objects and scrub the part. Idempotent.
    Release(BindingId, Placement),
    /// Remediation of a fenced resource with its fenced leases: cut and release each lease, then look for strays and
    /// repair the store.
    Reset(ResourceId, Vec<(BindingId, Placement)>),
}

impl Order {
    /// The lease; `None` for a remediation.
    #[must_use]
    pub fn lease_id(&self) -> Option<LeaseId> {
        self.target().ok().map(|binding_id| binding_id.lease_id)
    }

    /// The resource.
    #[must_use]
    pub fn resource_id(&self) -> ResourceId {
        self.target()
            .map_or_else(|id| id, |binding_id| binding_id.resource_id)
    }

    /// The binding; for a remediation, the resource.
    fn target(&self) -> Result<BindingId, ResourceId> {
        match self {
            Self::Bind(order) => Ok(order.binding_id),
            Self::Extend(binding_id, _)
            | Self::Confirm(binding_id)
            | Self::Fenced(binding_id)
            | Self::Rotate(binding_id)
            | Self::RetireKey(binding_id)
            | Self::ChangePeers(binding_id, _)
            | Self::Cut(binding_id, _)
            | Self::Release(binding_id, _) => Ok(*binding_id),
            Self::Reset(resource_id, _) => Err(*resource_id),
        }
    }
}

/// The result of an [`Order`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The result of [`Order::Bind`].
    Bind(BindingId, Result<Binding, BindError>),
    /// An [`Order::Bind`] progresses: bytes are being scrubbed.
    BindProgress(BindingId),
    /// The result of [`Order::Extend`], with its deadline.
    Extended(BindingId, BootTime, Result<(), AlreadyCut>),
    /// The result of [`Order::Confirm`].
    Confirmed(BindingId, Result<(), StepError>),
    /// The result of [`Order::Rotate`].
    Rotate(BindingId, Result<Binding, BindError>),
    /// The result of [`Order::RetireKey`].
    RetireKey(BindingId, Result<Binding, StepError>),
    /// The result of [`Order::ChangePeers`]: the binding with all its queue pairs, those that joined last.
    PeersChanged(BindingId, Result<Binding, BindError>),
    /// The result of [`Order::Cut`]; `Ok` contains the proof.
    Cut(BindingId, Result<Proof, StepError>),
    /// A thread has begun an [`Order::Cut`] or an [`Order::RetireKey`].
    EndBegan(BindingId),
    /// A cut has progressed, of a kind of resource whose cuts wait for each other: the cuts behind it are not stuck.
    CutMoves(BindingId),
    /// A release progresses.
    ReleaseProgress(BindingId),
    /// The result of [`Order::Release`]; `Ok` says what was cleaned, how much and how.
    Release(BindingId, Result<Proof, StepError>),
    /// The result of [`Order::Reset`].
    Reset(ResourceId, Result<(), StepError>),
    /// The health of a resource has changed: inventories show it, and leases may be lost.
    Condition(ResourceId, Condition),
}

impl Report {
    /// The lease; `None` for a report about a resource.
    #[must_use]
    pub fn lease_id(&self) -> Option<LeaseId> {
        match self {
            Self::Bind(binding_id, _)
            | Self::BindProgress(binding_id)
            | Self::Extended(binding_id, ..)
            | Self::Confirmed(binding_id, _)
            | Self::Rotate(binding_id, _)
            | Self::RetireKey(binding_id, _)
            | Self::PeersChanged(binding_id, _)
            | Self::EndBegan(binding_id)
            | Self::CutMoves(binding_id)
            | Self::Cut(binding_id, _)
            | Self::ReleaseProgress(binding_id)
            | Self::Release(binding_id, _) => Some(binding_id.lease_id),
            Self::Reset(..) | Self::Condition(..) => None,
        }
    }

    /// Whether it only says that an order progresses: nothing follows from it before some timer, or another report.
    #[must_use]
    pub fn is_progress(&self) -> bool {
        matches!(
            self,
            Self::BindProgress(_)
                | Self::EndBegan(_)
                | Self::CutMoves(_)
                | Self::ReleaseProgress(_)
        )
    }
}

/// A change of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Write the record of a lease.
    PutLease(LeaseRecord),
    /// Remove the record of a lease.
    RemoveLease(LeaseId),
    /// Write the fence of a resource.
    PutFence(FenceRecord),
    /// Remove the fence of a resource.
    RemoveFence(ResourceId),
}

/// The record of a fence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceRecord {
    /// The resource.
    pub resource_id: ResourceId,
    /// The type of the resource.
    pub resource_type: fabricbios_wire::ResourceType,
    /// The lease that fenced it.
    pub lease_id: LeaseId,
    /// Since when, wall clock.
    pub since_unix_ms: u64,
    /// The error.
    #[serde(with = "crate::step::recorded")]
    pub reason: StepError,
    /// Whether only the release failed. A late success of the release then clears the fence.
    pub by_release: bool,
}

impl FenceRecord {
    /// The fence for the wire.
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
