//! The nodes that report, each with its last report.

use std::collections::{BTreeMap, btree_map::Entry};

use fabricbios_wire::{
    AwayNode, CANDIDATES_MAX, Candidate, FleetLeases, FleetNode, LABEL_BYTES_MAX, LABELS_MAX,
    LeaseError, LeaseId, LeaseReport, NodeId, NodeReport, REPORT_BYTES_MAX, Refusal, RefusalClass,
    ResourceInventory,
};

use crate::{Shadow, Whose, leases::Leases};

/// Who reports, from the certificate of its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reporter {
    /// The node whose key the certificate has.
    pub node_id: NodeId,
    /// The labels of the certificate, `KEY=VALUE`.
    pub labels: Vec<String>,
    /// The connection. A later connection has a greater number.
    pub connection: u64,
}

/// Why a report was not taken. The node's last report before stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The node reports for another one.
    #[error("the inventory is of node {told}, and the certificate of node {reporter}")]
    OtherNode {
        /// The node of the inventory.
        told: NodeId,
        /// The node of the certificate.
        reporter: NodeId,
    },
    /// A report before this one was lost, or this one is repeated.
    #[error("report {got} came where {expected} was due: connect anew")]
    Sequence {
        /// The number of the report.
        got: u64,
        /// The number that was due.
        expected: u64,
    },
    /// The report does not continue what came before it.
    #[error("{0}: connect anew")]
    Leases(&'static str),
    /// Another connection with this key reports: an older one of the node, or another node with a copy of its key.
    #[error(
        "a later connection with the key of this node reports: does another node have a copy of its state directory?"
    )]
    LaterConnection,
    /// The node is too large for a page of NODE_LIST.
    #[error(
        "the inventory has more than {REPORT_BYTES_MAX} bytes, or the certificate more than {LABELS_MAX} labels, or one of \
         more than {LABEL_BYTES_MAX} bytes"
    )]
    TooLarge,
}

/// A node that reports.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    connection: u64,
    sequence: u64,
    pub(crate) told: FleetNode,
    pub(crate) shadow: Shadow,
}

/// The nodes that report now.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub(crate) members: BTreeMap<NodeId, Member>,
    pub(crate) leases: Leases,
    /// Who belongs to the fabric, as far as it is known, whether it reports or not.
    pub(crate) known: BTreeMap<NodeId, AwayNode>,
    /// The number of these that do not report.
    pub(crate) away: usize,
    /// Whether all who belong to the fabric are known.
    pub(crate) members_are_known: bool,
}

impl View {
    /// Takes a report. `Ok(true)`: it is the first one of its connection.
    ///
    /// # Errors
    /// The report is refused, and the view stays as it was.
    pub fn report(
        &mut self,
        from: &Reporter,
        now_unix_ms: u64,
        report: NodeReport,
    ) -> Result<bool, NotTaken> {
        let told = report.inventory.node_id;
        if told != from.node_id {
            let reporter = from.node_id;
            return Err(NotTaken::OtherNode { told, reporter });
        }
        // What a page of NODE_LIST cannot have.
        let fits = |label: &String| label.len() <= LABEL_BYTES_MAX;
        if !report.fits() || from.labels.len() > LABELS_MAX || !from.labels.iter().all(fits) {
            return Err(NotTaken::TooLarge);
        }
        let entry = self.members.entry(from.node_id);
        let expected = match &entry {
            Entry::Occupied(it) if it.get().connection > from.connection => {
                return Err(NotTaken::LaterConnection);
            }
            Entry::Occupied(it) if it.get().connection == from.connection => it.get().sequence + 1,
            _ => 1,
        };
        if report.sequence != expected {
            let got = report.sequence;
            return Err(NotTaken::Sequence { got, expected });
        }
        let is_first = expected == 1;
        let since_unix_ms = match &entry {
            Entry::Occupied(it) if !is_first => it.get().told.since_unix_ms,
            _ => now_unix_ms,
        };
        if is_first {
            self.leases.begin(from.node_id);
        }
        if matches!(entry, Entry::Vacant(_)) && self.known.contains_key(&from.node_id) {
            self.away -= 1;
        }
        entry.insert_entry(Member {
            connection: from.connection,
            sequence: expected,
            shadow: Shadow::new(&report.inventory),
            told: FleetNode {
                node_id: from.node_id,
                endpoint: report.endpoint,
                since_unix_ms,
                labels: from.labels.clone(),
                inventory: report.inventory,
            },
        });
        Ok(is_first)
    }

    /// Takes a report of leases. `Ok`: a lease of it that another node reports too.
    ///
    /// # Errors
    /// The report is refused, and the view stays as it was.
    pub fn report_leases(
        &mut self,
        from: &Reporter,
        report: LeaseReport,
    ) -> Result<Option<(LeaseId, NodeId)>, NotTaken> {
        let member = match self.members.get_mut(&from.node_id) {
            Some(it) if it.connection > from.connection => return Err(NotTaken::LaterConnection),
            Some(it) if it.connection == from.connection => it,
            _ => return Err(NotTaken::Leases("no inventory came before the leases")),
        };
        let (got, expected) = (report.sequence, member.sequence + 1);
        if got != expected {
            return Err(NotTaken::Sequence { got, expected });
        }
        let taken = self.leases.take(from.node_id, report);
        let claimed = taken.map_err(NotTaken::Leases)?;
        member.sequence = expected;
        Ok(claimed)
    }

    /// The nodes that have this lease of `whose`: one, or more if a node reports a lease that it does not have. Those
    /// that have reported for the longest time come first.
    ///
    /// # Errors
    /// No node reports such a lease. The refusal is the same whether the lease is of somebody else or of nobody.
    pub fn find(&self, id: LeaseId, whose: Whose<'_>) -> Result<Vec<Candidate>, Refusal> {
        let mut found: Vec<(u64, Candidate)> = { self.leases.of(id, whose) }
            .filter_map(|(node_id, known)| {
                let member = self.members.get(&node_id)?;
                let candidate = Candidate {
                    node_id,
                    endpoint: member.told.endpoint,
                    resource_id: known.resource_id,
                };
                Some((member.connection, candidate))
            })
            .collect();
        if found.is_empty() {
            let why = format!(
                "no node reports a lease {id} of yours to this scheduler: it is over, or its node does not report now; if you \
                 know the node, ask it"
            );
            return Err(Refusal::new(
                LeaseError::NotFound,
                RefusalClass::Transient,
                why,
            ));
        }
        found.sort_by_key(|(connection, _)| *connection);
        found.truncate(CANDIDATES_MAX);
        Ok(found.into_iter().map(|(_, candidate)| candidate).collect())
    }

    /// The leases of `whose` behind this one in the order of lease ids, then node ids, as many as a page has.
    #[must_use]
    pub fn lease_page(&self, after: (LeaseId, NodeId), whose: Whose<'_>) -> FleetLeases {
        self.leases.page(after, whose)
    }

    /// The connection has ended: its node reports no more. `false`: a later connection of the node does.
    pub fn gone(&mut self, node_id: NodeId, connection: u64) -> bool {
        match self.members.entry(node_id) {
            Entry::Occupied(it) if it.get().connection == connection => {
                it.remove();
                self.leases.forget(node_id);
                if self.known.contains_key(&node_id) {
                    self.away += 1;
                }
                true
            }
            _ => false,
        }
    }

    /// The number of nodes that report.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether no node reports.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The last report of a node.
    #[must_use]
    pub fn inventory(&self, node_id: NodeId) -> Option<&ResourceInventory> {
        Some(&self.members.get(&node_id)?.told.inventory)
    }
}

#[cfg(test)]
pub(crate) mod tests;
