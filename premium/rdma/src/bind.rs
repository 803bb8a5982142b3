//! Carries out a bind order: makes new objects or uses those of an earlier order, and opens access.
//!
//! The kernel may take seconds to resolve the address of a peer, and no lock is held meanwhile. A cut in this time only
//! sets the revoked generation, which is checked again under the lock before access opens. An older binding of the
//! lease stays open meanwhile, and a failure of the new binding does not touch it. When the new binding is connected,
//! the older one is cut, with proof, and only then the new one opens. A lease never has two open bindings.

use fabricbios_lease::{BindError, BindOrder, BindingId, Extent, Linger, StepError};
use fabricbios_wire::{Binding, Transport};

use super::{
    RdmaPath,
    binding_cell::BindingCell,
    binding_state::{BindingState, Phase},
    binding_step::BindStep,
    memory::Bytes,
    parts::Parts,
};

/// The objects of a lease when a bind begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A queue pair in INIT, which this bind connects.
    Prepared,
    /// An older binding, which stays open until the new one is connected.
    InUse,
}

impl RdmaPath {
    pub(super) fn carry_out(
        &self,
        order: &BindOrder,
        extent: Extent,
    ) -> Result<Binding, BindError> {
        let bytes = self.check_order(order, extent);
        let bytes = bytes.map_err(BindError::Refused)?;
        self.check_guard(order.binding_id)?;
        let cell = self.custody().find_or_make(order.binding_id.lease_id);
        let cell = cell.ok_or(BindError::Cancelled)?;
        let made = self.queue_pairs_for(&cell, order, bytes);
        let result = made.and_then(|(parts, before)| self.establish(&cell, order, parts, before));
        if result.is_err() {
            self.forget_if_nothing(&cell, order);
        }
        result
    }

    /// Checks the order. Returns the bytes of the lease.
    fn check_order(&self, order: &BindOrder, extent: Extent) -> Result<Bytes, StepError> {
        let is_ours = matches!(
            order.transport,
            Transport::Rdma | Transport::Both | Transport::Auto
        );
        if !is_ours {
            let detail = format!("transport {:?} is not served by this path", order.transport);
            return Err(StepError::new("check order", detail));
        }
        order
            .peers()
            .iter()
            .try_for_each(|peer| self.hardware.check_peer(peer))?;
        self.hardware.bytes(order.binding_id.resource_id, extent)
    }

    /// Gets queue pairs in INIT for this thread. They are those of the cell, whose phase becomes Connecting, or new
    /// ones beside an older binding.
    fn queue_pairs_for(
        &self,
        cell: &BindingCell<Parts>,
        order: &BindOrder,
        bytes: Bytes,
    ) -> Result<(Parts, Before), BindError> {
        let binding_id = order.binding_id;
        loop {
            match cell.begin_bind(binding_id.generation, !order.peers().is_empty()) {
                BindStep::Fresh => return self.fresh(cell, (order, bytes), Before::Nothing),
                BindStep::Beside => return self.fresh(cell, (order, bytes), Before::InUse),
                BindStep::Connect(parts) => return Ok((parts, Before::Prepared)),
                BindStep::Tidy(leftovers) => {
                    let tidied = self.tidy(cell, leftovers, binding_id);
                    tidied.map_err(BindError::Failed)?;
                }
                BindStep::Cancelled => return Err(BindError::Cancelled),
                BindStep::Stranded(error) => return Err(BindError::Stranded(error)),
                BindStep::Refuse(why) => {
                    let error = self.hardware.error("bind", binding_id, why);
                    return Err(BindError::Failed(error));
                }
            }
        }
    }

    fn fresh(
        &self,
        cell: &BindingCell<Parts>,
        (order, bytes): (&BindOrder, Bytes),
        before: Before,
    ) -> Result<(Parts, Before), BindError> {
        let count = order.peers().len().max(1);
        match self.hardware.prepare(order.binding_id, bytes, count) {
            Ok(parts) => Ok((parts, before)),
            Err((parts, error)) => Err(self.give_up(
                cell,
                order.binding_id,
                parts,
                before,
                BindError::Failed(error),
            )),
        }
    }

    /// Connects the queue pairs, ends an older binding and opens access.
    fn establish(
        &self,
        cell: &BindingCell<Parts>,
        order: &BindOrder,
        mut parts: Parts,
        before: Before,
    ) -> Result<Binding, BindError> {
        let binding_id = order.binding_id;
        let connected = match self.connect(cell, order, &mut parts) {
            Err(_) if cell.is_revoked(binding_id.generation) => Err(BindError::Cancelled),
            connected => connected,
        };
        let ready = connected.and_then(|()| self.end_older(cell, binding_id, before));
        if let Err(why) = ready {
            return Err(self.give_up(cell, binding_id, parts, before, why));
        }
        let mut state = cell.lock();
        if let Err(shut) = state.open(binding_id.generation) {
            drop(state);
            return Err(self.give_up(cell, binding_id, parts, before, shut));
        }
        // From here to the end of the bind a cut waits for the lock: microseconds, at most
        // BIND_LIMIT when the device has died.
        match self.open_access(order, &mut parts) {
            Ok(binding) => {
                settle(&mut state, order, parts);
                drop(state);
                cell.wake();
                Ok(binding)
            }
            Err(why) => {
                // A cut that comes now waits until this thread has destroyed all objects.
                state.phase = Phase::Cutting;
                state.changing = false;
                drop(state);
                let why = self.undo(cell, parts, binding_id, why);
                Err(match before {
                    Before::Nothing => why,
                    Before::Prepared | Before::InUse => why.lost(),
                })
            }
        }
    }

    /// Ends an older binding, now that the new one is connected. The new one opens only after the proof.
    fn end_older(
        &self,
        cell: &BindingCell<Parts>,
        binding_id: BindingId,
        before: Before,
    ) -> Result<(), BindError> {
        if before != Before::InUse {
            return Ok(());
        }
        let Some(generation) = cell.lock().gate.generation() else {
            return Ok(());
        };
        let older = BindingId {
            generation,
            ..binding_id
        };
        let proof = self.end(older, Linger::None);
        let proof = proof.map_err(BindError::Stranded)?;
        tracing::debug!(lease = %older, %proof, "cut: another binding takes its place");
        Ok(())
    }

    /// Destroys objects that were never opened. An older binding stays as it was, unless a cut has come.
    fn give_up(
        &self,
        cell: &BindingCell<Parts>,
        binding_id: BindingId,
        parts: Parts,
        before: Before,
        why: BindError,
    ) -> BindError {
        match before {
            // Also a bind that finds objects of another binding leaves these alone.
            _ if before == Before::InUse || matches!(why, BindError::Stranded(_)) => {
                self.tidy(cell, vec![parts], binding_id).unwrap_or_default();
                why
            }
            Before::Prepared if why != BindError::Cancelled => {
                self.put_back(cell, binding_id, parts, why)
            }
            _ => {
                cell.set(Phase::Cutting);
                self.undo(cell, parts, binding_id, why)
            }
        }
    }

    /// Keeps the prepared queue pair if it is unchanged, since the client knows its number. Destroys the other queue
    /// pairs.
    fn put_back(
        &self,
        cell: &BindingCell<Parts>,
        binding_id: BindingId,
        mut parts: Parts,
        why: BindError,
    ) -> BindError {
        let added = parts.split_off_added();
        self.tidy(cell, vec![added], binding_id).unwrap_or_default();
        let mut state = cell.lock();
        if parts.is_prepared() && state.gate.admits(binding_id.generation) {
            state.phase = Phase::Prepared(parts);
            drop(state);
            cell.wake();
            return why;
        }
        state.phase = Phase::Cutting;
        drop(state);
        self.undo(cell, parts, binding_id, why).lost()
    }

    /// Connects the queue pairs to their peers, if there are any, and makes their windows.
    fn connect(
        &self,
        cell: &BindingCell<Parts>,
        order: &BindOrder,
        parts: &mut Parts,
    ) -> Result<(), BindError> {
        let (binding_id, peers) = (order.binding_id, order.peers());
        if peers.is_empty() {
            return Ok(());
        }
        let added = self.hardware.add_pairs(parts, binding_id, peers.len());
        added.map_err(BindError::Failed)?;
        let give_up = || cell.is_revoked(binding_id.generation);
        self.hardware.bring_up(parts, binding_id, peers, give_up)?;
        let windows = self
            .hardware
            .new_windows(&parts.window_makers(), binding_id);
        parts.add_windows(windows.map_err(BindError::Failed)?);
        // Announced before the older binding ends, so that the guard always knows a queue pair of the lease.
        self.hardware
            .announce(parts, binding_id, || cell.deadline());
        Ok(())
    }

    fn open_access(&self, order: &BindOrder, parts: &mut Parts) -> Result<Binding, BindError> {
        if !order.peers().is_empty() {
            self.hardware
                .open_access(parts, 0, order.binding_id)
                .map_err(BindError::Failed)?;
        }
        Ok(self.hardware.binding(parts))
    }

    /// Destroys the objects of a failed bind. Returns `why`, or the error of the destruction if that fails too.
    fn undo(
        &self,
        cell: &BindingCell<Parts>,
        parts: Parts,
        binding_id: BindingId,
        why: BindError,
    ) -> BindError {
        match cell.finish_cut(
            binding_id.generation,
            self.hardware.dismantle(parts, binding_id, Linger::None),
        ) {
            Ok(_) => why,
            Err(error) => BindError::Stranded(error),
        }
    }

    /// Forgets a lease whose only bind failed and left nothing behind.
    fn forget_if_nothing(&self, cell: &BindingCell<Parts>, order: &BindOrder) {
        if cell.lock().remove_if_nothing() {
            cell.wake();
            self.custody().forget(order.binding_id.lease_id);
        }
    }
}

fn settle(state: &mut BindingState<Parts>, order: &BindOrder, parts: Parts) {
    state.was_bound = true;
    state.changing = false;
    state.phase = match order.peers().first() {
        Some(_) => Phase::Live(parts),
        None => Phase::Prepared(parts),
    };
}
