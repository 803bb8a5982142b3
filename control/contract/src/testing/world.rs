//! A process on a machine with one resource.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use fabricbios_lease::{BindOrder, BindingId, BootTime, Linger, Proof, StepError};
use fabricbios_wire::{Binding, Generation, LeaseId, ResourceId};

use super::{Fixture, Watching};
use crate::{Caller, Provider};

/// A deadline that no test waits for.
pub const FOR_EVER: BootTime = BootTime(u64::MAX);

/// The machine of a fixture, and the process that leases its resource.
#[derive(Debug)]
pub struct World<F: Fixture> {
    /// The guard of the path.
    pub guard: Arc<Watching>,
    /// The store of this process.
    pub store: Arc<F::Store>,
    /// The path of this process.
    pub path: Arc<F::Path>,
    /// Both.
    pub provider: Arc<Provider>,
    bindings: Mutex<BTreeMap<LeaseId, Binding>>,
    /// The machine, which outlives the process.
    pub machine: F,
}

impl<F: Fixture> World<F> {
    /// A process on a machine without leases.
    #[allow(clippy::new_without_default, reason = "a machine is no default")]
    #[must_use]
    pub fn new() -> Self {
        Self::on(F::new())
    }

    /// A process that starts on this machine.
    #[must_use]
    pub fn on(machine: F) -> Self {
        let guard = Arc::new(Watching::default());
        let (store, path) = machine.start(guard.clone());
        let order = F::order(1);
        let provider = Provider::new()
            .with_store(order.binding_id.resource_id, store.clone())
            .with_path("path", &[order.transport], path.clone());
        Self {
            machine,
            guard,
            store,
            path,
            provider: Arc::new(provider),
            bindings: Mutex::default(),
        }
    }

    /// Ends the process without an order, and starts another one.
    #[must_use]
    pub fn restarted(self) -> Self {
        Self::on(self.killed())
    }

    /// Ends the process without an order.
    #[must_use]
    pub fn killed(self) -> F {
        self.machine
    }

    /// Binds a lease, so that its client can use it.
    pub fn bound(&self, order: &BindOrder) -> Binding {
        let binding = self.provider.bind(order).unwrap();
        self.provider.extend(order.binding_id, FOR_EVER).unwrap();
        let mut bindings = self.bindings.lock().unwrap();
        bindings.insert(order.binding_id.lease_id, binding.clone());
        binding
    }

    /// What the client of a lease got from the last bind, if this process has bound the lease.
    pub fn binding(&self, lease: LeaseId) -> Option<Binding> {
        self.bindings.lock().unwrap().get(&lease).cloned()
    }

    /// Binds a lease, and a client begins to use it.
    pub fn used(&self, order: &BindOrder) -> F::Client {
        self.bound(order);
        F::client(self, order.binding_id.lease_id).expect("a lease that is bound gives no access")
    }

    /// Ends access, with proof.
    ///
    /// # Errors
    /// The end is not proved.
    pub fn cut(&self, order: &BindOrder) -> Result<Proof, StepError> {
        self.provider.cut(order.binding_id, Linger::None)
    }

    /// Removes the objects of a lease and cleans its part.
    ///
    /// # Errors
    /// Something is left.
    pub fn release(&self, order: &BindOrder) -> Result<Proof, StepError> {
        let placement = order.placement.clone();
        self.provider.release(order.binding_id, placement, &|| ())
    }

    /// Cuts and releases a lease.
    pub fn end(&self, order: &BindOrder) {
        self.cut(order).unwrap();
        self.release(order).unwrap();
    }

    /// The leases that the store and the path have something of, which must be the same.
    pub fn leases(&self) -> Vec<LeaseId> {
        use crate::{DataPath as _, Store as _};
        let sorted = |mut leases: Vec<LeaseId>| {
            leases.sort_unstable();
            leases
        };
        let of_store = sorted(self.store.leases().unwrap());
        assert_eq!(sorted(self.path.leases().unwrap()), of_store);
        of_store
    }

    /// Checks that nothing of any lease is left.
    pub fn is_clean(&self) {
        assert_eq!(self.machine.left(), [""; 0]);
        assert_eq!(self.leases(), []);
    }
}

/// A user of the machine that belongs to this tenant.
#[must_use]
pub fn user_of(tenant: &str) -> Caller {
    Caller {
        uid: 1000,
        pid: 1,
        tenants: vec![tenant.to_owned()],
        is_root: false,
    }
}

/// The id of a binding.
#[must_use]
pub fn binding_id(lease_id: LeaseId, generation: u32, resource_id: ResourceId) -> BindingId {
    BindingId {
        lease_id,
        generation: Generation(generation),
        resource_id,
    }
}
