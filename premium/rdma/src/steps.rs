//! The names, results and durations of the steps of a cut, as its proof.

use std::{
    fmt,
    time::{Duration, Instant},
};

use fabricbios_lease::Proof;

/// The steps taken so far.
#[derive(Debug, Default)]
pub(super) struct Steps(Proof);

impl Steps {
    pub(super) fn run<T, E>(
        &mut self,
        name: &'static str,
        step: impl FnOnce() -> Result<T, E>,
        describe: impl FnOnce(&E) -> String,
    ) -> Result<T, E> {
        let started = Instant::now();
        let result = step();
        let found = result.as_ref().err().map(describe).unwrap_or_default();
        self.0.add(name, started.elapsed(), found);
        result
    }

    /// Adds a step that another process has done.
    pub(super) fn add(&mut self, step: &'static str, found: impl fmt::Display) {
        self.0.add(step, Duration::ZERO, found);
    }

    /// Runs a step that cannot fail. If the step returns false, the proof contains "unheard" for it.
    pub(super) fn note(&mut self, name: &'static str, step: impl FnOnce() -> bool) {
        let found = self.run(
            name,
            || step().then_some(()).ok_or(()),
            |()| "unheard".into(),
        );
        tracing::trace!(name, heard = found.is_ok(), "step of a cut");
    }

    pub(super) fn into_proof(self) -> Proof {
        match self.0.steps() {
            [] => Proof::nothing_to_cut("nothing was made"),
            _ => self.0,
        }
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
