//! Tests of answers and orders that wait for the disk. The test gives the driver each input, so the test decides when
//! changes are durable.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::mpsc::{Receiver, channel},
};

use fabricbios_contract::Provider;
use fabricbios_lease::{AllocationMode, Durability, Offer, Order, Policy, State};
use fabricbios_testbed::fakes::{FakeMemory, Step};
use fabricbios_wire::{
    Epoch, InventoryExtension, InventoryForm, LeaseAllocRequest, LeaseError, LeaseInfo, LeasePhase,
    NodeId, RefusalClass, Reply, RequestToken, ResourceId, ResourceType, Transport, health,
};

use super::*;
use crate::{
    driver::{
        dispatcher::Dispatcher,
        turns::{ITEMS_A_TURN, JOURNAL_PATIENCE},
    },
    inventory::detection::{Detection, Found},
    journal::{Journal, Key},
    kinds::block,
    process::clock,
};

const ARENA: ResourceId = ResourceId(1);
/// A share of a turn that only its count ends.
const NO_END: BootTime = BootTime(u64::MAX);

struct Scene {
    driver: Driver<Machine>,
    memory: Arc<FakeMemory>,
    /// Reports of the providers and of the journal.
    inputs: Receiver<Input>,
    _directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self::with(FakeMemory::new(ARENA, 1 << 20), |memory, _, _| {
            (ResourceType::Mem, memory.offer(), memory.provider())
        })
    }

    /// A scene whose store outlives the machine, so it confirms grants.
    fn that_confirms() -> Self {
        Self::with(FakeMemory::new(ARENA, 1 << 20), |memory, _, _| {
            let offer = Offer {
                durability: Durability::Machine,
                ..memory.offer()
            };
            (ResourceType::Mem, offer, memory.provider())
        })
    }

    /// A scene with a block pool in a directory.
    fn of_blocks() -> Self {
        let memory = FakeMemory::over(Transport::Udp, ARENA, 1 << 20);
        Self::with(memory, |memory, directory, journal| {
            let pool = directory.join("pool");
            std::fs::create_dir(&pool).unwrap();
            std::fs::set_permissions(&pool, Permissions::from_mode(0o700)).unwrap();
            let (store, capacity) = block::store_in(&pool, journal.writer());
            let provider = Provider::new().with_store(ARENA, store);
            let provider = provider.with_path("UDP", &[Transport::Udp], memory.clone());
            let offer = Offer {
                capacity,
                durability: Durability::Machine,
                allocation_mode: AllocationMode::Amounts,
                ..memory.offer()
            };
            (ResourceType::Block, offer, Arc::new(provider))
        })
    }

    fn with(
        memory: FakeMemory,
        offered: impl FnOnce(&Arc<FakeMemory>, &Path, &Journal) -> (ResourceType, Offer, Arc<Provider>),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (tell, inputs) = channel();
        let reports = tell.clone();
        let on_commit = Box::new(move |outcome| drop(tell.send(Input::Durable(outcome))));
        let path = directory.path().join("journal");
        let (journal, _) = Journal::open_here(&path, "boot", on_commit).unwrap();
        let memory = Arc::new(memory);
        let (kind, offer, provider) = offered(&memory, directory.path(), &journal);
        let mut table = LeaseTable::new(Policy::default());
        table.offer(kind, offer.clone());
        let mut dispatcher = Dispatcher::new(Arc::new(move |_, report| {
            let at = clock::now().boot;
            drop(reports.send(Input::Report { at, report }));
        }));
        dispatcher.add(kind, &offer, provider);
        let inventory = Inventory::new(
            NodeId([0; 32]),
            Epoch(1),
            Detection::fixed(Found::default()).into(),
        );
        let (mailbox, _) = Mailbox::new().unwrap();
        Self {
            driver: Driver::new(
                table,
                Machine {
                    dispatcher,
                    journal,
                },
                inventory,
                mailbox,
            ),
            memory,
            inputs,
            _directory: directory,
        }
    }

    fn ask(&mut self, request: Request) -> oneshot::Receiver<Answer> {
        self.ask_as("alice", request)
    }

    fn ask_as(&mut self, tenant: &str, request: Request) -> oneshot::Receiver<Answer> {
        let (reply, answer) = oneshot::channel();
        self.take(Input::Request {
            requester: Requester {
                tenant: tenant.into(),
                reached: None,
                control: None,
                reply,
            },
            role: Role::Tenant,
            request,
        });
        answer
    }

    fn take(&mut self, input: Input) {
        self.driver.apply(input);
        self.driver.perform();
        self.driver.submit();
        while !self.driver.released.is_empty() {
            self.driver.release_held(NO_END);
            self.driver.perform();
            self.driver.submit();
        }
    }

    /// Gives the driver its inputs until `is_enough`; inputs of the journal only with `with_disk`.
    fn go_on(&mut self, with_disk: bool, mut is_enough: impl FnMut(&Driver<Machine>) -> bool) {
        let mut withheld = Vec::new();
        while !is_enough(&self.driver) {
            match self.inputs.recv().unwrap() {
                durable @ Input::Durable(_) if !with_disk => withheld.push(durable),
                input => self.take(input),
            }
        }
        self.inputs = prepended(withheld, std::mem::replace(&mut self.inputs, channel().1));
    }

    fn releases_held(&self) -> usize {
        let is_release =
            |(_, _, held): &&(Seq, Owner, Held)| matches!(held, Held::Order(Order::Release(..)));
        self.driver.held.iter().filter(is_release).count()
    }
}

/// Returns a receiver that yields `first` before `rest`.
fn prepended(first: Vec<Input>, rest: Receiver<Input>) -> Receiver<Input> {
    let (tell, all) = channel();
    std::thread::spawn(move || {
        for input in first.into_iter().chain(rest) {
            // The scene is over and has dropped the receiver.
            if tell.send(input).is_err() {
                break;
            }
        }
    });
    all
}

fn lease(mut answer: oneshot::Receiver<Answer>) -> LeaseInfo {
    match answer.try_recv().unwrap() {
        Ok(Reply::Lease(info)) => info,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_drain_that_cannot_cut_a_lease_names_it() {
    let mut scene = Scene::new();
    let mut grant = || {
        let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 60);
        let granted = scene.ask(Request::LeaseAlloc(wanted));
        scene.go_on(true, |driver| driver.requesters.is_empty());
        lease(granted).lease_id
    };
    let [freed, kept] = [grant(), grant()];
    scene.ask(Request::LeaseFree(freed));
    scene.go_on(true, |driver| driver.table.uncut().count() == 1);
    assert_eq!(scene.driver.uncut(), [], "it is not told to stop");

    scene.memory.fail(Step::Cut, true);
    scene.take(Input::Drain);
    scene.go_on(true, Driver::is_done);
    assert_eq!(scene.driver.uncut(), [kept]);
}

fn nothing_alive(driver: &Driver<Machine>) -> bool {
    !driver.table.census().contains_key(&State::Cutting)
}

#[test]
fn a_cut_waits_for_nothing_and_a_release_for_the_disk() {
    let mut scene = Scene::new();
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 60);
    let granted = scene.ask(Request::LeaseAlloc(wanted));
    scene.go_on(true, |driver| driver.requesters.is_empty());
    let id = lease(granted).lease_id;

    let mut freed = scene.ask(Request::LeaseFree(id));
    scene.go_on(false, nothing_alive);
    assert_eq!(
        scene.releases_held(),
        1,
        "the cut is proved, the release waits"
    );
    assert!(freed.try_recv().is_err(), "told too early");

    scene.go_on(true, |driver| driver.table.census().is_empty());
    assert_eq!(scene.releases_held(), 0);
    assert_eq!(lease(freed).phase, LeasePhase::Freed);
}

#[test]
fn a_grant_is_one_commit_whatever_its_kind() {
    for (kind, mut scene) in [
        (ResourceType::Mem, Scene::new()),
        (ResourceType::Block, Scene::of_blocks()),
    ] {
        for grants in 1..=3 {
            let wanted = LeaseAllocRequest::new(kind, 4096, 60);
            let granted = scene.ask(Request::LeaseAlloc(wanted));
            scene.go_on(true, |driver| driver.requesters.is_empty());
            assert_eq!(lease(granted).phase, LeasePhase::Active);
            let counts = scene.driver.environment.journal.counts();
            assert_eq!(counts.commits, grants, "{kind:?}");
        }
    }
}

#[test]
fn nobody_is_told_of_a_grant_before_its_store_has_confirmed_it() {
    let mut scene = Scene::that_confirms();
    scene.memory.hold(Step::Confirm);
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 60);
    let mut granted = scene.ask(Request::LeaseAlloc(wanted));
    scene.go_on(true, |driver| !driver.confirming.is_empty());
    scene.memory.wait_for(Step::Confirm, 1);
    assert_eq!(scene.driver.durable, scene.driver.submitted);
    assert!(granted.try_recv().is_err(), "told too early");
    assert_eq!(counted(&scene), (0, 0));
    scene.memory.let_go(Step::Confirm);
    scene.go_on(true, |driver| driver.requesters.is_empty());
    assert_eq!(lease(granted).phase, LeasePhase::Active);
    assert_eq!(counted(&scene), (1, 0));
}

/// The grants and refusals of memory that metrics tell.
fn counted(scene: &Scene) -> (u64, u64) {
    let tally = &scene.driver.tally;
    let of_memory = tally
        .refusals
        .iter()
        .filter(|((kind, ..), _)| *kind == Some(ResourceType::Mem));
    let grants = tally.resources.values().map(|it| it.grants).sum();
    (grants, of_memory.map(|(_, count)| count).sum())
}

fn asked_by(token: u128) -> Request {
    Request::LeaseAlloc(LeaseAllocRequest {
        request_token: Some(RequestToken(token)),
        ..LeaseAllocRequest::new(ResourceType::Mem, 1 << 20, 60)
    })
}

#[test]
fn a_repeat_is_answered_with_the_grant_when_its_store_has_confirmed_it() {
    for confirms in [true, false] {
        let mut scene = Scene::that_confirms();
        scene.memory.hold(Step::Confirm);
        scene.memory.fail(Step::Confirm, !confirms);
        let mut granted = scene.ask(asked_by(7));
        scene.go_on(true, |driver| !driver.confirming.is_empty());
        let mut repeated = scene.ask(asked_by(7));
        scene.go_on(true, |it| it.held.is_empty() && it.released.is_empty());
        assert!(repeated.try_recv().is_err(), "told too early");
        scene.memory.let_go(Step::Confirm);
        scene.go_on(true, |driver| driver.requesters.is_empty());
        let answers = [&mut granted, &mut repeated].map(|it| match it.try_recv().unwrap() {
            Ok(Reply::Lease(info)) => Ok(info.lease_id),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal),
        });
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0].is_ok(), confirms, "{:?}", answers[0]);
    }
}

#[test]
fn a_repeat_is_not_told_of_a_grant_that_is_not_durable() {
    let mut scene = Scene::new();
    let _granted = scene.ask(asked_by(7));
    scene.go_on(false, |driver| !driver.held.is_empty());
    let mut repeated = scene.ask(asked_by(7));
    assert!(repeated.try_recv().is_err(), "told before it is durable");
    let full = CommitError::new("No space left on device");
    scene.take(Input::Durable(Err(full)));
    let refusal = repeated.try_recv().unwrap().unwrap_err();
    assert_eq!(
        (refusal.error, refusal.class),
        (LeaseError::Unavailable, RefusalClass::Transient)
    );
    assert!(refusal.message.contains("repeat the request"), "{refusal}");
}

/// All memory is leased already, and a node that drains gives no lease.
#[test]
fn a_repeat_is_answered_where_no_lease_is_given() {
    let mut scene = Scene::new();
    let granted = scene.ask(asked_by(7));
    scene.go_on(true, |driver| driver.requesters.is_empty());
    let repeated = scene.ask(asked_by(7));
    scene.go_on(true, |driver| driver.requesters.is_empty());
    assert_eq!(lease(repeated).lease_id, lease(granted).lease_id);
    scene.take(Input::Drain);
    let mut repeated = scene.ask(asked_by(7));
    let mut other = scene.ask(asked_by(8));
    assert_eq!(
        other.try_recv().unwrap().unwrap_err().error,
        LeaseError::Unavailable
    );
    scene.go_on(true, Driver::is_done);
    let refusal = repeated.try_recv().unwrap().unwrap_err();
    assert_eq!(refusal.error, LeaseError::Revoked, "{refusal}");
}

#[test]
fn a_grant_that_its_store_does_not_confirm_is_refused_and_ends() {
    let mut scene = Scene::that_confirms();
    scene.memory.fail(Step::Confirm, true);
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 1 << 20, 60);
    let mut refused = scene.ask(Request::LeaseAlloc(wanted));
    scene.go_on(true, |driver| driver.requesters.is_empty());
    let refusal = refused.try_recv().unwrap().unwrap_err();
    assert_eq!(
        (refusal.error, refusal.class),
        (LeaseError::Unavailable, RefusalClass::Transient)
    );
    assert!(refusal.message.contains("Confirm"), "{refusal}");
    assert_eq!(counted(&scene), (0, 1));
    scene.go_on(true, |driver| driver.table.census().is_empty());
    let available: Vec<u64> = { scene.driver.table.availability() }
        .map(|it| it.available)
        .collect();
    assert_eq!(available, [1 << 20]);
}

#[test]
fn a_grant_that_the_disk_does_not_answer_for_is_refused_and_leaves_nothing() {
    is_refused_and_leaves_nothing("has not answered", |scene| {
        let now = clock::now().boot;
        scene.driver.check_journal(now);
        assert_eq!(scene.driver.requesters.len(), 1, "it may be slow");
        scene.driver.check_journal(now + JOURNAL_PATIENCE);
    });
}

#[test]
fn a_journal_that_only_others_write_is_not_silent() {
    let mut scene = Scene::new();
    let change = Change {
        key: Key::Pool(1),
        value: None,
    };
    let writer = scene.driver.environment.journal.writer();
    let submitted = writer.submit(vec![change]);
    scene.go_on(true, |driver| driver.durable == submitted);
    let now = clock::now().boot;
    scene.driver.check_journal(now);
    scene.driver.check_journal(now + JOURNAL_PATIENCE);
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 60);
    let granted = scene.ask(Request::LeaseAlloc(wanted));
    scene.go_on(true, |driver| driver.requesters.is_empty());
    assert_eq!(lease(granted).phase, LeasePhase::Active);
}

#[test]
fn of_what_one_commit_made_durable_a_turn_does_some_and_tenants_take_turns() {
    let mut scene = Scene::new();
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 60);
    let loud: Vec<_> = { 0..ITEMS_A_TURN + 1 }
        .map(|_| scene.ask(Request::LeaseAlloc(wanted.clone())))
        .collect();
    let mut quiet = scene.ask_as("bob", Request::LeaseAlloc(wanted));
    scene.go_on(false, |driver| driver.held.len() == loud.len() + 1);

    let all = scene.driver.submitted;
    scene.driver.apply(Input::Durable(Ok(all)));
    scene.driver.perform();
    scene.driver.submit();
    scene.driver.release_held(NO_END);
    assert!(quiet.try_recv().is_ok());
    let told = |mut answer: oneshot::Receiver<Answer>| answer.try_recv().is_ok();
    let loud_told = loud.into_iter().map(told).filter(|told| *told).count();
    assert_eq!(loud_told, ITEMS_A_TURN - 1);
    assert_eq!(scene.driver.released.len(), 2);
}

#[test]
fn a_grant_that_cannot_be_written_down_is_refused_and_leaves_nothing() {
    is_refused_and_leaves_nothing("No space left", |scene| {
        let full = CommitError::new("No space left on device");
        scene.take(Input::Durable(Err(full)));
    });
}

#[test]
fn a_resource_of_which_no_lease_can_be_made_is_told_as_degraded_until_one_is() {
    let mut scene = Scene::new();
    let trouble = |scene: &Scene| {
        let now = scene.driver.environment.now().boot;
        let mut offered = scene.driver.table.availability();
        offered.find_map(|it| scene.driver.failing.trouble(now, it.resource_id))
    };
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 3600);
    // What the request or its tenant lacks does not count.
    let too_much = LeaseAllocRequest::new(ResourceType::Mem, 1 << 40, 3600);
    for _ in 0..20 {
        let mut answer = scene.ask(Request::LeaseAlloc(too_much.clone()));
        scene.go_on(true, |_| !answer.is_empty());
        assert!(answer.try_recv().unwrap().is_err());
    }
    scene.memory.fail(Step::Bind, true);
    for failed in 0..16 {
        assert_eq!(trouble(&scene), None, "{failed} failed");
        let mut answer = scene.ask(Request::LeaseAlloc(wanted.clone()));
        scene.go_on(true, |_| !answer.is_empty());
        assert!(answer.try_recv().unwrap().is_err());
    }
    let why = trouble(&scene).unwrap();
    assert!(why.contains("the last 16 leases"), "{why}");
    // It is asked all the same where nothing else has room.
    scene.memory.fail(Step::Bind, false);
    let mut answer = scene.ask(Request::LeaseAlloc(wanted));
    scene.go_on(true, |_| !answer.is_empty());
    assert!(answer.try_recv().unwrap().is_ok());
    assert_eq!(trouble(&scene), None);
}

/// The health of the node in the inventory, and the reason.
fn health_of(scene: &mut Scene) -> (u32, Option<String>) {
    let mut answer = scene.ask(Request::GetInventory(InventoryForm::Structured));
    let Ok(Reply::Inventory(inventory)) = answer.try_recv().unwrap() else {
        panic!("no inventory")
    };
    let mut extensions = inventory.extensions.into_iter();
    let why = extensions.find_map(|it| match it {
        InventoryExtension::HealthReason(ResourceId(0), why) => Some(why),
        _ => None,
    });
    (inventory.health, why)
}

/// A grant of all memory waits for the disk, and `fails` makes the disk fail.
fn is_refused_and_leaves_nothing(told: &str, fails: impl FnOnce(&mut Scene)) {
    let mut scene = Scene::new();
    let all = LeaseAllocRequest::new(ResourceType::Mem, 1 << 20, 3600);
    let mut first = scene.ask(Request::LeaseAlloc(all.clone()));
    scene.go_on(false, |driver| !driver.held.is_empty());
    assert!(first.try_recv().is_err(), "told before it is durable");
    fails(&mut scene);
    let refusal = first.try_recv().unwrap().unwrap_err();
    assert_eq!(
        (refusal.error, refusal.class),
        (LeaseError::Unavailable, RefusalClass::Transient)
    );
    assert!(refusal.message.contains(told), "{refusal}");
    let (told_health, why) = health_of(&mut scene);
    assert_eq!(told_health, health::DEGRADED);
    assert!(why.unwrap().contains(told));
    // The bytes are free again before the disk recovers.
    scene.go_on(false, |driver| driver.table.census().is_empty());
    let available: Vec<u64> = { scene.driver.table.availability() }
        .map(|it| it.available)
        .collect();
    assert_eq!(available, [1 << 20]);

    let mut meanwhile = scene.ask(Request::LeaseAlloc(all.clone()));
    let refusal = meanwhile.try_recv().unwrap().unwrap_err();
    assert_eq!(refusal.error, LeaseError::Unavailable, "at once");
    scene.go_on(true, |driver| driver.unwritable.is_none());
    assert_eq!(health_of(&mut scene), (health::OK, None));
    let granted = scene.ask(Request::LeaseAlloc(all));
    scene.go_on(true, |driver| driver.requesters.is_empty());
    assert_eq!(lease(granted).phase, LeasePhase::Active);
    assert_eq!(counted(&scene), (1, 2));
}

#[test]
fn a_lease_that_changes_by_its_deadline_alone_is_signalled() {
    let mut scene = Scene::new();
    let (tell, changed) = watch::channel(());
    scene.driver.changed = Some(tell);
    let wanted = LeaseAllocRequest::new(ResourceType::Mem, 4096, 1);
    let granted = scene.ask(Request::LeaseAlloc(wanted));
    scene.go_on(true, |driver| driver.requesters.is_empty());
    assert_eq!(lease(granted).phase, LeasePhase::Active);
    scene.driver.turn().unwrap();

    let mut changed = changed;
    changed.mark_unchanged();
    let is_cut = |driver: &Driver<Machine>| driver.table.census().contains_key(&State::Cutting);
    while !is_cut(&scene.driver) {
        assert!(!changed.has_changed().unwrap(), "nothing has changed yet");
        let wake = scene.driver.next_wake();
        scene.driver.mailbox.wait(wake, None).unwrap();
        scene.driver.turn().unwrap();
    }
    assert!(changed.has_changed().unwrap());
    let from = LogPosition::default();
    let (reply, mut told) = oneshot::channel();
    scene.take(Input::AboutLeases(AboutLeases::Since(from, reply)));
    let told = told.try_recv().unwrap().unwrap();
    assert_eq!(told.leases.len(), 1);
    assert_eq!(told.next, scene.driver.table.log_end());
}
