//! The nodes of a fabric, as a scheduler knows them.

use std::net::SocketAddr;

use fabricbios_wire::{FleetPage, NodeId, Reply, Request};

use crate::{Error, Inventory, Node, runtime::wait};

/// Most nodes that a scheduler may list.
const NODES_MAX: usize = 65_536;

/// A node that reports to a scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetNode {
    /// The node.
    pub id: NodeId,
    /// Where clients reach it.
    pub address: SocketAddr,
    /// Since when it reports without a break, in milliseconds of Unix time, by the clock of the scheduler.
    pub since_unix_ms: u64,
    /// The labels of its certificate, `NAME=VALUE`.
    pub labels: Vec<String>,
    /// What it has, by its last report, which is the structured form alone: without resources of vendors, and with the
    /// capacity of CPUs that are leased as best_effort by default, which only the flat form has, only as what it is at least.
    /// The inventory of [`Node::reporting`] has all.
    pub inventory: Inventory,
}

impl Node {
    /// Asks a scheduler for the nodes that report to it, by ascending id. The list is read in pages: a node that comes or
    /// goes meanwhile may be in it or not.
    ///
    /// # Errors
    /// [`Error::Usage`] if this is no scheduler.
    pub async fn nodes_async(&self) -> Result<Vec<FleetNode>, Error> {
        self.connected().await?;
        if !self.is_scheduler() {
            return Err(Error::Usage(format!(
                "{} is a node, and no scheduler: it knows no other nodes; name a scheduler of the fabric instead",
                self.address()
            )));
        }
        let (mut nodes, mut after) = (Vec::new(), NodeId([0; 32]));
        loop {
            let FleetPage { nodes: page, next } =
                match self.call_async(Request::NodeList(after)).await? {
                    Reply::Nodes(page) => page,
                    other => return Err(self.unexpected("a list of nodes", &other)),
                };
            // A scheduler must not keep its clients for ever.
            let ascends = { page.iter() }
                .try_fold(after, |last, it| (it.node_id > last).then_some(it.node_id));
            if ascends.is_none() || nodes.len() + page.len() > NODES_MAX {
                let why =
                    format!("its list of nodes does not ascend, or has more than {NODES_MAX}");
                return Err(self.protocol(why));
            }
            nodes.extend(page.into_iter().map(FleetNode::from));
            match (next, ascends) {
                (None, _) => return Ok(nodes),
                (Some(next), Some(last)) if next == last && last > after => after = next,
                (Some(_), _) => {
                    let why = "a page of its list of nodes is empty, or does not end where the next one begins";
                    return Err(self.protocol(why.to_owned()));
                }
            }
        }
    }

    /// Asks a scheduler for its nodes, blocking; see [`Node::nodes_async`].
    pub fn nodes(&self) -> Result<Vec<FleetNode>, Error> {
        wait(self.nodes_async())
    }
}

impl Node {
    /// A handle of a node that [`Node::nodes`] has listed, with the identity and the patience of this one. It connects with
    /// the first request, to the node with this id only.
    ///
    /// # Errors
    /// If the identity cannot be used.
    pub fn reporting(&self, node: &FleetNode) -> Result<Self, Error> {
        self.other(node.address, node.id, None)
    }
}

impl From<fabricbios_wire::FleetNode> for FleetNode {
    fn from(node: fabricbios_wire::FleetNode) -> Self {
        Self {
            id: node.node_id,
            address: node.endpoint.into(),
            since_unix_ms: node.since_unix_ms,
            labels: node.labels,
            inventory: Inventory::from_structured(&node.inventory),
        }
    }
}
