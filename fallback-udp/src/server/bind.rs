//! Checking the orders that give access to bytes of the arena.

use std::sync::Arc;

use fabricbios_lease::{BindError, BindOrder, Extent, NotFree, StepError};
use fabricbios_wire::{Binding, Transport};

use super::{backend::FbmuBackend, bytes::Bytes, life::Slot, road::failed};

impl FbmuBackend {
    pub(super) fn carry_out(&self, order: &BindOrder) -> Result<Binding, BindError> {
        self.check_order(order).map_err(BindError::Refused)?;
        let slot = self.claim(order)?;
        let bytes = Bytes {
            arena: Arc::clone(&self.arena),
            extent: order.extent(),
        };
        self.road.bind(&slot, order.tag, bytes)
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
        self.check_extent(order.extent())
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

    fn claim(&self, order: &BindOrder) -> Result<Arc<Slot<Bytes>>, BindError> {
        let claimed = self
            .road
            .custody()
            .claim(order.tag.lease_id, order.extent());
        claimed.map_err(|why| match why {
            NotFree::Released => BindError::Cancelled,
            _ => {
                // Whose they are is for the log and not for the next tenant.
                tracing::error!(lease = %order.tag, %why, "bytes were given out twice");
                failed(order.tag, "the bytes are not free on this node yet")
            }
        })
    }
}
