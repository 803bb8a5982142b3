//! The proof of a cut: the kernel does not know the queue pair any more.

use std::time::Duration;

use fabricbios_lease::{BindingId, StepError};

use super::{hardware::Hardware, parts::Pair, restrack, steps::Steps};

/// Number of looks at the tracker. A thread of another lease may have made a queue pair with the number and not noted
/// it yet, which takes a moment.
const LOOKS: u32 = 50;
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

impl Hardware {
    pub(super) fn prove_gone(
        &self,
        pair: &mut Pair,
        steps: &mut Steps,
    ) -> Result<(), (&'static str, String)> {
        if pair.proven_gone {
            return Ok(());
        }
        let step = || self.look_for(pair.number);
        steps
            .run("restrack", step, |_| "not gone".into())
            .map_err(|error| ("restrack", error.detail))?;
        pair.proven_gone = true;
        Ok(())
    }

    /// Checks that the kernel has no queue pair with this number, or that another process or lease has the number now.
    fn look_for(&self, number: u32) -> Result<(), StepError> {
        if self.faults.strike("restrack") {
            return Err(StepError::new("restrack", "made to fail"));
        }
        for _ in 0..LOOKS {
            match restrack::queue_pair(self.device.index, self.device.port, number)? {
                None => return Ok(()),
                Some(it) if !it.may_be_of(std::process::id()) => return Ok(()),
                Some(_) if self.queue_pairs.has_number(number) => return Ok(()),
                Some(_) => std::thread::sleep(BETWEEN_LOOKS),
            }
        }
        let detail = format!("queue pair {number} was destroyed and the kernel still tracks it");
        Err(StepError::new("restrack", detail))
    }

    /// Shows once that the tracker reports a queue pair of this process and then its end. Without this, the absence of
    /// a queue pair from the tracker would prove nothing.
    pub(super) fn check_tracker(&self, binding_id: BindingId) -> Result<(), StepError> {
        let seen = self.test_pair(binding_id, |parts| {
            let number = parts.pairs.first().map_or(0, |pair| pair.number);
            restrack::queue_pair(self.device.index, self.device.port, number)
        })?;
        match seen? {
            Some(_) => Ok(()),
            None => Err(self.error("restrack", binding_id, "does not see a live queue pair")),
        }
    }
}
