//! The nodes of a fabric, as a scheduler knows them.

use std::{net::SocketAddr, time::Duration};

use fabricbios_wire::{FleetPage, NodeId, Reply, Request};

use crate::{Error, Inventory, Node, runtime::wait};

/// Most nodes that a scheduler may list: those that report, and the records of etcd.
const NODES_MAX: usize = 16_384 + 65_536;

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

/// A member of the fabric that does not report to a scheduler with etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AwayNode {
    /// The node.
    pub id: NodeId,
    /// Where clients reached it.
    pub address: SocketAddr,
    /// When a scheduler had its last word, in milliseconds of Unix time, by the clock of that scheduler.
    pub last_seen_unix_ms: u64,
    /// The labels of its certificate, `NAME=VALUE`.
    pub labels: Vec<String>,
}

/// The members of a fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Members {
    /// Those that report, by ascending id.
    pub reporting: Vec<FleetNode>,
    /// Those that do not, by ascending id. Without etcd a scheduler knows none.
    pub away: Vec<AwayNode>,
}

impl Node {
    /// Asks a scheduler for the members of its fabric. The list is read in pages: a node that comes or goes meanwhile may be
    /// in it or not.
    ///
    /// # Errors
    /// [`Error::Usage`] if this is no scheduler.
    pub async fn members_async(&self) -> Result<Members, Error> {
        self.connected().await?;
        if !self.is_scheduler() {
            return Err(Error::Usage(format!(
                "{} is a node, and no scheduler: it knows no other nodes; name a scheduler of the fabric instead",
                self.address()
            )));
        }
        let (mut members, mut after) = (Members::default(), NodeId([0; 32]));
        loop {
            let page = match self.call_async(Request::NodeList(after)).await? {
                Reply::Nodes(page) => page,
                other => return Err(self.unexpected("a list of nodes", &other)),
            };
            let FleetPage { nodes, away, next } = page;
            // A scheduler must not keep its clients for ever.
            let last_node = last_of(after, nodes.iter().map(|it| it.node_id));
            let last_away = last_of(after, away.iter().map(|it| it.node_id));
            members
                .reporting
                .extend(nodes.into_iter().map(FleetNode::from));
            members.away.extend(away.into_iter().map(AwayNode::from));
            let Some(last) = last_node.max(last_away).filter(|_| {
                let listed = members.reporting.len() + members.away.len();
                last_node.is_some() && last_away.is_some() && listed <= NODES_MAX
            }) else {
                let why =
                    format!("its list of nodes does not ascend, or has more than {NODES_MAX}");
                return Err(self.protocol(why));
            };
            match next {
                None => return Ok(members),
                Some(next) if next == last && last > after => after = next,
                Some(_) => {
                    let why = "a page of its list of nodes is empty, or does not end where the next one begins";
                    return Err(self.protocol(why.to_owned()));
                }
            }
        }
    }

    /// Asks a scheduler for the members of its fabric, blocking; see [`Node::members_async`].
    pub fn members(&self) -> Result<Members, Error> {
        wait(self.members_async())
    }

    /// Asks a scheduler for the nodes that report to it, by ascending id; see [`Node::members_async`].
    pub async fn nodes_async(&self) -> Result<Vec<FleetNode>, Error> {
        Ok(self.members_async().await?.reporting)
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
        self.other(node.address, node.id)
    }
}

impl Node {
    /// Tells a scheduler that a member that is away does not belong to the fabric any more: etcd has it no more, and it is not
    /// missed. If it reports again, it is a member again. For operators.
    pub async fn forget_member_async(&self, id: NodeId) -> Result<(), Error> {
        // Asked once: what is refused now may be true of another life of the node later.
        let once = self.patient(Duration::ZERO);
        match once.call_async(Request::NodeForget(id)).await? {
            Reply::Forgotten => Ok(()),
            other => Err(self.unexpected("that the member is forgotten", &other)),
        }
    }

    /// The same, blocking; see [`Node::forget_member_async`].
    pub fn forget_member(&self, id: NodeId) -> Result<(), Error> {
        wait(self.forget_member_async(id))
    }
}

/// The last of these ids, or `after` if there are none; `None`: they do not ascend from `after`.
fn last_of(after: NodeId, mut ids: impl Iterator<Item = NodeId>) -> Option<NodeId> {
    ids.try_fold(after, |last, id| (id > last).then_some(id))
}

impl From<fabricbios_wire::AwayNode> for AwayNode {
    fn from(node: fabricbios_wire::AwayNode) -> Self {
        Self {
            id: node.node_id,
            address: node.endpoint.into(),
            last_seen_unix_ms: node.last_seen_unix_ms,
            labels: node.labels,
        }
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
