//! The suites that each store and each path passes.

use super::*;

/// A machine whose leases have cores alone, or a share of the time of others.
pub(crate) struct Machine<const SHARE: bool = false> {
    pub(crate) kernel: Arc<Kernel>,
}

impl<const SHARE: bool> Fixture for Machine<SHARE> {
    type Store = CpuStore;
    type Path = CpuPath;
    type Client = (LeaseId, Process);

    fn new() -> Self {
        let kernel = Arc::new(Kernel::new(CONTROLLERS, true));
        Self { kernel }
    }

    fn start(&self, guard: Arc<Watching>) -> (Arc<CpuStore>, Arc<CpuPath>) {
        let store = Arc::new(store(&self.kernel).unwrap());
        let path = CpuPath::of(root(&self.kernel), self.kernel.tree("proc"), guard);
        (store, Arc::new(path))
    }

    fn order(lease: u128) -> BindOrder {
        match SHARE {
            true => time(lease, 1),
            false => cores(lease, &[u32::try_from(2 * lease).unwrap()]),
        }
    }

    /// A process that enters the lease.
    fn client(world: &testing::World<Self>, lease: LeaseId) -> Option<Self::Client> {
        let process = world.machine.kernel.spawn();
        enter(&world.path, lease, &process, "red").ok()?;
        Some((lease, process))
    }

    fn has_access(&self, (lease, process): &mut Self::Client) -> bool {
        let root = root(&self.kernel);
        let below = match SHARE {
            true => format!("shared/{}", name(lease.0)),
            false => name(lease.0),
        };
        root.exists("look", &below).unwrap()
            && root.members("look", &below).unwrap().contains(&process.pid)
            && self.kernel.text(&format!("{ROOT}/{below}/cgroup.freeze")) == "0"
    }

    fn left(&self) -> Vec<String> {
        let mut left = self.kernel.groups();
        left.retain(|it| !["nodes", ROOT, "nodes/fb/shared"].contains(&&**it));
        let shared = self.kernel.text(&format!("{ROOT}/shared/cpuset.cpus"));
        left.extend((shared != "2-5").then(|| format!("shares have {shared}")));
        left
    }
}

impl<const SHARE: bool> Faulty for Machine<SHARE> {
    fn calls(&self) -> &Calls {
        &self.kernel.calls
    }
}

impl<const SHARE: bool> EndedByName for Machine<SHARE> {
    fn watchdog(&self) -> Box<dyn EndByName> {
        let proc = self.kernel.tree("proc");
        Box::new(CpuEnd::of(root(&self.kernel), proc))
    }
}

impl<const SHARE: bool> Entered for Machine<SHARE> {
    fn caller(&self, tenant: &str) -> (Caller, Given) {
        let own = i32::try_from(std::process::id()).unwrap();
        (caller(own, tenant), Given::Process(pidfd(own)))
    }
}
