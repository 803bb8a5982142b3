//! Messages of a fabric of many nodes: NODE_REPORT, NODE_LIST, and the candidates of a redirect.

use alloc::{string::String, vec::Vec};

use crate::{
    AwayNode, CANDIDATES_MAX, Candidate, FleetNode, FleetPage, LABEL_BYTES_MAX, LABELS_MAX,
    NODES_PER_PAGE_MAX, NodeId, NodeReport, REPORT_BYTES_MAX, ResourceInventory, encode_structured,
    endpoint,
    read::{self, Decoded, Reader},
    structured,
    write::Writer,
};

/// Bytes of a node without labels and without resources.
const NODE_MIN_LEN: usize = 32 + 18 + 8 + 2 + 4 + structured::MIN_LEN;
/// Bytes of a member that is away, without labels.
const AWAY_MIN_LEN: usize = 32 + 18 + 8 + 2;
/// Bytes of a candidate.
const CANDIDATE_LEN: usize = 32 + 18 + 16;

pub(crate) fn read_report(r: &mut Reader<'_>) -> Decoded<NodeReport> {
    let (sequence, endpoint) = (r.u64("sequence")?, endpoint::read(r)?);
    let at = r.offset();
    let inventory = structured::read(r)?;
    match r.offset() - at {
        length if length > REPORT_BYTES_MAX => {
            Err(read::too_many(at, "inventory", REPORT_BYTES_MAX, length))
        }
        _ => Ok(NodeReport {
            sequence,
            endpoint,
            inventory,
        }),
    }
}

pub(crate) fn write_report(w: &mut Writer, report: &NodeReport) {
    w.u64(report.sequence).raw(&report.endpoint.bytes());
    structured::write(w, &report.inventory);
}

impl NodeReport {
    /// Whether the inventory is short enough that the report fits a frame, and its node a page of NODE_LIST.
    #[must_use]
    pub fn fits(&self) -> bool {
        encode_structured(&self.inventory).is_some_and(|it| it.len() <= REPORT_BYTES_MAX)
    }
}

pub(crate) fn read_page(r: &mut Reader<'_>) -> Decoded<FleetPage> {
    let next = match r.flag("next")? {
        true => Some(NodeId(r.array("next")?)),
        false => None,
    };
    let nodes = r.list(NODES_PER_PAGE_MAX, NODE_MIN_LEN, "nodes", read_node)?;
    let away = r.list(NODES_PER_PAGE_MAX, AWAY_MIN_LEN, "away", read_away)?;
    Ok(FleetPage { nodes, away, next })
}

pub(crate) fn write_page(w: &mut Writer, page: &FleetPage) {
    w.flag(page.next.is_some());
    if let Some(next) = page.next {
        w.raw(&next.0);
    }
    w.list(&page.nodes, NODES_PER_PAGE_MAX, write_node);
    w.list(&page.away, NODES_PER_PAGE_MAX, write_away);
}

fn read_node(r: &mut Reader<'_>) -> Decoded<FleetNode> {
    Ok(FleetNode {
        node_id: NodeId(r.array("node_id")?),
        endpoint: endpoint::read(r)?,
        since_unix_ms: r.u64("since_unix_ms")?,
        labels: read_labels(r)?,
        inventory: read_inventory(r)?,
    })
}

fn read_away(r: &mut Reader<'_>) -> Decoded<AwayNode> {
    Ok(AwayNode {
        node_id: NodeId(r.array("node_id")?),
        endpoint: endpoint::read(r)?,
        last_seen_unix_ms: r.u64("last_seen_unix_ms")?,
        labels: read_labels(r)?,
    })
}

fn read_labels(r: &mut Reader<'_>) -> Decoded<Vec<String>> {
    r.list(LABELS_MAX, 4, "labels", |r| {
        r.text(LABEL_BYTES_MAX, "label")
    })
}

fn read_inventory(r: &mut Reader<'_>) -> Decoded<ResourceInventory> {
    let bytes = r.bytes(REPORT_BYTES_MAX, "inventory")?;
    let mut within = Reader::new(bytes, r.offset() - bytes.len());
    let inventory = structured::read(&mut within)?;
    within.finish()?;
    Ok(inventory)
}

fn write_node(w: &mut Writer, node: &FleetNode) {
    w.raw(&node.node_id.0)
        .raw(&node.endpoint.bytes())
        .u64(node.since_unix_ms);
    write_labels(w, &node.labels);
    w.counted_at_most(REPORT_BYTES_MAX, |w| structured::write(w, &node.inventory));
}

fn write_away(w: &mut Writer, node: &AwayNode) {
    w.raw(&node.node_id.0)
        .raw(&node.endpoint.bytes())
        .u64(node.last_seen_unix_ms);
    write_labels(w, &node.labels);
}

fn write_labels(w: &mut Writer, labels: &[String]) {
    w.list(labels, LABELS_MAX, |w, label: &String| {
        w.bytes_at_most(label.as_bytes(), LABEL_BYTES_MAX);
    });
}

impl FleetNode {
    /// Bytes of the node in a page; `usize::MAX`: a page cannot have it, because a part is above its limit.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut w = Writer::new();
        write_node(&mut w, self);
        w.payload().map_or(usize::MAX, |it| it.len())
    }
}

impl AwayNode {
    /// Bytes of the node in a page; `usize::MAX`: a page cannot have it, because a part is above its limit.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut w = Writer::new();
        write_away(&mut w, self);
        w.payload().map_or(usize::MAX, |it| it.len())
    }
}

pub(crate) fn read_candidates(r: &mut Reader<'_>) -> Decoded<Vec<Candidate>> {
    r.list(CANDIDATES_MAX, CANDIDATE_LEN, "candidates", |r| {
        Ok(Candidate {
            node_id: NodeId(r.array("node_id")?),
            endpoint: endpoint::read(r)?,
            resource_id: r.resource_id()?,
        })
    })
}

pub(crate) fn write_candidates(w: &mut Writer, candidates: &[Candidate]) {
    w.list(candidates, CANDIDATES_MAX, |w, it| {
        w.raw(&it.node_id.0)
            .raw(&it.endpoint.bytes())
            .u128(it.resource_id.0);
    });
}
