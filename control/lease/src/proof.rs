//! The proof that a cut ended access, and what was cleaned after it.

use alloc::{borrow::Cow, string::String, sync::Arc, vec::Vec};
use core::{
    fmt::{self, Write as _},
    time::Duration,
};

use fabricbios_wire::{PROOF_STEPS_MAX, ProofStep};

/// Bytes of most answers of a step.
const USUAL_BYTES: usize = 40;

/// The steps and checks of a cut or of a cleaning, in order. The first [`PROOF_STEPS_MAX`] steps are kept.
/// Clones share them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof(Arc<Vec<ProofStep>>);

impl Proof {
    /// A proof that no access was there, with the reason.
    #[must_use]
    pub fn nothing_to_cut(why: impl fmt::Display) -> Self {
        Self::of("nothing to cut:", Duration::ZERO, why)
    }

    /// A proof of one step, see [`Proof::add`].
    #[must_use]
    pub fn of(
        step: impl Into<Cow<'static, str>>,
        took: Duration,
        found: impl fmt::Display,
    ) -> Self {
        let mut proof = Self(Arc::new(Vec::with_capacity(1)));
        proof.add(step, took, found);
        proof
    }

    /// A proof that a part keeps no data of its lease, with the reason.
    #[must_use]
    pub fn nothing_to_clean(why: impl fmt::Display) -> Self {
        Self::of("nothing to clean:", Duration::ZERO, why)
    }

    /// Adds the next step. `found`: the answer of the system; empty if the step has none.
    pub fn add(
        &mut self,
        step: impl Into<Cow<'static, str>>,
        took: Duration,
        found: impl fmt::Display,
    ) {
        if self.0.len() < PROOF_STEPS_MAX {
            let mut text = String::with_capacity(USUAL_BYTES);
            // A string takes every byte.
            write!(text, "{found}").ok();
            Arc::make_mut(&mut self.0).push(ProofStep {
                step: step.into(),
                took_us: u32::try_from(took.as_micros()).unwrap_or(u32::MAX),
                found: text,
            });
        }
    }

    /// Appends the steps of another path.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        if self.0.is_empty() {
            return other;
        }
        let room = PROOF_STEPS_MAX.saturating_sub(self.0.len());
        let more = other.into_steps().into_iter().take(room);
        Arc::make_mut(&mut self.0).extend(more);
        self
    }

    /// All steps.
    #[must_use]
    pub fn steps(&self) -> &[ProofStep] {
        &self.0
    }

    /// All steps, without a copy if nobody else has them.
    pub(crate) fn into_steps(self) -> Vec<ProofStep> {
        Arc::unwrap_or_clone(self.0)
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ProofLine(&self.0).fmt(f)
    }
}

/// The steps of a proof as one line, for the log.
#[derive(Clone, Copy, Debug)]
pub struct ProofLine<'a>(pub &'a [ProofStep]);

impl fmt::Display for ProofLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            let found = Some(&*step.found).filter(|found| !found.is_empty());
            let took_ms = f64::from(step.took_us) / 1e3;
            write!(
                f,
                "{separator}{} {} {took_ms:.2} ms",
                step.step,
                found.unwrap_or("ok")
            )?;
        }
        Ok(())
    }
}
