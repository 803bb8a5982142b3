//! Tests whether the device enforces the bounds of windows.
//!
//! A window bound to part of a region must give no access to the rest of the region. soft-RoCE does not enforce that:
//! it checks an access against the region to which the window is bound, not against the window (`check_rkey` in
//! `drivers/infiniband/sw/rxe/rxe_resp.c`, up to 6.12 at least). So the start tests the device, with a read that must
//! fail. If the read succeeds, or the test cannot be made, every lease gets a region of exactly its own bytes, to which
//! its windows are bound.

use fabricbios_arena::ALIGN;
use fabricbios_lease::{BindError, BindingId, StepError};

use super::{
    connect::FIRST_PAGE,
    hardware::Hardware,
    parts::Parts,
    request::{RdmaRequester, RequestError},
    strategy::Shared,
};

/// Length of the reads in the test, in bytes; any device can do this.
const READ_BYTES: usize = 8;

impl Hardware {
    /// Whether leases are windows and the device enforces their bounds.
    pub(super) fn windows_have_bounds(&self) -> bool {
        matches!(&self.shared, Shared::Windows { have_bounds, .. } if *have_bounds)
    }

    /// Tests whether the device enforces bounds, if leases are windows.
    pub(super) fn try_bounds(&mut self, binding_id: BindingId) -> Result<(), StepError> {
        if !self.windows_have_bounds() {
            return Ok(());
        }
        let page = self.bytes(binding_id.resource_id, FIRST_PAGE)?;
        let answer = page.arena.bytes() >= 2 * ALIGN && self.try_read(binding_id)?;
        if let Shared::Windows { have_bounds, .. } = &mut self.shared {
            *have_bounds = answer;
        }
        Ok(())
    }

    /// Reads through a window of the first page, inside and behind its end. The read inside must work, or the test
    /// means nothing. Returns whether the read behind the end was refused.
    fn try_read(&self, binding_id: BindingId) -> Result<bool, StepError> {
        let mut client = RdmaRequester::open(Some(self.device.name()), READ_BYTES)?;
        let answer =
            self.test_pair(binding_id, |parts| self.ask(parts, &mut client, binding_id))?;
        client.close()?;
        Ok(answer.unwrap_or_else(|error| {
            tracing::warn!(device = self.device.name(), %error, "window bounds could not be tried");
            false
        }))
    }

    fn ask(
        &self,
        parts: &mut Parts,
        client: &mut RdmaRequester,
        binding_id: BindingId,
    ) -> Result<bool, StepError> {
        match self.bring_up(parts, binding_id, &[client.peer()], || false) {
            Ok(()) => {}
            Err(BindError::Refused(error) | BindError::Failed(error)) => return Err(error),
            Err(other) => return Err(StepError::new("connect", format_args!("{other:?}"))),
        }
        parts.add_windows(self.new_windows(&parts.window_makers(), binding_id)?);
        self.open_access(parts, 0, binding_id)?;
        let bound = self.binding(parts);
        let binding = bound
            .rdma()
            .ok_or_else(|| StepError::new("try window", "no binding"))?;
        let rkey = binding.rkey.unwrap_or_default();
        client.connect(binding)?;
        let mut bytes = [0; READ_BYTES];
        client
            .read(rkey, binding.remote_addr, &mut bytes)
            .map_err(|error| StepError::new("read in window", error))?;
        let outside = client.read(rkey, binding.remote_addr + FIRST_PAGE.length, &mut bytes);
        Ok(outside == Err(RequestError::RemoteAccess))
    }
}
