//! The names, results and times of the steps of a cut: its proof, for the log.

use std::{
    fmt::{self, Write as _},
    time::Instant,
};

/// The steps taken so far, as text.
#[derive(Debug, Default)]
pub(super) struct Steps(String);

impl Steps {
    pub(super) fn run<T, E>(
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

    /// A step that cannot fail, only find something or not.
    pub(super) fn note(&mut self, name: &str, step: impl FnOnce() -> bool) {
        let found = self.run(
            name,
            || step().then_some(()).ok_or(()),
            |()| "unheard".into(),
        );
        tracing::trace!(name, heard = found.is_ok(), "step of a cut");
    }

    /// What was done, for people.
    pub(super) fn into_proof(self) -> String {
        match self.0.is_empty() {
            true => "nothing was made".into(),
            false => self.0,
        }
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
