//! The nodes that report, each with its last report.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Bound,
};

use fabricbios_wire::{
    FleetNode, FleetPage, MAX_PAYLOAD, NODES_PER_PAGE_MAX, NodeId, NodeReport, ResourceInventory,
};

use crate::Offer;

/// Bytes of a page that no node has: status, the id of the next page, and the number of nodes.
const PAGE_BYTES: usize = 2 + 1 + 32 + 2;

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
    /// Another connection with this key reports: an older one of the node, or another node with a copy of its key.
    #[error(
        "a later connection with the key of this node reports: does another node have a copy of its state directory?"
    )]
    LaterConnection,
    /// The inventory is too large for a page of NODE_LIST.
    #[error(
        "the inventory has more than {} bytes",
        fabricbios_wire::REPORT_BYTES_MAX
    )]
    TooLarge,
}

/// A node that reports.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    connection: u64,
    sequence: u64,
    pub(crate) told: FleetNode,
    pub(crate) offers: Vec<Offer>,
}

/// The nodes that report now.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub(crate) members: BTreeMap<NodeId, Member>,
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
        if !report.fits() {
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
        entry.insert_entry(Member {
            connection: from.connection,
            sequence: expected,
            offers: Offer::all(&report.inventory),
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

    /// The connection has ended: its node reports no more. `false`: a later connection of the node does.
    pub fn gone(&mut self, node_id: NodeId, connection: u64) -> bool {
        match self.members.entry(node_id) {
            Entry::Occupied(it) if it.get().connection == connection => {
                it.remove();
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

    /// The nodes with ids above `after`, as many as fit a page.
    #[must_use]
    pub fn page(&self, after: NodeId) -> FleetPage {
        let above = (Bound::Excluded(after), Bound::Unbounded);
        let mut page = FleetPage::default();
        let mut bytes = PAGE_BYTES;
        for member in self.members.range(above).map(|(_, it)| it) {
            bytes = bytes.saturating_add(member.told.encoded_len());
            if bytes > MAX_PAYLOAD || page.nodes.len() == NODES_PER_PAGE_MAX {
                page.next = page.nodes.last().map(|it| it.node_id);
                break;
            }
            page.nodes.push(member.told.clone());
        }
        page
    }
}

#[cfg(test)]
pub(crate) mod tests;
