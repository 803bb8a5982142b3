//! The part of a data path that FBMU and FBBU share: it carries out the orders of the lease table about bindings and
//! keys, on one port.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::{DataPath, Inline, Part, Revoked};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Custody, Linger, Lookup, Proof,
    StepError,
};
use fabricbios_wire::{
    Binding, DataService, DpKey, Endpoint, LeaseId, Limits, ResourceId, ResourceType,
};

use super::{
    binding_state::{BindingCell, BindingState, Phase},
    counters::Counters,
    entry::{Content, Entry, SessionLimits},
    leases::Leases,
    proof::why_unreachable,
    worker::Workers,
};
use crate::{AccessState, DataKey, Keys, Rate, ReplayWindow};

/// The data path of one service: [`FbmuPath`](crate::FbmuPath) or [`FbbuPath`](crate::FbbuPath).
#[derive(Debug)]
pub struct UdpPath<C: Content> {
    pub(super) leases: Arc<Leases<C>>,
    custody: Mutex<Custody<Arc<BindingCell<C>>>>,
    address: SocketAddr,
    limits: SessionLimits,
    pub(super) source: C::Source,
    counters: Arc<Counters>,
    workers: Workers,
}

impl<C: Content> UdpPath<C> {
    /// A path without leases.
    pub(super) fn new(
        address: SocketAddr,
        ops_per_second: u32,
        source: C::Source,
        (leases, counters): (Arc<Leases<C>>, Arc<Counters>),
        workers: Workers,
    ) -> Self {
        let at_once = (ops_per_second / 10).max(256);
        Self {
            leases,
            custody: Mutex::default(),
            address,
            limits: SessionLimits {
                rate: Rate::new(ops_per_second, at_once),
                window: ReplayWindow::LONGEST,
            },
            source,
            counters,
            workers,
        }
    }

    /// Sets how many requests each session remembers.
    #[must_use]
    pub fn with_window(mut self, window: ReplayWindow) -> Self {
        self.limits.window = window;
        self
    }

    /// Address of the sockets; it may be a wildcard.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Counters of the datagrams. A reply that is ready after the end of its lease counts as dropped.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Stops the threads and closes the sockets. Datagrams that a thread has received are answered first, and I/O in
    /// flight is waited for, two seconds at most.
    pub fn close(self) {
        drop(self.workers);
    }

    /// The lock of the custody. It is held for a look-up only and never while the lock of a cell is taken, so no lease
    /// waits here for another one.
    pub(super) fn custody(&self) -> MutexGuard<'_, Custody<Arc<BindingCell<C>>>> {
        self.custody.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cell of a lease, made if the lease has none yet.
    pub(super) fn cell(&self, binding_id: BindingId) -> Result<Arc<BindingCell<C>>, BindError> {
        let cell = self.custody().find_or_make(binding_id.lease_id);
        cell.ok_or(BindError::Cancelled)
    }

    /// Serves `content` as this binding. Before that an older binding is cut and its I/O has ended.
    pub(super) fn open_binding(
        &self,
        cell: &BindingCell<C>,
        binding_id: BindingId,
        content: C,
    ) -> Result<Binding, BindError> {
        let key = fresh_key(binding_id).map_err(BindError::Failed)?;
        let mut state = self.ready(cell, binding_id)?;
        let keys = Keys::new(DataKey::new(&key));
        let entry = Arc::new(Entry::new(binding_id, keys, content, self.limits));
        state.gate.open(binding_id.generation)?;
        let served = self.leases.serve(Arc::clone(&entry));
        served.map_err(BindError::Stranded)?;
        state.key = Some(key);
        state.phase = Phase::Live(entry);
        Ok(self.binding(&state))
    }

    /// Locks the cell once no older binding is left. The lock is free while this waits for the storage, so a cut never
    /// waits for the storage.
    fn ready<'a>(
        &self,
        cell: &'a BindingCell<C>,
        binding_id: BindingId,
    ) -> Result<MutexGuard<'a, BindingState<C>>, BindError> {
        loop {
            let mut state = cell.lock();
            if !state.gate.admits(binding_id.generation) {
                return Err(BindError::Cancelled);
            }
            self.end_older(&mut state, binding_id)?;
            let Some(older) = state.still_busy() else {
                return Ok(state);
            };
            drop(state);
            let quiet = older.content.wait_until_quiet(&|| ());
            // The older binding is cut already, so the lease has lost it even if the wait fails.
            quiet.map_err(|error| BindError::Failed(error).lost())?;
        }
    }

    /// Ends an older binding, if there is one.
    fn end_older(
        &self,
        state: &mut BindingState<C>,
        binding_id: BindingId,
    ) -> Result<(), BindError> {
        match &state.phase {
            Phase::Empty | Phase::Cut { .. } => Ok(()),
            Phase::Live(_) if state.gate.generation() == Some(binding_id.generation) => {
                Err(failed(binding_id, "this generation is bound already"))
            }
            Phase::Live(_) => match self.end(state, binding_id) {
                Ok(_proof) => Ok(()),
                Err(error) => Err(BindError::Stranded(error)),
            },
            Phase::Failed { error, .. } => Err(BindError::Stranded(error.clone())),
            Phase::Dirty { error, .. } => Err(failed(binding_id, &format!("not clean: {error}"))),
            Phase::Releasing(_) => Err(BindError::Cancelled),
        }
    }

    /// The coordinates of the live binding for the client.
    fn binding(&self, state: &BindingState<C>) -> Binding {
        let plain = Binding::plain(match C::SERVICE {
            DataService::Memory => ResourceType::Mem,
            DataService::Block => ResourceType::Block,
        });
        let Phase::Live(entry) = &state.phase else {
            return plain;
        };
        Binding {
            dp_key: state.key.clone(),
            udp_endpoint: Some(Endpoint::from(self.address)),
            limits: Some(Limits {
                offset: 0,
                length: entry.content.units(),
            }),
            ..plain
        }
    }

    /// The cell of a lease that is bound here.
    fn bound_cell(
        &self,
        binding_id: BindingId,
        step: &'static str,
    ) -> Result<Arc<BindingCell<C>>, StepError> {
        match self.custody().find(binding_id.lease_id) {
            Lookup::Here(cell) => Ok(cell),
            Lookup::Released | Lookup::Unknown => Err(not_bound(step, binding_id)),
        }
    }
}

impl<C: Content> DataPath for UdpPath<C> {
    fn inline(&self, resource_id: ResourceId) -> Inline {
        C::inline(&self.source, resource_id)
    }

    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        C::bind(self, order, part)
    }

    /// If the cell is locked, a bind or a cut is in progress; its report gives the lease table the result.
    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        let cell = match self.custody().find(binding_id.lease_id) {
            Lookup::Here(cell) => cell,
            Lookup::Released => return Err(AlreadyCut),
            Lookup::Unknown => return Ok(()),
        };
        if cell
            .try_lock()
            .is_some_and(|state| state.gate.is_closed(binding_id.generation))
        {
            return Err(AlreadyCut);
        }
        if let Some(entry) = self.leases.of(binding_id) {
            if entry.is_broken() {
                return Err(AlreadyCut);
            }
            entry.extend(deadline);
        }
        Ok(())
    }

    fn fenced(&self, binding_id: BindingId) {
        if let Some(entry) = self.leases.of(binding_id) {
            entry.set(AccessState::Fenced);
        }
    }

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        let cell = self
            .bound_cell(binding_id, "rotate")
            .map_err(BindError::Refused)?;
        let key = fresh_key(binding_id).map_err(BindError::Failed)?;
        let mut state = cell.lock();
        let entry = live(&state, binding_id, "rotate").map_err(BindError::Refused)?;
        let mut keys = entry.keys_alone();
        if keys.has_previous() {
            let detail =
                format!("{binding_id}: the key before the last rotation is not retired yet");
            return Err(BindError::Refused(StepError::new("rotate", detail)));
        }
        keys.rotate(DataKey::new(&key));
        drop(keys);
        state.gate.begin(binding_id.generation);
        state.key = Some(key);
        Ok(self.binding(&state))
    }

    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        let cell = self.bound_cell(binding_id, "retire key")?;
        let state = cell.lock();
        let entry = live(&state, binding_id, "retire key")?;
        self.prove_retired(entry)?;
        Ok(self.binding(&state))
    }

    /// Never waits for the storage. A write that the storage already has may still reach the medium; bytes that are
    /// read are not sent any more. `_linger` is not used: a client whose key is cut receives NO_LEASE in any case.
    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        let Some(cell) = self.custody().find_or_make(binding_id.lease_id) else {
            let proof = Proof::nothing_to_cut("the lease was released before");
            return Ok(Revoked::proved(proof));
        };
        let mut state = cell.lock();
        if let Err(moved_on) = state.gate.revoke(binding_id.generation) {
            return Ok(Revoked::proved(moved_on.into()));
        }
        self.end(&mut state, binding_id).map(Revoked::proved)
    }

    /// An entry exists only in the memory of this process: without an entry there is no access.
    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        if let Some(revoked) = revoked {
            return Ok(revoked.steps.clone());
        }
        let Some(cell) = self.custody().find(binding_id.lease_id).here() else {
            return Ok(Proof::nothing_to_cut(
                "this daemon has no entry of the lease",
            ));
        };
        let state = cell.lock();
        match &state.phase {
            Phase::Live(_) => Err(StepError::new(
                "verify",
                format_args!("{binding_id}: it is not cut"),
            )),
            Phase::Failed { error, .. } => Err(error.clone()),
            ended => Ok(why_unreachable(ended)),
        }
    }

    /// Gives up when no I/O of the lease ends for nine seconds.
    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        self.give_back(binding_id, progress)
    }

    /// The leases that were bound and are not released.
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let all = self.custody().all().into_iter();
        let there = all.filter(|(_, cell)| !matches!(cell.lock().phase, Phase::Empty));
        Ok(there.map(|(lease, _)| lease).collect())
    }
}

fn fresh_key(binding_id: BindingId) -> Result<DpKey, StepError> {
    let mut key = DpKey([0; 32]);
    let filled = getrandom::fill(&mut key.0);
    filled.map_err(|error| StepError::new("make a key", format_args!("{binding_id}: {error}")))?;
    Ok(key)
}

fn live<'a, C>(
    state: &'a BindingState<C>,
    binding_id: BindingId,
    step: &'static str,
) -> Result<&'a Arc<Entry<C>>, StepError> {
    state
        .live(binding_id.generation)
        .ok_or_else(|| not_bound(step, binding_id))
}

fn not_bound(step: &'static str, binding_id: BindingId) -> StepError {
    StepError::new(step, format_args!("{binding_id}: not bound here"))
}

pub(super) fn failed(binding_id: BindingId, why: &str) -> BindError {
    BindError::Failed(StepError::new("bind", format_args!("{binding_id}: {why}")))
}

#[cfg(test)]
mod tests;
