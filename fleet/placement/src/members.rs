//! Who belongs to the fabric, whether it reports or not. Only the reports decide about a
//! placement: this decides whether a refusal can be for good.

use std::ops::Bound;

use fabricbios_wire::{AwayNode, FleetPage, MAX_PAYLOAD, NODES_PER_PAGE_MAX, NodeId, Refusal};

use crate::{View, view::Member};

/// Bytes of a page without nodes: status, the id of the next page, and the numbers of nodes and of members away.
const PAGE_BYTES: usize = 2 + 1 + 32 + 2 + 2;

/// One line of a page.
enum Listed<'a> {
    Reports(&'a Member),
    Away(&'a AwayNode),
}

impl View {
    /// The node belongs to the fabric, and was last seen so.
    pub fn know(&mut self, node: AwayNode) {
        let node_id = node.node_id;
        if self.known.insert(node_id, node).is_none() && !self.reports(node_id) {
            self.away += 1;
        }
    }

    /// A node that reports belongs to the fabric, and stays when it reports no more.
    pub fn know_reporting(&mut self, node_id: NodeId, now_unix_ms: u64) {
        if let Some(member) = self.members.get(&node_id) {
            self.know(AwayNode {
                node_id,
                endpoint: member.told.endpoint,
                last_seen_unix_ms: now_unix_ms,
                labels: member.told.labels.clone(),
            });
        }
    }

    /// The node does not belong to the fabric any more. If it reports, it is a candidate all the same.
    pub fn forget(&mut self, node_id: NodeId) {
        if self.known.remove(&node_id).is_some() && !self.reports(node_id) {
            self.away -= 1;
        }
    }

    /// Whether the node reports.
    #[must_use]
    pub fn reports(&self, node_id: NodeId) -> bool {
        self.members.contains_key(&node_id)
    }

    /// Whether the node belongs to the fabric, as far as it is known.
    #[must_use]
    pub fn is_known(&self, node_id: NodeId) -> bool {
        self.known.contains_key(&node_id)
    }

    /// Whether all who belong to the fabric are known now: only then can a refusal be for good.
    pub fn members_are_known(&mut self, are_known: bool) {
        self.members_are_known = are_known;
    }

    /// Whether every member of the fabric reports, and each has reported all that decides about a lease.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.has_all_members() && self.members.iter().all(|it| self.is_whole_node(it))
    }

    /// Whether every member of the fabric reports.
    #[must_use]
    pub fn has_all_members(&self) -> bool {
        self.members_are_known && self.away == 0 && !self.is_empty()
    }

    /// The number of nodes that have reported all that decides about a lease.
    #[must_use]
    pub fn whole_nodes(&self) -> usize {
        let members = self.members.iter();
        members.filter(|it| self.is_whole_node(*it)).count()
    }

    pub(crate) fn is_whole_node(&self, (id, member): (&NodeId, &Member)) -> bool {
        member.shadow.is_whole() && self.leases.is_whole(*id)
    }

    /// The number of members that do not report.
    #[must_use]
    pub fn away(&self) -> usize {
        self.away
    }

    /// How many members are away, in words; `None`: nobody is.
    #[must_use]
    pub fn away_told(&self) -> Option<String> {
        match self.away() {
            0 => None,
            1 => Some("1 member of the fabric is away".to_owned()),
            away => Some(format!("{away} members of the fabric are away")),
        }
    }

    /// The refusal, with the number of members that are away.
    #[must_use]
    pub fn with_away(&self, mut refusal: Refusal) -> Refusal {
        if let Some(told) = self.away_told() {
            refusal.message.push_str("; ");
            refusal.message.push_str(&told);
        }
        refusal
    }

    /// The nodes that report and the members that are away with ids above `after`, as many as fit a page.
    #[must_use]
    pub fn page(&self, after: NodeId) -> FleetPage {
        let mut page = FleetPage::default();
        let (mut bytes, mut last) = (PAGE_BYTES, None);
        for (id, it) in self.listed(after) {
            bytes = bytes.saturating_add(match it {
                Listed::Reports(member) => member.told.encoded_len(),
                Listed::Away(node) => node.encoded_len(),
            });
            if bytes > MAX_PAYLOAD || page.nodes.len() + page.away.len() == NODES_PER_PAGE_MAX {
                page.next = last;
                break;
            }
            match it {
                Listed::Reports(member) => page.nodes.push(member.told.clone()),
                Listed::Away(node) => page.away.push(node.clone()),
            }
            last = Some(id);
        }
        page
    }

    /// Ascending by id.
    fn listed(&self, after: NodeId) -> impl Iterator<Item = (NodeId, Listed<'_>)> {
        let above = (Bound::Excluded(after), Bound::Unbounded);
        let mut nodes = self.members.range(above).peekable();
        let mut known = self.known.range(above).peekable();
        std::iter::from_fn(move || {
            while known.next_if(|(id, _)| self.reports(**id)).is_some() {}
            let is_away = match (nodes.peek(), known.peek()) {
                (Some((node, _)), Some((away, _))) => away < node,
                (None, away) => away.is_some(),
                (Some(_), None) => false,
            };
            match is_away {
                true => known.next().map(|(id, it)| (*id, Listed::Away(it))),
                false => nodes.next().map(|(id, it)| (*id, Listed::Reports(it))),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{LeaseError, RefusalClass};

    use super::*;
    use crate::view::tests::{away, from, node, report};

    /// The largest members that there can be: a page has some of them only.
    #[test]
    fn pages_have_each_member_once_as_it_is_now_and_fit_a_frame() {
        let mut view = View::default();
        for number in 1..=60 {
            view.know(away(number));
        }
        for number in [2, 60, 61] {
            view.report(&from(number, 1), 0, report(number, 1, 1))
                .unwrap();
        }
        let (mut after, mut reporting, mut absent) = (NodeId([0; 32]), vec![], vec![]);
        let mut pages = 0;
        loop {
            let page = view.page(after);
            pages += 1;
            let bytes = PAGE_BYTES
                + page
                    .nodes
                    .iter()
                    .map(fabricbios_wire::FleetNode::encoded_len)
                    .sum::<usize>()
                + page.away.iter().map(AwayNode::encoded_len).sum::<usize>();
            assert!(bytes <= MAX_PAYLOAD, "{bytes}");
            reporting.extend(page.nodes.iter().map(|it| it.node_id));
            absent.extend(page.away.iter().map(|it| it.node_id));
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        assert!(pages > 3, "{pages}");
        assert_eq!(reporting, [2, 60, 61].map(node));
        let expected: Vec<NodeId> = (1..60).filter(|it| *it != 2).map(node).collect();
        assert_eq!(absent, expected);
    }

    #[test]
    fn a_member_that_does_not_report_is_away_and_a_refusal_says_so() {
        let mut view = View::default();
        let told = |view: &View| {
            let refusal = Refusal::new(
                LeaseError::Unavailable,
                RefusalClass::Transient,
                "no node reports",
            );
            view.with_away(refusal).message.to_string()
        };
        assert_eq!(told(&view), "no node reports");
        for number in [1, 2, 3] {
            view.know(away(number));
        }
        assert_eq!(
            told(&view),
            "no node reports; 3 members of the fabric are away"
        );
        view.report(&from(1, 1), 0, report(1, 1, 1)).unwrap();
        // A node that reports and is no member yet is nowhere missing.
        view.report(&from(4, 2), 0, report(4, 1, 1)).unwrap();
        view.forget(node(2));
        assert_eq!(
            told(&view),
            "no node reports; 1 member of the fabric is away"
        );
        view.gone(node(1), 1);
        assert_eq!(view.away(), 2);
    }
}
