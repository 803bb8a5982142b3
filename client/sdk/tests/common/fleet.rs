//! A fabric with a scheduler and nodes, all with scripted answers.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use fabricbios_control::Limits;
use fabricbios_fabric::{Fabric, FabricDirectory};
use fabricbios_wire::{Answer, Candidate, NodeId, Reply, Request, ResourceId};

use super::FakeNode;

pub(crate) struct Fleet {
    dir: tempfile::TempDir,
    fabric: FabricDirectory,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let fabric = FabricDirectory::init(&dir.path().join("fabric"), SystemTime::now()).unwrap();
        Self { dir, fabric }
    }

    /// Starts a node.
    pub(crate) fn node(&self, mind: impl FnMut(&Request) -> Answer + Send + 'static) -> FakeNode {
        self.limited_node(Limits::default(), mind)
    }

    /// The same with these limits.
    pub(crate) fn limited_node(
        &self,
        limits: Limits,
        mind: impl FnMut(&Request) -> Answer + Send + 'static,
    ) -> FakeNode {
        let state_dir = tempfile::tempdir().unwrap();
        let fabric = self.node_identity(state_dir.path());
        FakeNode::of(state_dir, fabric, self.admin(), limits, mind)
    }

    /// The identity of a new node.
    pub(crate) fn node_identity(&self, state_dir: &Path) -> Fabric {
        let key = self.dir.path().join("fabric/ca-key.pem");
        fs::copy(key, state_dir.join("ca-key.pem")).unwrap();
        Fabric::open_or_create(state_dir, SystemTime::now()).unwrap()
    }

    /// The identity of a further scheduler.
    pub(crate) fn further_scheduler(&self, name: &str) -> Fabric {
        let (file, now) = (self.dir.path().join(name), SystemTime::now());
        self.fabric.add_scheduler(&file, now).unwrap();
        Fabric::open_scheduler(&file, now).unwrap()
    }

    /// Starts a scheduler.
    pub(crate) fn scheduler(
        &self,
        mind: impl FnMut(&Request) -> Answer + Send + 'static,
    ) -> FakeNode {
        FakeNode::of(
            tempfile::tempdir().unwrap(),
            self.scheduler_identity(),
            self.admin(),
            Limits::default(),
            mind,
        )
    }

    /// Starts a scheduler that redirects to these nodes in their order.
    pub(crate) fn redirecting_to(&self, nodes: &[&FakeNode]) -> FakeNode {
        let candidates: Vec<Candidate> = nodes.iter().map(|it| candidate(it)).collect();
        self.scheduler(move |_: &Request| Ok(Reply::Redirect(candidates.clone())))
    }

    /// The identity of the scheduler.
    pub(crate) fn scheduler_identity(&self) -> Fabric {
        let identity = self.fabric.scheduler_identity();
        Fabric::open_scheduler(&identity, SystemTime::now()).unwrap()
    }

    /// The identity file of an operator.
    pub(crate) fn admin(&self) -> PathBuf {
        self.fabric.admin_identity()
    }
}

/// The node, with a resource that differs from those of others.
pub(crate) fn candidate(node: &FakeNode) -> Candidate {
    Candidate {
        node_id: node.id(),
        endpoint: node.endpoint(),
        resource_id: resource_of(node.id()),
    }
}

pub(crate) fn resource_of(node: NodeId) -> ResourceId {
    ResourceId(u128::from_be_bytes(*node.0.first_chunk().unwrap()))
}
