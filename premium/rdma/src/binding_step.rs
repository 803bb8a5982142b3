//! What the thread of an order does next with the binding of its lease.

use fabricbios_lease::{MovedOn, Proof, StepError};
use fabricbios_wire::Generation;

/// The next step of a bind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BindStep<P> {
    /// Make all objects. The phase is Connecting.
    Fresh,
    /// Connect the prepared queue pair. The phase is Connecting.
    Connect(P),
    /// Make all objects beside the older binding. `changing` is set until `BindingCell::changed`.
    Beside,
    /// Destroy these leftovers, report with `BindingCell::changed`, and call again.
    Tidy(Vec<P>),
    /// A cut of this generation came first.
    Cancelled,
    /// The order is not possible now.
    Refuse(NotNow),
    /// An older binding could not be cut.
    Stranded(StepError),
}

/// The next step of a cut.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CutStep<P> {
    /// Destroy these objects and report with `BindingCell::finish_cut`.
    Cut(P),
    /// There is no access, for this reason.
    Unreachable(Proof),
}

/// The next step of a release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReleaseStep<P> {
    /// Destroy these leftovers. The phase is Releasing.
    Tidy(Vec<P>),
    /// Nothing to do: the lease is released already.
    Done,
    /// The lease is not cut.
    Refuse(NotNow),
}

/// The result of a cut: proof and leftover objects, or remaining objects and error.
pub(crate) type CutResult<P> = Result<(Proof, Option<P>), (P, StepError)>;

/// Why an order for a lease is not possible now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotNow {
    #[error("{0}")]
    MovedOn(MovedOn),
    #[error("generation {} is bound already", .0.0)]
    Bound(Generation),
    #[error("it is being bound")]
    BeingBound,
    #[error("it is not cut")]
    NotCut,
    #[error("it is being cut")]
    BeingCut,
    #[error("its cut failed: {0}")]
    CutFailed(StepError),
    #[error("not clean: {0}")]
    Dirty(StepError),
    #[error("another order for the lease has not ended")]
    Busy,
}
