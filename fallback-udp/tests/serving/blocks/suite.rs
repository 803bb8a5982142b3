//! The suite that each store and each path passes, on files over FBBU.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use fabricbios_contract::testing::{Fixture, Volumes, Watching, World};
use fabricbios_fallback_udp::FbbuPath;
use fabricbios_lease::{BindOrder, Extent};
use fabricbios_wire::{BlockTerms, LeaseId, Transport};

use super::fixture::{BLOCKS, Disks, UNIT, block, config};
use crate::{
    client::{Client, OK},
    fixture::binding_id,
};

struct Files {
    disks: Disks,
    leases: Arc<Mutex<BTreeSet<LeaseId>>>,
}

impl Fixture for Files {
    type Store = Volumes;
    type Path = FbbuPath;
    type Client = Client;

    fn new() -> Self {
        Self {
            disks: Disks::new(),
            leases: Arc::default(),
        }
    }

    fn start(&self, _: Arc<Watching>) -> (Arc<Volumes>, Arc<FbbuPath>) {
        let files = [1, 2].map(|number| self.disks.file(number));
        let store = Volumes::new(files.into(), Arc::clone(&self.leases));
        (
            Arc::new(store),
            Arc::new(FbbuPath::open(&config()).unwrap()),
        )
    }

    fn order(lease: u128) -> BindOrder {
        let extent = Extent {
            offset: u64::try_from(lease).unwrap() - 1,
            length: BLOCKS * u64::from(UNIT),
        };
        BindOrder {
            tenant: "ann".into(),
            terms: BlockTerms::default().into(),
            ..BindOrder::new(binding_id(lease, 1), extent, Transport::Udp)
        }
    }

    /// A client that has written a block.
    fn client(world: &World<Self>, lease: LeaseId) -> Option<Client> {
        let binding = world.binding(lease)?;
        let client = Client::new(world.path.local_addr(), lease, &binding);
        let mut client = client.of_blocks(UNIT);
        if client.ping().status != OK {
            return None;
        }
        client.hello();
        assert_eq!(client.write(0, &block(1)), OK);
        Some(client)
    }

    fn has_access(&self, client: &mut Client) -> bool {
        client.ping().status == OK && client.read(0, 1) == (OK, block(1))
    }

    /// The bytes are the store's to clean, and these files are cleaned by none.
    fn left(&self) -> Vec<String> {
        Vec::new()
    }
}

fabricbios_contract::suites!(Files: life);
