//! Why a scheduler names the nodes that it names, for people.

use fabricbios_wire::{
    CANDIDATES_MAX, Candidate, EXPLANATION_BYTES_MAX, LeaseAllocRequest, Refusal,
};

use crate::{Asking, View, place::Look};

impl View {
    /// As [`View::place_for`], with the reasons: a line of what was left out, and one for each candidate, the best first.
    ///
    /// # Errors
    /// As [`View::place_for`].
    pub fn explain(
        &self,
        request: &LeaseAllocRequest,
        asking: &Asking<'_>,
    ) -> Result<(Vec<Candidate>, String), Refusal> {
        let (ranked, left_out, wishes) = self.ranked(request, asking, Look::All)?;
        let (policy, nodes, fit) = (asking.policy, self.len(), ranked.len());
        let left_out = match left_out.told() {
            none if none.is_empty() => "none is left out".to_owned(),
            told => format!("left out are {told}"),
        };
        let named = fit.min(CANDIDATES_MAX);
        let mut why = format!(
            "policy {policy}; nodes that report: {nodes}, {left_out}; that can grant this: {fit}, of which named: {named}"
        );
        let mut candidates = Vec::new();
        for (member, offer) in ranked.into_iter().take(CANDIDATES_MAX) {
            let node = &member.told;
            let line = format!(
                "\n{}. {} {}: {}",
                candidates.len() + 1,
                node.endpoint,
                node.node_id,
                wishes.told(member, offer)
            );
            // Nothing that a peer says is in a line, so all fit.
            if why.len() + line.len() <= EXPLANATION_BYTES_MAX {
                why.push_str(&line);
            }
            candidates.push(Candidate {
                node_id: node.node_id,
                endpoint: node.endpoint,
                resource_id: offer.resource_id,
            });
        }
        Ok((candidates, why))
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{Affinity, LeaseError, ResourceType, Tried, health};

    use super::*;
    use crate::view::tests::{from, node, report};

    #[test]
    fn each_candidate_has_a_line_with_what_decided_and_what_was_left_out_is_counted() {
        let mut view = View::default();
        for number in 1..=10 {
            let room = if number == 9 { 0 } else { 1 << 29 };
            let mut told = report(number, 1, room);
            if number == 10 {
                told.inventory.mem_arenas[0].health = health::FENCED;
            }
            view.report(&from(number, 1), 0, told).unwrap();
        }
        let mut request = LeaseAllocRequest::new(ResourceType::Mem, 4096, 60);
        request.intent.affinities.push(Affinity {
            category: 3,
            strength: 2,
            target_type: 4,
            target: b"r7".to_vec(),
        });
        request.tried.push(Tried {
            node_id: node(3),
            refused: Some(LeaseError::ResourceBusy),
            class: fabricbios_wire::RefusalClass::Transient,
        });
        let asking = Asking::default();
        let (candidates, why) = view.explain(&request, &asking).unwrap();
        assert_eq!(Ok(&candidates), view.place_for(&request, &asking).as_ref());
        let lines: Vec<&str> = why.lines().collect();
        assert_eq!(lines.len(), 1 + CANDIDATES_MAX, "{why}");
        for part in [
            "spread",
            "that report: 10,",
            "1 by health",
            "1 by capacity",
            "that can grant this: 8, of which named: 8",
        ] {
            assert!(lines[0].contains(part), "{part} in {why}");
        }
        for (candidate, line) in candidates.iter().zip(&lines[1..]) {
            assert!(line.contains(&candidate.node_id.to_string()), "{line}");
            assert!(
                line.contains("affinities +1") && line.contains("4 of 8 free"),
                "{line}"
            );
        }
        assert!(lines[8].contains("refused for now in this search"), "{why}");
        assert!(!lines[7].contains("refused"), "{why}");
    }
}
