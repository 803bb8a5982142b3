//! Launches and copies that are sent ahead: nothing waits for their answers before `sync`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use fabricbios_client::{Error, GpuModule, GpuSession, LocalOptions};
use fabricbios_wire::{GpuRequest, LeaseError};

use crate::{
    common::{
        LEASE,
        gpu::{Act, FakeGpu, PTX, invalid},
    },
    gpu_sessions::{leased, local_socket},
};

/// Launches and copies of a queue that may be unanswered at once.
const AHEAD_MAX: usize = 128;
/// Looks of a thread that expects that nothing happens.
const LOOKS: usize = 1_000;

fn launch(session: &GpuSession, module: &GpuModule, kernel: &str) -> Result<(), Error> {
    session.launch(module, kernel, [1; 3], [1; 3], 0, &[])
}

fn is_launch(request: &GpuRequest) -> bool {
    matches!(request, GpuRequest::Launch(_))
}

fn launches(gpu: &FakeGpu) -> usize {
    gpu.log().iter().filter(|it| is_launch(it)).count()
}

/// The worker does its first launch when the sender is used or dropped.
fn hold_first_launch(gpu: &FakeGpu) -> mpsc::Sender<()> {
    let (go, wait) = mpsc::channel();
    let mut wait = Some(wait);
    gpu.script(move |request| match request {
        it if is_launch(it) => wait.take().map_or(Act::Do, Act::After),
        _ => Act::Do,
    });
    go
}

#[test]
fn launches_and_copies_wait_for_no_answer_and_keep_their_order() {
    let (node, lease) = leased();
    let gpu = node.gpu();
    let (_directory, path, _server) = local_socket(gpu);
    let network = GpuSession::new(&lease).unwrap();
    let local = GpuSession::local_with(&LEASE, path, LocalOptions::default()).unwrap();
    // What is dropped is freed in the background.
    let mut used = Vec::new();
    for session in [&network, &local] {
        let module = session.module_load(PTX).unwrap();
        let memory = session.mem_alloc(8).unwrap();
        let go = hold_first_launch(gpu);
        let before = gpu.log().len();
        launch(session, &module, "nothing").unwrap();
        session.mem_write_ahead(&memory, 0, b"01234567").unwrap();
        launch(session, &module, "nothing").unwrap();
        session.mem_write_ahead(&memory, 2, b"ab").unwrap();
        drop(go);
        session.sync().unwrap();
        let codes: Vec<_> = gpu.log()[before..]
            .iter()
            .map(|it| it.message_type() as u16)
            .collect();
        assert_eq!(codes, [0x605, 0x603, 0x605, 0x603, 0x606]);
        let mut bytes = [0; 8];
        session.mem_read(&memory, 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"01ab4567");
        used.push((module, memory));
    }
}

#[test]
fn the_first_failure_is_told_by_sync_once_and_names_the_launch() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let module = session.module_load(PTX).unwrap();
    launch(&session, &module, "nothing").unwrap();
    launch(&session, &module, "missing").unwrap();
    launch(&session, &module, "another").unwrap();
    launch(&session, &module, "nothing").unwrap();
    let error = session.sync().unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.error, LeaseError::InvalidArgs);
    let names = "the launch of kernel \"missing\" (operation 2 since the last sync): no kernel";
    assert!(refusal.message.starts_with(names), "{refusal}");
    assert_eq!(launches(node.gpu()), 4, "what is behind it runs");
    session.sync().unwrap();
    launch(&session, &module, "missing").unwrap();
    let error = session.sync().unwrap_err().to_string();
    assert!(error.contains("operation 1 since"), "{error}");
}

#[test]
fn another_call_that_waits_tells_it_too_and_does_nothing() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let module = session.module_load(PTX).unwrap();
    let memory = session.mem_alloc(8).unwrap();
    launch(&session, &module, "missing").unwrap();
    let error = session.mem_alloc(8).unwrap_err();
    assert!(error.to_string().contains("\"missing\""), "{error}");
    assert_eq!(node.gpu().memories(), 1);
    node.gpu().script(|request| match request {
        GpuRequest::MemWrite { .. } => Act::Refuse(invalid("not today")),
        _ => Act::Do,
    });
    session.mem_write_ahead(&memory, 3, b"late").unwrap();
    let error = session.mem_read(&memory, 0, &mut [0; 8]).unwrap_err();
    let names = "the copy of 4 bytes to offset 3 (operation 1 since the last sync): not today";
    assert_eq!(error.to_string(), names);
    session.mem_read(&memory, 0, &mut [0; 8]).unwrap();
    session.close().unwrap();
}

#[test]
fn no_more_launches_are_unanswered_than_the_bound() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let module = session.module_load(PTX).unwrap();
    let go = hold_first_launch(node.gpu());
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 * AHEAD_MAX {
                launch(&session, &module, "nothing").unwrap();
                sent.fetch_add(1, Ordering::SeqCst);
            }
        });
        while sent.load(Ordering::SeqCst) < AHEAD_MAX {
            thread::yield_now();
        }
        for _ in 0..LOOKS {
            thread::yield_now();
            assert_eq!(sent.load(Ordering::SeqCst), AHEAD_MAX);
        }
        drop(go);
    });
    session.sync().unwrap();
    assert_eq!(launches(node.gpu()), 3 * AHEAD_MAX);
}

#[test]
fn a_connection_that_is_lost_in_the_middle_is_no_success_of_sync() {
    let (mut node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let module = session.module_load(PTX).unwrap();
    let go = hold_first_launch(node.gpu());
    launch(&session, &module, "nothing").unwrap();
    launch(&session, &module, "nothing").unwrap();
    while launches(node.gpu()) == 0 {
        thread::yield_now();
    }
    node.crash_and_restart();
    drop(go);
    let error = session.sync().unwrap_err();
    let Error::Unreachable { why, .. } = &error else {
        panic!("{error:?}")
    };
    let names = "the launch of kernel \"nothing\" (operation 1";
    assert!(why.contains(names), "{why}");
    // The session goes on, and the failure was told.
    session.sync().unwrap();
    launch(&session, &module, "nothing").unwrap();
    session.sync().unwrap();
}

#[test]
fn a_session_that_is_killed_in_the_middle_is_over_for_sync() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let module = session.module_load(PTX).unwrap();
    let mut count = 0;
    node.gpu().script(move |request| {
        count += usize::from(is_launch(request));
        match count {
            ..=10 => Act::Do,
            _ => Act::Die,
        }
    });
    // A launch may notice it.
    for _ in 0..20 {
        if let Err(error) = launch(&session, &module, "nothing") {
            assert!(matches!(error, Error::SessionEnded { .. }), "{error:?}");
        }
    }
    for _ in 0..2 {
        let error = session.sync().unwrap_err();
        assert!(matches!(error, Error::SessionEnded { .. }), "{error:?}");
    }
}

#[test]
fn a_program_that_never_waits_is_served_to_its_last_launch() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let module = session.module_load(PTX).unwrap();
    for _ in 0..1_000 {
        launch(&session, &module, "nothing").unwrap();
    }
    drop((session, module));
    while launches(node.gpu()) < 1_000 {
        thread::yield_now();
    }
}

#[test]
fn memory_is_freed_behind_the_launches_of_other_queues() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let (other, memory) = (session.queue().unwrap(), session.mem_alloc(8).unwrap());
    let module = session.module_load(PTX).unwrap();
    let (go, wait) = mpsc::channel();
    let mut wait = Some(wait);
    let is_launched = Arc::new(AtomicBool::new(false));
    let (freed, was_launched) = mpsc::channel();
    let seen = Arc::clone(&is_launched);
    node.gpu().script(move |request| {
        if matches!(request, GpuRequest::MemFree { .. }) {
            freed.send(seen.load(Ordering::SeqCst)).unwrap();
        }
        match request {
            it if is_launch(it) => wait.take().map_or(Act::Do, Act::After),
            _ => Act::Do,
        }
    });
    other
        .launch(&module, "pack", [1; 3], [1; 3], 0, &[(&memory).into()])
        .unwrap();
    drop(memory);
    thread::scope(|scope| {
        let syncing = scope.spawn(|| session.sync());
        for _ in 0..LOOKS {
            thread::yield_now();
        }
        is_launched.store(true, Ordering::SeqCst);
        drop(go);
        syncing.join().unwrap().unwrap();
    });
    assert!(was_launched.recv().unwrap());
    other.sync().unwrap();
}
