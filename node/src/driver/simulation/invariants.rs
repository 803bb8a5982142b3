//! What always holds, by name, and the mistakes that tests plant to see that each invariant is checked.

use std::fmt;

/// Checked after each event, unless the text says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Invariant {
    /// The table's own invariants.
    TableHolds,
    /// No two leases hold the same part, and all together hold no more than the resource has.
    NoTwoHolders,
    /// The table knows each lease that a client can reach. Only if this process has tried to cut the lease, and could
    /// not, may the table have fenced the whole resource instead.
    AccessIsKnown,
    /// No client reaches a lease whose end was proved, or told to somebody.
    NoAccessAfterProof,
    /// Access ends at most [`LATE`](super::LATE) after the deadline, or the lease or the whole resource is fenced.
    CutOnTime,
    /// A key that was retired opens nothing.
    KeysEnd,
    /// A client finds zeroes or its own bytes.
    NoForeignBytes,
    /// A client finds what it wrote, as long as it has access.
    BytesStay,
    /// A lease is fenced, or its resource for it, only while a call for it fails, hangs or is late, or after a stop of
    /// the process, and at most [`AFTERMATH`](super::checks::AFTERMATH) later.
    NoFenceWithoutCause,
    /// No lease gets the stretch of a lease that could not be cut or cleaned.
    FencedIsNotGranted,
    /// No lease gets a part in which a pool has a stray, which the pool would refuse.
    StraysAreNotGranted,
    /// A client learns of a grant or of an end, and a store counts a grant, only when it is on record.
    NoAnswerBeforeDurable,
    /// A part is released only when the journal has no living lease of it, of leases that a client was told of.
    RecordBeforeScrub,
    /// After a crash and after a reboot, what was told is on record.
    NothingLostOverRestart,
    /// No request, by its token, has two leases: a client is told of another one only if the first is on record no more,
    /// and the journal never has both.
    OneLeaseForARequest,
    /// A pool is recognised at each start.
    PoolIsRecognised,
    /// At the end every request has an answer, or its process died.
    EveryRequestAnswered,
    /// Without faults everything is free again at the end, and every kind can be leased.
    Liveness,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A mistake, and where it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// Journal: a commit is reported before it is written.
    DiskReportsTooSoon,
    /// Journal: what was reported is in a cache that a power cut empties.
    DiskHasACache,
    /// Journal: a record is never replaced by a newer one.
    DiskKeepsTheFirstRecord,
    /// Path and its bindings: a bind opens, though the gate refuses.
    OpensBehindACut,
    /// Path: a proof without a cut.
    ProvesWithoutACut,
    /// Path: a retired key works on.
    KeepsTheOldKey,
    /// Path: objects are not removed.
    RemovesNothing,
    /// Path and restart: access of a lease that was fenced is opened anew.
    ReopensTheFenced,
    /// Path, store and restart: objects of an earlier process are not found.
    ListsNothing,
    /// Store: a part is not cleaned.
    ScrubsNothing,
    /// Store: an adopted part is cleaned.
    ScrubsAtAdoption,
    /// Store: a lease gets another part than the table chose.
    TakesAnyPart,
    /// Store and restart: strays stay, and where they are is not told.
    HidesStrays,
    /// Pool's header: blocks count as written before they are zeroed.
    CountsBeforeZeroing,
    /// Pool's header: both copies are written at once.
    WritesOverBothCopies,
    /// Driver and dispatcher: a grant is never confirmed.
    SwallowsConfirmations,
    /// Driver and dispatcher: a cut is not carried out.
    SwallowsCuts,
    /// Driver and dispatcher: the cut of a lease is not carried out, if a call for the lease was late before.
    SwallowsCutsOfTheSlow,
    /// Driver: the report of a cut that its own thread has made is lost.
    LosesInlineCuts,
    /// Restart: the requests of leases are not read.
    ForgetsRequests,
    /// Restart: resources are on offer anew after their leases were taken up.
    OffersAgain,
    /// Driver: its clock stands still while the process is stopped.
    ClockStandsStill,
    /// Dispatcher and provider: a remediation reports success and does nothing.
    ResetsNothing,
}

/// Mistakes of one seam, each with the invariant that it breaks.
pub(super) type Mistakes = &'static [(Mistake, Invariant)];

pub(super) const OF_THE_JOURNAL_AND_THE_DRIVER: Mistakes = &[
    (
        Mistake::DiskReportsTooSoon,
        Invariant::NoAnswerBeforeDurable,
    ),
    (Mistake::DiskHasACache, Invariant::NothingLostOverRestart),
    (
        Mistake::DiskKeepsTheFirstRecord,
        Invariant::RecordBeforeScrub,
    ),
    (Mistake::SwallowsCuts, Invariant::NoFenceWithoutCause),
    (
        Mistake::SwallowsCutsOfTheSlow,
        Invariant::NoFenceWithoutCause,
    ),
    (Mistake::LosesInlineCuts, Invariant::NoFenceWithoutCause),
    (Mistake::ForgetsRequests, Invariant::OneLeaseForARequest),
    (Mistake::OffersAgain, Invariant::TableHolds),
    (
        Mistake::SwallowsConfirmations,
        Invariant::EveryRequestAnswered,
    ),
    (Mistake::ClockStandsStill, Invariant::CutOnTime),
    (Mistake::ResetsNothing, Invariant::FencedIsNotGranted),
];

pub(super) const OF_PATHS: Mistakes = &[
    (Mistake::OpensBehindACut, Invariant::NoAccessAfterProof),
    (Mistake::ProvesWithoutACut, Invariant::NoAccessAfterProof),
    (Mistake::KeepsTheOldKey, Invariant::KeysEnd),
    (Mistake::RemovesNothing, Invariant::Liveness),
    (Mistake::ListsNothing, Invariant::AccessIsKnown),
    (Mistake::ReopensTheFenced, Invariant::AccessIsKnown),
];

pub(super) const OF_STORES: Mistakes = &[
    (Mistake::ScrubsNothing, Invariant::NoForeignBytes),
    (Mistake::ScrubsAtAdoption, Invariant::BytesStay),
    (Mistake::TakesAnyPart, Invariant::NoTwoHolders),
    (Mistake::HidesStrays, Invariant::StraysAreNotGranted),
    (Mistake::CountsBeforeZeroing, Invariant::NoForeignBytes),
    (Mistake::WritesOverBothCopies, Invariant::PoolIsRecognised),
];
