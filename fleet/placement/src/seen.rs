//! The nodes of a fleet, for who watches it.

use fabricbios_wire::{AwayNode, FleetNode, ResourceType};

use crate::{Shadow, View, score::whole};

/// A node that reports.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What it has told.
    pub told: &'a FleetNode,
    /// Whether that is all that decides about a lease.
    pub is_whole: bool,
    shadow: &'a Shadow,
}

impl Seen<'_> {
    /// Of each resource on offer the kind, the whole amount and the most that one more lease can get, in the unit of the
    /// kind.
    pub fn amounts(&self) -> impl Iterator<Item = (ResourceType, u64, u64)> {
        let offers = self.shadow.offers().iter();
        offers.map(|it| (it.kind, whole(&self.told.inventory, it), it.available))
    }
}

impl View {
    /// The nodes that report, ascending by id.
    pub fn seen(&self) -> impl Iterator<Item = Seen<'_>> {
        self.members.iter().map(|(id, member)| Seen {
            told: &member.told,
            is_whole: self.is_whole_node((id, member)),
            shadow: &member.shadow,
        })
    }

    /// The members that do not report, ascending by id.
    pub fn absent(&self) -> impl Iterator<Item = &AwayNode> {
        // Both ascend: no search for each.
        let mut reporting = self.members.keys().peekable();
        let absent = self.known.iter().filter(move |(id, _)| {
            while reporting.next_if(|it| it < id).is_some() {}
            reporting.peek() != Some(id)
        });
        absent.map(|(_, it)| it)
    }

    /// The number of leases that nodes report.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.leases.len()
    }
}
