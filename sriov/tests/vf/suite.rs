//! The suites that each store and each path passes.

use std::{
    fs::{self, File},
    sync::Arc,
};

use fabricbios_contract::{
    Caller, EndByName, Given,
    testing::{Calls, EndedByName, Entered, Faulty, Fixture, Watching, World, binding_id, user_of},
};
use fabricbios_lease::BindOrder;
use fabricbios_sriov::vf::{VfEnd, VfPath, VfStore};
use fabricbios_wire::{HandOver, LeaseId, MacAddress, NetTerms, VlanId};
use tempfile::TempDir;

use crate::world::{
    FUNCTIONS, Kernel, RESOURCE, card, is_neutral, kernel, order, places, supervisor,
};

pub(crate) struct Machine {
    pub(crate) directory: TempDir,
    pub(crate) kernel: Arc<Kernel>,
}

impl Machine {
    /// Whether the function with this address reaches memory.
    fn reaches_memory(&self, mac: MacAddress) -> bool {
        let its = |it: &usize| self.kernel.vf(u32::try_from(*it).unwrap()).mac == Some(mac);
        let found = (0..FUNCTIONS.len()).find(its);
        found.is_some_and(|it| self.kernel.is_bus_master(FUNCTIONS[it]))
    }
}

/// The names of interfaces have the first digits of the id.
fn lease_id(lease: u128) -> LeaseId {
    LeaseId(lease << 100)
}

fn mac_of(lease: LeaseId) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, lease.0.to_be_bytes()[3]])
}

impl Fixture for Machine {
    type Store = VfStore;
    type Path = VfPath;
    type Client = MacAddress;

    fn new() -> Self {
        let (directory, kernel) = kernel();
        Self { directory, kernel }
    }

    fn start(&self, guard: Arc<Watching>) -> (Arc<VfStore>, Arc<VfPath>) {
        let card = Arc::new(card(&self.kernel, "pf0", None).unwrap());
        let path = VfPath::new(card.clone(), guard);
        (Arc::new(VfStore::new(card)), Arc::new(path))
    }

    fn order(lease: u128) -> BindOrder {
        let terms = NetTerms {
            mac: Some(mac_of(lease_id(lease))),
            vlan: VlanId::new(42),
            hand_over: Some(HandOver::Interface),
        };
        BindOrder {
            binding_id: binding_id(lease_id(lease), 1, RESOURCE),
            ..order(lease, terms)
        }
    }

    fn client(world: &World<Self>, lease: LeaseId) -> Option<MacAddress> {
        Some(mac_of(lease)).filter(|it| world.machine.reaches_memory(*it))
    }

    fn has_access(&self, mac: &mut MacAddress) -> bool {
        self.reaches_memory(*mac)
    }

    fn left(&self) -> Vec<String> {
        let names = |place: &str| {
            let entries = fs::read_dir(self.directory.path().join(place));
            let entries = entries.into_iter().flatten().flatten();
            entries.filter_map(|it| it.file_name().into_string().ok())
        };
        let mut left: Vec<String> = names("records").chain(names("cdi")).collect();
        left.retain(|it| it.starts_with(['0', '1', '2', 'f']));
        let changed = (0..FUNCTIONS.len()).filter(|it| !is_neutral(&self.kernel, *it));
        left.extend(changed.map(|it| format!("function {it}")));
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
        let places = places(self.directory.path());
        Box::new(VfEnd::new(&places, supervisor(&self.kernel), []))
    }
}

impl Entered for Machine {
    fn caller(&self, tenant: &str) -> (Caller, Given) {
        let given = File::open("/dev/null").unwrap();
        (user_of(tenant), Given::NetworkNamespace(given.into()))
    }
}

fabricbios_contract::suites!(Machine: life, faults, adoption, by_name, entry);
