//! What always holds, by name, and the mistakes that a test plants to see that each invariant is checked.

use std::fmt;

/// Checked after each event, unless the text says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invariant {
    /// A report is taken if it is the next one of the newest connection of its node, and never otherwise: a late report of
    /// an older connection replaces nothing.
    OnlyTheNextIsTaken,
    /// A report that is refused changes nothing.
    RefusedChangesNothing,
    /// A node is listed with its own leases alone.
    OwnLeases,
    /// Nodes are listed from the first report of a connection that is taken until this connection has ended, and are away
    /// after that.
    ListsWhoReports,
    /// A refusal can be for good only if nobody is away, and all that report have told all leases over their present
    /// connection.
    WholeIfAllIsTold,
    /// Without faults, at the end: who reports is listed with the leases and the inventory that its table has.
    ViewIsTheTables,
    /// Without faults, at the end: a node is named for a request if its table grants it, with the resource that it grants.
    PlacesAsTheTables,
}

/// An invariant is broken: its name, and why.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) Invariant, pub(crate) String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0, self.1)
    }
}

impl Invariant {
    pub(crate) fn holds(self, it_does: bool, why: impl FnOnce() -> String) -> Result<(), Broken> {
        match it_does {
            true => Ok(()),
            false => Err(Broken(self, why())),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Scheduler: a report is taken though one before it was lost.
    TakesWhatFollowsALoss,
    /// Scheduler: a report of an older connection counts as one of the newest.
    BelievesAnOldConnection,
    /// Scheduler: the end of any connection of a node is the end of its newest one.
    AnyEndIsTheEnd,
    /// Scheduler: the end of a connection is not heard.
    HearsNoEnd,
    /// Scheduler: a node whose report is refused is forgotten.
    ForgetsWhoIsRefused,
    /// Scheduler: leases are listed at the node that has the next number.
    MixesUpNodes,
    /// Scheduler: the first part of a list counts as the whole.
    TakesAPartForTheWhole,
    /// Node: leases that are over are not told.
    TellsNotWhatIsOver,
    /// Node: what changes while the whole list is told is not told.
    ReadsTheLogTooLate,
    /// Node: the inventory is told once over each connection.
    TellsTheInventoryOnce,
    /// Node: it stays connected after a refusal.
    GoesOnAfterARefusal,
}

/// Mistakes, each with the invariant that it breaks.
pub(crate) const MISTAKES: [(Mistake, Invariant); 12] = [
    (
        Mistake::TakesWhatFollowsALoss,
        Invariant::OnlyTheNextIsTaken,
    ),
    (
        Mistake::BelievesAnOldConnection,
        Invariant::OnlyTheNextIsTaken,
    ),
    (Mistake::AnyEndIsTheEnd, Invariant::ListsWhoReports),
    (Mistake::HearsNoEnd, Invariant::ListsWhoReports),
    (
        Mistake::ForgetsWhoIsRefused,
        Invariant::RefusedChangesNothing,
    ),
    (Mistake::MixesUpNodes, Invariant::OwnLeases),
    (Mistake::TakesAPartForTheWhole, Invariant::WholeIfAllIsTold),
    (Mistake::TellsNotWhatIsOver, Invariant::ViewIsTheTables),
    (Mistake::ReadsTheLogTooLate, Invariant::ViewIsTheTables),
    (Mistake::TellsTheInventoryOnce, Invariant::ViewIsTheTables),
    (Mistake::TellsTheInventoryOnce, Invariant::PlacesAsTheTables),
    (Mistake::GoesOnAfterARefusal, Invariant::ViewIsTheTables),
];
