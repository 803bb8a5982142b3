//! Wipes the free memory of a device.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fabricbios_helper::{Call, CallError, Caller, Failure, Supervisor};
use serde::{Deserialize, Serialize};

use crate::{
    Device, Libraries,
    driver::{Context, Wiped, wipe_free},
};

/// Overwrites all free memory of a device or partition with zeroes, except the memory of this process's context. The
/// context stays open until the end of the process, or until [`Scrub::twice`] closes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scrub {
    /// The device or partition.
    pub device: Device,
    /// The vendors' libraries.
    pub libraries: Libraries,
}

/// Opens the context for [`Scrub`]. The answer is the remaining free memory, bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OpenContext(Scrub);

/// Closes the context.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CloseContext;

/// The context of this process, which serves one call at a time.
static CONTEXT: Mutex<Option<Context>> = Mutex::new(None);

impl Scrub {
    /// Makes the call in two processes; the second process wipes the memory of the first process's context. Contexts
    /// take some hundred MiB, more than 1 % of most devices. `silence_max` and `progress` are those of
    /// [`Supervisor::call`].
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn twice(
        &self,
        supervisor: &Supervisor,
        silence_max: Duration,
        progress: &dyn Fn(&str),
    ) -> Result<Wiped, CallError> {
        let mut one = supervisor.session()?;
        let first = one.ask(self, silence_max, progress)?;
        let mut other = supervisor.session()?;
        // The context of the second process gets memory that the first process has wiped.
        let beside = other.ask(&OpenContext(self.clone()), silence_max, progress)?;
        one.ask(&CloseContext, silence_max, progress)?;
        let second = other.ask(self, silence_max, progress)?;
        other.ask(&CloseContext, silence_max, progress)?;
        let context = first.free_bytes.saturating_sub(beside);
        // If the first process left some memory out, the second context may lie in that memory.
        let left_out = first.free_bytes.saturating_sub(first.bytes);
        Ok(Wiped {
            bytes: second.bytes + context.saturating_sub(left_out),
            free_bytes: second.free_bytes + context,
        })
    }

    fn failed(&self, error: impl std::fmt::Display) -> Failure {
        Failure::from(format!("{}: {error}", self.device.uuid))
    }

    /// The context of this process.
    fn context(&self, caller: &Caller) -> Result<Context, Failure> {
        let mut held = held();
        if let Some(context) = &*held {
            return Ok(context.clone());
        }
        let device = &self.device;
        caller.progress("opening a context")?;
        let context = Context::open(
            &self.libraries,
            device.vendor,
            &device.visible,
            &device.uuid,
        );
        let context = context.map_err(|error| self.failed(error))?;
        caller.progress("the context is open")?;
        Ok(held.insert(context).clone())
    }
}

fn held() -> MutexGuard<'static, Option<Context>> {
    CONTEXT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Call for Scrub {
    const NAME: &'static str = "gpu-scrub";
    type Answer = Wiped;

    fn make(self, caller: &Caller) -> Result<Wiped, Failure> {
        let context = self.context(caller)?;
        let mut heard = Ok(());
        let wiped = wipe_free(&context, &mut |wiped, free| {
            if heard.is_ok() {
                heard = caller.progress(format!("{wiped} of {free} bytes are wiped"));
            }
        });
        let wiped = wiped.map_err(|error| self.failed(error))?;
        heard?;
        Ok(wiped)
    }
}

impl Call for OpenContext {
    const NAME: &'static str = "gpu-open";
    type Answer = u64;

    fn make(self, caller: &Caller) -> Result<u64, Failure> {
        let context = self.0.context(caller)?;
        let memory = context.memory().map_err(|error| self.0.failed(error))?;
        Ok(memory.free)
    }
}

impl Call for CloseContext {
    const NAME: &'static str = "gpu-close";
    type Answer = ();

    fn make(self, _caller: &Caller) -> Result<(), Failure> {
        let closed = held().take().map_or(Ok(()), |context| context.release());
        closed.map_err(|error| Failure::from(error.to_string()))
    }
}
