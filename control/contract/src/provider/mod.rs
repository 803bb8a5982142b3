//! One lease made of a part of a store and of the paths to it.
//!
//! Paths are bound in the order of their addition: a path that may refuse or takes long comes first. They are cut in
//! reverse order: a path whose cut is immediate comes first. The store's part is opened before the first path and
//! released after the last one.

mod binding;
mod cut;
mod inline;
mod reconcile;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Condition, Custody, Lookup, Placement,
    Proof, StepError,
};
use fabricbios_wire::{Binding, LeaseId, ResourceId, Transport};

pub use cut::Cut;
pub use reconcile::{Removal, Stray, stray_binding_id};

use crate::{DataPath, Store};

/// See the module. A provider has one kind of resource: all its stores have the same paths.
#[derive(Default)]
pub struct Provider {
    stores: BTreeMap<ResourceId, Arc<dyn Store>>,
    paths: Vec<PathEntry>,
    /// Knows which leases were released: no store opens or cleans a part for them.
    leases: Mutex<Custody<Arc<Lease>>>,
    /// Strays that a removal of the start is taking away. Who took one away beside it could clean the part once more
    /// when it is the next lease's.
    taking_away: Mutex<BTreeSet<LeaseId>>,
}

/// A path and its transports.
struct PathEntry {
    name: &'static str,
    transports: Vec<Transport>,
    path: Arc<dyn DataPath>,
}

impl PathEntry {
    fn carries(&self, transport: Transport) -> bool {
        transport == Transport::Both || self.transports.contains(&transport)
    }
}

/// The state of one lease.
#[derive(Default)]
struct Lease {
    /// Held while the lease is made or removed. Cuts and changes of keys never take this lock.
    making: Mutex<()>,
    /// Held for a moment only.
    state: Mutex<LeaseState>,
}

#[derive(Default)]
struct LeaseState {
    /// The transport of the lease; `None`: unknown, the lease may have every path.
    transport: Option<Transport>,
    /// The store has a part of the lease.
    has_part: bool,
    /// The end for good has begun: nothing of the lease is made any more.
    is_over: bool,
    /// The last binding of each path, by the path's index.
    bindings: Bindings,
}

type Bindings = BTreeMap<usize, Box<Binding>>;

impl Lease {
    fn making(&self) -> MutexGuard<'_, ()> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, LeaseState> {
        // A thread writes a note after each step; a thread that panicked leaves the note of the step before.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("stores", &self.stores.keys())
            .field(
                "paths",
                &self.paths.iter().map(|it| it.name).collect::<Vec<_>>(),
            )
            .finish_non_exhaustive()
    }
}

impl Provider {
    /// A provider without stores and paths.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the store of a resource.
    #[must_use]
    pub fn with_store(mut self, resource_id: ResourceId, store: Arc<dyn Store>) -> Self {
        self.stores.insert(resource_id, store);
        self
    }

    /// Adds a path, behind the others. `name` is for errors of leases with several paths.
    #[must_use]
    pub fn with_path(
        mut self,
        name: &'static str,
        transports: &[Transport],
        path: Arc<dyn DataPath>,
    ) -> Self {
        let transports = transports.to_vec();
        self.paths.push(PathEntry {
            name,
            transports,
            path,
        });
        self
    }

    /// The long step of a bind for a new lease, see [`Store::prepare`].
    ///
    /// # Errors
    /// There is no binding, and nothing is left behind.
    pub fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        let found = self.leases().find(order.binding_id.lease_id);
        match found {
            Lookup::Unknown if !order.adopts => self
                .store(order.binding_id.resource_id)?
                .prepare(order, progress),
            // A released lease has no part: another one may have it.
            Lookup::Unknown | Lookup::Here(_) | Lookup::Released => Ok(()),
        }
    }

    /// Sets the transport of a lease of an earlier process, so that only the paths of this transport count for the
    /// lease.
    pub fn expect(&self, lease: LeaseId, transport: Transport) {
        if let Some(lease) = self.leases().find_or_make(lease) {
            lease.state().transport = Some(transport);
        }
    }

    /// Reports that the grant of a lease is in the journal, see [`Store::confirm`].
    ///
    /// # Errors
    /// The client must not receive the lease.
    pub fn confirm(&self, binding_id: BindingId) -> Result<(), StepError> {
        self.store(binding_id.resource_id)?.confirm(binding_id)
    }

    /// Sets the deadline of the lease. Never blocks.
    ///
    /// # Errors
    /// A path has cut the binding: the lease cannot go on over the other paths either.
    pub fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        let extend = |(_, it): (usize, &PathEntry)| it.path.extend(binding_id, deadline);
        // Every path gets the deadline, also after a refusal.
        self.of(binding_id.lease_id)
            .map(extend)
            .fold(Ok(()), Result::and)
    }

    /// Reports to the paths that the end of the lease is not proved. Never blocks.
    pub fn fenced(&self, binding_id: BindingId) {
        self.of(binding_id.lease_id)
            .for_each(|(_, it)| it.path.fenced(binding_id));
    }

    /// After the cut: removes the objects of the paths, then releases the part. Returns what was cleaned; nothing if
    /// the lease was released before.
    ///
    /// # Errors
    /// The next holder could find data of the lease.
    pub fn release(
        &self,
        binding_id: BindingId,
        placement: impl Into<Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let placement = placement.into();
        let taken = self.unless_released(binding_id, |has_part| {
            self.take_away(binding_id, has_part.then_some(&placement), progress)
        });
        self.or_fenced(binding_id, taken)
    }

    /// Calls `tell` with the condition of each store, see [`Store::tell_condition`].
    pub fn tell_conditions(&self, tell: &Arc<dyn Fn(ResourceId, Condition) + Send + Sync>) {
        for (&resource_id, store) in &self.stores {
            let tell = Arc::clone(tell);
            store.tell_condition(Box::new(move |condition| tell(resource_id, condition)));
        }
    }

    /// Remediation of a fenced resource: takes away its strays, cuts and releases each of these leases by its name
    /// alone, and repairs the store. Leases in use are not touched.
    ///
    /// # Errors
    /// Objects or data of a lease may remain.
    pub fn reset(
        &self,
        resource_id: ResourceId,
        leases: &[(BindingId, Placement)],
    ) -> Result<(), StepError> {
        let store = self.store(resource_id)?;
        // A stray may have a part that the table gave to one of these leases, which then cannot be cleaned. A stray that
        // stays keeps no lease from its end.
        let strays = self.remove_strays(resource_id, leases);
        for (binding_id, placement) in leases {
            let binding_id = *binding_id;
            // A late release may run at the same time.
            let taken = self.unless_released(binding_id, |has_part| {
                self.cut_by_name(binding_id)?;
                self.take_away(binding_id, has_part.then_some(placement), &|| ())
            });
            self.or_fenced(binding_id, taken)?;
        }
        strays?;
        store.repair()
    }

    fn leases(&self) -> MutexGuard<'_, Custody<Arc<Lease>>> {
        // Held for a look-up only, never during a wait for a lease.
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self, resource_id: ResourceId) -> Result<&dyn Store, StepError> {
        let store = self.stores.get(&resource_id).map(|store| &**store);
        store.ok_or_else(|| {
            StepError::new(
                "find store",
                format_args!("resource {resource_id} has none here"),
            )
        })
    }

    /// The paths that a lease may have: all paths for an unknown lease.
    fn of(&self, lease: LeaseId) -> impl DoubleEndedIterator<Item = (usize, &PathEntry)> {
        let known = self.leases().find(lease).here();
        let over = known.and_then(|it| it.state().transport);
        self.paths_over(over)
    }

    fn paths_over(
        &self,
        transport: Option<Transport>,
    ) -> impl DoubleEndedIterator<Item = (usize, &PathEntry)> {
        let paths = self.paths.iter().enumerate();
        paths.filter(move |(_, it)| transport.is_none_or(|transport| it.carries(transport)))
    }

    fn take_away(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        for (_, entry) in self.of(binding_id.lease_id).rev() {
            entry.path.remove(binding_id, progress)?;
        }
        self.store(binding_id.resource_id)?
            .release(binding_id, placement, progress)
    }

    /// Ends a lease for good, once. `end` receives whether the store has a part of the lease: without one, the place
    /// that the table gave to the lease may be in use by a stray, and is not cleaned for this lease.
    fn unless_released(
        &self,
        binding_id: BindingId,
        end: impl FnOnce(bool) -> Result<Proof, StepError>,
    ) -> Result<Proof, StepError> {
        let Some(lease) = self.leases().find_or_make(binding_id.lease_id) else {
            return Ok(Proof::default());
        };
        let _turn = lease.making();
        // Another thread may have ended or forgotten the lease during the wait.
        let Some(known) = self.leases().find_or_make(binding_id.lease_id) else {
            return Ok(Proof::default());
        };
        known.state().is_over = true;
        let has_part = known.state().has_part;
        let cleaned = end(has_part)?;
        self.leases().release(binding_id.lease_id);
        Ok(cleaned)
    }

    /// On an error, reports to the paths that the end is not proved.
    fn or_fenced<T>(
        &self,
        binding_id: BindingId,
        outcome: Result<T, StepError>,
    ) -> Result<T, StepError> {
        outcome.inspect_err(|_| self.fenced(binding_id))
    }
}

/// Returns `error` if everything is closed, else `Stranded`.
fn stranded_unless(closed: Result<(), StepError>, error: BindError) -> BindError {
    match (closed, error) {
        (Ok(()), error) | (Err(_), error @ BindError::Stranded(_)) => error,
        (Err(left), _) => BindError::Stranded(left),
    }
}
