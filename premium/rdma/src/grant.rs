//! Keys: makes and chooses them, and opens access with them.

use std::{fmt, sync::Arc, time::Duration};

use fabricbios_lease::{BindingId, StepError};
use fabricbios_verbs::{
    Access, CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, Refused, Window,
    WindowMaker, WorkError,
};
use fabricbios_wire::LeaseId;
use nix::errno::Errno;

use super::{
    cut::end_all,
    hardware::Hardware,
    keys::random_byte,
    memory::Bytes,
    parts::{BindingParts, Pair},
    strategy::Shared,
};

/// Time limit of a bind. The local device does it alone, in microseconds; an emulated one takes milliseconds.
const BIND_LIMIT: Duration = Duration::from_secs(2);

/// Largest number of registrations in search of a fresh key. The kernel gives another key every time, so this many
/// retired keys in a row are no accident.
const REGISTRATIONS: usize = 64;

impl Hardware {
    /// Makes unbound windows, one of each maker. Makes none if leases are regions.
    pub(super) fn new_windows(
        &self,
        makers: &[WindowMaker],
        binding_id: BindingId,
    ) -> Result<Vec<Window>, StepError> {
        let mut windows = Vec::new();
        if matches!(self.shared, Shared::Regions) {
            return Ok(windows);
        }
        for maker in makers {
            match self.faults.or("alloc_mw", || maker.alloc()) {
                Ok(window) => windows.push(window),
                Err(errno) => {
                    dealloc_unbound(windows);
                    return Err(self.refused("alloc_mw", binding_id, errno));
                }
            }
        }
        Ok(windows)
    }

    /// Opens access for the queue pairs from number `first` on, each with its newest key. Before, the caller must announce
    /// the queue pairs to the guard, lock the cell and check that no cut came.
    pub(super) fn open_access(
        &self,
        parts: &mut BindingParts,
        first: usize,
        binding_id: BindingId,
    ) -> Result<(), StepError> {
        match &self.shared {
            Shared::Windows { .. } => self.bind_newest(parts, first, binding_id)?,
            Shared::Regions => self.open_pairs(&parts.pairs[first..], binding_id)?,
        }
        parts.open = true;
        Ok(())
    }

    fn open_pairs(&self, pairs: &[Pair], binding_id: BindingId) -> Result<(), StepError> {
        for queue_pair in pairs.iter().filter_map(|pair| pair.queue_pair.as_ref()) {
            let open = || queue_pair.open_to(self.rights());
            let opened = self.faults.or("modify_qp access", open);
            opened.map_err(|errno| self.refused("modify_qp access", binding_id, errno))?;
        }
        Ok(())
    }

    /// Binds the newest window of these queue pairs to the bytes, each with a new key, and waits until the bind is complete.
    /// The caller has the same duties as for [`Hardware::open_access`].
    pub(super) fn bind_newest(
        &self,
        parts: &mut BindingParts,
        first: usize,
        binding_id: BindingId,
    ) -> Result<(), StepError> {
        let failed = |detail: &dyn fmt::Display| self.error("bind_mw", binding_id, detail);
        let Shared::Windows { arenas, .. } = &self.shared else {
            return Err(failed(&"leases are regions here"));
        };
        let Some(completions) = &parts.completions else {
            return Err(failed(&"the binding has no completion queue"));
        };
        let own = parts.extent_mr.as_ref();
        let Some(region) = own.or_else(|| arenas.get(&parts.bytes.resource_id)) else {
            return Err(failed(&"the arena of the lease is not registered"));
        };
        for pair in &mut parts.pairs[first..] {
            let (Some(queue_pair), Some(window)) = (&pair.queue_pair, pair.windows.last_mut())
            else {
                return Err(failed(&"a queue pair has no window"));
            };
            let rkey = self.choose_key(binding_id.lease_id, &parts.bytes, window)?;
            self.bind_window(
                queue_pair,
                completions,
                (window, rkey),
                region,
                &parts.bytes,
            )
            .map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn bind_window(
        &self,
        queue_pair: &QueuePair,
        completions: &CompletionQueue,
        (window, rkey): (&mut Window, u32),
        region: &MemoryRegion,
        bytes: &Bytes,
    ) -> Result<(), WorkError> {
        let range = (bytes.address(), bytes.extent.length);
        let id = self.next_work();
        let post = || queue_pair.post_bind(id, window, rkey, region, range, self.rights());
        self.faults.or("bind_mw", post).map_err(WorkError::Post)?;
        completions.wait(id, BIND_LIMIT)?;
        window.set_rkey(rkey);
        Ok(())
    }

    fn choose_key(&self, lease: LeaseId, bytes: &Bytes, window: &Window) -> Result<u32, StepError> {
        let random = random_byte()?;
        self.keys()
            .of(bytes.resource_id)
            .choose(lease, bytes.extent, window.rkey(), random)
            .ok_or_else(|| StepError::new("choose rkey", "all 256 keys of the window are retired"))
    }

    /// Registers the bytes for remote peers with a key that is not retired, and adds the region to `regions`. The
    /// kernel chooses the key. A region with a retired key is kept until another key is found, so that the kernel does
    /// not give the same key again; then the region is deregistered. After a failure `regions` may contain regions that
    /// could not be deregistered.
    pub(super) fn register_key(
        &self,
        domain: &Arc<ProtectionDomain>,
        bytes: &Bytes,
        binding_id: BindingId,
        regions: &mut Vec<MemoryRegion>,
    ) -> Result<(), StepError> {
        let access = Access::Remote(self.rights());
        let mut retired = Vec::new();
        let fresh = loop {
            match bytes.register(domain, access) {
                Ok(region) if self.is_fresh(binding_id.lease_id, bytes, region.rkey()) => {
                    break Ok(region);
                }
                Ok(region) => retired.push(region),
                Err(errno) => break Err(self.not_registered(binding_id, errno)),
            }
            if retired.len() == REGISTRATIONS {
                break Err(self.error(
                    "choose rkey",
                    binding_id,
                    "the kernel gives retired keys only",
                ));
            }
        };
        let stuck = end_all(&mut retired, |region| self.dereg(region));
        regions.extend(retired);
        regions.push(fresh?);
        stuck.map_err(|errno| self.refused("dereg_mr", binding_id, errno))
    }

    pub(super) fn dereg(&self, region: MemoryRegion) -> Result<(), Refused<MemoryRegion>> {
        match self.faults.strike("dereg_mr") {
            true => Err((region, Errno::EIO)),
            false => region.dereg(),
        }
    }

    fn is_fresh(&self, lease: LeaseId, bytes: &Bytes, key: u32) -> bool {
        let accept = || {
            self.keys()
                .of(bytes.resource_id)
                .accept(lease, bytes.extent, key)
        };
        !self.faults.strike("fresh_key") && accept()
    }
}

/// Deallocates unbound windows and returns those that the kernel refuses.
pub(super) fn dealloc_unbound(mut windows: Vec<Window>) -> Vec<Window> {
    end_all(&mut windows, Window::dealloc).unwrap_or_default();
    windows
}
