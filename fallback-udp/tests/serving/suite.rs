//! The suite that each store and each path passes, on an arena over FBMU.

use std::sync::Arc;

use fabricbios_arena::{Arena, ArenaStore, Source};
use fabricbios_contract::testing::{Fixture, Watching, World};
use fabricbios_fallback_udp::FbmuPath;
use fabricbios_lease::BindOrder;
use fabricbios_wire::LeaseId;

use crate::{
    client::{Client, OK},
    fixture::{ARENA, config, order},
};

struct Memory(Arc<Arena>);

impl Fixture for Memory {
    type Store = ArenaStore;
    type Path = FbmuPath;
    type Client = Client;

    fn new() -> Self {
        Self(Arc::new(Arena::open(&Source::default(), ARENA).unwrap()))
    }

    /// This process alone ends its leases, so the path has no guard.
    fn start(&self, _: Arc<Watching>) -> (Arc<ArenaStore>, Arc<FbmuPath>) {
        let path = FbmuPath::open(config(Arc::clone(&self.0))).unwrap();
        (
            Arc::new(ArenaStore::new(Arc::clone(&self.0))),
            Arc::new(path),
        )
    }

    fn order(lease: u128) -> BindOrder {
        BindOrder {
            tenant: "ann".into(),
            ..order(lease, 1)
        }
    }

    /// A client that has written into its memory.
    fn client(world: &World<Self>, lease: LeaseId) -> Option<Client> {
        let binding = world.binding(lease)?;
        let mut client = Client::new(world.path.local_addr(), lease, &binding);
        if client.ping().status != OK {
            return None;
        }
        client.hello();
        assert_eq!(client.write(0, b"left"), OK);
        Some(client)
    }

    fn has_access(&self, client: &mut Client) -> bool {
        client.ping().status == OK && client.read(0, 4) == (OK, b"left".to_vec())
    }

    fn left(&self) -> Vec<String> {
        let mut bytes = vec![0; usize::try_from(ARENA).unwrap()];
        self.0.read(0, &mut bytes).unwrap();
        let written = bytes.iter().position(|it| *it != 0);
        written.map(|at| format!("byte {at}")).into_iter().collect()
    }
}

fabricbios_contract::suites!(Memory: life);
