//! Carrying out the orders that give access: bindings and keys.

use std::sync::{Arc, MutexGuard};

use fabricbios_lease::{BindError, BindOrder, Extent, StepError, Tag};
use fabricbios_wire::{Binding, DpKey, Endpoint, Limits, Transport};

use super::{
    backend::FbmuBackend,
    entry::{Bytes, Entry},
    life::{Life, Slot, State},
    table::{Known, NotFree},
};
use crate::{DataKey, Keys};

impl FbmuBackend {
    pub(super) fn carry_out(&self, order: &BindOrder) -> Result<Binding, BindError> {
        let tag = order.tag;
        self.check_order(order).map_err(BindError::Refused)?;
        let key = fresh_key(tag).map_err(BindError::Failed)?;
        let slot = self.claim(order)?;
        let mut life = slot.lock();
        if life.is_past(tag.generation) || life.is_cut(tag.generation) {
            return Err(BindError::Cancelled);
        }
        self.make_way(&mut life, tag)?;
        let bytes = Bytes {
            arena: Arc::clone(&self.arena),
            extent: order.extent,
        };
        let keys = Keys::new(DataKey::new(&key));
        let entry = Arc::new(Entry::new(tag, keys, bytes, self.rate));
        self.serving.leases.serve(Arc::clone(&entry));
        life.generation = Some(tag.generation);
        life.key = Some(key);
        life.state = State::Live(entry);
        Ok(self.binding(&life))
    }

    pub(super) fn add_key(&self, tag: Tag) -> Result<Binding, BindError> {
        let slot = self.bound_slot(tag, "rotate").map_err(BindError::Refused)?;
        let key = fresh_key(tag).map_err(BindError::Failed)?;
        let mut life = slot.lock();
        let entry = live(&life, tag, "rotate").map_err(BindError::Refused)?;
        let mut keys = entry.keys_alone();
        if keys.has_previous() {
            let detail = format!("{tag}: the key before the last rotation is not retired yet");
            return Err(BindError::Refused(StepError::new("rotate", detail)));
        }
        keys.rotate(DataKey::new(&key));
        drop(keys);
        life.generation = life.generation.max(Some(tag.generation));
        life.key = Some(key);
        Ok(self.binding(&life))
    }

    pub(super) fn drop_old_key(&self, tag: Tag) -> Result<Binding, StepError> {
        let slot = self.bound_slot(tag, "retire key")?;
        let life = slot.lock();
        let entry = live(&life, tag, "retire key")?;
        self.prove_retired(entry)?;
        Ok(self.binding(&life))
    }

    fn check_order(&self, order: &BindOrder) -> Result<(), StepError> {
        let road = matches!(
            order.transport,
            Transport::Udp | Transport::Both | Transport::Auto
        );
        if order.tag.resource_id != self.resource_id || !road {
            let what = (order.transport, order.tag.resource_id);
            let detail = format!("{:?} on {} is not ours", what.0, what.1);
            return Err(StepError::new("check order", detail));
        }
        self.check_extent(order.extent)
    }

    pub(super) fn check_extent(&self, extent: Extent) -> Result<(), StepError> {
        let Extent { offset, length } = extent;
        let end = offset.checked_add(length);
        if length > 0 && end.is_some_and(|end| end <= self.arena.bytes()) {
            return Ok(());
        }
        let arena = self.arena.bytes();
        let detail = format!("{length} bytes at {offset} are not within the {arena} of the arena");
        Err(StepError::new("check extent", detail))
    }

    fn claim(&self, order: &BindOrder) -> Result<Arc<Slot>, BindError> {
        let claimed = self.table.claim(order.tag.lease_id, order.extent);
        let refused = |why: NotFree| {
            // Whose they are is for the log and not for the next tenant.
            tracing::error!(lease = %order.tag, ?why, "bytes were given out twice");
            failed(order.tag, "the bytes are not free on this node yet")
        };
        claimed.map_err(refused)?.ok_or(BindError::Cancelled)
    }

    /// Ends whatever older binding there is.
    fn make_way(&self, life: &mut Life, tag: Tag) -> Result<(), BindError> {
        let generation = Some(tag.generation);
        match &life.state {
            State::Empty | State::Cut { .. } => Ok(()),
            State::Live(_) if life.generation == generation => {
                Err(failed(tag, "this generation is bound already"))
            }
            State::Live(_) => match self.end(life, tag) {
                Ok(_proof) => Ok(()),
                Err(error) => Err(BindError::Stranded(error)),
            },
            State::Failed { error, .. } => Err(BindError::Stranded(error.clone())),
            State::Dirty { error, .. } => Err(failed(tag, &format!("not clean: {error}"))),
            State::Releasing(_) | State::Gone => Err(BindError::Cancelled),
        }
    }

    /// Coordinates of the binding in use.
    fn binding(&self, life: &Life) -> Binding {
        let State::Live(entry) = &life.state else {
            return Binding::default();
        };
        Binding {
            dp_key: life.key.clone(),
            udp_endpoint: Some(Endpoint::from(self.address)),
            limits: Some(Limits {
                offset: 0,
                length: entry.extent().length,
            }),
            rdma: None,
            nvmeof: None,
        }
    }

    /// The slot of a lease that is bound here.
    fn bound_slot(&self, tag: Tag, step: &str) -> Result<Arc<Slot>, StepError> {
        match self.table.find(tag.lease_id) {
            Known::Slot(slot) => Ok(slot),
            Known::Released | Known::No => Err(not_bound(step, tag)),
        }
    }
}

fn fresh_key(tag: Tag) -> Result<DpKey, StepError> {
    let mut key = DpKey([0; 32]);
    let filled = getrandom::fill(&mut key.0);
    filled.map_err(|error| StepError::new("make a key", format_args!("{tag}: {error}")))?;
    Ok(key)
}

fn live<'a>(
    life: &'a MutexGuard<'_, Life>,
    tag: Tag,
    step: &str,
) -> Result<&'a Arc<Entry>, StepError> {
    life.live(tag.generation)
        .ok_or_else(|| not_bound(step, tag))
}

fn not_bound(step: &str, tag: Tag) -> StepError {
    StepError::new(step, format_args!("{tag}: not bound here"))
}

fn failed(tag: Tag, why: &str) -> BindError {
    BindError::Failed(StepError::new("bind", format_args!("{tag}: {why}")))
}
