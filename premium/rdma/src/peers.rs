//! Queue pairs that join a live binding, or leave it, while the others go on.
//!
//! Those that join are made and connected without the lock, like a new key; they have no rights until they are opened,
//! under the lock, if no cut has come. Until then no other code knows them, so a failure or a cut destroys only them. Those
//! that leave are ended under the lock, so that a cut finds either all of their objects or the proof that they are gone.

use fabricbios_lease::{BindError, BindingId, StepError};
use fabricbios_wire::{Binding, PeerChange, RDMA_QUEUE_PAIRS_MAX, RdmaPeer};

use super::{
    RdmaPath,
    binding_cell::BindingCell,
    binding_state::BindingState,
    parts::{BindingParts, Pair, Parts},
};

const STEP: &str = "change peers";

impl RdmaPath {
    pub(super) fn change(
        &self,
        binding_id: BindingId,
        change: &PeerChange,
    ) -> Result<Binding, BindError> {
        let cell = self.bound_cell(binding_id, STEP);
        let cell = cell.map_err(BindError::Refused)?;
        match change {
            PeerChange::Add(peers) => self.add_peers(&cell, binding_id, peers),
            PeerChange::Remove(numbers) => self.remove_pairs(&cell, binding_id, numbers),
        }
    }

    fn add_peers(
        &self,
        cell: &BindingCell<Parts>,
        binding_id: BindingId,
        peers: &[RdmaPeer],
    ) -> Result<Binding, BindError> {
        let mut checked = peers.iter().map(|peer| self.hardware.check_peer(peer));
        checked.try_for_each(|it| it).map_err(BindError::Refused)?;
        self.check_watched(binding_id)?;
        let joining = cell.begin_change(|state| self.prepare_beside(state, binding_id, peers));
        let mut joining = joining.map_err(BindError::Refused)?;
        // Without the lock: the kernel may take long.
        let connected = self.connect_beside(cell, &mut joining, binding_id, peers);
        let mut state = cell.lock();
        let joined = connected.and_then(|()| self.join(&mut state, &mut joining, binding_id));
        let is_revoked = state.gate.is_revoked(binding_id.generation);
        drop(state);
        let joined = joined.map_err(|why| match is_revoked {
            true => BindError::Cancelled,
            false => why,
        });
        // The binding keeps what all its queue pairs share.
        (joining.completions, joining.domain) = (None, None);
        let left = match joining.pairs.is_empty() {
            true => Vec::new(),
            false => vec![joining],
        };
        // They have no access: what cannot be destroyed now is a leftover.
        self.tidy(cell, left, binding_id).unwrap_or_default();
        joined
    }

    /// Checks that the queue pairs may join. Returns what they share with the others.
    fn prepare_beside(
        &self,
        state: &mut BindingState<Parts>,
        binding_id: BindingId,
        peers: &[RdmaPeer],
    ) -> Result<Parts, StepError> {
        let parts = self.live(state, binding_id, STEP)?;
        let refuse = |why: String| Err(self.hardware.error(STEP, binding_id, why));
        let has = parts.pairs.len();
        if has + peers.len() > RDMA_QUEUE_PAIRS_MAX {
            return refuse(format!(
                "it has {has} queue pairs of {RDMA_QUEUE_PAIRS_MAX}"
            ));
        }
        // The coordinates have one path MTU for all.
        let is_less = |it: &&RdmaPeer| it.path_mtu != 0 && it.path_mtu < parts.mtu_bytes;
        if let Some(peer) = peers.iter().find(is_less) {
            return refuse(format!(
                "path MTU {} is less than {}, which the binding has: bind the lease anew with it",
                peer.path_mtu, parts.mtu_bytes
            ));
        }
        let mut joining = BindingParts::new(parts.bytes.clone(), parts.mtu_bytes);
        joining.completions.clone_from(&parts.completions);
        joining.domain.clone_from(&parts.domain);
        Ok(joining)
    }

    fn connect_beside(
        &self,
        cell: &BindingCell<Parts>,
        joining: &mut Parts,
        binding_id: BindingId,
        peers: &[RdmaPeer],
    ) -> Result<(), BindError> {
        let failed = BindError::Failed;
        let hardware = &self.hardware;
        let made = hardware.add_pairs(joining, binding_id, peers.len());
        made.map_err(failed)?;
        let give_up = || cell.is_revoked(binding_id.generation);
        hardware.connect_all(joining, binding_id, peers, give_up)?;
        // Not before: the guard takes a queue pair without its peer for another one.
        hardware.announce(joining, binding_id, || cell.deadline());
        let windows = hardware.new_windows(&joining.window_makers(), binding_id);
        joining.add_windows(windows.map_err(failed)?);
        Ok(())
    }

    /// Opens the queue pairs as part of the binding, if it is still live. After a failure `joining` has those that give no access.
    fn join(
        &self,
        state: &mut BindingState<Parts>,
        joining: &mut Parts,
        binding_id: BindingId,
    ) -> Result<Binding, BindError> {
        let parts = self.live(state, binding_id, STEP);
        let parts = parts.map_err(BindError::Failed)?;
        let first = parts.pairs.len();
        parts.pairs.append(&mut joining.pairs);
        let Err(error) = self.hardware.open_access(parts, first, binding_id) else {
            return Ok(self.hardware.binding(parts));
        };
        // Some of them may be open. They end under the lock, or stay in the binding for its cut.
        let completions = parts.completions.as_deref();
        let mut failed: Vec<&mut Pair> = parts.pairs[first..].iter_mut().collect();
        let ended = self.hardware.end_some(&mut failed, completions, binding_id);
        if let Err(left) = ended {
            tracing::warn!(error = %left, "a queue pair that could not join stays until the cut");
        }
        let is_gone = |pair: &Pair| pair.proven_gone;
        let failed = parts.pairs.split_off(first).into_iter();
        let (gone, stay): (Vec<_>, Vec<_>) = failed.partition(is_gone);
        parts.pairs.extend(stay);
        joining.pairs = gone;
        Err(BindError::Failed(error))
    }

    fn remove_pairs(
        &self,
        cell: &BindingCell<Parts>,
        binding_id: BindingId,
        numbers: &[u32],
    ) -> Result<Binding, BindError> {
        let live = |state: &mut BindingState<Parts>| self.live(state, binding_id, STEP).map(|_| ());
        cell.begin_change(live).map_err(BindError::Refused)?;
        let mut state = cell.lock();
        let mut left = None;
        let removed = self.live(&mut state, binding_id, STEP);
        let removed = removed.map_err(BindError::Failed).and_then(|parts| {
            let ended = self.end_these(parts, binding_id, numbers);
            left = self.take_ended(parts, binding_id);
            ended.map_err(BindError::Failed)?;
            Ok(self.hardware.binding(parts))
        });
        state.leftovers.extend(left);
        state.changing = false;
        drop(state);
        cell.wake();
        removed
    }

    /// Ends these queue pairs.
    fn end_these(
        &self,
        parts: &mut BindingParts,
        binding_id: BindingId,
        numbers: &[u32],
    ) -> Result<(), StepError> {
        if let Some(guard) = &self.hardware.guard {
            guard.moves();
        }
        let pairs = parts.pairs.iter_mut();
        let mut leaving: Vec<_> = pairs.filter(|it| numbers.contains(&it.number)).collect();
        let completions = parts.completions.as_deref();
        self.hardware
            .end_some(&mut leaving, completions, binding_id)
    }

    /// Takes the queue pairs that are proved gone out of the binding; the others keep their places. Returns objects that give
    /// no access and could not be destroyed.
    fn take_ended(&self, parts: &mut BindingParts, binding_id: BindingId) -> Option<Parts> {
        let is_gone = |pair: &Pair| pair.proven_gone;
        let (gone, stay) = std::mem::take(&mut parts.pairs)
            .into_iter()
            .partition(is_gone);
        parts.pairs = stay;
        let mut left = BindingParts::new(parts.bytes.clone(), parts.mtu_bytes);
        left.pairs = gone;
        parts.left += left.pairs.len();
        if let Some(guard) = &self.hardware.guard {
            let ends = |pair: &Pair| guard.ends(binding_id.lease_id, pair.number);
            left.pairs.iter().for_each(ends);
        }
        Some(left).filter(|left| !left.is_empty())
    }
}
