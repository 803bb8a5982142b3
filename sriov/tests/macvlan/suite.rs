//! The suites that each store and each path passes.

use std::{
    fs::{self, File},
    sync::Arc,
};

use fabricbios_contract::{
    Caller, EndByName, Given,
    testing::{Calls, EndedByName, Entered, Faulty, Fixture, Watching, World, user_of},
};
use fabricbios_lease::BindOrder;
use fabricbios_sriov::macvlan::{MacvlanEnd, MacvlanPath, MacvlanStore};
use fabricbios_wire::LeaseId;
use tempfile::TempDir;

use crate::{kernel::FakeKernel, machine, netns, order, parent, records};

pub(crate) struct Machine {
    pub(crate) directory: TempDir,
    pub(crate) kernel: Arc<FakeKernel>,
}

impl Fixture for Machine {
    type Store = MacvlanStore;
    type Path = MacvlanPath;
    type Client = LeaseId;

    fn new() -> Self {
        let (directory, kernel) = machine("1000");
        Self { directory, kernel }
    }

    fn start(&self, guard: Arc<Watching>) -> (Arc<MacvlanStore>, Arc<MacvlanPath>) {
        let parent = parent(&self.directory, &self.kernel, None).unwrap();
        self.kernel.calls.taken();
        let path = MacvlanPath::new(parent.clone(), guard);
        (Arc::new(MacvlanStore::new(parent)), Arc::new(path))
    }

    fn order(lease: u128) -> BindOrder {
        order(lease, netns())
    }

    fn client(world: &World<Self>, lease: LeaseId) -> Option<LeaseId> {
        Some(lease).filter(|it| world.machine.kernel.passes(*it))
    }

    fn has_access(&self, lease: &mut LeaseId) -> bool {
        self.kernel.passes(*lease)
    }

    fn left(&self) -> Vec<String> {
        let mut left = self.kernel.names();
        let records = fs::read_dir(records(&self.directory)).unwrap();
        left.extend(records.map(|it| format!("{:?}", it.unwrap().path())));
        left
    }
}

impl Faulty for Machine {
    fn calls(&self) -> &Calls {
        &self.kernel.calls
    }
}

impl EndedByName for Machine {
    fn watchdog(&self) -> Box<dyn EndByName> {
        Box::new(MacvlanEnd::new(self.kernel.clone()))
    }
}

impl Entered for Machine {
    fn caller(&self, tenant: &str) -> (Caller, Given) {
        let given = File::open("/dev/null").unwrap();
        (user_of(tenant), Given::NetworkNamespace(given.into()))
    }
}

fabricbios_contract::suites!(Machine: life, faults, adoption, by_name, entry);
