//! A custody driven in any order, against a list.

use std::{format, string::String, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::planted;

const A: LeaseId = LeaseId(1);
const B: LeaseId = LeaseId(2);

fn part(offset: u64, length: u64) -> Extent {
    Extent { offset, length }
}

#[test]
fn every_overlap_is_found_and_no_neighbour() {
    let mut custody = Custody::<()>::default();
    custody.claim(A, part(2, 4)).unwrap();
    custody.claim(B, part(8, 1)).unwrap();
    let holder = |custody: &Custody<()>, extent| match custody.check(LeaseId(9), extent) {
        Err(NotFree::HeldBy(lease, _)) => Some(lease),
        _ => None,
    };
    for inside in [part(0, 3), part(3, 1), part(5, 2), part(0, 7)] {
        assert_eq!(holder(&custody, inside), Some(A), "{inside:?}");
    }
    assert_eq!(holder(&custody, part(8, 9)), Some(B));
    for outside in [part(0, 2), part(6, 2), part(9, 9)] {
        assert_eq!(holder(&custody, outside), None, "{outside:?}");
    }
    assert_eq!(custody.check(A, part(2, 4)), Ok(()), "its own");
}

#[test]
fn what_is_remembered_of_released_leases_is_bounded() {
    let mut custody = Custody::<()>::default();
    for lease in 0..RELEASED as u128 + 10 {
        custody.release(LeaseId(lease));
    }
    assert_eq!(custody.released.len(), RELEASED);
    assert_eq!(custody.find(LeaseId(0)), Lookup::Unknown);
    assert_eq!(custody.find(LeaseId(10)), Lookup::Released);
}

/// The actions of a store.
#[derive(Clone, Copy, Debug)]
enum Step {
    Make(LeaseId),
    Claim(LeaseId, Extent),
    Forget(LeaseId),
    Release(LeaseId),
}

/// A mistake of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// The store frees the part and does not remember the release.
    ReleasesByForgetting,
    /// The store gives a lease another part before the first one is clean.
    ClaimsAnew,
    /// The store keeps the part of a lease that it has to forget.
    ForgetsNothing,
}

/// The expected state: the entries and the released leases.
#[derive(Default)]
struct List {
    entries: Vec<(LeaseId, Option<Extent>)>,
    released: Vec<LeaseId>,
}

impl List {
    fn part_of(&self, lease: LeaseId) -> Option<Extent> {
        let mut entries = self.entries.iter();
        entries.find(|(it, _)| *it == lease).and_then(|it| it.1)
    }

    fn may_claim(&self, lease: LeaseId, extent: Extent) -> Result<(), NotFree> {
        if self.released.contains(&lease) {
            return Err(NotFree::Released);
        }
        if let Some(other) = self.part_of(lease).filter(|it| *it != extent) {
            return Err(NotFree::HoldsOther(other));
        }
        let held = self.entries.iter();
        let held = held.filter_map(|(holder, part)| Some((*holder, (*part)?)));
        let others = held.filter(|(holder, part)| *holder != lease && part.overlaps(extent));
        let last = others.max_by_key(|(_, part)| part.offset);
        last.map_or(Ok(()), |(holder, part)| Err(NotFree::HeldBy(holder, part)))
    }

    fn take_out(&mut self, lease: LeaseId) {
        self.entries.retain(|(it, _)| *it != lease);
    }

    fn put(&mut self, lease: LeaseId, extent: Option<Extent>) {
        let extent = extent.or(self.part_of(lease));
        self.take_out(lease);
        self.entries.push((lease, extent));
    }

    fn expects(&self, lease: LeaseId) -> Lookup<()> {
        match self.entries.iter().any(|(it, _)| *it == lease) {
            true => Lookup::Here(()),
            false if self.released.contains(&lease) => Lookup::Released,
            false => Lookup::Unknown,
        }
    }
}

fn step(
    custody: &mut Custody<()>,
    list: &mut List,
    step: Step,
    mistake: Mistake,
) -> Result<(), String> {
    match step {
        Step::Make(lease) => {
            let made = custody.find_or_make(lease).is_some();
            if made == list.released.contains(&lease) {
                return Err(format!("made: {made}"));
            }
            if made {
                list.put(lease, None);
            }
        }
        Step::Claim(lease, extent) => {
            if mistake == Mistake::ClaimsAnew {
                custody.forget(lease);
            }
            let (claimed, expected) = (custody.claim(lease, extent), list.may_claim(lease, extent));
            if claimed != expected {
                return Err(format!("{claimed:?} and not {expected:?}"));
            }
            if claimed.is_ok() {
                list.put(lease, Some(extent));
            }
        }
        Step::Forget(lease) => {
            if mistake != Mistake::ForgetsNothing {
                custody.forget(lease);
            }
            list.take_out(lease);
        }
        Step::Release(lease) => {
            match mistake {
                Mistake::ReleasesByForgetting => custody.forget(lease),
                _ => custody.release(lease),
            }
            list.take_out(lease);
            list.released.push(lease);
        }
    }
    let held: u64 = custody.held.values().map(|(part, _)| part.length).sum();
    let parts = list.entries.iter().filter_map(|it| it.1);
    if held != parts.map(|part| part.length).sum::<u64>() {
        return Err(format!("{held} positions held"));
    }
    Ok(())
}

fn run(mistake: Mistake, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (mut custody, mut list) = (Custody::default(), List::default());
    for next in steps {
        let done = step(&mut custody, &mut list, next, mistake);
        done.map_err(|why| TestCaseError::fail(format!("{next:?}: {why}")))?;
        for lease in (0..5).map(LeaseId) {
            prop_assert_eq!(custody.find(lease), list.expects(lease));
            prop_assert_eq!(custody.extent_of(lease), list.part_of(lease));
        }
    }
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lease = || (0u128..5).prop_map(LeaseId);
    let part = (0u64..12, 1u64..5).prop_map(|(offset, length)| part(offset, length));
    let step = prop_oneof![
        1 => lease().prop_map(Step::Make),
        4 => (lease(), part).prop_map(|(lease, part)| Step::Claim(lease, part)),
        1 => lease().prop_map(Step::Forget),
        1 => lease().prop_map(Step::Release),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    #[test]
    fn parts_belong_to_one_lease_until_it_is_released(steps in steps()) {
        run(Mistake::None, steps)?;
    }
}

#[test]
fn a_store_that_goes_round_its_custody_is_found() {
    let mistakes = [
        Mistake::ReleasesByForgetting,
        Mistake::ClaimsAnew,
        Mistake::ForgetsNothing,
    ];
    planted::all_are_found(mistakes, steps, run);
}
