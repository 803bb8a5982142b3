//! A path with one gate, driven in any order, against the history of what happened.

use std::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use proptest::prelude::*;

use super::*;
use crate::planted;

/// The next step, from any thread.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A bind begins to make this generation, beside the open binding if there is one.
    Make(Generation),
    /// A bind or a rotation goes on with the existing objects.
    TakeOver(Generation),
    /// The bind of this generation has connected, and opens.
    Open(Generation),
    Cut(Generation),
    /// The proof of the cut under way.
    Proved,
    /// The report of an earlier cut, once more.
    Late,
    /// The cut under way could not be proved.
    Failed,
    Release,
}

/// The events so far.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Past {
    Begun(Generation),
    Opened(Generation),
    Revoked(Generation),
    Ended,
    Removed,
}

/// A mistake of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    OpensUnasked,
    OpensBesideAnother,
    CutLeavesNoMark,
    ProofOfNothing,
    ReleaseLeavesNoMark,
}

struct Path {
    gate: Gate,
    making: Vec<Generation>,
    open: Option<Generation>,
    /// Generation of the cut under way.
    cutting: Option<Generation>,
    /// Generation of the latest cut that was proved.
    proved: Option<Generation>,
    past: Vec<Past>,
    mistake: Mistake,
}

impl Path {
    fn new(mistake: Mistake) -> Self {
        Self {
            gate: Gate::default(),
            making: Vec::new(),
            open: None,
            cutting: None,
            proved: None,
            past: Vec::new(),
            mistake,
        }
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        let has = |mistake| self.mistake == mistake;
        match step {
            Step::Make(new) if self.cutting.is_none() && self.gate.admits(new) => {
                if self.open.is_none() && self.gate.begin(new) {
                    self.past.push(Past::Begun(new));
                }
                self.making.push(new);
            }
            Step::TakeOver(new) if self.cutting.is_none() && self.gate.begin(new) => {
                self.past.push(Past::Begun(new));
                if self.open.is_some() {
                    self.open = Some(new);
                    self.past.push(Past::Opened(new));
                }
            }
            Step::Open(new) if self.making.contains(&new) => {
                self.making.retain(|it| *it != new);
                let expected = self.may_open(new);
                let opened = match self.mistake {
                    Mistake::OpensUnasked => Ok(()),
                    Mistake::OpensBesideAnother => self
                        .gate
                        .begin(new)
                        .then_some(())
                        .ok_or(NotOpened::Cancelled),
                    _ => self.gate.open(new),
                };
                if opened != expected {
                    return Err(format!("{new:?}: {opened:?} and not {expected:?}"));
                }
                if opened.is_ok() {
                    self.past.extend([Past::Begun(new), Past::Opened(new)]);
                    self.open = Some(new);
                }
            }
            Step::Cut(of) => {
                self.past.push(Past::Revoked(of));
                let newest = self.newest();
                let cut = match has(Mistake::CutLeavesNoMark) {
                    true => self.gate.check_current(of),
                    false => self.gate.revoke(of),
                };
                match (cut, newest) {
                    (Err(MovedOn(newer)), Some(newest)) if newest == newer && newer > of => {}
                    (Ok(()), newest) if newest <= Some(of) => {
                        self.cutting = self.cutting.max(Some(of));
                    }
                    _ => return Err(format!("cut of {of:?}: {cut:?}, but it has {newest:?}")),
                }
            }
            Step::Proved => {
                let Some(of) = self.cutting.take() else {
                    if has(Mistake::ProofOfNothing) {
                        self.gate.ended(Generation(u32::MAX));
                    }
                    return Ok(());
                };
                self.gate.ended(of);
                self.proved = Some(of);
                if self.newest() <= Some(of) {
                    self.open = None;
                    self.past.push(Past::Ended);
                }
            }
            Step::Late => {
                if let Some(of) = self.proved {
                    self.gate.ended(of);
                }
            }
            Step::Failed => self.cutting = None,
            Step::Release if self.open.is_none() && self.cutting.is_none() => {
                self.past.push(Past::Removed);
                if !has(Mistake::ReleaseLeavesNoMark) {
                    self.gate.remove();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn newest(&self) -> Option<Generation> {
        let begun = self.past.iter().filter_map(|past| match past {
            Past::Begun(generation) => Some(*generation),
            _ => None,
        });
        begun.max()
    }

    /// The expected result of `open`, from the history alone.
    fn may_open(&self, new: Generation) -> Result<(), NotOpened> {
        let is_over = self.past.iter().any(|past| match past {
            Past::Begun(other) => *other > new,
            Past::Revoked(other) => *other >= new,
            Past::Removed => true,
            _ => false,
        });
        if is_over {
            return Err(NotOpened::Cancelled);
        }
        let last = self.past.iter().rev();
        let mut last = last.filter(|past| matches!(past, Past::Begun(_) | Past::Ended));
        match last.next() {
            Some(Past::Begun(older)) if *older < new => Err(NotOpened::Occupied(*older)),
            _ => Ok(()),
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let generation = || (1u32..6).prop_map(Generation);
    let step = prop_oneof![
        4 => generation().prop_map(Step::Make),
        1 => generation().prop_map(Step::TakeOver),
        5 => generation().prop_map(Step::Open),
        2 => generation().prop_map(Step::Cut),
        3 => Just(Step::Proved),
        1 => Just(Step::Failed),
        1 => Just(Step::Late),
        1 => Just(Step::Release),
    ];
    prop::collection::vec(step, 1..40)
}

fn run(mistake: Mistake, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut path = Path::new(mistake);
    for step in steps {
        let done = path.step(step);
        done.map_err(|why| TestCaseError::fail(format!("{why}: {:?}", path.past)))?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_gate_opens_what_the_history_allows_and_nothing_else(steps in steps()) {
        run(Mistake::None, steps)?;
    }
}

#[test]
fn a_path_that_goes_round_its_gate_is_found() {
    let mistakes = [
        Mistake::OpensUnasked,
        Mistake::OpensBesideAnother,
        Mistake::CutLeavesNoMark,
        Mistake::ProofOfNothing,
        Mistake::ReleaseLeavesNoMark,
    ];
    planted::all_are_found(mistakes, steps, run);
}

#[test]
fn a_late_report_of_a_cut_says_nothing_about_the_next_binding() {
    let mut gate = Gate::default();
    assert!(gate.begin(Generation(1)));
    gate.ended(Generation(1));
    assert_eq!(gate.open(Generation(2)), Ok(()));
    gate.ended(Generation(1));
    let shut = NotOpened::Occupied(Generation(2));
    assert_eq!(gate.open(Generation(3)), Err(shut));
}

#[test]
fn a_binding_that_has_not_ended_strands_its_successor() {
    let mut gate = Gate::default();
    assert!(gate.begin(Generation(1)));
    let shut = gate.open(Generation(2)).unwrap_err();
    let BindError::Stranded(error) = shut.into() else {
        panic!("{shut:?}");
    };
    assert_eq!(
        error.to_string(),
        "open: generation 1, the one before, has not ended"
    );
}
