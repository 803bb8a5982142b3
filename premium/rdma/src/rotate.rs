//! Rotation: every queue pair has a second key beside the first for a while.
//!
//! A window is never bound again: one access with the old key would put the queue pairs at both ends in ERR. So the new
//! key has another window on the same queue pair, or another region.

use std::sync::Arc;

use fabricbios_lease::{BindError, BindingId, StepError};
use fabricbios_verbs::{MemoryRegion, ProtectionDomain, QueuePairState, Window, WindowMaker};
use fabricbios_wire::{Binding, ResourceType};

use super::{
    RdmaPath,
    binding_state::{BindingState, Phase},
    cut::end_all,
    grant::dealloc_unbound,
    memory::Bytes,
    parts::{BindingParts, Pair, Parts},
};

/// The binding that needs new keys.
struct Wanted {
    windows: Vec<WindowMaker>,
    bytes: Bytes,
    /// The domain of the lease, if leases are regions.
    domain: Option<Arc<ProtectionDomain>>,
}

/// New keys: a window for each queue pair, or a region.
#[derive(Default)]
struct NewKeys {
    windows: Vec<Window>,
    regions: Vec<MemoryRegion>,
}

impl RdmaPath {
    pub(super) fn add_key(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        let cell = self
            .bound_cell(binding_id, "rotate")
            .map_err(BindError::Refused)?;
        let wanted = cell
            .begin_change(|state| self.check_rotation(state, binding_id))
            .map_err(BindError::Refused)?;
        // Without the lock: the kernel may take long.
        let new_keys = self.make_keys(wanted, binding_id);
        let mut state = cell.lock();
        state.changing = false;
        let result = self.attach(&mut state, new_keys, binding_id);
        drop(state);
        cell.wake();
        result
    }

    /// Checks that a second key can be made.
    fn check_rotation(
        &self,
        state: &mut BindingState<Parts>,
        binding_id: BindingId,
    ) -> Result<Wanted, StepError> {
        let parts = self.live(state, binding_id, "rotate")?;
        let refuse = |why: &str| Err(self.hardware.error("rotate", binding_id, why));
        if parts.keys() > 1 {
            return refuse("the key before the last rotation is not retired yet");
        }
        for pair_state in parts.pairs.iter().map(Pair::state) {
            match pair_state {
                Ok(QueuePairState::ReadyToSend) => {}
                Ok(_) => {
                    return refuse("a queue pair has failed: bind the lease again with a new one");
                }
                Err(errno) => return Err(self.hardware.refused("query_qp", binding_id, errno)),
            }
        }
        Ok(Wanted {
            windows: parts.window_makers(),
            bytes: parts.bytes.clone(),
            domain: parts.domain.clone(),
        })
    }

    /// Makes the keys. An error also returns the objects that could not be destroyed.
    fn make_keys(&self, wanted: Wanted, binding_id: BindingId) -> (NewKeys, Result<(), StepError>) {
        let mut new_keys = NewKeys::default();
        let result = match &wanted.domain {
            Some(domain) => {
                let regions = &mut new_keys.regions;
                self.hardware
                    .register_key(domain, &wanted.bytes, binding_id, regions)
            }
            None => self
                .hardware
                .new_windows(&wanted.windows, binding_id)
                .map(|windows| new_keys.windows = windows),
        };
        (new_keys, result)
    }

    /// Adds the new keys to the binding and opens access with them, if the binding is still live.
    fn attach(
        &self,
        state: &mut BindingState<Parts>,
        (new_keys, result): (NewKeys, Result<(), StepError>),
        binding_id: BindingId,
    ) -> Result<Binding, BindError> {
        let cancelled = state.gate.is_revoked(binding_id.generation);
        let parts = match self.live(state, binding_id, "rotate") {
            Ok(parts) => parts,
            Err(error) => {
                // The lease has ended meanwhile.
                return Err(match self.discard(new_keys, binding_id, error).0 {
                    BindError::Failed(_) if cancelled => BindError::Cancelled,
                    error => error,
                });
            }
        };
        let (new_keys, opened) = match result {
            Ok(()) => {
                parts.add_windows(new_keys.windows);
                parts.regions.extend(new_keys.regions);
                let opened = self.hardware.open_access(parts, 0, binding_id);
                (opened.is_err().then(|| take_newest(parts)), opened)
            }
            failed => (Some(new_keys), failed),
        };
        if let (Some(new_keys), Err(error)) = (new_keys, opened) {
            let (error, left) = self.discard(new_keys, binding_id, error);
            // The cut destroys them.
            if let Some(pair) = parts.pairs.first_mut() {
                pair.unbound_windows.extend(left.windows);
            }
            parts.regions.splice(0..0, left.regions);
            return Err(error);
        }
        let binding = self.hardware.binding(parts);
        state.gate.begin(binding_id.generation);
        Ok(binding)
    }

    /// Destroys the keys of a failed rotation. Returns the error, and the keys that the kernel refuses to destroy.
    fn discard(
        &self,
        new_keys: NewKeys,
        binding_id: BindingId,
        error: StepError,
    ) -> (BindError, NewKeys) {
        let mut left = NewKeys {
            windows: dealloc_unbound(new_keys.windows),
            regions: new_keys.regions,
        };
        let regions = end_all(&mut left.regions, |region| self.hardware.dereg(region));
        let error = match (left.windows.is_empty(), regions) {
            (false, _) => BindError::Stranded(self.hardware.error("dealloc_mw", binding_id, error)),
            (true, Err(_)) => {
                BindError::Stranded(self.hardware.error("dereg_mr", binding_id, error))
            }
            (true, Ok(())) => BindError::Failed(error),
        };
        (error, left)
    }

    pub(super) fn drop_old_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        let cell = self.bound_cell(binding_id, "retire key")?;
        let mut state = cell.lock_settled()?;
        if matches!(state.phase, Phase::Cut(_)) {
            // The key ended with its binding, and a newer binding is being made.
            return Ok(Binding::plain(ResourceType::Mem));
        }
        let parts = self.live(&mut state, binding_id, "retire key")?;
        self.hardware.retire_oldest(parts, binding_id)?;
        Ok(self.hardware.binding(parts))
    }

    /// The objects of the live binding. An error if the order is for an older binding.
    pub(super) fn live<'a>(
        &self,
        state: &'a mut BindingState<Parts>,
        binding_id: BindingId,
        step: &'static str,
    ) -> Result<&'a mut Parts, StepError> {
        match &mut state.phase {
            Phase::Live(parts) if state.gate.admits(binding_id.generation) => Ok(parts),
            _ => Err(self
                .hardware
                .error(step, binding_id, "the lease has no key now")),
        }
    }
}

/// Removes and returns the newest keys, which may be open on some queue pairs only.
fn take_newest(parts: &mut BindingParts) -> NewKeys {
    let pairs = parts.pairs.iter_mut();
    NewKeys {
        windows: pairs
            .filter_map(|pair| (pair.windows.len() > 1).then(|| pair.windows.pop())?)
            .collect(),
        regions: match parts.regions.len() {
            0 | 1 => Vec::new(),
            _ => parts.regions.pop().into_iter().collect(),
        },
    }
}
