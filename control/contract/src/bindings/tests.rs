//! A path on a fake kernel. The test changes the lease between the calls of this kernel.

use std::{cell::Cell, sync::mpsc, thread, time::Duration};

use fabricbios_lease::BindError;
use fabricbios_wire::{Generation, ResourceId};
use proptest::prelude::*;

use super::{entry::now, *};

const LEASE: LeaseId = LeaseId(1);
const PROVED: &str = "no access";

fn binding_id(generation: u32) -> BindingId {
    BindingId {
        lease_id: LEASE,
        generation: Generation(generation),
        resource_id: ResourceId(5),
    }
}

/// The state of the fake kernel.
#[derive(Debug, Default)]
struct Kernel {
    access: Option<u32>,
    /// How often access has opened.
    opened: u32,
    /// The newest generation whose end is proved.
    proved: u32,
}

#[derive(Debug, Default)]
struct Path {
    bindings: Bindings,
    kernel: Mutex<Kernel>,
}

impl Path {
    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap()
    }

    fn opens(&self, generation: u32) -> Result<(), StepError> {
        let mut kernel = self.kernel();
        assert!(generation > kernel.proved, "it opens behind its proof");
        kernel.access = Some(generation);
        kernel.opened += 1;
        Ok(())
    }

    fn ends(&self) -> Result<Revoked, StepError> {
        self.kernel().access = None;
        Ok(Revoked::default())
    }

    /// `in_between` runs before and after access opens.
    fn bind(
        &self,
        generation: u32,
        is_anew: bool,
        in_between: [&dyn Fn(); 2],
    ) -> Result<(), BindError> {
        let [before, after] = in_between;
        let making = self
            .bindings
            .begin_unguarded(binding_id(generation), &"red".into())?;
        let open = |()| {
            self.opens(generation)?;
            after();
            Ok(())
        };
        if !is_anew {
            return making.beside(|| {
                before();
                open(()).map_err(BindError::Failed)
            });
        }
        let make = || {
            assert_eq!(self.kernel().access, None, "the one before goes on");
            before();
            Ok(())
        };
        making.anew(false, make, open, || self.ends().map(drop))
    }

    fn bind_alone(&self, generation: u32, is_anew: bool) -> Result<(), BindError> {
        self.bind(generation, is_anew, [&|| (), &|| ()])
    }

    fn revoke(&self, generation: u32) -> Revoked {
        let revoked = self
            .bindings
            .revoke(binding_id(generation), |()| self.ends());
        revoked.unwrap()
    }

    fn verify(&self, generation: u32, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let prove = |(): &(), _: Option<&Revoked>| {
            let mut kernel = self.kernel();
            match kernel.access {
                Some(open) => Err(StepError::new("verify", format_args!("{open} is open"))),
                None => {
                    if revoked.is_some() {
                        kernel.proved = kernel.proved.max(generation);
                    }
                    Ok(Proof::of(PROVED, Duration::ZERO, ""))
                }
            }
        };
        self.bindings
            .verify(binding_id(generation), revoked, |()| self.ends(), prove)
    }

    fn remove(&self) -> Result<(), StepError> {
        self.bindings.remove(LEASE, |()| {
            assert_eq!(self.kernel().access, None, "removed under its tenant");
            self.kernel().proved = u32::MAX;
            Ok(())
        })
    }

    fn extend(&self, generation: u32) -> Result<(), AlreadyCut> {
        let deadline = BootTime(u64::MAX);
        self.bindings.extend(binding_id(generation), deadline)
    }

    fn enter(&self, in_between: &dyn Fn()) -> Result<(), LocalRefusal> {
        let entry = self.bindings.in_use(LEASE)?;
        let admission = entry.admit(|_| Ok(()))?;
        in_between();
        admission.check()
    }
}

/// What another thread does in between. That thread does not wait.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    Extend(u32),
    Revoke(u32),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The generation; whether the binding replaces the older one; what happens before and after access opens.
    Bind(u32, bool, [Meanwhile; 2]),
    Enter(Meanwhile),
    Meanwhile(Meanwhile),
    /// The proof of the last cut of this generation.
    Verify(u32),
    Remove,
}

/// The path and the events so far.
#[derive(Debug, Default)]
struct World {
    path: Path,
    /// The newest generation that was bound.
    bound: u32,
    revoked: Cell<u32>,
    is_removed: bool,
}

impl World {
    fn is_over(&self, generation: u32) -> bool {
        self.is_removed || self.revoked.get() >= generation
    }

    fn meanwhile(&self, meanwhile: Meanwhile) {
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Extend(generation) => {
                let extended = self.path.extend(generation);
                assert_eq!(extended.is_err(), self.is_over(generation));
            }
            Meanwhile::Revoke(generation) => {
                self.path.revoke(generation);
                self.revoked.set(self.revoked.get().max(generation));
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Bind(generation, is_anew, [before, after]) => {
                let Kernel {
                    access: held,
                    opened,
                    ..
                } = *self.path.kernel();
                let is_cut = Cell::new(false);
                let before = || {
                    self.meanwhile(before);
                    is_cut.set(self.is_over(generation));
                };
                let is_late = self.is_over(generation) || self.bound > generation;
                let bound =
                    self.path
                        .bind(generation, is_anew, [&before, &|| self.meanwhile(after)]);
                let access = self.path.kernel().access;
                let opens = self.path.kernel().opened > opened;
                assert!(!(opens && is_anew && is_cut.get()), "it opens all the same");
                if bound.is_ok() {
                    assert!(!is_late && !self.is_over(generation), "opened behind a cut");
                    assert_eq!(access, Some(generation));
                    self.bound = generation;
                } else if is_late {
                    assert_eq!(access, held, "a late bind changes nothing");
                } else {
                    assert!(self.is_over(generation) || !is_anew, "{bound:?}");
                    assert!(!is_anew || access.is_none(), "a failed bind leaves access");
                }
            }
            Step::Enter(meanwhile) => {
                let entered = self.path.enter(&|| self.meanwhile(meanwhile));
                assert!(
                    !self.is_over(self.bound) || entered.is_err(),
                    "entered behind a cut"
                );
            }
            Step::Meanwhile(meanwhile) => self.meanwhile(meanwhile),
            Step::Verify(generation) if self.is_over(generation) => {
                self.path
                    .verify(generation, Some(&Revoked::default()))
                    .unwrap();
                let access = self.path.kernel().access;
                assert!(
                    access.is_none_or(|it| it > generation),
                    "{access:?} is proved gone"
                );
            }
            // A proof for a binding that may be in use.
            Step::Verify(generation) => {
                let proved = self.path.verify(generation, None);
                let is_current = self.path.kernel().access == Some(generation);
                assert!(!is_current || proved.is_err(), "{proved:?}");
            }
            Step::Remove => {
                let removed = self.path.remove();
                let access = self.path.kernel().access;
                assert!(removed.is_err() || access.is_none(), "{access:?}");
                self.is_removed |= removed.is_ok();
            }
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let generation = || 1u32..5;
    let meanwhile = || {
        prop_oneof![
            4 => Just(Meanwhile::Nothing),
            1 => generation().prop_map(Meanwhile::Extend),
            2 => generation().prop_map(Meanwhile::Revoke),
        ]
    };
    let bind = (generation(), any::<bool>(), [meanwhile(), meanwhile()]);
    let step = prop_oneof![
        4 => bind.prop_map(|(generation, is_anew, between)| Step::Bind(generation, is_anew, between)),
        1 => meanwhile().prop_map(Step::Enter),
        3 => meanwhile().prop_map(Step::Meanwhile),
        3 => generation().prop_map(Step::Verify),
        1 => Just(Step::Remove),
    ];
    prop::collection::vec(step, 1..24)
}

proptest! {
    #[test]
    fn nothing_opens_behind_a_cut_or_stays_behind_its_proof(steps in steps()) {
        let mut world = World::default();
        steps.into_iter().for_each(|step| world.step(step));
    }
}

/// The fake kernel fails the test if access opens after its proof, or if objects are removed while a tenant has access.
#[test]
fn threads_bind_cut_and_remove_a_lease_in_any_order() {
    for round in 0..200 {
        let path = &Path::default();
        thread::scope(|scope| {
            for generation in 1..4 {
                scope.spawn(move || path.bind_alone(generation, round % 2 == 0).ok());
                scope.spawn(move || {
                    path.extend(generation).ok();
                    let revoked = path.revoke(generation);
                    path.verify(generation, Some(&revoked)).unwrap();
                    path.extend(generation).unwrap_err();
                });
                scope.spawn(|| path.enter(&|| ()).ok());
            }
            scope.spawn(|| path.remove().ok());
        });
        let revoked = path.revoke(3);
        path.verify(3, Some(&revoked)).unwrap();
        path.remove().unwrap();
        assert_eq!(path.kernel().access, None);
        path.bind_alone(4, true).unwrap_err();
        path.extend(4).unwrap_err();
    }
}

fn bound() -> Path {
    let path = Path::default();
    path.bind_alone(1, true).unwrap();
    path.extend(1).unwrap();
    path
}

#[test]
fn a_cut_does_not_wait_for_who_enters_and_the_proof_does_and_cuts_again() {
    let path = &bound();
    let entry = path.bindings.in_use(LEASE).unwrap();
    let admission = entry.admit(|_| Ok(())).unwrap();
    admission.check().unwrap();
    let revoked = path.revoke(1);
    let refused = admission.check().unwrap_err();
    assert!(matches!(refused, LocalRefusal::NotActive(_)), "{refused}");
    let (begin, begun) = mpsc::channel();
    thread::scope(|scope| {
        let proof = scope.spawn(move || {
            begin.send(()).unwrap();
            path.verify(1, Some(&revoked))
        });
        begun.recv().unwrap();
        // A proof that does not wait is over after this, and fails the assertion below.
        (0..1000).for_each(|_| thread::yield_now());
        // The access opens after the cut.
        path.opens(1).unwrap();
        drop(admission);
        proof.join().unwrap().unwrap();
    });
    assert_eq!(path.kernel().access, None);
    assert!(entry.admit(|_| Ok(())).is_err());
}

#[test]
fn the_time_that_is_left_is_told_to_the_tenant_until_the_cut() {
    let path = bound();
    let hour = Duration::from_secs(3_600);
    let at = now() + u64::try_from(hour.as_nanos()).unwrap();
    let bindings = &path.bindings;
    bindings.extend(binding_id(1), BootTime(at)).unwrap();
    let entry = bindings.in_use(LEASE).unwrap();
    let left = entry.remaining(|_| Ok(())).unwrap();
    assert!(!left.is_zero() && left <= hour, "{left:?}");
    let refused = entry.remaining(|_| Err(LocalRefusal::NotFound));
    assert_eq!(refused, Err(LocalRefusal::NotFound));
    path.revoke(1);
    let over = entry.remaining(|_| Ok(())).unwrap_err();
    assert!(over.to_string().contains("cut"), "{over}");
}

#[test]
fn a_deadline_that_passes_ends_an_admission() {
    let path = bound();
    let entry = path.bindings.in_use(LEASE).unwrap();
    let admission = entry.admit(|_| Ok(())).unwrap();
    path.bindings.extend(binding_id(1), BootTime(1)).unwrap();
    let refused = admission.check().unwrap_err();
    assert!(refused.to_string().contains("deadline"), "{refused}");
}

#[test]
fn a_binding_whose_end_is_not_proved_is_not_removed_and_lets_none_open_beside_it() {
    let path = bound();
    let revoked = path.revoke(1);
    path.remove().unwrap_err();
    let beside = path.bind_alone(2, false);
    assert!(matches!(beside, Err(BindError::Stranded(_))), "{beside:?}");
    path.verify(1, Some(&revoked)).unwrap();
    path.bind_alone(2, false).unwrap();
}

#[test]
fn a_bind_that_fails_ends_what_it_has_opened_and_loses_the_one_before() {
    let path = bound();
    let error = || StepError::new("open", "on purpose");
    let fails = |()| {
        path.opens(2)?;
        Err(error())
    };
    let making = path.bindings.begin_unguarded(binding_id(2), &"red".into());
    let failed = making
        .unwrap()
        .anew(false, || Ok(()), fails, || path.ends().map(drop));
    assert_eq!(failed, Err(BindError::Lost(error())));
    assert_eq!(path.kernel().access, None);
}

#[test]
fn nobody_enters_a_new_binding_before_its_deadline_is_there() {
    for is_anew in [true, false] {
        let path = bound();
        path.enter(&|| ()).unwrap();
        path.bind_alone(2, is_anew).unwrap();
        let early = path.enter(&|| ()).unwrap_err();
        assert!(early.to_string().contains("deadline"), "{early}");
        path.extend(2).unwrap();
        path.enter(&|| ()).unwrap();
    }
}

/// The gate is what keeps a binding from this. The test breaks it.
#[test]
fn a_binding_that_would_open_behind_the_proof_of_its_end_fences() {
    for is_anew in [true, false] {
        let path = bound();
        let revoked = path.revoke(1);
        path.verify(1, Some(&revoked)).unwrap();
        let entry = path.bindings.entry(LEASE).unwrap();
        entry.state().gate = fabricbios_lease::Gate::default();
        let Err(BindError::Stranded(why)) = path.bind_alone(1, is_anew) else {
            panic!("it opens");
        };
        assert!(
            why.to_string().contains("mistake in the node's program"),
            "{why}"
        );
        assert_eq!(path.kernel().access, None);
    }
}

/// The test breaks the invariant for a newer binding than the one in use.
#[test]
fn a_refused_opening_leaves_the_binding_in_use_to_its_own_cut() {
    let path = bound();
    let entry = path.bindings.entry(LEASE).unwrap();
    entry.state().proved = Some(Generation(2));
    let refused = path.bind_alone(2, false);
    assert!(
        matches!(refused, Err(BindError::Stranded(_))),
        "{refused:?}"
    );
    path.enter(&|| ()).unwrap();
    let revoked = path.revoke(1);
    path.verify(1, Some(&revoked)).unwrap();
    assert_eq!(path.kernel().access, None);
}

#[test]
fn a_bind_that_leaves_nothing_leaves_no_entry() {
    let path = Path::default();
    let begin = || {
        let making = path.bindings.begin_unguarded(binding_id(1), &"red".into());
        making.unwrap()
    };
    let error = StepError::new("make", "on purpose");
    let fails = || Err::<(), _>(error.clone());
    let failed = Err(BindError::Failed(error.clone()));
    assert_eq!(begin().anew(false, fails, Ok, || Ok(())), failed);
    assert_eq!(
        begin().beside(|| fails().map_err(BindError::Failed)),
        failed
    );
    let known = path.bindings.in_use(LEASE).map(drop);
    assert_eq!(known, Err(LocalRefusal::NotFound));
    // A cut that came first is remembered.
    path.revoke(1);
    let late = path.bind_alone(1, true);
    assert_eq!(late, Err(BindError::Cancelled));
    path.extend(1).unwrap_err();
}

#[test]
fn a_cut_during_a_bind_is_no_proof_by_itself() {
    let path = Path::default();
    let cut = || {
        let revoked = path
            .bindings
            .revoke(binding_id(1), |()| Ok(Revoked::proved(Proof::default())));
        let revoked = revoked.unwrap();
        assert!(!revoked.is_proved);
    };
    let bound = path.bind(1, false, [&|| (), &cut]);
    assert!(matches!(bound, Err(BindError::Cancelled)), "{bound:?}");
}
