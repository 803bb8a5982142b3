//! The suites that each store and each path passes, on a pool in a directory.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    sync::Arc,
};

use fabricbios_contract::testing::{
    Calls, Exported, Exports, Faulty, Fixture, Watching, World, binding_id,
};
use fabricbios_lease::{BindOrder, Placement};
use fabricbios_wire::{BlockTerms, LeaseId, ResourceId, Transport};

use super::{PoolStore, in_directory};
use crate::journal::Journal;

struct Machine {
    directory: tempfile::TempDir,
    _state: tempfile::TempDir,
    journal: Journal,
    kernel: Arc<Exported>,
}

/// A client that has written the id of its lease.
struct Client {
    lease: LeaseId,
    file: File,
}

impl Client {
    fn reads(&self) -> LeaseId {
        let mut bytes = [0; 16];
        self.file.read_exact_at(&mut bytes, 0).unwrap();
        LeaseId(u128::from_be_bytes(bytes))
    }
}

impl Fixture for Machine {
    type Store = PoolStore;
    type Path = Exports;
    type Client = Client;

    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("journal");
        let (journal, _) = Journal::open_here(&path, "boot", Box::new(|_| ())).unwrap();
        Self {
            directory: tempfile::tempdir().unwrap(),
            _state: state,
            journal,
            kernel: Arc::default(),
        }
    }

    fn start(&self, guard: Arc<Watching>) -> (Arc<PoolStore>, Arc<Exports>) {
        let (store, _) = in_directory(self.directory.path(), self.journal.writer());
        let path = Exports::on(Arc::clone(&self.kernel), guard);
        (Arc::new(store), Arc::new(path))
    }

    fn order(lease: u128) -> BindOrder {
        let binding_id = binding_id(LeaseId(lease), 1, ResourceId(7));
        BindOrder {
            tenant: "ann".into(),
            terms: BlockTerms::default().into(),
            ..BindOrder::new(binding_id, Placement::Amount(1 << 20), Transport::Udp)
        }
    }

    /// A client that finds nothing in the volume but what the lease itself has written.
    fn client(world: &World<Self>, lease: LeaseId) -> Option<Client> {
        let volume = world.machine.kernel.volume(lease)?;
        let file = File::options().read(true).write(true).open(volume.path);
        let client = Client {
            lease,
            file: file.unwrap(),
        };
        let before = client.reads();
        assert!(before == LeaseId(0) || before == lease, "of {before}");
        client.file.write_all_at(&lease.0.to_be_bytes(), 0).unwrap();
        Some(client)
    }

    fn has_access(&self, client: &mut Client) -> bool {
        let is_exported = self.kernel.volume(client.lease).is_some();
        is_exported && client.reads() == client.lease
    }

    fn left(&self) -> Vec<String> {
        let files = fs::read_dir(&self.directory).unwrap();
        let files = files.map(|it| it.unwrap().file_name().into_string().unwrap());
        let volumes = files.filter(|name| !name.starts_with('.'));
        let exported = self.kernel.leases().into_iter();
        volumes.chain(exported.map(|it| it.to_string())).collect()
    }
}

impl Faulty for Machine {
    fn calls(&self) -> &Calls {
        &self.kernel.calls
    }
}

fabricbios_contract::suites!(Machine: life, adoption, faults);
