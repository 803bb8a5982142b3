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
    (vec(node(), 0..3), vec(away(), 0..3), option::of(node_id()))
        .prop_map(|(nodes, away, next)| FleetPage { nodes, away, next })
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

fn away() -> impl Strategy<Value = AwayNode> {
    let labels = vec(text(LABEL_BYTES_MAX), 0..=LABELS_MAX);
    (node_id(), endpoint(), any::<u64>(), labels).prop_map(
        |(node_id, endpoint, last_seen_unix_ms, labels)| AwayNode {
            node_id,
            endpoint,
            last_seen_unix_ms,
            labels,
        },
    )
}

fn reported_lease() -> impl Strategy<Value = ReportedLease> {
    let key = ("[a-z0-9._-]{1,64}", option::of("[0-9a-f]{32}"));
    let tenant = key.prop_map(|(name, fabric)| match fabric {
        Some(fabric) => format!("{name}@{fabric}"),
        None => name,
    });
    let fixed = (lease_id(), resource_id(), resource_type());
    let rest = (select(LeasePhase::ALL), any::<u64>(), any::<u64>(), tenant);
    (fixed, rest).prop_map(
        |(
            (lease_id, resource_id, resource_type),
            (phase, capacity, expires_at_unix_ms, tenant),
        )| {
            ReportedLease {
                lease_id,
                resource_id,
                resource_type,
                phase,
                capacity,
                expires_at_unix_ms,
                tenant,
            }
        },
    )
}

pub(crate) fn lease_report() -> impl Strategy<Value = LeaseReport> {
    let lists = (vec(reported_lease(), 0..4), vec(lease_id(), 0..4));
    (any::<u64>(), select(ReportPart::ALL), lists).prop_map(|(sequence, part, (leases, gone))| {
        LeaseReport {
            sequence,
            part,
            leases,
            gone: match part {
                ReportPart::Changes => gone,
                _ => Vec::new(),
            },
        }
    })
}

pub(crate) fn leases() -> impl Strategy<Value = FleetLeases> {
    let lease = (node_id(), reported_lease());
    let lease = lease.prop_map(|(node_id, lease)| FleetLease { node_id, lease });
    (vec(lease, 0..4), any::<bool>()).prop_map(|(leases, more)| FleetLeases { leases, more })
}
