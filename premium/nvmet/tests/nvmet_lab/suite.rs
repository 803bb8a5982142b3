//! The suites that each store and each path passes, on the lab's kernel.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    thread,
};

use fabricbios_contract::{
    EndByName, Volume as Blocks,
    testing::{EndedByName, Fixture, Volumes, Watching, World},
};
use fabricbios_lease::{BindOrder, BindingId, Extent, StepError};
use fabricbios_nvmet::{EmergencyRevoker, HostOwners, Target};
use fabricbios_wire::{BlockTerms, LeaseId, NvmeofBinding, Transport};

use super::{
    CONFIGFS, Lab, NODE_ID, Volume, binding_id,
    client::{Busy, connect, disconnect},
    picture,
};

struct Machine {
    lab: Lab,
    volumes: Vec<Volume>,
    leases: Arc<Mutex<BTreeSet<LeaseId>>>,
    /// The target without leases.
    before: OnceLock<String>,
}

/// A host that writes to its disk.
struct Host {
    busy: Busy,
    binding: NvmeofBinding,
}

impl Drop for Host {
    fn drop(&mut self) {
        self.busy.kill();
        disconnect(&self.binding);
    }
}

#[derive(Debug)]
struct Anybody;

impl HostOwners for Anybody {
    fn admits(&self, _: BindingId, _: &str, _: &BlockTerms) -> Result<(), StepError> {
        Ok(())
    }
}

impl Fixture for Machine {
    type Store = Volumes;
    type Path = Target;
    type Client = Host;

    fn new() -> Self {
        let lab = Lab::open();
        Self {
            volumes: ["v1", "v2"].map(|name| lab.volume(name)).into(),
            lab,
            leases: Arc::default(),
            before: OnceLock::new(),
        }
    }

    fn start(&self, guard: Arc<Watching>) -> (Arc<Volumes>, Arc<Target>) {
        let target = self.lab.target().guarded_by(guard, Arc::new(Anybody));
        self.before.get_or_init(picture);
        let volumes = self.volumes.iter().map(|it| Blocks {
            path: it.path.clone(),
            bytes: 32 << 20,
            block_bytes: 512,
            read_only: false,
        });
        let volumes = Volumes::new(volumes.collect(), Arc::clone(&self.leases));
        (Arc::new(volumes), Arc::new(target))
    }

    fn order(lease: u128) -> BindOrder {
        let number = u64::try_from(lease).unwrap() - 1;
        let extent = Extent {
            offset: number,
            length: 32 << 20,
        };
        BindOrder {
            tenant: "ann".into(),
            terms: BlockTerms::default().into(),
            ..BindOrder::new(binding_id(lease, 1), extent, Transport::NvmeTcp)
        }
    }

    fn client(world: &World<Self>, lease: LeaseId) -> Option<Host> {
        let binding = world.binding(lease)?.nvmeof().unwrap().clone();
        let busy = Busy::write(&connect(&binding, 0).ok()?);
        Some(Host { busy, binding })
    }

    fn has_access(&self, host: &mut Host) -> bool {
        host.busy.goes_on_or_fails()
    }

    fn left(&self) -> Vec<String> {
        let before: BTreeSet<&str> = self.before.get().unwrap().lines().collect();
        let now = picture();
        let left = now.lines().filter(|it| !before.contains(it));
        left.map(str::to_owned).collect()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let target = self.lab.target();
        for lease in target.leases().unwrap() {
            target.cut(binding_id(lease.0, u32::MAX)).unwrap();
            target.remove(lease, &|| ()).unwrap();
        }
        target.close().unwrap();
        self.volumes.drain(..).for_each(Volume::remove);
    }
}

struct Revoker(EmergencyRevoker);

impl EndByName for Revoker {
    fn end(&self, lease: LeaseId) -> Result<(), StepError> {
        let ports = self.0.revoke(lease)?;
        self.0.sweep(&[(lease, ports)])
    }
}

impl EndedByName for Machine {
    fn watchdog(&self) -> Box<dyn EndByName> {
        Box::new(Revoker(EmergencyRevoker::new(Path::new(CONFIGFS), NODE_ID)))
    }
}

fabricbios_contract::suites!([#[ignore = "needs the lab: FABRICBIOS_LAB=1 and nvmet"]] Machine: life, adoption, by_name);
