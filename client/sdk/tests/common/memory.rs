//! The memory of one lease, really served over UDP, and the node's answers about the lease.

use std::sync::{Arc, Mutex};

use fabricbios_arena::{Arena, Source};
use fabricbios_contract::{DataPath as _, Part};
use fabricbios_fallback_udp::{FbmuConfig, FbmuPath};
use fabricbios_lease::{BindOrder, BindingId, BootTime, Extent, Linger};
use fabricbios_wire::{
    Answer, Binding, Effective, Generation, LeaseInfo, LeasePhase, LeaseStatus, Reply, Request,
    ResourceType, Transport,
};

use super::{FakeNode, LEASE, RESOURCE, lease};

pub(crate) const BYTES: u64 = 1 << 20;

/// The memory of one lease, served over UDP.
pub(crate) struct Memory {
    backend: FbmuPath,
    arena: Arc<Arena>,
    pub(crate) told: Mutex<LeaseInfo>,
}

impl Memory {
    /// Starts the memory, already bound.
    pub(crate) fn start() -> Arc<Self> {
        let arena = Arc::new(Arena::open(&Source::default(), BYTES).unwrap());
        let config = FbmuConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            workers: None,
            arenas: [(binding_id(1).resource_id, Arc::clone(&arena))].into(),
            ops_per_second: FbmuConfig::OPS_PER_SECOND,
        };
        let memory = Self {
            backend: FbmuPath::open(config).unwrap(),
            arena,
            told: Mutex::new(over(Transport::Udp)),
        };
        memory.bind(1);
        Arc::new(memory)
    }

    pub(crate) fn bind(&self, generation: u32) {
        let order = BindOrder::new(binding_id(generation), EXTENT, Transport::Udp);
        let binding = self.backend.bind(&order, &Part::at(EXTENT)).unwrap();
        self.backend
            .extend(order.binding_id, BootTime(u64::MAX))
            .unwrap();
        let mut told = self.told.lock().unwrap();
        told.generation = Generation(generation);
        told.binding = binding;
    }

    /// Ends access; the node answers `phase` from now on.
    pub(crate) fn end(&self, phase: LeasePhase) {
        self.backend.revoke(binding_id(1), Linger::None).unwrap();
        self.say(phase);
    }

    pub(crate) fn say(&self, phase: LeasePhase) {
        let mut told = self.told.lock().unwrap();
        told.phase = phase;
        told.status = LeaseStatus::Expired;
        told.binding = Binding::plain(ResourceType::Mem);
    }

    /// Ends the lease as fenced.
    pub(crate) fn fence(&self) {
        self.end(LeasePhase::Fenced);
        self.backend.fenced(binding_id(1));
    }

    pub(crate) fn info(&self) -> LeaseInfo {
        self.told.lock().unwrap().clone()
    }

    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.arena.read(offset, &mut bytes).unwrap();
        bytes
    }

    /// A node that answers every request with this lease.
    pub(crate) fn node(self: &Arc<Self>) -> FakeNode {
        let memory = Arc::clone(self);
        FakeNode::start(move |_: &Request| -> Answer { Ok(Reply::Lease(memory.info())) })
    }
}

const EXTENT: Extent = Extent {
    offset: 0,
    length: BYTES,
};

fn binding_id(generation: u32) -> BindingId {
    BindingId {
        lease_id: LEASE,
        generation: Generation(generation),
        resource_id: RESOURCE,
    }
}

/// A lease over this transport, without coordinates.
pub(crate) fn over(transport: Transport) -> LeaseInfo {
    LeaseInfo {
        effective: Effective {
            transport: Some(transport),
            ..Effective::default()
        },
        binding: Binding::plain(ResourceType::Mem),
        ..lease(60_000)
    }
}
