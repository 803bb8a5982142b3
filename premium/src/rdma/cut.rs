//! Ending access, in the one order that neither stalls nor lies.
//!
//! 1. LOCAL_INV of every window, if the queue pair still works. Its result only informs.
//! 2. Dealloc every window, whatever 1 said: a queue pair destroyed with a bound window stalls
//!    for most of a minute.
//!    Then, for a client that did not ask for its end, a moment in which its next access is answered
//!    with a remote access error. A short one: a message that was under way when its key died is
//!    served to its end until 3.
//! 3. Queue pair to ERR, then destroyed.
//! 4. The kernel's resource tracker must not know the queue pair any more.
//! 5. The completion queue goes, and the lease's own region if it had one.
//!
//! The arena is never touched. A cut that ends early gives back what remains, and the next try
//! goes on from there.

use std::{
    fmt::{self, Write as _},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use fabricbios_arena::ALIGN;
use fabricbios_lease::{Extent, Farewell, StepError, Tag};
use nix::errno::Errno;

use super::{
    connect::{BindingParts, Hardware, Parts},
    life::CutResult,
    restrack::{self, Presence},
    verbs::{QueuePair, QueuePairState, Refused, Window, WorkError},
};

/// As for binding; longer only means that the device no longer answers, and step 2 follows anyway.
const INVALIDATE_LIMIT: Duration = Duration::from_millis(500);

/// Several round trips on any fabric, and some between two processes of an emulated machine.
const FAREWELL_LIMIT: Duration = Duration::from_millis(20);
const BETWEEN_FAREWELL_LOOKS: Duration = Duration::from_micros(250);

/// Between making a queue pair and noting its number another lease's thread may need a moment.
const LOOKS: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// The names, results and times of the steps taken: the proof for the log.
#[derive(Debug, Default)]
struct Steps(String);

impl Steps {
    fn run<T, E>(
        &mut self,
        name: impl fmt::Display,
        step: impl FnOnce() -> Result<T, E>,
        describe: impl FnOnce(&E) -> String,
    ) -> Result<T, E> {
        let started = Instant::now();
        let result = step();
        let took_ms = started.elapsed().as_secs_f64() * 1e3;
        let outcome = result.as_ref().err().map_or_else(|| "ok".into(), describe);
        let comma = if self.0.is_empty() { "" } else { ", " };
        // Writing to a String cannot fail.
        write!(self.0, "{comma}{name} {outcome} {took_ms:.2} ms").unwrap_or_default();
        result
    }
}

impl Steps {
    /// A step that cannot fail, only find something or not.
    fn note(&mut self, name: &str, step: impl FnOnce() -> bool) {
        let found = self.run(
            name,
            || step().then_some(()).ok_or(()),
            |()| "unheard".into(),
        );
        tracing::trace!(name, heard = found.is_ok(), "step of a cut");
    }
}

impl Hardware {
    /// Ends access through `parts` and proves it.
    pub(super) fn dismantle(
        &self,
        mut parts: Parts,
        tag: Tag,
        farewell: Farewell,
    ) -> CutResult<Parts> {
        let mut steps = Steps::default();
        match self.take_down(&mut parts, tag, farewell, &mut steps) {
            Ok(()) if parts.is_empty() => Ok((steps.0, None)),
            Ok(()) => Ok((steps.0, Some(parts))),
            Err((step, why)) => {
                let detail = format!("{why} (steps taken: {})", steps.0);
                Err((parts, self.error(step, tag, detail)))
            }
        }
    }

    fn take_down(
        &self,
        parts: &mut Parts,
        tag: Tag,
        farewell: Farewell,
        steps: &mut Steps,
    ) -> Result<(), (&'static str, String)> {
        let invalidated = self.invalidate_all(parts, steps);
        let dealloc = self.dealloc_all(&mut parts.windows, steps);
        if farewell == Farewell::Brief && invalidated && dealloc.is_ok() {
            steps.note("farewell", || say_farewell(parts));
        }
        // Not bound, so nothing depends on them but tidiness: those that stay are leftovers.
        if let Err(errno) = self.dealloc_all(&mut parts.doomed, steps) {
            tracing::warn!(lease = %tag, %errno, "an unbound window stays");
        }
        self.fail(parts, steps);
        if let (Err(errno), false) = (dealloc, invalidated) {
            // In ERR nothing is served any more, but destroying the queue pair now would stall.
            return Err(("dealloc_mw", errno.to_string()));
        }
        self.destroy_queue_pair(parts, steps)?;
        self.prove_gone(parts, steps)?;
        destroy_rest(parts, steps);
        Ok(())
    }

    /// Whether every window is known to be dead.
    fn invalidate_all(&self, parts: &Parts, steps: &mut Steps) -> bool {
        let works = parts.windows.is_empty()
            || parts.queue_pair.as_ref().is_some_and(|queue_pair| {
                let state = steps.run("query_qp", || queue_pair.state(), Errno::to_string);
                state == Ok(QueuePairState::ReadyToSend)
            });
        let mut all = works;
        for window in parts.windows.iter().filter(|_| works) {
            let step = || self.invalidate(parts, window);
            all &= steps.run("local_inv", step, WorkError::to_string).is_ok();
        }
        all
    }

    /// LOCAL_INV of one window.
    pub(super) fn invalidate(&self, parts: &Parts, window: &Window) -> Result<(), WorkError> {
        let (Some(queue_pair), Some(completions)) = (&parts.queue_pair, &parts.completions) else {
            return Err(WorkError::Post(Errno::EINVAL));
        };
        if self.faults.strike("local_inv") {
            return Err(WorkError::Post(Errno::EIO));
        }
        let id = self.work.fetch_add(1, Ordering::Relaxed);
        queue_pair
            .post_invalidate(id, window.rkey())
            .map_err(WorkError::Post)?;
        completions.wait(id, INVALIDATE_LIMIT)
    }

    /// Deallocates all that can be; what cannot stays, with the last refusal.
    fn dealloc_all(&self, windows: &mut Vec<Window>, steps: &mut Steps) -> Result<(), Errno> {
        let mut result = Ok(());
        for window in std::mem::take(windows) {
            let step = || match self.faults.strike("dealloc_mw") {
                true => Err((window, Errno::EIO)),
                false => window.dealloc(),
            };
            if let Err((window, errno)) = steps.run("dealloc_mw", step, refusal) {
                windows.push(window);
                result = Err(errno);
            }
        }
        result
    }

    /// Ends the key before the last rotation; the newer one goes on.
    pub(super) fn retire_oldest(&self, parts: &mut Parts, tag: Tag) -> Result<(), StepError> {
        if let Err(error) = self.invalidate(parts, &parts.windows[0]) {
            // Taking the window away ends the key as well.
            tracing::warn!(lease = %tag, %error, "local_inv of a rotated key");
        }
        parts
            .windows
            .remove(0)
            .dealloc()
            .map_err(|(window, errno)| {
                parts.windows.insert(0, window);
                self.error("dealloc_mw", tag, errno)
            })
    }

    /// Destroying does it too; done before so that the device stops serving at once.
    fn fail(&self, parts: &Parts, steps: &mut Steps) {
        if let Some(queue_pair) = &parts.queue_pair
            && steps
                .run("modify_qp ERR", || queue_pair.fail(), Errno::to_string)
                .is_err()
        {
            tracing::warn!(
                number = parts.number,
                steps = steps.0,
                "modify_qp ERR failed"
            );
        }
    }

    fn destroy_queue_pair(
        &self,
        parts: &mut Parts,
        steps: &mut Steps,
    ) -> Result<(), (&'static str, String)> {
        let Some(queue_pair) = parts.queue_pair.take() else {
            return Ok(());
        };
        self.numbers().remove(&parts.number);
        let step = || match self.faults.strike("destroy_qp") {
            true => Err((queue_pair, Errno::EIO)),
            false => queue_pair.destroy(),
        };
        match steps.run("destroy_qp", step, refusal) {
            Ok(()) => Ok(()),
            Err((queue_pair, errno)) => {
                parts.queue_pair = Some(queue_pair);
                self.numbers().insert(parts.number);
                Err((
                    "destroy_qp",
                    format!("queue pair {}: {errno}", parts.number),
                ))
            }
        }
    }

    fn prove_gone(
        &self,
        parts: &mut Parts,
        steps: &mut Steps,
    ) -> Result<(), (&'static str, String)> {
        if parts.proven_gone {
            return Ok(());
        }
        let step = || self.look_for(parts.number);
        steps
            .run("restrack", step, |_| "not gone".into())
            .map_err(|error| ("restrack", error.detail))?;
        parts.proven_gone = true;
        Ok(())
    }

    /// `Ok`: the kernel has no queue pair of that number, or it is somebody else's by now.
    fn look_for(&self, number: u32) -> Result<(), StepError> {
        if self.faults.strike("restrack") {
            return Err(StepError::new("restrack", "made to fail"));
        }
        for _ in 0..LOOKS {
            match restrack::queue_pair(self.device.index, self.device.port, number)? {
                Presence::Gone => return Ok(()),
                Presence::Present(Some(owner)) if owner != std::process::id() => return Ok(()),
                Presence::Present(_) if self.numbers().contains(&number) => return Ok(()),
                Presence::Present(_) => std::thread::sleep(BETWEEN_LOOKS),
            }
        }
        let detail = format!("queue pair {number} was destroyed and the kernel still tracks it");
        Err(StepError::new("restrack", detail))
    }

    /// Shows once that the tracker sees queue pairs of this process, and sees them go: without
    /// that its silence would prove nothing.
    pub(super) fn check_tracker(&self, tag: Tag) -> Result<(), StepError> {
        let page = Extent {
            offset: 0,
            length: ALIGN,
        };
        let parts = self.prepare(tag, page).map_err(|(_, error)| error)?;
        let index = self.device.index;
        let seen = restrack::queue_pair(index, self.device.port, parts.number);
        self.dismantle(parts, tag, Farewell::None)
            .map_err(|(_, error)| error)?;
        match seen? {
            Presence::Present(_) => Ok(()),
            Presence::Gone => Err(self.error("restrack", tag, "does not see a live queue pair")),
        }
    }
}

impl BindingParts {
    /// State of the queue pair.
    pub(super) fn state(&self) -> Result<QueuePairState, Errno> {
        self.queue_pair
            .as_ref()
            .map_or(Err(Errno::EINVAL), QueuePair::state)
    }

    fn is_empty(&self) -> bool {
        self.queue_pair.is_none()
            && self.completions.is_none()
            && self.windows.is_empty()
            && self.doomed.is_empty()
            && self.region.is_none()
    }
}

/// The client's own access puts the queue pair in ERR; `false` if none came in time. Polled: the
/// device's event for it would have to find its way among those of all other leases.
fn say_farewell(parts: &Parts) -> bool {
    let started = Instant::now();
    while started.elapsed() < FAREWELL_LIMIT {
        if parts.state() != Ok(QueuePairState::ReadyToSend) {
            return true;
        }
        std::thread::sleep(BETWEEN_FAREWELL_LOOKS);
    }
    false
}

/// Neither gives access: the region has no remote rights and its windows are gone. One that stays
/// is a leftover for the release, and no failure of the cut.
fn destroy_rest(parts: &mut Parts, steps: &mut Steps) {
    if let Some(completions) = parts.completions.take()
        && let Err((completions, _)) = steps.run("destroy_cq", || completions.destroy(), refusal)
    {
        parts.completions = Some(completions);
    }
    if let Some(region) = parts.region.take()
        && let Err((region, _)) = steps.run("dereg_mr extent", || region.dereg(), refusal)
    {
        parts.region = Some(region);
    }
}

fn refusal<T>((_, errno): &Refused<T>) -> String {
    errno.to_string()
}
