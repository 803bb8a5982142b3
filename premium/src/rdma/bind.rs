//! Carrying out a bind order: from nothing, or from what an earlier order left, to access.
//!
//! The kernel may take seconds over a peer's address. That happens without any lock; a cut that
//! comes meanwhile only leaves a mark, which is looked at again under the lock before access opens.

use std::sync::Arc;

use fabricbios_lease::{BindError, BindOrder, Farewell, StepError, Tag};
use fabricbios_wire::{Binding, Transport};

use super::{
    RdmaBackend,
    life::{BindStep, Life, State},
    memory,
    parts::Parts,
    slot::Slot,
    table::Known,
};

impl RdmaBackend {
    pub(super) fn carry_out(&self, order: &BindOrder) -> Result<Binding, BindError> {
        self.check_order(order).map_err(BindError::Refused)?;
        self.check_guard(order.tag)?;
        let slot = self.claim(order)?;
        let parts = self.queue_pairs_for(&slot, order);
        let result = parts.and_then(|parts| self.establish(&slot, order, parts));
        if result.is_err() {
            self.forget_if_nothing(&slot, order);
        }
        result
    }

    fn check_order(&self, order: &BindOrder) -> Result<(), StepError> {
        let road = matches!(
            order.transport,
            Transport::Rdma | Transport::Both | Transport::Auto
        );
        if order.tag.resource_id != self.resource_id || !road {
            let detail = format!(
                "{:?} on {} is not ours",
                order.transport, order.tag.resource_id
            );
            return Err(StepError::new("check order", detail));
        }
        order
            .peers
            .iter()
            .try_for_each(|peer| self.hardware.check_peer(peer))?;
        memory::check(&self.hardware.arena, order.extent)
    }

    fn claim(&self, order: &BindOrder) -> Result<Arc<Slot<Parts>>, BindError> {
        let Known::Slot(slot) = self.table.find_or_make(order.tag.lease_id) else {
            return Err(BindError::Cancelled);
        };
        self.table
            .claim(order.tag.lease_id, order.extent)
            .map_err(|other| {
                // Whose they are is for the log and not for the next tenant.
                tracing::error!(lease = %order.tag, %other, "bytes were given out twice");
                self.failed(order.tag, "the bytes are not free on this node yet")
            })?;
        Ok(slot)
    }

    /// Until the slot is Connecting and this thread owns queue pairs in INIT.
    fn queue_pairs_for(&self, slot: &Slot<Parts>, order: &BindOrder) -> Result<Parts, BindError> {
        let tag = order.tag;
        loop {
            match slot.begin_bind(tag.generation, !order.peers.is_empty()) {
                BindStep::Fresh => return self.fresh(slot, order),
                BindStep::Connect(parts) if parts.extent == order.extent => return Ok(parts),
                BindStep::Connect(parts) => {
                    let why = self.failed(tag, "it was prepared for other bytes");
                    return Err(self.undo(slot, parts, tag, why));
                }
                BindStep::CutFirst(parts) => {
                    let cut = slot.finish_cut(self.hardware.dismantle(parts, tag, Farewell::None));
                    cut.map_err(BindError::Stranded)?;
                }
                BindStep::Cancelled => return Err(BindError::Cancelled),
                BindStep::Stranded(error) => return Err(BindError::Stranded(error)),
                BindStep::Refuse(why) => return Err(self.failed(tag, why)),
                BindStep::Wait => {}
            }
        }
    }

    fn fresh(&self, slot: &Slot<Parts>, order: &BindOrder) -> Result<Parts, BindError> {
        self.hardware
            .prepare(order.tag, order.extent, order.peers.len().max(1))
            .map_err(|(parts, error)| self.undo(slot, parts, order.tag, BindError::Failed(error)))
    }

    /// From queue pairs in INIT to what the order asks for.
    fn establish(
        &self,
        slot: &Slot<Parts>,
        order: &BindOrder,
        mut parts: Parts,
    ) -> Result<Binding, BindError> {
        let connected = self.connect(slot, order, &mut parts);
        let mut life = slot.lock();
        // From here to the end of the bind a cut waits for the lock: microseconds, at most
        // BIND_LIMIT when the device has died.
        let opened = match connected {
            _ if life.is_cancelled() => Err(BindError::Cancelled),
            Ok(()) => self.open_access(order, &mut parts),
            Err(why) => Err(why),
        };
        match opened {
            Ok(binding) => {
                settle(&mut life, order, parts);
                drop(life);
                slot.wake();
                Ok(binding)
            }
            Err(why) => {
                // A cut that comes now waits for this thread to take everything down.
                life.state = State::Cutting;
                drop(life);
                Err(self.undo(slot, parts, order.tag, why))
            }
        }
    }

    /// Brings the queue pairs up towards their peers, if there are any, and makes their windows.
    fn connect(
        &self,
        slot: &Slot<Parts>,
        order: &BindOrder,
        parts: &mut Parts,
    ) -> Result<(), BindError> {
        let (tag, peers) = (order.tag, &order.peers);
        if peers.is_empty() {
            return Ok(());
        }
        let added = self.hardware.add_pairs(parts, tag, peers.len());
        added.map_err(BindError::Failed)?;
        let permit = self
            .bring_ups
            .acquire(|| slot.is_cancelled())
            .ok_or(BindError::Cancelled)?;
        let give_up = || slot.is_cancelled();
        self.hardware.bring_up(parts, tag, peers, give_up)?;
        drop(permit);
        let windows = self.hardware.new_windows(peers.len(), tag);
        let windows = windows.map_err(BindError::Failed)?;
        for (pair, window) in parts.pairs.iter_mut().zip(windows) {
            pair.windows.push(window);
        }
        Ok(())
    }

    fn open_access(&self, order: &BindOrder, parts: &mut Parts) -> Result<Binding, BindError> {
        if !order.peers.is_empty() {
            self.hardware
                .open_access(parts, order.tag)
                .map_err(BindError::Failed)?;
        }
        Ok(self.hardware.binding(parts))
    }

    /// Takes down what a bind has made so far; `why` unless that fails.
    fn undo(&self, slot: &Slot<Parts>, parts: Parts, tag: Tag, why: BindError) -> BindError {
        match slot.finish_cut(self.hardware.dismantle(parts, tag, Farewell::None)) {
            Ok(_) => why,
            Err(error) => BindError::Stranded(error),
        }
    }

    /// A bind that left nothing behind and that no cut knows of leaves no trace here either.
    fn forget_if_nothing(&self, slot: &Slot<Parts>, order: &BindOrder) {
        let mut life = slot.lock();
        let nothing = matches!(life.state, State::Empty | State::Cut { leftover: None, .. });
        if nothing && life.cut_through.is_none() && life.extent.is_none() {
            life.state = State::Gone;
            drop(life);
            slot.wake();
            self.table.forget(order.tag.lease_id);
        }
    }

    fn failed(&self, tag: Tag, why: impl std::fmt::Display) -> BindError {
        BindError::Failed(self.hardware.error("bind", tag, why))
    }
}

fn settle(life: &mut Life<Parts>, order: &BindOrder, parts: Parts) {
    life.extent = Some(order.extent);
    life.state = match order.peers.first() {
        Some(_) => State::Live(parts),
        None => State::Prepared(parts),
    };
}
