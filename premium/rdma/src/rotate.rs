//! A second key beside the first, for a while, on every queue pair.
//!
//! Never the same window bound again: one access with the old key would kill the queue pair at
//! both ends. The new key has a window of its own on the same queue pair, or a region of its own.

use std::sync::Arc;

use fabricbios_lease::{BindError, Extent, StepError, Tag};
use fabricbios_verbs::{MemoryRegion, ProtectionDomain, QueuePairState, Window};
use fabricbios_wire::Binding;

use super::{
    RdmaBackend,
    grant::dealloc_unbound,
    life::{Life, State},
    parts::{BindingParts, Pair, Parts},
};

/// What the new keys are for.
struct Wanted {
    pairs: usize,
    extent: Extent,
    /// Of the lease's own, where it has regions.
    domain: Option<Arc<ProtectionDomain>>,
}

/// What the new keys are made of: a window for each queue pair, or a region.
#[derive(Default)]
struct Made {
    windows: Vec<Window>,
    regions: Vec<MemoryRegion>,
}

impl RdmaBackend {
    pub(super) fn add_key(&self, tag: Tag) -> Result<Binding, BindError> {
        let slot = self.bound_slot(tag, "rotate").map_err(BindError::Refused)?;
        let wanted = slot
            .begin_change(|life| self.check_rotation(life, tag))
            .map_err(BindError::Refused)?;
        // Made without the lock, since it may take the kernel a while.
        let made = self.make(wanted, tag);
        let mut life = slot.lock();
        life.changing = false;
        let result = self.attach(&mut life, made, tag);
        drop(life);
        slot.wake();
        result
    }

    /// Whether a second key can be made.
    fn check_rotation(&self, life: &mut Life<Parts>, tag: Tag) -> Result<Wanted, StepError> {
        let parts = self.live(life, tag, "rotate")?;
        let refuse = |why: &str| Err(self.hardware.error("rotate", tag, why));
        if parts.keys() > 1 {
            return refuse("the key before the last rotation is not retired yet");
        }
        for state in parts.pairs.iter().map(Pair::state) {
            match state {
                Ok(QueuePairState::ReadyToSend) => {}
                Ok(_) => {
                    return refuse("a queue pair has failed: bind the lease again with a new one");
                }
                Err(errno) => return Err(self.hardware.refused("query_qp", tag, errno)),
            }
        }
        Ok(Wanted {
            pairs: parts.pairs.len(),
            extent: parts.extent,
            domain: parts.domain.clone(),
        })
    }

    /// With the error comes what could not be taken away again.
    fn make(&self, wanted: Wanted, tag: Tag) -> (Made, Result<(), StepError>) {
        let mut made = Made::default();
        let result = match &wanted.domain {
            Some(domain) => {
                let regions = &mut made.regions;
                self.hardware
                    .register_key(domain, wanted.extent, tag, regions)
            }
            None => self
                .hardware
                .new_windows(wanted.pairs, tag)
                .map(|windows| made.windows = windows),
        };
        (made, result)
    }

    /// Hands the new keys to the lease, if it is still there.
    fn attach(
        &self,
        life: &mut Life<Parts>,
        (made, result): (Made, Result<(), StepError>),
        tag: Tag,
    ) -> Result<Binding, BindError> {
        let cancelled = life.gate.is_revoked(tag.generation);
        let parts = match self.live(life, tag, "rotate") {
            Ok(parts) => parts,
            Err(error) => return Err(self.unused(made, tag, cancelled, error)),
        };
        if let Err(error) = result {
            return Err(self.left(parts, made, tag, error));
        }
        take_in(parts, made);
        if let Err(error) = self.hardware.open_access(parts, tag) {
            let made = take_out(parts);
            return Err(self.left(parts, made, tag, error));
        }
        let binding = self.hardware.binding(parts);
        life.gate.begin(tag.generation);
        Ok(binding)
    }

    /// Takes away what a rotation made that came to nothing. What stays is taken by the cut.
    fn left(
        &self,
        parts: &mut BindingParts,
        mut made: Made,
        tag: Tag,
        error: StepError,
    ) -> BindError {
        let windows = dealloc_unbound(made.windows);
        let regions = self.hardware.dereg_all(&mut made.regions);
        let stuck = match (windows.is_empty(), regions) {
            (false, _) => "dealloc_mw",
            (true, Err(_)) => "dereg_mr",
            (true, Ok(())) => return BindError::Failed(error),
        };
        if let Some(pair) = parts.pairs.first_mut() {
            pair.doomed.extend(windows);
        }
        parts.regions.splice(0..0, made.regions);
        BindError::Stranded(self.hardware.error(stuck, tag, error))
    }

    /// The lease ended while its new keys were made.
    fn unused(&self, mut made: Made, tag: Tag, cancelled: bool, error: StepError) -> BindError {
        let windows = dealloc_unbound(made.windows);
        let regions = self.hardware.dereg_all(&mut made.regions);
        match regions {
            Err(errno) => BindError::Stranded(self.hardware.refused("dereg_mr", tag, errno)),
            Ok(()) if !windows.is_empty() => {
                BindError::Stranded(self.hardware.error("dealloc_mw", tag, error))
            }
            Ok(()) if cancelled => BindError::Cancelled,
            Ok(()) => BindError::Failed(error),
        }
    }

    pub(super) fn drop_old_key(&self, tag: Tag) -> Result<Binding, StepError> {
        let slot = self.bound_slot(tag, "retire key")?;
        let mut life = slot.lock_settled()?;
        if matches!(life.state, State::Cut(_)) {
            // It died with its binding, whose place another one is taking.
            return Ok(Binding::default());
        }
        let parts = self.live(&mut life, tag, "retire key")?;
        self.hardware.retire_oldest(parts, tag)?;
        Ok(self.hardware.binding(parts))
    }

    /// The objects of a lease in use, if the order is not for an older binding.
    fn live<'a>(
        &self,
        life: &'a mut Life<Parts>,
        tag: Tag,
        step: &'static str,
    ) -> Result<&'a mut Parts, StepError> {
        match &mut life.state {
            State::Live(parts) if life.gate.admits(tag.generation) => Ok(parts),
            _ => Err(self.hardware.error(step, tag, "the lease has no key now")),
        }
    }
}

fn take_in(parts: &mut BindingParts, made: Made) {
    for (pair, window) in parts.pairs.iter_mut().zip(made.windows) {
        pair.windows.push(window);
    }
    parts.regions.extend(made.regions);
}

/// The newest keys, which are not open everywhere.
fn take_out(parts: &mut BindingParts) -> Made {
    let pairs = parts.pairs.iter_mut();
    Made {
        windows: pairs
            .filter_map(|pair| (pair.windows.len() > 1).then(|| pair.windows.pop())?)
            .collect(),
        regions: match parts.regions.len() {
            0 | 1 => Vec::new(),
            _ => parts.regions.pop().into_iter().collect(),
        },
    }
}
