//! A guard in another process ends access if the serving process does not.

use std::{
    process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use fabricbios_helper::Pidfd;
use fabricbios_lease::{BindError, BootTime, StepError};
use fabricbios_rdma::{Guard, GuardedPair};
use fabricbios_wire::LeaseId;
use nix::unistd::getpid;

use crate::lab::{Lab, binding_id, client, kernel_objects, pages};

#[derive(Debug, Default)]
pub(super) struct Remembers {
    watches: AtomicBool,
    pub(super) said: Mutex<Vec<String>>,
    pairs: Mutex<Vec<GuardedPair>>,
}

impl Remembers {
    fn note(&self, what: String) {
        self.said.lock().unwrap().push(what);
    }
}

impl Guard for Remembers {
    fn watches(&self) -> bool {
        self.watches.load(Ordering::SeqCst)
    }
    fn opens(&self, lease: LeaseId, pair: GuardedPair) {
        self.note(format!("opens {} {}", lease.0, pair.number));
        self.pairs.lock().unwrap().push(pair);
    }
    fn extend(&self, lease: LeaseId, deadline: BootTime) {
        self.note(format!("extend {} {}", lease.0, deadline.0));
    }
    fn moves(&self) {
        self.note("moves".into());
    }
    fn ends(&self, lease: LeaseId, number: u32) {
        self.note(format!("ends {} {number}", lease.0));
    }
    fn has_done(&self, lease: LeaseId) -> Option<String> {
        Some(format!("somebody ended {}", lease.0))
    }
}

pub(super) fn guarded() -> (Lab, Arc<Remembers>) {
    let guard = Arc::new(Remembers::default());
    guard.watches.store(true, Ordering::SeqCst);
    let told: Arc<dyn Guard> = guard.clone();
    (Lab::open().guarded_by(told), guard)
}

fn shut(pair: GuardedPair) -> Result<bool, StepError> {
    pair.shut(process::id(), || {
        let duplicate = Pidfd::open(getpid()).and_then(|this| this.descriptor(pair.descriptor));
        duplicate.map_err(|errno| StepError::new("pidfd_getfd", errno))
    })
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn every_queue_pair_is_told_before_its_keys_are_and_until_its_cut() {
    let (lab, guard) = guarded();
    let (client, rdma) = lab.grant(1, pages(0, 1));
    lab.backend.extend(binding_id(1, 1), BootTime(7)).unwrap();
    lab.cut(binding_id(1, 1));
    let number = rdma.qp_num;
    let [opens, ends] = ["opens", "ends"].map(|it| format!("{it} 1 {number}"));
    let expected = [&opens, "extend 1 7", "moves", &ends];
    assert_eq!(*guard.said.lock().unwrap(), expected);
    client.close().unwrap();
    lab.backend
        .release(binding_id(1, 1), pages(0, 1), &|| ())
        .unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_lease_that_moves_to_another_queue_pair_is_never_without_one_that_is_told() {
    let (lab, guard) = guarded();
    let (first, old) = lab.grant(1, pages(0, 1));
    guard.said.lock().unwrap().clear();
    let second = client();
    let rdma = lab.bind(binding_id(1, 2), pages(0, 1), Some(second.peer()));
    let opens = format!("opens 1 {}", rdma.unwrap().qp_num);
    let ends = format!("ends 1 {}", old.qp_num);
    assert_eq!(*guard.said.lock().unwrap(), [&opens, "moves", &ends]);
    lab.cut_and_release(binding_id(1, 2), pages(0, 1));
    first.close().unwrap();
    second.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_queue_pair_is_shut_from_outside_alone_and_its_process_cuts_it_as_usual() {
    let (lab, guard) = guarded();
    let before = kernel_objects();
    let (mut first, rdma) = lab.grant(1, pages(0, 1));
    let (mut second, other) = lab.grant(2, pages(1, 1));
    let pair = guard.pairs.lock().unwrap()[0];
    assert_eq!(shut(pair), Ok(true));
    assert_eq!(shut(pair), Ok(false), "it is shut");
    let written = first.write(rdma.rkey.unwrap(), rdma.remote_addr, &[1]);
    assert!(written.is_err(), "{written:?}");
    let written = second.write(other.rkey.unwrap(), other.remote_addr, &[2]);
    assert_eq!(written, Ok(()), "its neighbour");
    let proof = lab.cut(binding_id(1, 1));
    assert!(
        proof.starts_with("before: somebody ended 1 ") && proof.contains("destroy_qp ok"),
        "{proof}"
    );
    assert_eq!(shut(pair), Ok(false), "it is gone");
    lab.cut(binding_id(2, 1));
    first.close().unwrap();
    second.close().unwrap();
    for (lease, page) in [(1, 0), (2, 1)] {
        let released = lab
            .backend
            .release(binding_id(lease, 1), pages(page, 1), &|| ());
        released.unwrap();
    }
    assert_eq!(kernel_objects(), before);
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn what_is_told_wrongly_shuts_nothing() {
    let (lab, guard) = guarded();
    let (mut client, rdma) = lab.grant(1, pages(0, 1));
    let pair = guard.pairs.lock().unwrap()[0];
    let later = GuardedPair {
        peer: pair.peer ^ 1,
        ..pair
    };
    assert_eq!(shut(later), Ok(false), "another one of the same number");
    let absent = GuardedPair {
        handle: u32::MAX,
        ..pair
    };
    let elsewhere = GuardedPair {
        descriptor: 0,
        ..pair
    };
    for wrong in [absent, elsewhere] {
        let refused = shut(wrong).unwrap_err();
        assert_eq!(refused.step.name(), "modify_qp ERR", "{refused}");
    }
    let written = client.write(rdma.rkey.unwrap(), rdma.remote_addr, &[1]);
    assert_eq!(written, Ok(()));
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn unguarded_nobody_gets_access_who_has_none() {
    let (lab, guard) = guarded();
    let (old, _) = lab.grant(1, pages(0, 1));
    guard.watches.store(false, Ordering::SeqCst);
    let new = client();
    let refused = lab.bind(binding_id(2, 1), pages(1, 1), Some(new.peer()));
    let Err(BindError::Failed(error)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(error.step.name(), "reach the watchdog");
    let rdma = lab
        .bind(binding_id(1, 2), pages(0, 1), Some(new.peer()))
        .unwrap();
    new.connect(&rdma).unwrap();
    lab.cut_and_release(binding_id(1, 2), pages(0, 1));
    old.close().unwrap();
    new.close().unwrap();
    lab.close();
}
