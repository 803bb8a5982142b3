//! One lease made of a part of a store and of the paths to it.
//!
//! Paths are bound in the order in which they were added: the one first that may refuse, or takes long. They are cut
//! backwards: the one first that is cut at once. The store's part is opened before the first path and released after
//! the last one.

mod binding;
mod cut;
mod reconcile;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Condition, Custody, Placement, StepError,
};
use fabricbios_wire::{Binding, LeaseId, ResourceId, Transport};

pub use cut::Cut;
pub use reconcile::{Stray, stray_binding_id};

use crate::{DataPath, Store};

/// See the module. Of one kind of resource: its stores have the same paths.
#[derive(Default)]
pub struct Provider {
    stores: BTreeMap<ResourceId, Arc<dyn Store>>,
    paths: Vec<Carrier>,
    leases: Mutex<Custody<Arc<Lease>>>,
}

/// A path, and which transports go over it.
struct Carrier {
    name: &'static str,
    transports: Vec<Transport>,
    path: Arc<dyn DataPath>,
}

impl Carrier {
    fn carries(&self, transport: Transport) -> bool {
        transport == Transport::Both || self.transports.contains(&transport)
    }
}

/// What is known of one lease.
#[derive(Default)]
struct Lease {
    /// Held while the lease is made or taken away. Cuts and changes of keys never want it.
    work: Mutex<()>,
    /// Held for a look.
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    /// Which paths it may have: all, where nobody knows.
    over: Option<Transport>,
    /// The store has its part.
    has_part: bool,
    /// What each path gave last, by the path's index.
    bindings: Bindings,
}

type Bindings = BTreeMap<usize, Binding>;

impl Lease {
    fn work(&self) -> MutexGuard<'_, ()> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        // A thread notes what it has done; one that panicked left the note of before.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Without stores and paths.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With the store of a resource.
    #[must_use]
    pub fn with_store(mut self, resource_id: ResourceId, store: Arc<dyn Store>) -> Self {
        self.stores.insert(resource_id, store);
        self
    }

    /// With a path behind those that it has. `name` is for errors of leases that have several.
    #[must_use]
    pub fn with_path(
        mut self,
        name: &'static str,
        transports: &[Transport],
        path: Arc<dyn DataPath>,
    ) -> Self {
        let transports = transports.to_vec();
        self.paths.push(Carrier {
            name,
            transports,
            path,
        });
        self
    }

    /// The part of a bind that takes long for a new lease, see [`Store::prepare`].
    ///
    /// # Errors
    /// There will be no binding, and nothing was left behind.
    pub fn prepare(&self, order: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        let is_known = self
            .leases()
            .find(order.binding_id.lease_id)
            .here()
            .is_some();
        match is_known || order.adopts {
            true => Ok(()),
            false => self
                .store(order.binding_id.resource_id)?
                .prepare(order, progress),
        }
    }

    /// A lease of an earlier process has this transport: it concerns no other path.
    pub fn expect(&self, lease: LeaseId, transport: Transport) {
        if let Some(lease) = self.leases().find_or_make(lease) {
            lease.notes().over = Some(transport);
        }
    }

    /// The grant of a lease is in the journal, see [`Store::confirm`].
    ///
    /// # Errors
    /// Nobody may be told of the lease.
    pub fn confirm(&self, binding_id: BindingId) -> Result<(), StepError> {
        self.store(binding_id.resource_id)?.confirm(binding_id)
    }

    /// The lease may be used until then. Never blocks.
    ///
    /// # Errors
    /// A path has cut the binding: the lease cannot go on over the others either.
    pub fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        let extend = |(_, it): (usize, &Carrier)| it.path.extend(binding_id, deadline);
        // Every one is told, whatever the first says.
        self.of(binding_id.lease_id)
            .map(extend)
            .fold(Ok(()), Result::and)
    }

    /// The end of the lease could not be proved. Never blocks.
    pub fn fenced(&self, binding_id: BindingId) {
        self.of(binding_id.lease_id)
            .for_each(|(_, it)| it.path.fenced(binding_id));
    }

    /// After the cut: takes away what the paths have left, then gives the part back.
    ///
    /// # Errors
    /// The next holder could find something of the lease.
    pub fn release(
        &self,
        binding_id: BindingId,
        placement: impl Into<Placement>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let placement = placement.into();
        let taken = self.unless_released(binding_id, || {
            self.take_away(binding_id, Some(&placement), progress)
        });
        self.or_fenced(binding_id, taken)
    }

    /// From now on `tell` is told how each of the stores does, see [`Store::tell_condition`].
    pub fn tell_conditions(&self, tell: &Arc<dyn Fn(ResourceId, Condition) + Send + Sync>) {
        for (&resource_id, store) in &self.stores {
            let tell = Arc::clone(tell);
            store.tell_condition(Box::new(move |condition| tell(resource_id, condition)));
        }
    }

    /// Remediation of a fenced resource: each of these leases is cut, released and looked for again, by its name alone.
    /// Leases in use are not touched.
    ///
    /// # Errors
    /// Something of one of them may still be there.
    pub fn reset(
        &self,
        resource_id: ResourceId,
        leases: &[(BindingId, Placement)],
    ) -> Result<(), StepError> {
        self.store(resource_id)?;
        for (binding_id, placement) in leases {
            let binding_id = *binding_id;
            // A late release may be at it: one at a time.
            let taken = self.unless_released(binding_id, || {
                self.cut_by_name(binding_id)?;
                self.take_away(binding_id, Some(placement), &|| ())
            });
            self.or_fenced(binding_id, taken)?;
        }
        self.remove_strays(resource_id)
    }

    fn leases(&self) -> MutexGuard<'_, Custody<Arc<Lease>>> {
        // Held for a look-up, never while a lease's work is waited for.
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

    /// The paths that a lease may have: all, where nothing is known of it.
    fn of(&self, lease: LeaseId) -> impl DoubleEndedIterator<Item = (usize, &Carrier)> {
        let known = self.leases().find(lease).here();
        let over = known.and_then(|it| it.notes().over);
        self.over(over)
    }

    fn over(
        &self,
        transport: Option<Transport>,
    ) -> impl DoubleEndedIterator<Item = (usize, &Carrier)> {
        let paths = self.paths.iter().enumerate();
        paths.filter(move |(_, it)| transport.is_none_or(|transport| it.carries(transport)))
    }

    fn take_away(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        for (_, carrier) in self.of(binding_id.lease_id).rev() {
            carrier.path.remove(binding_id, progress)?;
        }
        self.store(binding_id.resource_id)?
            .release(binding_id, placement, progress)
    }

    /// Does what ends a lease for good, once.
    fn unless_released(
        &self,
        binding_id: BindingId,
        end: impl FnOnce() -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        let Some(lease) = self.leases().find_or_make(binding_id.lease_id) else {
            return Ok(());
        };
        let _turn = lease.work();
        // Somebody else may have done it while this one waited.
        if self.leases().find_or_make(binding_id.lease_id).is_none() {
            return Ok(());
        }
        end()?;
        self.leases().release(binding_id.lease_id);
        Ok(())
    }

    /// Whoever still asks is told that the end could not be proved.
    fn or_fenced<T>(
        &self,
        binding_id: BindingId,
        outcome: Result<T, StepError>,
    ) -> Result<T, StepError> {
        outcome.inspect_err(|_| self.fenced(binding_id))
    }
}

/// The error, if what was open is closed; else what stays is the news.
fn stranded_unless(closed: Result<(), StepError>, error: BindError) -> BindError {
    match (closed, error) {
        (Ok(()), error) | (Err(_), error @ BindError::Stranded(_)) => error,
        (Err(left), _) => BindError::Stranded(left),
    }
}
