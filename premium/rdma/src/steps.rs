//! The names, results and durations of the steps of a cut, as its proof.

use std::{
    fmt,
    time::{Duration, Instant},
};

use fabricbios_lease::Proof;

/// The steps taken so far. A step that is done for several objects, one after the other, is one step.
#[derive(Debug, Default)]
pub(super) struct Steps(Vec<Step>);

#[derive(Debug)]
struct Step {
    name: &'static str,
    took: Duration,
    found: String,
    times: usize,
}

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
        self.push(name, started.elapsed(), found);
        result
    }

    /// Adds a step that another process has done.
    pub(super) fn add(&mut self, step: &'static str, found: impl fmt::Display) {
        self.push(step, Duration::ZERO, found.to_string());
    }

    fn push(&mut self, name: &'static str, took: Duration, found: String) {
        match self.0.last_mut() {
            Some(last) if last.name == name && last.found == found => {
                last.took += took;
                last.times += 1;
            }
            _ => self.0.push(Step {
                name,
                took,
                found,
                times: 1,
            }),
        }
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

    pub(super) fn to_proof(&self) -> Proof {
        if self.0.is_empty() {
            return Proof::nothing_to_cut("nothing was made");
        }
        let mut proof = Proof::default();
        for step in &self.0 {
            let found = match (step.times, &*step.found) {
                (1, found) => found.to_owned(),
                (times, "") => format!("{times} times"),
                (times, found) => format!("{found}, {times} times"),
            };
            proof.add(step.name, step.took, found);
        }
        proof
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_proof().fmt(f)
    }
}
