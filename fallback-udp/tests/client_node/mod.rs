//! A node with one lease, and a bad path to it.

mod proxy;

use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc};

use fabricbios_arena::{Arena, Source};
use fabricbios_contract::{DataPath as _, Part};
use fabricbios_fallback_udp::{Coordinates, FbmuConfig, FbmuPath};
use fabricbios_lease::{BindOrder, BindingId, BootTime, Extent, Linger, Placement};
use fabricbios_wire::{Binding, Generation, LeaseId, ResourceId, ResourceType, Transport};

pub(crate) use proxy::Proxy;

const RESOURCE_ID: ResourceId = ResourceId(7);
const LEASE_ID: LeaseId = LeaseId(0x1ea5e);

pub(crate) struct Node {
    arena: Arc<Arena>,
    backend: Option<FbmuPath>,
    binding: Binding,
    generation: Generation,
    address: SocketAddr,
}

impl Node {
    /// A node with one lease of this many bytes.
    pub(crate) fn start(bytes: u64) -> Self {
        let mut node = Self {
            arena: Arc::new(Arena::open(&Source::default(), bytes).unwrap()),
            backend: None,
            binding: Binding::plain(ResourceType::Mem),
            generation: Generation(1),
            address: "127.0.0.1:0".parse().unwrap(),
        };
        node.serve();
        node
    }

    fn serve(&mut self) {
        let config = FbmuConfig {
            listen: self.address,
            workers: NonZeroUsize::new(1),
            arenas: [(self.binding_id().resource_id, Arc::clone(&self.arena))].into(),
            ops_per_second: FbmuConfig::OPS_PER_SECOND,
        };
        let backend = FbmuPath::open(config).unwrap();
        self.address = backend.local_addr();
        let order = BindOrder::new(
            self.binding_id(),
            Placement::Stretch(Extent {
                offset: 0,
                length: self.arena.bytes(),
            }),
            Transport::Udp,
        );
        self.binding = backend.bind(&order, &Part::at(order.extent())).unwrap();
        backend
            .extend(self.binding_id(), BootTime(u64::MAX))
            .unwrap();
        self.backend = Some(backend);
    }

    fn binding_id(&self) -> BindingId {
        BindingId {
            resource_id: RESOURCE_ID,
            lease_id: LEASE_ID,
            generation: self.generation,
        }
    }

    fn backend(&self) -> &FbmuPath {
        self.backend.as_ref().unwrap()
    }

    pub(crate) fn coordinates(&self) -> Coordinates {
        self.of(&self.binding)
    }

    fn of(&self, binding: &Binding) -> Coordinates {
        Coordinates {
            lease_id: LEASE_ID,
            dp_key: binding.dp_key.clone().unwrap(),
            endpoint: self.address,
        }
    }

    pub(crate) fn memory(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.arena.read(0, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn stop(&mut self) {
        self.backend.take().unwrap().close();
    }

    /// Restarts the node; the bytes and the address stay.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.generation = self.generation.next();
        self.serve();
    }

    pub(crate) fn rotate(&self) -> Coordinates {
        let binding = self.backend().rotate(self.binding_id()).unwrap();
        self.of(&binding)
    }

    pub(crate) fn retire(&self) {
        self.backend().retire_key(self.binding_id()).unwrap();
    }

    pub(crate) fn cut(&self) {
        self.backend()
            .revoke(self.binding_id(), Linger::None)
            .unwrap();
    }
}
