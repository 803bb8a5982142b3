use fabricbios_lease::{BindError, NotOpened};

use super::*;

const G1: Generation = Generation(1);
const G2: Generation = Generation(2);

type TestCell = BindingCell<&'static str>;

impl Objects for &'static str {
    fn may_give_access(&self) -> bool {
        *self == "queue pair"
    }
}

fn cell(generation: Generation, phase: Phase<&'static str>) -> TestCell {
    let cell = BindingCell::default();
    cell.lock().gate.begin(generation);
    cell.set(phase);
    cell
}

fn live() -> TestCell {
    cell(G1, Phase::Live("parts"))
}

fn error() -> StepError {
    StepError::new("dealloc_mw", "EIO")
}

#[test]
fn a_new_binding_is_made_beside_the_older_one_which_stays_as_it_is() {
    let cell = live();
    assert_eq!(cell.begin_bind(G2, true), BindStep::Beside);
    assert!(matches!(cell.lock().phase, Phase::Live("parts")));
    assert_eq!(cell.lock().gate.generation(), Some(G1));
    assert_eq!(cell.lock().begin_bind(Generation(3), true), None);
    cell.changed(Vec::new());
    assert_eq!(cell.begin_bind(Generation(3), true), BindStep::Beside);
}

#[test]
fn a_cut_does_not_wait_for_a_binding_beside_and_ends_both() {
    let cell = live();
    assert_eq!(cell.begin_bind(G2, true), BindStep::Beside);
    assert!(!cell.is_revoked(G2));
    assert_eq!(cell.begin_cut(G2), Ok(CutStep::Cut("parts")));
    cell.finish_cut(G2, Ok((Proof::default(), None))).unwrap();
    assert!(cell.is_revoked(G2), "it must not open any more");
    assert_eq!(cell.lock().begin_release(G2), None);
    cell.changed(vec!["rest"]);
    assert_eq!(cell.begin_release(G2), ReleaseStep::Tidy(vec!["rest"]));
}

#[test]
fn the_end_of_the_older_binding_lets_the_one_beside_it_open() {
    let cell = live();
    assert_eq!(cell.begin_bind(G2, true), BindStep::Beside);
    assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
    assert_eq!(cell.lock().gate.open(G2), Err(NotOpened::Occupied(G1)));
    cell.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
    assert_eq!(cell.lock().gate.open(G2), Ok(()));
}

#[test]
fn what_an_earlier_bind_left_goes_before_the_next_one() {
    let cell = live();
    assert_eq!(cell.begin_bind(G2, true), BindStep::Beside);
    cell.changed(vec!["rest"]);
    let g3 = Generation(3);
    assert_eq!(cell.begin_bind(g3, true), BindStep::Tidy(vec!["rest"]));
    cell.changed(Vec::new());
    assert_eq!(cell.begin_bind(g3, true), BindStep::Beside);
}

#[test]
fn a_binding_that_could_not_be_cut_strands_the_next() {
    let cell = live();
    assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
    assert_eq!(cell.finish_cut(G1, Err(("parts", error()))), Err(error()));
    assert_eq!(cell.begin_bind(G2, true), BindStep::Stranded(error()));
}

#[test]
fn a_cut_during_connecting_does_not_wait_and_cancels() {
    let cell = TestCell::default();
    assert_eq!(cell.begin_bind(G1, true), BindStep::Fresh);
    assert!(!cell.is_revoked(G1));
    assert!(matches!(cell.begin_cut(G1), Ok(CutStep::Unreachable(_))));
    assert!(cell.is_revoked(G1));
}

#[test]
fn a_release_waits_for_a_cancelled_bind_to_end() {
    let cell = TestCell::default();
    assert_eq!(cell.begin_bind(G1, true), BindStep::Fresh);
    assert!(
        matches!(cell.begin_release(G1), ReleaseStep::Refuse(_)),
        "not cut yet"
    );
    assert!(matches!(cell.begin_cut(G1), Ok(CutStep::Unreachable(_))));
    std::thread::scope(|threads| {
        let release = threads.spawn(|| cell.begin_release(G1));
        cell.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
        assert_eq!(release.join().unwrap(), ReleaseStep::Tidy(Vec::new()));
    });
}

#[test]
fn a_newer_bind_cancels_an_older_one_that_is_connecting() {
    let cell = TestCell::default();
    assert_eq!(cell.begin_bind(G1, true), BindStep::Fresh);
    assert_eq!(cell.lock().begin_bind(G2, true), None);
    assert!(cell.is_revoked(G1));
}

#[test]
fn a_cut_does_not_wait_for_a_rotation_and_the_release_after_it_does() {
    let cell = live();
    cell.begin_change(|_| Ok(())).unwrap();
    assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
    cell.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
    assert_eq!(cell.lock().begin_release(G1), None);
    assert_eq!(cell.lock().begin_bind(G2, true), None);
    cell.changed(Vec::new());
    assert_eq!(cell.begin_release(G1), ReleaseStep::Tidy(Vec::new()));
}

#[test]
fn a_binding_is_closed_after_its_cut_also_if_a_thread_panicked_with_the_lock() {
    let cell = live();
    std::thread::scope(|threads| {
        let thread = threads.spawn(|| {
            let _state = cell.lock();
            panic!("the lock is poisoned");
        });
        thread.join().unwrap_err();
    });
    assert!(!cell.is_closed(G1));
    assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
    assert!(cell.is_closed(G1));
}

#[test]
fn a_bind_that_came_to_nothing_removes_its_cell_once() {
    let cell = TestCell::default();
    assert_eq!(cell.begin_bind(G1, true), BindStep::Fresh);
    assert!(!cell.lock().remove_if_nothing(), "it is being bound");
    cell.finish_cut(G1, Ok((Proof::default(), None))).unwrap();
    assert!(cell.lock().remove_if_nothing());
    assert_eq!(cell.begin_bind(G2, true), BindStep::Cancelled);
    assert!(!cell.lock().remove_if_nothing(), "its place may be taken");
}

#[test]
fn a_change_that_is_refused_is_over() {
    let cell = live();
    let refused: Result<(), _> = cell.begin_change(|_| Err(error()));
    assert_eq!(refused, Err(error()));
    assert!(!cell.lock().changing);
}

#[test]
fn binding_the_same_generation_twice_is_refused() {
    assert!(matches!(live().begin_bind(G1, true), BindStep::Refuse(_)));
}

#[test]
fn a_proof_behind_which_something_is_open_fails_the_cut() {
    let cell = live();
    assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")));
    let finished = cell.finish_cut(G1, Ok((Proof::default(), Some("queue pair"))));
    let error = finished.unwrap_err().to_string();
    assert!(
        error.contains("ended") && error.contains("mistake"),
        "{error}"
    );
    assert!(matches!(cell.begin_release(G1), ReleaseStep::Refuse(_)));
    assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("queue pair")));
}

#[test]
fn a_binding_does_not_open_over_objects_of_another_one() {
    let cell = live();
    cell.lock().gate.ended(G1);
    let Err(BindError::Stranded(error)) = cell.lock().open(G2) else {
        panic!("it opened");
    };
    assert!(error.to_string().contains("one: "), "{error}");
    assert_eq!(cell.begin_cut(G1), Ok(CutStep::Cut("parts")), "as before");
}
