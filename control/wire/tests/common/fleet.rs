//! Reports, pages and candidates.

use super::*;

pub(crate) fn node_id() -> impl Strategy<Value = NodeId> {
    any::<[u8; 32]>().prop_map(NodeId)
}

pub(crate) fn report() -> impl Strategy<Value = NodeReport> {
    (any::<u64>(), endpoint(), inventory()).prop_map(|(sequence, endpoint, inventory)| NodeReport {
        sequence,
        endpoint,
        inventory,
    })
}

pub(crate) fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let candidate =
        (node_id(), endpoint(), resource_id()).prop_map(|(node_id, endpoint, resource_id)| {
            Candidate {
                node_id,
                endpoint,
                resource_id,
            }
        });
    vec(candidate, 1..=CANDIDATES_MAX)
}

pub(crate) fn page() -> impl Strategy<Value = FleetPage> {
    (vec(node(), 0..3), option::of(node_id())).prop_map(|(nodes, next)| FleetPage { nodes, next })
}

fn node() -> impl Strategy<Value = FleetNode> {
    let labels = vec(text(LABEL_BYTES_MAX), 0..=LABELS_MAX);
    (node_id(), endpoint(), any::<u64>(), labels, inventory()).prop_map(
        |(node_id, endpoint, since_unix_ms, labels, inventory)| FleetNode {
            node_id,
            endpoint,
            since_unix_ms,
            labels,
            inventory,
        },
    )
}
