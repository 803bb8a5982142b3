//! How a scheduler is, by what decides about its refusals. It tells neither a tenant nor a lease.

use fabricbios_placement::{Policy, View};
use serde::Serialize;

use crate::store::Knowledge;

/// What the task that owns the view says of itself. The names are a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Health {
    /// Whether clients can be redirected: a node reports.
    pub(crate) ready: bool,
    /// Whether a refusal may be for good: all members are known, and each has reported all that decides about a lease.
    pub(crate) view_complete: bool,
    /// What is missing for that, for people.
    pub(crate) why_not: Vec<String>,
    pub(crate) nodes_reporting: usize,
    /// Those that have reported all that decides about a lease.
    nodes_whole: usize,
    members_away: usize,
    /// Whether all who belong to the fabric are known; else others may be away too.
    pub(crate) members_known: bool,
    /// `none`, `answers` or `lost`.
    pub(crate) etcd: &'static str,
    pub(crate) policy: String,
    /// `etcd` or `flag`.
    pub(crate) policy_from: &'static str,
}

impl Health {
    /// `knowledge`: what etcd says; `None`: there is none.
    pub(crate) fn of(
        view: &View,
        knowledge: Option<Knowledge>,
        policy: Policy,
        policy_from: &'static str,
    ) -> Self {
        let nodes_whole = view.whole_nodes();
        Self {
            ready: !view.is_empty(),
            view_complete: view.has_all_members() && nodes_whole == view.len(),
            why_not: why_not(view, nodes_whole, knowledge),
            nodes_reporting: view.len(),
            nodes_whole,
            members_away: view.away(),
            members_known: knowledge == Some(Knowledge::Whole),
            etcd: match knowledge {
                None => "none",
                Some(Knowledge::Lost) => "lost",
                Some(_) => "answers",
            },
            policy: policy.to_string(),
            policy_from,
        }
    }
}

fn why_not(view: &View, nodes_whole: usize, knowledge: Option<Knowledge>) -> Vec<String> {
    let none_reports = view.is_empty().then(|| {
        "no node reports: start nodes with --scheduler or --discover; those that reported before connect again within some \
         10 s"
            .to_owned()
    });
    let unknown = match knowledge {
        Some(Knowledge::Whole) => None,
        None => Some("without etcd (--etcd) nobody knows whether a node is away"),
        Some(Knowledge::Lost) => {
            Some("etcd does not answer: who belongs to the fabric is known from memory only")
        }
        Some(Knowledge::Settling) => Some(
            "etcd was read a moment ago for the first time, or was wiped or restored: other schedulers may still write \
             members into it",
        ),
        Some(Knowledge::Unreadable) => Some(
            "etcd has records of members that cannot be read, which the log names, or more than a scheduler reads",
        ),
    };
    let away = view.away_told();
    let away = away.map(|it| format!("{it}; `fabricctl node list` names each"));
    let missing = view.len() - nodes_whole;
    let untold = (missing > 0).then(|| {
        format!(
            "of the nodes that report, {missing} have not told their leases and all that decides about them yet, or cannot: \
             they are of an earlier version or have very many resources"
        )
    });
    { none_reports.into_iter() }
        .chain(unknown.map(str::to_owned))
        .chain(away)
        .chain(untold)
        .collect()
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::{AwayNode, NodeId};

    use super::*;

    #[test]
    fn what_is_missing_for_a_refusal_for_good_is_told_by_name() {
        let mut view = View::default();
        let told = |view: &View, knowledge| {
            let health = Health::of(view, knowledge, Policy::Spread, "flag");
            (health.etcd, health.members_known, health.why_not)
        };
        for (knowledge, etcd, why) in [
            (None, "none", "without etcd"),
            (Some(Knowledge::Lost), "lost", "etcd does not answer"),
            (Some(Knowledge::Settling), "answers", "a moment ago"),
            (Some(Knowledge::Unreadable), "answers", "cannot be read"),
        ] {
            let (is, are_known, why_not) = told(&view, knowledge);
            assert_eq!((is, are_known), (etcd, false));
            assert!(why_not[0].starts_with("no node reports"), "{why_not:?}");
            assert!(why_not[1].contains(why), "{why_not:?}");
        }
        for number in [1, 2] {
            view.know(AwayNode {
                node_id: NodeId([number; 32]),
                endpoint: std::net::SocketAddr::from(([192, 0, 2, 1], 5701)).into(),
                last_seen_unix_ms: 0,
                labels: Vec::new(),
            });
        }
        let (is, are_known, why_not) = told(&view, Some(Knowledge::Whole));
        assert_eq!((is, are_known), ("answers", true));
        let away = "2 members of the fabric are away";
        assert!(why_not[1].starts_with(away), "{why_not:?}");
        assert_eq!(why_not.len(), 2);
    }
}
