//! Sessions of a GPU, with a worker whose device memory is memory of this process.

use std::{
    sync::{Arc, mpsc},
    thread,
};

use fabricbios_client::{
    Argument, Error, GpuBuilder, GpuLease, GpuSession, LocalOptions, Node, Submission, Wiped,
};
use fabricbios_local::{LocalServer, Tenants};
use fabricbios_wire::{
    GpuLaunch, GpuRequest, LeaseError, LeaseId, LeaseInfo, LeasePhase, Refusal, RefusalClass,
    Reply, Request,
};
use tempfile::TempDir;

use crate::{
    admin,
    common::{
        FakeNode, LEASE,
        gpu::{Act, FakeGpu, PTX, VRAM, invalid},
        granted,
    },
    gpu_leases::on,
    obliging,
};

pub(crate) fn leased() -> (FakeNode, GpuLease) {
    let node = FakeNode::start(obliging());
    let lease = on(&node, GpuBuilder::new().min_vram(1 << 20)).unwrap();
    (node, lease)
}

pub(crate) fn local_socket(gpu: &FakeGpu) -> (TempDir, std::path::PathBuf, LocalServer) {
    let directory = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&directory, mode).unwrap();
    let path = directory.path().join("local.sock");
    let tenants = Tenants::from([(nix::unistd::geteuid().as_raw(), Vec::new())]);
    let server = LocalServer::open(&path, tenants, vec![Arc::new(gpu.clone())], None).unwrap();
    (directory, path, server)
}

fn floats(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn refusal(error: &Error) -> &Refusal {
    error.refusal().unwrap_or_else(|| panic!("{error:?}"))
}

#[test]
fn the_calls_of_the_published_sdk_in_their_order() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    assert_eq!((session.id(), session.info().vram_bytes), (7, VRAM));
    let [a, b, sum] = [(); 3].map(|()| session.mem_alloc(1024).unwrap());
    let numbers = floats((0..256_u16).map(f32::from));
    session.mem_write(&a, 0, &numbers).unwrap();
    session.mem_write(&b, 0, &numbers).unwrap();
    let module = session.module_load(PTX).unwrap();
    let arguments = [(&a).into(), (&b).into(), (&sum).into(), 256_u32.into()];
    session
        .launch(&module, "add", [1, 1, 1], [256, 1, 1], 0, &arguments)
        .unwrap();
    session.sync().unwrap();
    let mut added = vec![0; 1024];
    session.mem_read(&sum, 0, &mut added).unwrap();
    assert_eq!(added, floats((0..256_u16).map(|it| f32::from(it) * 2.0)));
    drop((a, b, sum, module));
    let wiped = session.close().unwrap();
    let expected = Wiped {
        bytes: 3 * 1024,
        free_bytes: VRAM,
    };
    assert_eq!(wiped, expected);
    lease.free().unwrap();
    let log = node.gpu().log();
    let codes: Vec<u16> = log.iter().map(|it| it.message_type() as u16).collect();
    let first = [
        0x0602, 0x0602, 0x0602, 0x0603, 0x0603, 0x0604, 0x0605, 0x0606, 0x0607,
    ];
    assert_eq!(codes[..9], first);
    let mut freed = codes[9..13].to_vec();
    freed.sort_unstable();
    assert_eq!(freed, [0x0608, 0x0608, 0x0608, 0x0609]);
    assert_eq!(codes[13..], [0x060A]);
}

#[test]
fn every_form_of_an_argument_arrives_as_its_bytes() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let module = session.module_load(PTX).unwrap();
    let memory = session.mem_alloc(64).unwrap();
    let arguments = [
        Argument::from(&memory),
        1_u32.into(),
        2_u64.into(),
        (-3_i32).into(),
        0.5_f32.into(),
        (-0.25_f64).into(),
        Argument::from(&b"raw"[..]),
    ];
    session
        .launch(&module, "pack", [1, 2, 3], [4, 5, 6], 7, &arguments)
        .unwrap();
    let mut packed = vec![0; 31];
    session.mem_read(&memory, 0, &mut packed).unwrap();
    let expected = [
        &1_u32.to_le_bytes()[..],
        &2_u64.to_le_bytes(),
        &(-3_i32).to_le_bytes(),
        &0.5_f32.to_le_bytes(),
        &(-0.25_f64).to_le_bytes(),
        b"raw",
    ];
    assert_eq!(packed, expected.concat());
    let log = node.gpu().log();
    let Some(GpuRequest::Launch(GpuLaunch {
        grid,
        block,
        shared_bytes,
        arguments,
        ..
    })) = log.iter().rfind(|it| matches!(it, GpuRequest::Launch(_)))
    else {
        panic!("{log:?}")
    };
    assert_eq!((*grid, *block, *shared_bytes), ([1, 2, 3], [4, 5, 6], 7));
    assert_eq!(arguments[0], memory.address().to_le_bytes());
}

#[test]
fn what_no_worker_accepts_is_not_sent() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let module = session.module_load(PTX).unwrap();
    let memory = session.mem_alloc(100).unwrap();
    let sent = node.gpu().log().len();
    let launch = |kernel: &str, arguments: &[Argument<'_>]| {
        session.launch(&module, kernel, [1; 3], [1; 3], 0, arguments)
    };
    let (long, many) = (vec![0; 4_097], vec![Argument::U32(0); 257]);
    let page = vec![0; 4_096];
    let errors = [
        session.mem_alloc(0).unwrap_err(),
        session.mem_write(&memory, 99, &[0; 2]).unwrap_err(),
        session.mem_read(&memory, u64::MAX, &mut [0]).unwrap_err(),
        session.module_load(&[]).map(drop).unwrap_err(),
        session
            .module_load(&vec![0; (64 << 20) + 1])
            .map(drop)
            .unwrap_err(),
        launch("", &[]).unwrap_err(),
        launch("a\0b", &[]).unwrap_err(),
        launch(&"a".repeat(256), &[]).unwrap_err(),
        launch("k", &many).unwrap_err(),
        launch("k", &[Argument::Bytes(&long)]).unwrap_err(),
        launch("k", &[Argument::Bytes(&[])]).unwrap_err(),
        launch("k", &[Argument::Bytes(&page); 16]).unwrap_err(),
        session.mem_write_shared(&memory, 0, 0, 1).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Usage(_)), "{error:?}");
    }
    session.mem_write(&memory, 100, &[]).unwrap();
    assert_eq!(node.gpu().log().len(), sent);
}

#[test]
fn refusals_of_the_worker_are_told_and_the_session_goes_on() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let error = session.mem_alloc(VRAM + 1).unwrap_err();
    assert_eq!(refusal(&error).error, LeaseError::CapacityExceeded);
    let error = session.module_load(b"not PTX").unwrap_err();
    assert_eq!(refusal(&error).error, LeaseError::InvalidArgs);
    let module = session.module_load(PTX).unwrap();
    session
        .launch(&module, "missing", [1; 3], [1; 3], 0, &[])
        .unwrap();
    let error = session.sync().unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    session
        .launch(&module, "nothing", [1; 3], [1; 3], 0, &[])
        .unwrap();
    session.sync().unwrap();
    assert_eq!(node.gpu().streams(), 1, "all in one stream");
}

#[test]
fn the_last_handle_frees_and_none_before() {
    let (node, lease) = leased();
    let gpu = node.gpu();
    let session = GpuSession::new(&lease).unwrap();
    let memory = session.mem_alloc(10).unwrap();
    let other = memory.clone();
    drop(memory);
    session.sync().unwrap();
    assert_eq!(gpu.memories(), 1);
    drop(other);
    session.sync().unwrap();
    assert_eq!(gpu.memories(), 0);
    let free = |it: &GpuRequest| matches!(it, GpuRequest::MemFree { .. });
    assert_eq!(gpu.log().into_iter().filter(free).count(), 1);
    // Freed without another operation, after the handle of the session is gone.
    let memory = session.mem_alloc(10).unwrap();
    drop((session, memory));
    while gpu.memories() != 0 {
        thread::yield_now();
    }
    assert!(gpu.is_running());
}

#[test]
fn a_session_goes_on_without_its_client_and_is_found_again() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let (id, memory) = (session.id(), session.mem_alloc(5).unwrap());
    session.mem_write(&memory, 0, b"still").unwrap();
    let handle = memory.keep();
    drop(session);
    // A second program with its own connection.
    let there = Node::connect(&node.addr(), &admin(&node)).unwrap();
    let found = GpuLease::open(&there, LEASE).unwrap();
    let session = GpuSession::attach(&found, id).unwrap();
    let memory = session.memory(handle);
    let mut bytes = [0; 5];
    session.mem_read(&memory, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still");
    assert_eq!(session.info().vram_used, 5);
    drop(memory);
    session.sync().unwrap();
    assert_eq!(node.gpu().memories(), 0);
    let error = GpuSession::attach(&found, id + 1).unwrap_err();
    assert_eq!(refusal(&error).error, LeaseError::NotFound);
    assert_eq!(node.gpu().opened(), [0, id]);
}

#[test]
fn a_session_goes_on_over_a_restart_of_the_daemon() {
    let (mut node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let memory = session.mem_alloc(5).unwrap();
    session.mem_write(&memory, 0, b"still").unwrap();
    node.crash_and_restart();
    let mut bytes = [0; 5];
    session.mem_read(&memory, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still");
    session.sync().unwrap();
    let log = node.gpu().log();
    let whole_session = true;
    assert_eq!(log.last(), Some(&GpuRequest::Sync { whole_session }));
    assert_eq!(node.gpu().opened(), [0, 7]);
}

#[test]
fn a_worker_that_dies_is_the_end_of_the_session_and_not_of_the_lease() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let memory = session.mem_alloc(100 << 20).unwrap();
    let mut writes = 0;
    node.gpu().script(move |request| match request {
        GpuRequest::MemWrite { .. } if writes == 2 => Act::Die,
        GpuRequest::MemWrite { .. } => {
            writes += 1;
            Act::Do
        }
        _ => Act::Do,
    });
    let error = session
        .mem_write(&memory, 0, &vec![1; 100 << 20])
        .unwrap_err();
    let over = |error: &Error| matches!(error, Error::SessionEnded { session: 7, .. });
    assert!(over(&error), "{error:?}");
    let error = session.sync().unwrap_err();
    assert!(over(&error), "{error:?}");
    assert!(error.to_string().contains("session 7 is over"), "{error}");
    let error = session.queue().unwrap_err();
    assert!(over(&error), "{error:?}");
    let (sent, next) = (node.gpu().log().len(), GpuSession::new(&lease).unwrap());
    assert_eq!(next.id(), 8);
    // A handle of another session is refused before anything is sent, and dropping it sends nothing.
    let error = next.mem_write(&memory, 0, b"x").unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error:?}");
    let error = next
        .module_load(PTX)
        .and_then(|it| next.launch(&it, "pack", [1; 3], [1; 3], 0, &[(&memory).into()]))
        .unwrap_err();
    assert!(error.to_string().contains("session 7"), "{error}");
    drop((memory, session));
    next.sync().unwrap();
    let is_free = |it: &GpuRequest| matches!(it, GpuRequest::MemFree { .. });
    assert!(!node.gpu().log()[sent..].iter().any(is_free));
}

#[test]
fn handles_do_not_outlive_the_lease() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let memory = session.mem_alloc(10).unwrap();
    lease.free().unwrap();
    let sent = node.gpu().log().len();
    for error in [
        session.mem_write(&memory, 0, &[0]).unwrap_err(),
        session.sync().unwrap_err(),
        session.queue().unwrap_err(),
    ] {
        assert!(matches!(error, Error::Ended { .. }), "{error:?}");
    }
    drop(memory);
    let error = session.close().unwrap_err();
    assert!(error.to_string().contains("was given back"), "{error}");
    assert_eq!(node.gpu().log().len(), sent);
}

/// The worker ends with its lease.
#[test]
fn a_lease_that_has_expired_is_told_by_its_session() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(alloc) => Ok(Reply::Lease(granted(alloc))),
        _ => Ok(Reply::Lease(LeaseInfo {
            phase: LeasePhase::Expired,
            ..crate::lease(0)
        })),
    });
    let lease = on(&node, GpuBuilder::new().min_vram(1)).unwrap();
    let session = GpuSession::new(&lease).unwrap();
    node.gpu().kill();
    let error = session.mem_alloc(1).unwrap_err();
    assert!(
        matches!(&error, Error::Ended { lease_id: LEASE, why, .. } if why.contains("expired")),
        "{error:?}"
    );
    drop(lease);
}

#[test]
fn a_closed_session_is_over_for_all_its_handles() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let (memory, other) = (session.mem_alloc(10).unwrap(), session.queue().unwrap());
    session.close().unwrap();
    let error = other.mem_write(&memory, 0, &[0]).unwrap_err();
    assert!(error.to_string().contains("it was closed"), "{error}");
    let sent = node.gpu().log().len();
    drop((memory, other));
    assert_eq!(node.gpu().log().len(), sent);
    assert!(!node.gpu().is_running());
    assert_eq!(GpuSession::new(&lease).unwrap().id(), 8);
}

#[test]
fn a_session_is_ended_although_all_its_queues_are_in_use() {
    let (node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let memory = session.mem_alloc(10).unwrap();
    let busy = |why| Refusal::new(LeaseError::ResourceBusy, RefusalClass::Transient, why);
    node.gpu().script(move |request| match request {
        GpuRequest::Open { .. } => Act::Refuse(busy("all in use")),
        _ => Act::Do,
    });
    assert_eq!(GpuSession::end(&lease).unwrap().bytes, 10);
    assert!(!node.gpu().is_running());
    drop((session, memory));
    // There is no session, so the call begins one and ends it.
    node.gpu().script(|_| Act::Do);
    assert_eq!(GpuSession::end(&lease).unwrap().bytes, 0);
    // A node that accepts no more streams.
    node.gpu().refuse(busy("too many"));
    let error = GpuSession::end(&lease).unwrap_err();
    assert_eq!(refusal(&error).message, "too many");
    // The same at the local socket.
    let (_directory, path, _server) = local_socket(node.gpu());
    let session = GpuSession::local(&LEASE, &path).unwrap();
    let _memory = session.mem_alloc(5).unwrap();
    assert_eq!(GpuSession::end_local(&LEASE, &path).unwrap().bytes, 5);
}

#[test]
fn queues_of_a_session_do_not_wait_for_each_other() {
    let (node, lease) = leased();
    let (go, wait) = mpsc::channel();
    let mut wait = Some(wait);
    node.gpu().script(move |request| match request {
        GpuRequest::Sync { .. } => wait.take().map_or(Act::Do, Act::After),
        _ => Act::Do,
    });
    let session = GpuSession::new(&lease).unwrap();
    let other = session.queue().unwrap();
    assert_eq!(other.id(), session.id());
    let memory = session.mem_alloc(5).unwrap();
    thread::scope(|scope| {
        let syncing = scope.spawn(|| session.sync());
        let is_syncing = |it: &GpuRequest| matches!(it, GpuRequest::Sync { .. });
        while !node.gpu().log().iter().any(is_syncing) {
            thread::yield_now();
        }
        other.mem_write(&memory, 0, b"other").unwrap();
        go.send(()).unwrap();
        syncing.join().unwrap().unwrap();
    });
    let mut bytes = [0; 5];
    session.mem_read(&memory, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"other");
}

#[test]
fn calls_of_several_threads_take_turns() {
    let (_node, lease) = leased();
    let session = GpuSession::new(&lease).unwrap();
    let memory = session.mem_alloc(8 << 20).unwrap();
    thread::scope(|scope| {
        for index in 0..8_u8 {
            let (session, memory) = (&session, &memory);
            scope.spawn(move || {
                let at = u64::from(index) << 20;
                session.mem_write(memory, at, &[index; 1 << 20]).unwrap();
                let mut back = vec![0; 1 << 20];
                session.mem_read(memory, at, &mut back).unwrap();
                assert!(back.iter().all(|it| *it == index));
            });
        }
    });
}

#[test]
fn a_node_that_is_busy_is_asked_again() {
    let (node, lease) = leased();
    let busy = |class| Refusal::new(LeaseError::ResourceBusy, class, "later");
    node.gpu().refuse(busy(RefusalClass::Transient));
    GpuSession::new(&lease).unwrap();
    node.gpu().refuse(busy(RefusalClass::Permanent));
    let error = GpuSession::new(&lease).unwrap_err();
    assert_eq!(refusal(&error).message, "later");
}

#[test]
fn a_submission_is_a_session_from_open_to_close() {
    let (node, lease) = leased();
    let (a, b) = (floats([1.0, 2.0]), floats([10.0, 20.0]));
    let add = |count: u32| {
        Submission::new(PTX, "add")
            .grid([2, 1, 1])
            .block([1, 1, 1])
            .input(&a)
            .in_out(&b)
            .output(8)
            .value(count)
    };
    let submitted = lease.submit(&add(2)).unwrap();
    assert_eq!(submitted.outputs, [b.clone(), floats([11.0, 22.0])]);
    assert_eq!(submitted.wiped.bytes, 24);
    assert!(!node.gpu().is_running());
    // The session is also closed after a failure.
    let error = lease.submit(&add(2).value(0_u32)).unwrap_err();
    assert!(error.to_string().contains("wrong number"), "{error}");
    assert!(!node.gpu().is_running());
    // In an open session, no memory or module of the submission stays.
    let session = GpuSession::new(&lease).unwrap();
    let zeros = Submission::new(PTX, "nothing").zeroed(10);
    assert!(zeros.run(&session).unwrap().is_empty());
    session.sync().unwrap();
    assert_eq!(node.gpu().memories(), 0);
    assert!(node.gpu().is_running());
}

#[tokio::test]
async fn the_same_under_somebody_elses_runtime() {
    let (node, lease) = tokio::task::spawn_blocking(leased).await.unwrap();
    let working = tokio::spawn(async move {
        let session = GpuSession::new_async(&lease).await.unwrap();
        let memory = session.mem_alloc_async(1 << 20).await.unwrap();
        let module = session.module_load_async(PTX).await.unwrap();
        session
            .launch_async(&module, "nothing", [1; 3], [1; 3], 0, &[(&memory).into()])
            .await
            .unwrap();
        session
            .mem_write_async(&memory, 0, &[7; 1 << 20])
            .await
            .unwrap();
        session.sync_async().await.unwrap();
        let mut bytes = vec![0; 1 << 20];
        session
            .mem_read_async(&memory, 0, &mut bytes)
            .await
            .unwrap();
        assert!(bytes.iter().all(|it| *it == 7));
        session
            .queue_async()
            .await
            .unwrap()
            .sync_all_async()
            .await
            .unwrap();
        session.close_async().await.unwrap();
        lease.free_async().await.unwrap();
    });
    working.await.unwrap();
    tokio::task::spawn_blocking(move || drop(node))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_cancelled_call_leaves_a_session_that_works() {
    let (node, lease) = tokio::task::spawn_blocking(leased).await.unwrap();
    let session = GpuSession::new_async(&lease).await.unwrap();
    let memory = session.mem_alloc_async(64 << 20).await.unwrap();
    let (reached, mut is_reached) = tokio::sync::mpsc::unbounded_channel();
    let (go, wait) = mpsc::channel::<()>();
    let mut wait = Some(wait);
    node.gpu().script(move |request| match request {
        GpuRequest::MemWrite { .. } => {
            reached.send(()).ok();
            wait.take().map_or(Act::Do, Act::After)
        }
        _ => Act::Do,
    });
    let bytes = vec![1; 64 << 20];
    tokio::select! {
        written = session.mem_write_async(&memory, 0, &bytes) => panic!("{written:?}"),
        _ = is_reached.recv() => {}
    }
    drop(go);
    session.mem_write_async(&memory, 0, b"next").await.unwrap();
    let mut back = [0; 4];
    session.mem_read_async(&memory, 0, &mut back).await.unwrap();
    assert_eq!(&back, b"next");
    assert_eq!(node.gpu().opened(), [0, 7]);
    tokio::task::spawn_blocking(move || drop((memory, session, lease, node)))
        .await
        .unwrap();
}

#[test]
fn a_session_at_the_local_socket_takes_neither_node_nor_lease() {
    let gpu = FakeGpu::default();
    let (_directory, path, server) = local_socket(&gpu);
    let session = GpuSession::local(&LEASE, &path).unwrap();
    let memory = session.mem_alloc(5).unwrap();
    session.mem_write(&memory, 0, b"local").unwrap();
    let (id, handle) = (session.id(), memory.keep());
    drop(session);
    let session =
        GpuSession::local_with(&LEASE, &path, LocalOptions::default().session(id)).unwrap();
    let (memory, mut bytes) = (session.memory(handle), [0; 5]);
    session.mem_read(&memory, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"local");
    gpu.script(|_| Act::Refuse(invalid("no")));
    let error = session.mem_alloc(1).unwrap_err();
    assert_eq!(refusal(&error).message, "no");
    gpu.kill();
    let error = session.mem_alloc(1).unwrap_err();
    assert!(matches!(error, Error::SessionEnded { .. }), "{error:?}");
    let error = GpuSession::local(&LeaseId(1), &path).unwrap_err();
    assert_eq!(refusal(&error).error, LeaseError::NotFound);
    drop((session, server));
    let error = GpuSession::local(&LEASE, &path).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("--local-socket"), "{error}");
}
