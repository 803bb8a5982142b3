//! Carrying out a bind order: from nothing, or from what an earlier order left, to access.
//!
//! The kernel may take seconds over a peer's address. That happens without any lock; a cut that
//! comes meanwhile only leaves a mark, which is looked at again under the lock before access opens.
//! A binding in use goes on meanwhile, and whatever fails takes nothing from it. When the new one is connected the older
//! one is cut, with proof, and only then the new one opens: no two of a lease are open at any time.

use fabricbios_lease::{BindError, BindOrder, Extent, Farewell, StepError, Tag};
use fabricbios_wire::{Binding, Transport};

use super::{
    RdmaBackend,
    life::{BindStep, Life, State},
    memory,
    parts::Parts,
    slot::Slot,
};

/// What a lease has when a bind begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A queue pair in INIT, which is the one to connect.
    Prepared,
    /// A binding of its own, which stays until its successor is connected.
    InUse,
}

impl RdmaBackend {
    pub(super) fn carry_out(
        &self,
        order: &BindOrder,
        extent: Extent,
    ) -> Result<Binding, BindError> {
        self.check_order(order, extent)
            .map_err(BindError::Refused)?;
        self.check_guard(order.tag)?;
        let slot = self.custody().find_or_make(order.tag.lease_id);
        let slot = slot.ok_or(BindError::Cancelled)?;
        let made = self.queue_pairs_for(&slot, order, extent);
        let result = made.and_then(|(parts, before)| self.establish(&slot, order, parts, before));
        if result.is_err() {
            self.forget_if_nothing(&slot, order);
        }
        result
    }

    fn check_order(&self, order: &BindOrder, extent: Extent) -> Result<(), StepError> {
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
            .peers()
            .iter()
            .try_for_each(|peer| self.hardware.check_peer(peer))?;
        memory::check(&self.hardware.arena, extent)
    }

    /// Until this thread owns queue pairs in INIT: those of the slot, which is Connecting then, or others beside it.
    fn queue_pairs_for(
        &self,
        slot: &Slot<Parts>,
        order: &BindOrder,
        extent: Extent,
    ) -> Result<(Parts, Before), BindError> {
        let tag = order.tag;
        loop {
            match slot.begin_bind(tag.generation, !order.peers().is_empty()) {
                BindStep::Fresh => return self.fresh(slot, (order, extent), Before::Nothing),
                BindStep::Beside => return self.fresh(slot, (order, extent), Before::InUse),
                BindStep::Connect(parts) => return Ok((parts, Before::Prepared)),
                BindStep::Tidy(leftovers) => {
                    let tidied = self.tidy(slot, leftovers, tag);
                    tidied.map_err(BindError::Failed)?;
                }
                BindStep::Cancelled => return Err(BindError::Cancelled),
                BindStep::Stranded(error) => return Err(BindError::Stranded(error)),
                BindStep::Refuse(why) => return Err(self.failed(tag, why)),
                BindStep::Wait => {}
            }
        }
    }

    fn fresh(
        &self,
        slot: &Slot<Parts>,
        (order, extent): (&BindOrder, Extent),
        before: Before,
    ) -> Result<(Parts, Before), BindError> {
        let count = order.peers().len().max(1);
        match self.hardware.prepare(order.tag, extent, count) {
            Ok(parts) => Ok((parts, before)),
            Err((parts, error)) => {
                Err(self.give_up(slot, order.tag, parts, before, BindError::Failed(error)))
            }
        }
    }

    /// From queue pairs in INIT to what the order asks for.
    fn establish(
        &self,
        slot: &Slot<Parts>,
        order: &BindOrder,
        mut parts: Parts,
        before: Before,
    ) -> Result<Binding, BindError> {
        let tag = order.tag;
        let connected = match self.connect(slot, order, &mut parts) {
            Err(_) if slot.is_revoked(tag.generation) => Err(BindError::Cancelled),
            connected => connected,
        };
        let ready = connected.and_then(|()| self.make_way(slot, tag, before));
        if let Err(why) = ready {
            return Err(self.give_up(slot, tag, parts, before, why));
        }
        let mut life = slot.lock();
        if let Err(shut) = life.gate.open(tag.generation) {
            drop(life);
            return Err(self.give_up(slot, tag, parts, before, shut.into()));
        }
        // From here to the end of the bind a cut waits for the lock: microseconds, at most
        // BIND_LIMIT when the device has died.
        match self.open_access(order, &mut parts) {
            Ok(binding) => {
                settle(&mut life, order, parts);
                drop(life);
                slot.wake();
                Ok(binding)
            }
            Err(why) => {
                // A cut that comes now waits for this thread to take everything down.
                life.state = State::Cutting;
                life.changing = false;
                drop(life);
                let why = self.undo(slot, parts, tag, why);
                Err(match before {
                    Before::Nothing => why,
                    Before::Prepared | Before::InUse => why.lost(),
                })
            }
        }
    }

    /// Ends the binding before, now that the next one is connected. Nothing opens before that is proved.
    fn make_way(&self, slot: &Slot<Parts>, tag: Tag, before: Before) -> Result<(), BindError> {
        if before != Before::InUse {
            return Ok(());
        }
        let Some(generation) = slot.lock().gate.generation() else {
            return Ok(());
        };
        let older = Tag { generation, ..tag };
        let proof = self.end(older, Farewell::None);
        let proof = proof.map_err(BindError::Stranded)?;
        tracing::debug!(lease = %older, %proof, "cut: another binding takes its place");
        Ok(())
    }

    /// Takes down what was never opened. What was there before stays as it was, unless a cut has come.
    fn give_up(
        &self,
        slot: &Slot<Parts>,
        tag: Tag,
        parts: Parts,
        before: Before,
        why: BindError,
    ) -> BindError {
        match before {
            Before::InUse => {
                self.tidy(slot, vec![parts], tag).unwrap_or_default();
                why
            }
            Before::Prepared if why != BindError::Cancelled => self.put_back(slot, tag, parts, why),
            Before::Prepared | Before::Nothing => {
                slot.set(State::Cutting);
                self.undo(slot, parts, tag, why)
            }
        }
    }

    /// The queue pair that was told before stays, if it is still as it was; those beside it go.
    fn put_back(
        &self,
        slot: &Slot<Parts>,
        tag: Tag,
        mut parts: Parts,
        why: BindError,
    ) -> BindError {
        let added = parts.split_off_added();
        self.tidy(slot, vec![added], tag).unwrap_or_default();
        let mut life = slot.lock();
        if parts.is_prepared() && life.gate.admits(tag.generation) {
            life.state = State::Prepared(parts);
            drop(life);
            slot.wake();
            return why;
        }
        life.state = State::Cutting;
        drop(life);
        self.undo(slot, parts, tag, why).lost()
    }

    /// Brings the queue pairs up towards their peers, if there are any, and makes their windows.
    fn connect(
        &self,
        slot: &Slot<Parts>,
        order: &BindOrder,
        parts: &mut Parts,
    ) -> Result<(), BindError> {
        let (tag, peers) = (order.tag, order.peers());
        if peers.is_empty() {
            return Ok(());
        }
        let added = self.hardware.add_pairs(parts, tag, peers.len());
        added.map_err(BindError::Failed)?;
        let permit = self
            .bring_ups
            .acquire(|| slot.is_revoked(tag.generation))
            .ok_or(BindError::Cancelled)?;
        let give_up = || slot.is_revoked(tag.generation);
        self.hardware.bring_up(parts, tag, peers, give_up)?;
        drop(permit);
        let windows = self.hardware.new_windows(peers.len(), tag);
        let windows = windows.map_err(BindError::Failed)?;
        for (pair, window) in parts.pairs.iter_mut().zip(windows) {
            pair.windows.push(window);
        }
        // Before the older binding ends: the guard forgets the deadline of a lease that has no queue pair.
        self.hardware.announce(parts, tag);
        Ok(())
    }

    fn open_access(&self, order: &BindOrder, parts: &mut Parts) -> Result<Binding, BindError> {
        if !order.peers().is_empty() {
            self.hardware
                .open_access(parts, order.tag)
                .map_err(BindError::Failed)?;
        }
        Ok(self.hardware.binding(parts))
    }

    /// Takes down what a bind has made so far; `why` unless that fails.
    fn undo(&self, slot: &Slot<Parts>, parts: Parts, tag: Tag, why: BindError) -> BindError {
        match slot.finish_cut(
            tag.generation,
            self.hardware.dismantle(parts, tag, Farewell::None),
        ) {
            Ok(_) => why,
            Err(error) => BindError::Stranded(error),
        }
    }

    /// A bind that left nothing behind and that no cut knows of leaves no trace here either.
    fn forget_if_nothing(&self, slot: &Slot<Parts>, order: &BindOrder) {
        if slot.lock().remove_if_nothing() {
            slot.wake();
            self.custody().forget(order.tag.lease_id);
        }
    }

    fn failed(&self, tag: Tag, why: impl std::fmt::Display) -> BindError {
        BindError::Failed(self.hardware.error("bind", tag, why))
    }
}

fn settle(life: &mut Life<Parts>, order: &BindOrder, parts: Parts) {
    life.was_bound = true;
    life.changing = false;
    life.state = match order.peers().first() {
        Some(_) => State::Live(parts),
        None => State::Prepared(parts),
    };
}
