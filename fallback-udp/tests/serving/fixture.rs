//! An arena and a UDP path to it, on a port of its own.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::Arc,
    time::Duration,
};

use fabricbios_arena::{Arena, ArenaStore, Source};
use fabricbios_contract::Provider;
use fabricbios_fallback_udp::{FbmuConfig, FbmuPath};
use fabricbios_lease::{BindOrder, BindingId, BootTime, Extent, Linger};
use fabricbios_wire::{Binding, Generation, LeaseId, ResourceId, Transport};
use nix::time::{ClockId, clock_gettime};

use crate::client::Client;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const ARENA: u64 = 64 * PAGE;
pub(crate) const RESOURCE: ResourceId = ResourceId(7);

pub(crate) struct Fixture {
    pub(crate) arena: Arc<Arena>,
    pub(crate) udp: Arc<FbmuPath>,
    pub(crate) backend: Provider,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::over(Arc::new(Arena::open(&Source::default(), ARENA).unwrap()))
    }

    /// A second server over the same bytes, like another process.
    pub(crate) fn over(arena: Arc<Arena>) -> Self {
        Self::with(config(arena))
    }

    pub(crate) fn with(config: FbmuConfig) -> Self {
        let arena = Arc::clone(&config.arenas[&RESOURCE]);
        let udp = Arc::new(FbmuPath::open(config).unwrap());
        let store = Arc::new(ArenaStore::new(Arc::clone(&arena)));
        let backend = Provider::new().with_store(RESOURCE, store).with_path(
            "UDP",
            &[Transport::Udp],
            udp.clone(),
        );
        Self {
            arena,
            udp,
            backend,
        }
    }

    pub(crate) fn close(self) {
        drop(self.backend);
        Arc::into_inner(self.udp).unwrap().close();
    }

    /// A lease with a term of a minute.
    pub(crate) fn lease(&self, number: u128) -> Binding {
        let binding = self.backend.bind(&order(number, 1)).unwrap();
        self.backend
            .extend(binding_id(number, 1), in_a_minute())
            .unwrap();
        binding
    }

    /// A client of a lease, without a session.
    pub(crate) fn client(&self, number: u128, binding: &Binding) -> Client {
        Client::new(self.udp.local_addr(), LeaseId(number), binding)
    }

    /// A client of a new lease, with a session.
    pub(crate) fn leased(&self, number: u128) -> Client {
        let mut client = self.client(number, &self.lease(number));
        client.hello();
        client
    }

    pub(crate) fn cut(&self, number: u128) -> String {
        let proof = self.backend.cut(binding_id(number, 1), Linger::None);
        proof.unwrap().to_string()
    }

    pub(crate) fn release(&self, number: u128) {
        self.backend
            .release(binding_id(number, 1), extent(number), &|| ())
            .unwrap();
    }

    pub(crate) fn bytes(&self, number: u128) -> Vec<u8> {
        let extent = extent(number);
        let mut bytes = vec![0; extent.length as usize];
        self.arena.read(extent.offset, &mut bytes).unwrap();
        bytes
    }
}

pub(crate) fn config(arena: Arc<Arena>) -> FbmuConfig {
    FbmuConfig {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        workers: NonZeroUsize::new(2),
        arenas: [(RESOURCE, arena)].into(),
        ops_per_second: FbmuConfig::OPS_PER_SECOND,
    }
}

pub(crate) fn binding_id(number: u128, generation: u32) -> BindingId {
    BindingId {
        lease_id: LeaseId(number),
        generation: Generation(generation),
        resource_id: RESOURCE,
    }
}

/// The extent of a lease: four pages; leases lie next to each other.
pub(crate) fn extent(number: u128) -> Extent {
    Extent {
        offset: number as u64 * 4 * PAGE,
        length: 4 * PAGE,
    }
}

pub(crate) fn order(number: u128, generation: u32) -> BindOrder {
    BindOrder::new(
        binding_id(number, generation),
        extent(number),
        Transport::Udp,
    )
}

pub(crate) fn now() -> BootTime {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap());
    BootTime(now.as_nanos() as u64)
}

pub(crate) fn in_a_minute() -> BootTime {
    now() + Duration::from_secs(60)
}
