//! Who belongs to the fabric, whether it reports or not. Only the reports decide about a placement: this is for who reads.

use fabricbios_wire::{NodeId, Refusal};

use crate::View;

impl View {
    /// The node belongs to the fabric.
    pub fn know(&mut self, node_id: NodeId) {
        if self.known.insert(node_id) && !self.members.contains_key(&node_id) {
            self.away += 1;
        }
    }

    /// The node does not belong to the fabric any more. If it reports, it is a candidate all the same.
    pub fn forget(&mut self, node_id: NodeId) {
        if self.known.remove(&node_id) && !self.members.contains_key(&node_id) {
            self.away -= 1;
        }
    }

    /// The number of members that do not report.
    #[must_use]
    pub fn away(&self) -> usize {
        self.away
    }

    /// The refusal, with the number of members that are away.
    #[must_use]
    pub fn with_away(&self, mut refusal: Refusal) -> Refusal {
        match self.away() {
            0 => {}
            1 => refusal.message.push_str("; 1 member of the fabric is away"),
            away => {
                let told = format!("; {away} members of the fabric are away");
                refusal.message.push_str(&told);
            }
        }
        refusal
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{LeaseError, RefusalClass};

    use crate::{
        View,
        view::tests::{from, node, report},
    };

    #[test]
    fn a_member_that_does_not_report_is_away_and_a_refusal_says_so() {
        let mut view = View::default();
        let told = |view: &View| {
            let refusal = super::Refusal::new(
                LeaseError::Unavailable,
                RefusalClass::Transient,
                "no node reports",
            );
            view.with_away(refusal).message.to_string()
        };
        assert_eq!(told(&view), "no node reports");
        for number in [1, 2, 3] {
            view.know(node(number));
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
