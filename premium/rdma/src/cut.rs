//! Ends access, in the only order that neither stalls nor gives a false proof.
//!
//! 1. LOCAL_INV of every window that was bound, if its queue pair still works. The result is only logged.
//! 2. Dealloc every window, even if 1 failed: destroying a queue pair with a bound window stalls for most of a minute.
//! 3. For a client that did not ask for the end (`Linger::Brief`): dereg of the lease's regions, and a short linger in
//!    which the next access of the client is answered with a remote access error. The linger is short because a message
//!    that was in progress when its window died is served to its end until 4.
//! 4. Queue pairs to ERR, all of them, then destroyed.
//! 5. The kernel's resource tracker must not know any of the queue pairs any more.
//! 6. Dereg of the regions of the lease that 3 has left. No queue pair uses them any more.
//! 7. Destroy the completion queue, the region under the windows and the domain of the lease.
//!
//! The arena is never touched. A cut that fails returns the remaining objects, and the next try goes on with them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fabricbios_lease::{BindingId, Linger, StepError};
use fabricbios_verbs::{CompletionQueue, ProtectionDomain, QueuePair, Refused, Window, WorkError};
use nix::errno::Errno;

use super::{
    binding_step::CutResult,
    hardware::Hardware,
    parts::{BindingParts, Pair, Parts, works},
    steps::Steps,
};

/// Limit of all LOCAL_INVs of a lease together. A device that takes longer does not answer any more, and step 2 follows
/// anyway.
const INVALIDATE_LIMIT: Duration = Duration::from_millis(500);

/// Longest linger: several round trips on any fabric, and a few on an emulated machine.
const LINGER_LIMIT: Duration = Duration::from_millis(20);
const BETWEEN_LINGER_LOOKS: Duration = Duration::from_micros(250);

/// The failed step and the reason.
type Failure = (&'static str, String);

impl Hardware {
    /// Ends access through `parts` and proves it.
    pub(super) fn dismantle(
        &self,
        mut parts: Parts,
        binding_id: BindingId,
        linger: Linger,
    ) -> CutResult<Parts> {
        let mut steps = Steps::default();
        if let Some(guard) = &self.guard {
            guard.moves();
            // Only an open binding can have a report of the guard.
            let done = parts.open.then(|| guard.has_done(binding_id.lease_id));
            done.flatten().inspect(|done| steps.add("before:", done));
        }
        if parts.left > 0 {
            steps.add(
                "before:",
                format_args!("{} queue pairs left, each proved gone", parts.left),
            );
        }
        let taken_down = self.take_down(&mut parts, binding_id, linger, &mut steps);
        if let Some(guard) = &self.guard {
            let numbers = parts.pairs.iter().map(|pair| pair.number);
            numbers.for_each(|number| guard.ends(binding_id.lease_id, number));
        }
        match taken_down {
            Ok(()) => Ok((
                steps.to_proof(),
                Some(parts).filter(|left| !left.is_empty()),
            )),
            Err((step, why)) => {
                let detail = format!("{why} (steps taken: {steps})");
                Err((parts, self.error(step, binding_id, detail)))
            }
        }
    }

    fn take_down(
        &self,
        parts: &mut BindingParts,
        binding_id: BindingId,
        linger: Linger,
        steps: &mut Steps,
    ) -> Result<(), Failure> {
        let completions = parts.completions.as_deref();
        let mut pairs: Vec<&mut Pair> = parts.pairs.iter_mut().collect();
        let windows_ended = self.end_windows(&mut pairs, completions, binding_id, steps);
        if linger == Linger::Brief && parts.open {
            // A region that cannot be deregistered now is tried again after the queue pairs are gone.
            self.end_regions(parts, steps).unwrap_or_default();
            if parts.has_no_keys() {
                steps.note("linger", || linger_for(&parts.pairs));
            }
        }
        let mut pairs: Vec<&mut Pair> = parts.pairs.iter_mut().collect();
        self.end_pairs(&mut pairs, windows_ended, steps)?;
        self.end_regions(parts, steps)
            .map_err(|errno| ("dereg_mr", errno.to_string()))?;
        destroy_rest(parts, steps);
        Ok(())
    }

    /// Ends queue pairs whose windows have ended, with proof.
    fn end_pairs(
        &self,
        pairs: &mut [&mut Pair],
        windows_ended: Result<(), Errno>,
        steps: &mut Steps,
    ) -> Result<(), Failure> {
        pairs.iter().for_each(|pair| fail(pair, steps));
        // In ERR a queue pair serves nothing any more, but destroying it now would stall.
        windows_ended.map_err(|errno| ("dealloc_mw", errno.to_string()))?;
        for pair in &mut *pairs {
            self.destroy_queue_pair(pair, steps)?;
        }
        for pair in pairs {
            self.prove_gone(pair, steps)?;
        }
        Ok(())
    }

    /// Ends some queue pairs of a binding, with proof; the others go on. After a failure it can be tried again.
    pub(super) fn end_some(
        &self,
        pairs: &mut [&mut Pair],
        completions: Option<&CompletionQueue>,
        binding_id: BindingId,
    ) -> Result<(), StepError> {
        let mut steps = Steps::default();
        let windows_ended = self.end_windows(pairs, completions, binding_id, &mut steps);
        let ended = self.end_pairs(pairs, windows_ended, &mut steps);
        tracing::debug!(lease = %binding_id, %steps, "queue pairs leave");
        ended.map_err(|(step, why)| {
            self.error(
                step,
                binding_id,
                format_args!("{why} (steps taken: {steps})"),
            )
        })
    }

    /// Ends all windows. `Ok`: every window is deallocated or invalidated.
    fn end_windows(
        &self,
        pairs: &mut [&mut Pair],
        completions: Option<&CompletionQueue>,
        binding_id: BindingId,
        steps: &mut Steps,
    ) -> Result<(), Errno> {
        let mut result = Ok(());
        let until = Instant::now() + INVALIDATE_LIMIT;
        let invalidate =
            |pair: &mut &mut Pair| self.invalidate_all(pair, completions, until, steps);
        let invalidated: Vec<bool> = pairs.iter_mut().map(invalidate).collect();
        for (pair, invalidated) in pairs.iter_mut().zip(invalidated) {
            if let (Err(errno), false) = (self.dealloc_all(&mut pair.windows, steps), invalidated) {
                result = Err(errno);
            }
            // These windows are not bound and give no access: those that stay are leftovers.
            if let Err(errno) = self.dealloc_all(&mut pair.unbound_windows, steps) {
                tracing::warn!(lease = %binding_id, %errno, "an unbound window stays");
            }
        }
        result
    }

    /// Invalidates every window of a queue pair; returns whether all are invalid.
    fn invalidate_all(
        &self,
        pair: &mut Pair,
        completions: Option<&CompletionQueue>,
        until: Instant,
        steps: &mut Steps,
    ) -> bool {
        let mut all = true;
        let queue_pair = pair.queue_pair.as_ref();
        for window in &mut pair.windows {
            if !(window.was_bound() && queue_pair.is_some_and(works)) {
                all = false;
                continue;
            }
            let step = || self.invalidate(queue_pair, completions, window, until);
            all &= steps.run("local_inv", step, WorkError::to_string).is_ok();
        }
        all
    }

    /// LOCAL_INV of one window.
    fn invalidate(
        &self,
        queue_pair: Option<&QueuePair>,
        completions: Option<&CompletionQueue>,
        window: &mut Window,
        until: Instant,
    ) -> Result<(), WorkError> {
        let (Some(queue_pair), Some(completions)) = (queue_pair, completions) else {
            return Err(WorkError::Post(Errno::EINVAL));
        };
        if self.faults.strike("local_inv") {
            return Err(WorkError::Post(Errno::EIO));
        }
        let id = self.next_work();
        queue_pair
            .post_invalidate(id, window.rkey())
            .map_err(WorkError::Post)?;
        completions.wait(id, until.saturating_duration_since(Instant::now()))?;
        window.set_invalid();
        Ok(())
    }

    fn dealloc_all(&self, windows: &mut Vec<Window>, steps: &mut Steps) -> Result<(), Errno> {
        let dealloc = |window: Window| match self.faults.strike("dealloc_mw") {
            true => Err((window, Errno::EIO)),
            false => window.dealloc(),
        };
        end_all(windows, |window| {
            steps.run("dealloc_mw", || dealloc(window), refusal)
        })
    }

    fn end_regions(&self, parts: &mut BindingParts, steps: &mut Steps) -> Result<(), Errno> {
        end_all(&mut parts.regions, |region| {
            steps.run("dereg_mr", || self.dereg(region), refusal)
        })
    }

    /// Ends the previous keys; the current ones stay.
    pub(super) fn retire_oldest(
        &self,
        parts: &mut BindingParts,
        binding_id: BindingId,
    ) -> Result<(), StepError> {
        let until = Instant::now() + INVALIDATE_LIMIT;
        let completions = parts.completions.as_deref();
        for pair in parts.pairs.iter_mut().filter(|pair| pair.windows.len() > 1) {
            let queue_pair = pair.queue_pair.as_ref();
            let oldest = self.invalidate(queue_pair, completions, &mut pair.windows[0], until);
            if let Err(error) = oldest {
                // Deallocating the window ends the key as well.
                tracing::warn!(lease = %binding_id, %error, "local_inv of a rotated key");
            }
            pair.windows
                .remove(0)
                .dealloc()
                .map_err(|(window, errno)| {
                    pair.windows.insert(0, window);
                    self.refused("dealloc_mw", binding_id, errno)
                })?;
        }
        let old = parts.regions.len().saturating_sub(1);
        let mut retired = parts.regions.drain(..old).collect();
        let ended = end_all(&mut retired, |region| self.dereg(region));
        parts.regions.splice(0..0, retired);
        ended.map_err(|errno| self.refused("dereg_mr", binding_id, errno))
    }

    fn destroy_queue_pair(&self, pair: &mut Pair, steps: &mut Steps) -> Result<(), Failure> {
        let Some(queue_pair) = pair.queue_pair.take() else {
            return Ok(());
        };
        let removed = self.queue_pairs.remove(pair.number);
        let step = || match self.faults.strike("destroy_qp") {
            true => Err((queue_pair, Errno::EIO)),
            false => queue_pair.destroy(),
        };
        let destroyed = steps.run("destroy_qp", step, refusal);
        let destroyed = destroyed.map_err(|(queue_pair, errno)| {
            pair.queue_pair = Some(queue_pair);
            self.queue_pairs.put_back(pair.number, removed);
            let why = format!("queue pair {}: {errno}", pair.number);
            ("destroy_qp", why)
        });
        if destroyed.is_ok() {
            self.queue_pairs.tell_end();
        }
        destroyed
    }
}

/// Puts the queue pair in ERR, so that the device stops serving at once, before the queue pair is destroyed.
fn fail(pair: &Pair, steps: &mut Steps) {
    if let Some(queue_pair) = &pair.queue_pair
        && steps
            .run("modify_qp ERR", || queue_pair.fail(), Errno::to_string)
            .is_err()
    {
        tracing::warn!(number = pair.number, %steps, "modify_qp ERR failed");
    }
}

/// Waits for the next access of the client, which is refused and puts its queue pair in ERR. `false`: no access came in
/// time. Polls, since an event of the device would come among the events of all other leases.
fn linger_for(pairs: &[Pair]) -> bool {
    let started = Instant::now();
    while started.elapsed() < LINGER_LIMIT {
        if !pairs.iter().any(Pair::works) {
            return true;
        }
        std::thread::sleep(BETWEEN_LINGER_LOOKS);
    }
    false
}

/// Destroys the remaining objects. None of them gives access, so an object that stays is a leftover for the release,
/// not a failure of the cut.
fn destroy_rest(parts: &mut BindingParts, steps: &mut Steps) {
    if let Some(completions) = parts.completions.take()
        && let Err((completions, _)) =
            steps.run("destroy_cq", || destroy_queue(completions), refusal)
    {
        parts.completions = Some(completions);
    }
    if let Some(region) = parts.extent_mr.take()
        && let Err((region, _)) = steps.run("dereg_mr extent", || region.dereg(), refusal)
    {
        parts.extent_mr = Some(region);
    }
    if let Some(domain) = parts.domain.take()
        && let Err((domain, _)) = steps.run("dealloc_pd", || dealloc(domain), refusal)
    {
        parts.domain = Some(domain);
    }
}

/// Ends every object. Objects that the kernel refuses to end stay in the list; `Err` is the last refusal.
pub(super) fn end_all<T>(
    objects: &mut Vec<T>,
    mut end: impl FnMut(T) -> Result<(), Refused<T>>,
) -> Result<(), Errno> {
    let mut result = Ok(());
    for object in std::mem::take(objects) {
        if let Err((object, errno)) = end(object) {
            objects.push(object);
            result = Err(errno);
        }
    }
    result
}

/// Destroys the completion queue. `EBUSY`: a queue pair for it is still being made.
fn destroy_queue(queue: Arc<CompletionQueue>) -> Result<(), Refused<Arc<CompletionQueue>>> {
    let queue = Arc::try_unwrap(queue).map_err(|queue| (queue, Errno::EBUSY))?;
    let destroyed = queue.destroy();
    destroyed.map_err(|(queue, errno)| (Arc::new(queue), errno))
}

/// Deallocates the domain. `EBUSY`, as from the kernel: an object in the domain is still being made.
fn dealloc(domain: Arc<ProtectionDomain>) -> Result<(), Refused<Arc<ProtectionDomain>>> {
    let domain = Arc::try_unwrap(domain).map_err(|domain| (domain, Errno::EBUSY))?;
    let dealloc = domain.dealloc();
    dealloc.map_err(|(domain, errno)| (Arc::new(domain), errno))
}

fn refusal<T>((_, errno): &Refused<T>) -> String {
    errno.to_string()
}
