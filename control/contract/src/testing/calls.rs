//! The calls of a fake kernel.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Counts the calls that change something in a fake kernel, makes some of them fail, and lets something happen before
/// one of them. The fake calls [`Calls::begin`] for each, without a lock of its own.
#[derive(Default)]
pub struct Calls(Mutex<State>);

#[derive(Default)]
struct State {
    /// Since they were counted anew.
    made: Vec<String>,
    fails: Fails,
    before: Vec<(Which, Box<dyn FnOnce() + Send>)>,
}

/// The calls that fail.
#[derive(Default)]
#[allow(missing_debug_implementations, reason = "one variant is a closure")]
pub enum Fails {
    /// None.
    #[default]
    Never,
    /// This call alone; the first is 1.
    At(usize),
    /// All calls after this number of calls, as if the process had died.
    After(usize),
    /// The calls whose names this accepts.
    If(Name),
}

/// Chooses calls by their names.
pub type Name = Box<dyn Fn(&str) -> bool + Send>;

enum Which {
    At(usize),
    Named(Name),
}

impl Calls {
    /// Begins a call.
    ///
    /// # Errors
    /// The test makes the call fail.
    pub fn begin(&self, name: &str) -> Result<(), String> {
        let mut state = self.state();
        state.made.push(name.to_owned());
        let number = state.made.len();
        let fails = match &state.fails {
            Fails::Never => false,
            Fails::At(at) => *at == number,
            Fails::After(done) => number > *done,
            Fails::If(is_it) => is_it(name),
        };
        let is_it = |(which, _): &(Which, _)| match which {
            Which::At(at) => *at == number,
            Which::Named(is_it) => is_it(name),
        };
        let happens = state.before.iter().position(is_it);
        let happens = happens.map(|at| state.before.remove(at));
        drop(state);
        if let Some((_, happens)) = happens {
            happens();
        }
        match fails {
            true => Err(format!("{name}: on purpose")),
            false => Ok(()),
        }
    }

    /// The names of the calls so far. Counts anew.
    pub fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.state().made)
    }

    /// Makes these calls fail, and no others. Counts anew.
    pub fn fail(&self, fails: Fails) {
        let mut state = self.state();
        state.made.clear();
        state.fails = fails;
    }

    /// Makes the calls with these names fail, and no others. Counts anew.
    pub fn fail_named(&self, names: &'static [&'static str]) {
        self.fail(Fails::If(Box::new(|name| names.contains(&name))));
    }

    /// Lets something happen before the call with this number. Counts anew.
    pub fn before(&self, number: usize, happens: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        state.made.clear();
        state.before.push((Which::At(number), Box::new(happens)));
    }

    /// Lets something happen before the next call whose name `is_it` accepts.
    pub fn before_next(
        &self,
        is_it: impl Fn(&str) -> bool + Send + 'static,
        happens: impl FnOnce() + Send + 'static,
    ) {
        let which = Which::Named(Box::new(is_it));
        self.state().before.push((which, Box::new(happens)));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.state().made).finish()
    }
}
