//! What waits for the disk, with a disk that answers when the test says so.

use fabricbios_lease::{Backend, Policy};
use fabricbios_testbed::fakes::{FakeMemory, Step};
use fabricbios_wire::{
    Epoch, LeaseAllocRequest, LeaseInfo, LeasePhase, NodeId, ResourceId, ResourceType,
};

use std::sync::Mutex;

use super::*;
use crate::{detect::Detected, mailbox::Sender};

const ARENA: ResourceId = ResourceId(1);

/// A driver on its thread, and between it and its journal a gate that holds back what is durable.
struct Scene {
    driver: Sender<Input>,
    memory: Arc<FakeMemory>,
    gate: Arc<Mutex<Gate>>,
    _directory: tempfile::TempDir,
}

#[derive(Default)]
struct Gate {
    is_shut: bool,
    held: Vec<Result<Seq, CommitError>>,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (mailbox, driver) = Mailbox::new().unwrap();
        let gate: Arc<Mutex<Gate>> = Arc::default();
        let (at_gate, tell) = (gate.clone(), driver.clone());
        let on_commit = Box::new(move |outcome| {
            let mut gate = at_gate.lock().unwrap();
            if gate.is_shut {
                gate.held.push(outcome);
            } else {
                tell.done(Input::Durable(outcome));
            }
        });
        let (journal, _) =
            Journal::open(&directory.path().join("journal"), "boot", on_commit).unwrap();
        let memory = Arc::new(FakeMemory::new(ARENA, 1 << 20));
        let reports = driver.clone();
        let mut backends = Backends::new(Arc::new(move |report| {
            let at = clock::now().boot;
            reports.done(Input::Report { at, report });
        }));
        backends.add(ARENA, memory.clone());
        let mut table = LeaseTable::new(Policy::default());
        table.offer(ResourceType::Mem, memory.probe().unwrap().remove(0));
        let inventory = Inventory {
            node_id: NodeId([0; 32]),
            epoch: Epoch(1),
            detected: Detected::default(),
            arenas: Vec::new(),
        };
        let it = Driver::new(table, backends, journal, inventory, mailbox);
        std::thread::spawn(move || it.run());
        Self {
            driver,
            memory,
            gate,
            _directory: directory,
        }
    }

    fn ask(&self, request: Request) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        self.driver.ask(Input::Asked {
            tenant: "alice".into(),
            role: Role::Tenant,
            reached: None,
            request,
            reply,
        });
        answer
    }

    fn shut(&self) {
        self.gate.lock().unwrap().is_shut = true;
    }

    fn open(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.is_shut = false;
        for outcome in gate.held.drain(..) {
            self.driver.done(Input::Durable(outcome));
        }
    }

    fn query(&self, id: LeaseId) -> LeaseInfo {
        lease(self.ask(Request::LeaseQuery(id)))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.driver.done(Input::Halt);
    }
}

fn lease(answer: oneshot::Receiver<Answer>) -> LeaseInfo {
    match answer.blocking_recv().unwrap() {
        Ok(Reply::Lease(info)) => info,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cut_waits_for_nothing_and_a_release_for_the_disk() {
    let scene = Scene::new();
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 60);
    let granted = scene.ask(Request::LeaseAlloc(wanted));
    let id = lease(granted).lease_id;

    scene.shut();
    let mut freed = scene.ask(Request::LeaseFree(id));
    scene.memory.wait_for(Step::Cut, 1);
    while scene.query(id).phase != LeasePhase::Freed {
        std::thread::yield_now();
    }
    // The cut is proved and the release ordered; the disk has not answered.
    assert_eq!(scene.memory.count(Step::Release), 0, "released too early");
    assert!(freed.try_recv().is_err(), "told too early");

    scene.open();
    scene.memory.wait_for(Step::Release, 1);
    assert_eq!(lease(freed).phase, LeasePhase::Freed);
}
