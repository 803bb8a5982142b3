//! Binding a lease over its paths, and changing its keys.

use fabricbios_lease::{BindError, BindOrder, BindingId, Linger, StepError};
use fabricbios_wire::{Binding, PeerChange};

use super::{Bindings, Lease, Provider, stranded_unless};
use crate::Part;

impl Provider {
    /// Opens the part and binds every path that the order names.
    ///
    /// # Errors
    /// See [`BindError`]. Everything that this call has made is removed, unless the error is `Stranded`.
    pub fn bind(&self, order: &BindOrder) -> Result<Binding, BindError> {
        let id = order.binding_id.lease_id;
        let Some(lease) = self.leases().find_or_make(id) else {
            return Err(BindError::Cancelled);
        };
        let _turn = lease.making();
        if lease.state().is_over {
            return Err(BindError::Cancelled);
        }
        lease.state().transport = Some(order.transport);
        let bound = self.bind_known(order, &lease);
        if bound.is_err() && !lease.state().has_part {
            self.leases().forget(id);
        }
        bound
    }

    fn bind_known(&self, order: &BindOrder, lease: &Lease) -> Result<Binding, BindError> {
        let store = self
            .store(order.binding_id.resource_id)
            .map_err(BindError::Failed)?;
        let part = store.open(order).inspect_err(|error| {
            // The store says that some of the part stays.
            lease.state().has_part |= matches!(error, BindError::Stranded(_));
        })?;
        let had_part = std::mem::replace(&mut lease.state().has_part, true);
        let (error, was_open) = match self.bind_paths(order, &part, lease) {
            Ok(binding) => return Ok(binding),
            // A path that stays may still use the part.
            Err((error @ BindError::Stranded(_), _)) => return Err(error),
            Err(failed) => failed,
        };
        if order.adopts || had_part {
            return Err(error);
        }
        let gone = match was_open {
            true => store
                .release(order.binding_id, Some(&order.placement), &|| ())
                .map(drop),
            false => store.forget(order.binding_id, &order.placement),
        };
        lease.state().has_part = gone.is_err();
        Err(stranded_unless(gone, error))
    }

    /// The `bool` of an error: whether a client may have used the part meanwhile.
    fn bind_paths(
        &self,
        order: &BindOrder,
        part: &Part,
        lease: &Lease,
    ) -> Result<Binding, (BindError, bool)> {
        let had_bindings = !lease.state().bindings.is_empty();
        let several = self.paths_over(Some(order.transport)).count() > 1;
        let mut made = 0;
        for (at, entry) in self.paths_over(Some(order.transport)) {
            match entry.path.bind(order, part) {
                Ok(binding) => lease.state().bindings.insert(at, Box::new(binding)),
                Err(error) => {
                    let error = match several {
                        true => with_path(entry.name, error),
                        false => error,
                    };
                    // The older binding goes on over every path. That of an adopted lease is kept by the kernel, also
                    // over the paths that have taken it up.
                    if (made == 0 || order.adopts) && !is_gone(&error) {
                        return Err((error, false));
                    }
                    let bindings = std::mem::take(&mut lease.state().bindings);
                    let error = self.close(order, bindings, had_bindings, error);
                    return Err((error, made > 0));
                }
            };
            made += 1;
        }
        if made == 0 && !self.paths.is_empty() {
            let why = format!("{:?} is not served here", order.transport);
            return Err((BindError::Refused(StepError::new("find path", why)), false));
        }
        let merged = merged(&lease.state().bindings);
        Ok(merged.unwrap_or_else(|| Binding::plain(order.terms.resource_type())))
    }

    /// Ends the new bindings and the older ones: a lease has all of its paths or none.
    fn close(
        &self,
        order: &BindOrder,
        bindings: Bindings,
        had_bindings: bool,
        error: BindError,
    ) -> BindError {
        let mut closed = Ok(());
        for at in bindings.into_keys() {
            let path = &self.paths[at].path;
            let cut = path
                .revoke(order.binding_id, Linger::None)
                .and_then(|revoked| path.verify(order.binding_id, Some(&revoked)));
            let gone = cut.and_then(|_proof| match had_bindings {
                true => Ok(()),
                false => path.remove(order.binding_id, &|| ()),
            });
            // Every path is tried, also after a failure.
            closed = closed.and(gone);
        }
        let error = if had_bindings { error.lost() } else { error };
        stranded_unless(closed, error)
    }

    /// Makes new keys on every path that has one. The paths come in their order, and only the first path may refuse. If
    /// a later path fails, a new key exists that no client receives: the error is `Stranded`. A path that waits for its
    /// client's queue pair has no key.
    ///
    /// # Errors
    /// After `Refused`, `Unavailable` and `Failed` the old keys are unchanged.
    pub fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        let Some(lease) = self.leases().find_or_make(binding_id.lease_id) else {
            return Err(BindError::Cancelled);
        };
        let keyed = keyed(&lease.state().bindings);
        for (nth, &at) in keyed.iter().enumerate() {
            let entry = &self.paths[at];
            let rotated = entry.path.rotate(binding_id).map_err(|error| match error {
                BindError::Refused(why) | BindError::Unavailable(why) | BindError::Failed(why)
                    if nth > 0 =>
                {
                    BindError::Stranded(why.over(entry.name))
                }
                error if keyed.len() > 1 => with_path(entry.name, error),
                error => error,
            });
            lease.state().bindings.insert(at, Box::new(rotated?));
        }
        let rotated = match keyed.is_empty() {
            true => None,
            false => merged(&lease.state().bindings),
        };
        rotated.ok_or_else(|| BindError::Refused(no_key("rotate", binding_id)))
    }

    /// Changes the queue pairs of the lease, on the path that has them.
    ///
    /// # Errors
    /// See [`crate::DataPath::change_peers`].
    pub fn change_peers(
        &self,
        binding_id: BindingId,
        change: &PeerChange,
    ) -> Result<Binding, BindError> {
        let Some(lease) = self.leases().find_or_make(binding_id.lease_id) else {
            return Err(BindError::Cancelled);
        };
        let bindings = lease.state().bindings.clone();
        let Some(&at) = bindings.iter().find_map(|(at, it)| it.rdma().map(|_| at)) else {
            let why = format_args!("{binding_id}: the lease has no queue pair now");
            return Err(BindError::Refused(StepError::new("change peers", why)));
        };
        let entry = &self.paths[at];
        let changed = entry.path.change_peers(binding_id, change);
        let changed = changed.map_err(|error| match bindings.len() {
            1 => error,
            _ => with_path(entry.name, error),
        })?;
        lease.state().bindings.insert(at, Box::new(changed.clone()));
        Ok(merged(&lease.state().bindings).unwrap_or(changed))
    }

    /// Retires the old keys on every path that has a key, also after a failure.
    ///
    /// # Errors
    /// An old key may still work.
    pub fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        let Some(lease) = self.leases().find_or_make(binding_id.lease_id) else {
            return Err(no_key("retire key", binding_id));
        };
        let mut bindings = lease.state().bindings.clone();
        let keyed = keyed(&bindings);
        let mut all = Ok(());
        for &at in keyed.iter().rev() {
            let entry = &self.paths[at];
            match entry.path.retire_key(binding_id) {
                Ok(binding) => drop(bindings.insert(at, Box::new(binding))),
                Err(error) if keyed.len() == 1 => all = Err(error),
                Err(error) => all = all.and(Err(error.over(entry.name))),
            }
        }
        match merged(&bindings).filter(|_| !keyed.is_empty()) {
            Some(binding) => all.map(|()| binding),
            None => Err(no_key("retire key", binding_id)),
        }
    }
}

/// The paths over which a lease has a key that can be changed.
fn keyed(bindings: &Bindings) -> Vec<usize> {
    let keyed = bindings.iter().filter(|(_, it)| it.has_key());
    keyed.map(|(at, _)| *at).collect()
}

/// The coordinates over all paths; `None` without any path.
fn merged(bindings: &Bindings) -> Option<Binding> {
    let bindings = bindings.values().map(|it| Binding::clone(it));
    bindings.reduce(Binding::or)
}

/// Whether the older binding is gone.
fn is_gone(error: &BindError) -> bool {
    matches!(error, BindError::Lost(_) | BindError::Stranded(_))
}

fn with_path(path: &'static str, error: BindError) -> BindError {
    match error {
        BindError::Refused(error) => BindError::Refused(error.over(path)),
        BindError::Unavailable(error) => BindError::Unavailable(error.over(path)),
        BindError::Failed(error) => BindError::Failed(error.over(path)),
        BindError::Lost(error) => BindError::Lost(error.over(path)),
        BindError::Stranded(error) => BindError::Stranded(error.over(path)),
        BindError::Cancelled => BindError::Cancelled,
    }
}

fn no_key(step: &'static str, binding_id: BindingId) -> StepError {
    StepError::new(step, format_args!("{binding_id}: the lease has no key now"))
}
