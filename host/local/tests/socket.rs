//! The local socket with callers of several users, identified by the kernel. Tests with several users need root and run
//! in the lab (`cargo xtask test --only lab:socket`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    fs::{self, File, Permissions},
    io::{IoSlice, PipeReader, Read, Write, pipe},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use fabricbios_channel::Line;
use fabricbios_contract::{Caller, Entered, Given, LocalAccess, LocalRefusal};
use fabricbios_helper::Pidfd;
use fabricbios_lease::StepError;
use fabricbios_local::{
    AskError, LocalServer, Moved, Reply, Request, SharedMemory, Tenants, enter, gpu_session, join,
    ping, remaining, run,
};
use fabricbios_wire::{LeaseError, LeaseId, Refusal, RefusalClass};
use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{
            AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr,
            accept4, bind, connect, listen, sendmsg, socket,
        },
        wait::waitpid,
    },
    unistd::{ForkResult, Pid, Uid, fork, geteuid, setresuid},
};
use tempfile::TempDir;

const BLUE: LeaseId = LeaseId(0xB);
const FAILS: LeaseId = LeaseId(0xF);
const WITH_SESSION: LeaseId = LeaseId(0x5);
const OF_NO_QUEUE: u64 = 13;
const OF_NOBODY: LeaseId = LeaseId(0x0);

/// Three users: of tenants red and blue, of red alone, and of no tenant.
const BLUES: u32 = 12_345;
const REDS: u32 = 12_346;
const STRANGER: u32 = 12_347;

/// A kind with one lease, which tenant blue has.
#[derive(Default)]
struct Blue(Mutex<Vec<(Caller, Given)>>);

impl LocalAccess for Blue {
    fn remaining(&self, lease: LeaseId, caller: &Caller) -> Result<Duration, LocalRefusal> {
        match lease {
            BLUE => caller.check("blue").map(|()| Duration::from_millis(2_500)),
            FAILS => Err(LocalRefusal::NotActive("it was cut".to_owned())),
            _ => Err(LocalRefusal::NotFound),
        }
    }

    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        given: Given,
    ) -> Result<Entered, LocalRefusal> {
        if lease != BLUE {
            return Err(LocalRefusal::NotFound);
        }
        caller.check("blue")?;
        let place = given.to_string();
        self.0.lock().unwrap().push((caller.clone(), given));
        Ok(Entered {
            environment: vec![("GPU".to_owned(), "7".to_owned())],
            ..Entered::at(place)
        })
    }
}

/// A kind with one lease of tenant blue and a session, whose worker reports the requested session.
struct Sessions;

impl LocalAccess for Sessions {
    fn enter(&self, _: LeaseId, _: &Caller, _: Given) -> Result<Entered, LocalRefusal> {
        Err(LocalRefusal::NotFound)
    }

    fn session(
        &self,
        lease: LeaseId,
        caller: &Caller,
        session: u64,
    ) -> Result<OwnedFd, LocalRefusal> {
        if lease != WITH_SESSION {
            return Err(LocalRefusal::NotFound);
        }
        caller.check("blue")?;
        if session == OF_NO_QUEUE {
            let (error, class) = (LeaseError::ResourceBusy, RefusalClass::Transient);
            return Err(Refusal::new(error, class, "no queue is free").into());
        }
        let (ours, its) = UnixStream::pair().unwrap();
        let word = format!("session {session} of uid {}", caller.uid);
        thread::spawn(move || (&ours).write_all(word.as_bytes()).unwrap());
        Ok(its.into())
    }
}

/// A kind that moves nothing into its lease: it fails or refuses.
struct Refuses;

impl LocalAccess for Refuses {
    fn enter(
        &self,
        lease: LeaseId,
        _caller: &Caller,
        given: Given,
    ) -> Result<Entered, LocalRefusal> {
        match (lease, given) {
            (FAILS, Given::Process(_)) => Err(LocalRefusal::Failed(StepError::new(
                "cgroup.procs",
                "/sys/fs/cgroup/lease: no such process",
            ))),
            (FAILS, given) => Err(LocalRefusal::Unsupported(format!("it takes no {given}"))),
            _ => Err(LocalRefusal::NotFound),
        }
    }
}

struct World {
    directory: TempDir,
    server: LocalServer,
    blue: Arc<Blue>,
}

fn reachable() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    directory
}

impl World {
    fn new() -> Self {
        Self::of(Tenants::from([
            (BLUES, vec!["red".into(), "blue".into()]),
            (REDS, vec!["red".into()]),
            (geteuid().as_raw(), Vec::new()),
        ]))
    }

    fn of(tenants: Tenants) -> Self {
        let directory = reachable();
        let blue = Arc::new(Blue::default());
        let kinds: Vec<Arc<dyn LocalAccess>> =
            vec![blue.clone(), Arc::new(Refuses), Arc::new(Sessions)];
        let path = directory.path().join("local.sock");
        let server = LocalServer::open(&path, tenants, kinds, None).unwrap();
        Self {
            directory,
            server,
            blue,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("local.sock")
    }

    fn connect(&self) -> Line {
        connect_to(&self.path()).unwrap()
    }

    fn ask(&self, bytes: &[u8], given: Option<BorrowedFd<'_>>) -> Reply {
        exchange(&self.connect(), bytes, given)
    }

    fn moved(&self) -> Vec<Caller> {
        let moved = self.blue.0.lock().unwrap();
        moved.iter().map(|(caller, _)| caller.clone()).collect()
    }
}

fn connect_to(path: &Path) -> nix::Result<Line> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let end = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(end.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(end.into())
}

fn exchange(line: &Line, bytes: &[u8], given: Option<BorrowedFd<'_>>) -> Reply {
    line.send(bytes, given, MsgFlags::empty()).unwrap();
    answer(line)
}

fn answer(line: &Line) -> Reply {
    Reply::decode(&line.receive().unwrap().unwrap().bytes).unwrap()
}

fn refused(reply: &Reply) -> (LeaseError, String) {
    let refusal = reply.refusal();
    let refusal = refusal.unwrap_or_else(|| panic!("not refused: {reply:?}"));
    (refusal.error, refusal.message)
}

fn itself() -> Pidfd {
    Pidfd::open(Pid::this()).unwrap()
}

fn at(place: &str) -> Moved {
    Moved {
        place: place.to_owned(),
        environment: Vec::new(),
    }
}

fn of(outcome: Result<Moved, AskError>) -> Reply {
    match outcome {
        Ok(Moved { place, environment }) => Reply::Entered { place, environment },
        Err(AskError::Refused(refusal)) => refusal.into(),
        Err(other) => panic!("{other:?}"),
    }
}

/// Runs `act` as another user, in another process. Needs root.
fn as_user(uid: u32, act: impl FnOnce() -> Reply) -> (Pid, Reply) {
    assert!(geteuid().is_root(), "this test needs root");
    let (mut ours, mut its) = UnixStream::pair().unwrap();
    // SAFETY: the child makes system calls and allocates memory, which glibc allows after a fork of threads.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let uid = Uid::from_raw(uid);
            setresuid(uid, uid, uid).unwrap();
            let reply = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
            let bytes = reply.map(|it| it.encode()).unwrap_or_default();
            its.write_all(&bytes).ok();
            // SAFETY: _exit(2) takes an integer.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(its);
            let mut bytes = Vec::new();
            ours.read_to_end(&mut bytes).unwrap();
            waitpid(child, None).unwrap();
            (child, Reply::decode(&bytes).unwrap())
        }
    }
}

#[test]
#[ignore = "needs the lab: root"]
fn a_user_moves_its_own_process_into_a_lease_of_its_tenant() {
    let world = World::new();
    let (pid, reply) = as_user(BLUES, || of(run(&world.path(), BLUE)));
    let place = "process".to_owned();
    let environment = vec![("GPU".to_owned(), "7".to_owned())];
    assert_eq!(reply, Reply::Entered { place, environment });
    let expected = Caller {
        uid: BLUES,
        pid: pid.as_raw(),
        tenants: vec!["red".into(), "blue".into()],
        is_root: false,
    };
    assert_eq!(world.moved(), [expected]);
}

#[test]
#[ignore = "needs the lab: root"]
fn root_enters_every_lease() {
    let world = World::new();
    assert_eq!(run(&world.path(), BLUE).unwrap().place, "process");
    let caller = &world.moved()[0];
    assert!(caller.is_root && caller.tenants.is_empty());
    assert_eq!(caller.pid, Pid::this().as_raw());
    let namespace = File::open("/proc/self/ns/net").unwrap();
    let place = enter(&world.path(), BLUE, namespace.as_fd()).unwrap().place;
    assert_eq!(place, "network namespace");
}

#[test]
#[ignore = "needs the lab: root"]
fn a_user_of_another_tenant_is_refused_and_told_why() {
    let world = World::new();
    let (_, reply) = as_user(REDS, || of(run(&world.path(), BLUE)));
    let (error, message) = refused(&reply);
    assert_eq!(error, LeaseError::NotPermitted);
    assert!(message.ends_with("--tenant-uid blue=12346"), "{message}");
    assert_eq!(world.moved(), []);
}

#[test]
#[ignore = "needs the lab: root"]
fn users_that_change_while_it_serves_are_admitted_by_the_new_list() {
    let world = World::new();
    let asks = |uid| as_user(uid, || of(run(&world.path(), BLUE))).1;
    assert!(matches!(asks(BLUES), Reply::Entered { .. }));
    let others = Tenants::from([(STRANGER, vec!["blue".into()])]);
    world.server.change_tenants(others).unwrap();
    assert!(matches!(asks(STRANGER), Reply::Entered { .. }));
    let (error, message) = refused(&asks(BLUES));
    assert_eq!(error, LeaseError::NotPermitted);
    assert!(message.contains("belongs to no tenant"), "{message}");

    // Nobody but root gets there: the list stays.
    fs::set_permissions(&world.directory, Permissions::from_mode(0o700)).unwrap();
    let others = Tenants::from([(BLUES, vec!["blue".into()])]);
    world.server.change_tenants(others).unwrap_err();
    fs::set_permissions(&world.directory, Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(asks(STRANGER), Reply::Entered { .. }));
}

/// The refusal comes before any request, so no thread waits for such a caller.
#[test]
#[ignore = "needs the lab: root"]
fn a_user_of_no_tenant_is_refused_before_it_asks() {
    let world = World::new();
    let silent = || {
        let lines: Vec<Line> = (0..9).map(|_| world.connect()).collect();
        let last = lines.iter().map(answer).next_back();
        last.unwrap()
    };
    for reply in [
        as_user(STRANGER, silent),
        as_user(STRANGER, || of(ping(&world.path()).map(|()| at("a node")))),
    ] {
        let (error, message) = refused(&reply.1);
        assert_eq!(error, LeaseError::NotPermitted);
        assert!(
            message.contains("uid 12347 belongs to no tenant"),
            "{message}"
        );
        assert!(message.ends_with("--tenant-uid TENANT=UID"), "{message}");
    }
}

#[test]
fn a_refusal_before_the_request_is_read_reaches_its_caller() {
    let directory = reachable();
    let path = directory.path().join("local.sock");
    let flags = SockFlag::SOCK_CLOEXEC;
    let node = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(node.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&node, Backlog::new(1).unwrap()).unwrap();
    let refusal = Refusal::new(LeaseError::NotPermitted, RefusalClass::Policy, "no tenant");
    let reply = thread::scope(|scope| {
        let caller = scope.spawn(|| of(ping(&path).map(|()| at("a node"))));
        let raw = accept4(node.as_raw_fd(), flags).unwrap();
        // SAFETY: accept4(2) has just made the descriptor; no other code has it.
        let line = Line::from(unsafe { OwnedFd::from_raw_fd(raw) });
        line.is_ready_within(Duration::MAX).unwrap();
        let reply = Reply::from(refusal.clone()).encode();
        line.send(&reply, None, MsgFlags::empty()).unwrap();
        drop(line);
        caller.join().unwrap()
    });
    assert_eq!(refused(&reply).1, "no tenant");
}

#[test]
#[ignore = "needs the lab: root"]
fn the_users_of_tenants_keep_no_other_out_however_many_they_are() {
    let users = 20_000..20_010;
    let tenants = users
        .clone()
        .chain([BLUES])
        .map(|uid| (uid, vec!["blue".into()]));
    let world = World::of(tenants.collect());
    let mut silent = Vec::new();
    for uid in users {
        let (ours, its) = UnixStream::pair().unwrap();
        let connects = || {
            let lines: Vec<Line> = (0..8).map(|_| world.connect()).collect();
            let copies = lines.iter().map(|line| line.as_fd().try_clone_to_owned());
            let line = Line::from(OwnedFd::from(its));
            for copy in copies {
                line.send(b"x", Some(copy.unwrap().as_fd()), MsgFlags::empty())
                    .unwrap();
            }
            Reply::Pong {}
        };
        as_user(uid, connects);
        let ours = Line::from(OwnedFd::from(ours));
        silent.extend((0..8).map(|_| ours.receive().unwrap().unwrap().descriptor.unwrap()));
    }
    let (_, reply) = as_user(BLUES, || of(run(&world.path(), BLUE)));
    assert!(matches!(reply, Reply::Entered { .. }), "{reply:?}");
    drop(silent);
}

#[test]
#[ignore = "needs the lab: root"]
fn each_refusal_of_a_kind_is_told_as_what_it_is() {
    let world = World::new();
    let itself = itself();
    let ask = |lease_id| {
        let request = Request::Run { lease_id };
        refused(&world.ask(&request.encode(), Some(itself.as_fd())))
    };
    assert_eq!(ask(OF_NOBODY).0, LeaseError::NotFound);
    let (error, message) = ask(FAILS);
    assert_eq!(error, LeaseError::Internal);
    assert!(message.contains("/sys/fs/cgroup/lease"), "{message}");
    let namespace = File::open("/proc/self/ns/net").unwrap();
    let reply = of(enter(&world.path(), FAILS, namespace.as_fd()));
    assert_eq!(refused(&reply).0, LeaseError::Unsupported);
}

#[test]
fn nobody_moves_the_process_of_somebody_else() {
    let world = World::new();
    let request = Request::Run { lease_id: BLUE }.encode();
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    let its = Pidfd::open(Pid::from_raw(other.id().try_into().unwrap())).unwrap();
    let (error, message) = refused(&world.ask(&request, Some(its.as_fd())));
    assert_eq!(error, LeaseError::NotPermitted);
    let own = format!("process {}", Pid::this());
    assert!(message.contains(&own), "{message}");
    other.kill().unwrap();
    other.wait().unwrap();
    let (error, _) = refused(&world.ask(&request, Some(its.as_fd())));
    assert_eq!(error, LeaseError::NotPermitted, "it has ended");
    assert_eq!(world.moved(), []);
}

/// The process that connected has ended, and another process has its end of the socket.
#[test]
fn a_socket_that_was_passed_on_moves_nobody() {
    let world = World::new();
    let path = world.path();
    let (ours, its) = UnixStream::pair().unwrap();
    let (ours, its) = (
        Line::from(OwnedFd::from(ours)),
        Line::from(OwnedFd::from(its)),
    );
    // SAFETY: as in `as_user`.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let connected: OwnedFd = connect_to(&path).unwrap().into();
            its.send(b"s", Some(connected.as_fd()), MsgFlags::empty())
                .unwrap();
            // SAFETY: _exit(2) takes an integer.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => child,
    };
    let connected = ours.receive().unwrap().unwrap().descriptor.unwrap();
    waitpid(child, None).unwrap();
    let request = Request::Run { lease_id: BLUE }.encode();
    let reply = exchange(&connected.into(), &request, Some(itself().as_fd()));
    assert_eq!(refused(&reply).0, LeaseError::NotPermitted);
    assert_eq!(world.moved(), []);
}

#[test]
#[ignore = "needs the lab: root"]
fn a_process_that_is_not_of_its_user_any_more_is_not_moved() {
    let world = World::new();
    let (_, reply) = as_user(0, || {
        let (user, root) = (Uid::from_raw(BLUES), Uid::from_raw(0));
        setresuid(user, user, root).unwrap();
        let line = world.connect();
        // This is what a set-user-ID program does.
        setresuid(root, root, root).unwrap();
        let request = Request::Run { lease_id: BLUE }.encode();
        exchange(&line, &request, Some(itself().as_fd()))
    });
    assert_eq!(refused(&reply).0, LeaseError::NotPermitted);
    assert_eq!(world.moved(), []);
}

#[test]
fn a_wrong_descriptor_is_refused() {
    let world = World::new();
    let (run, enter) = (
        Request::Run { lease_id: BLUE }.encode(),
        Request::Enter { lease_id: BLUE }.encode(),
    );
    let file = tempfile::tempfile().unwrap();
    let other_namespace = File::open("/proc/self/ns/mnt").unwrap();
    let namespace = File::open("/proc/self/ns/net").unwrap();
    let itself = itself();
    for (request, given, expected) in [
        (&run, None, LeaseError::InvalidArgs),
        (&run, Some(file.as_fd()), LeaseError::NotPermitted),
        (&run, Some(namespace.as_fd()), LeaseError::NotPermitted),
        (&enter, None, LeaseError::InvalidArgs),
        (&enter, Some(file.as_fd()), LeaseError::InvalidArgs),
        (&enter, Some(itself.as_fd()), LeaseError::InvalidArgs),
        (
            &enter,
            Some(other_namespace.as_fd()),
            LeaseError::InvalidArgs,
        ),
    ] {
        let (error, message) = refused(&world.ask(request, given));
        assert_eq!(error, expected, "{message}");
        assert!(message.contains("descriptor"), "{message}");
    }
    assert_eq!(world.moved(), []);
}

#[test]
#[ignore = "needs the lab: root"]
fn a_network_namespace_is_given_by_its_owner_only() {
    let world = World::new();
    let give = || {
        let namespace = File::open("/proc/self/ns/net").unwrap();
        of(enter(&world.path(), BLUE, namespace.as_fd()))
    };
    let (_, reply) = as_user(BLUES, give);
    let (error, message) = refused(&reply);
    assert_eq!(error, LeaseError::InvalidArgs);
    assert!(message.contains("is of uid 0"), "{message}");
    let (_, reply) = as_user(BLUES, || {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).unwrap();
        give()
    });
    assert!(
        matches!(&reply, Reply::Entered { place, .. } if place == "network namespace"),
        "{reply:?}"
    );
    assert_eq!(world.moved().len(), 1);
}

#[test]
fn what_is_no_request_is_answered_and_harms_nobody() {
    let world = World::new();
    for bytes in [
        &b"x"[..],
        b"{\"ask\":",
        b"{\"ask\":\"exec\"}",
        &[0xFF; 64],
        &[b'['; 60_000],
    ] {
        assert_eq!(refused(&world.ask(bytes, None)).0, LeaseError::Malformed);
    }
    ping(&world.path()).unwrap();
}

#[test]
fn the_time_that_is_left_is_told_to_who_may_enter_the_lease() {
    let own = |tenant: &str| Tenants::from([(geteuid().as_raw(), vec![tenant.into()])]);
    let world = World::of(own("blue"));
    let asked = |lease| match remaining(&world.path(), lease) {
        Ok(left) => Ok(left),
        Err(AskError::Refused(refusal)) => Err((refusal.error, refusal.message)),
        Err(other) => panic!("{other:?}"),
    };
    assert_eq!(asked(BLUE), Ok(Duration::from_millis(2_500)));
    assert_eq!(asked(OF_NOBODY).unwrap_err().0, LeaseError::NotFound);
    let (error, message) = asked(FAILS).unwrap_err();
    assert_eq!(error, LeaseError::Expired);
    assert!(message.contains("it was cut"), "{message}");
    assert!(world.moved().is_empty());
}

/// Callers that send nothing or do not run take only the places of their own user.
#[test]
#[ignore = "needs the lab: root"]
fn a_user_who_says_nothing_holds_up_no_other_and_not_for_long() {
    let world = World::new();
    let silent: Vec<Line> = (0..8).map(|_| world.connect()).collect();
    let (error, _) = refused(&answer(&world.connect()));
    assert_eq!(error, LeaseError::Unavailable);
    let (_, reply) = as_user(BLUES, || of(run(&world.path(), BLUE)));
    assert!(matches!(reply, Reply::Entered { .. }), "{reply:?}");
    for line in &silent {
        assert_eq!(refused(&answer(line)).0, LeaseError::Malformed);
    }
    until_answered(&world);
}

#[test]
fn a_caller_that_is_stopped_is_answered_and_forgotten() {
    let world = World::new();
    let stopped: Vec<Line> = (0..20)
        .map(|_| {
            let line = world.connect();
            // This caller never reads the answer.
            let sent = line.send(&Request::Ping {}.encode(), None, MsgFlags::empty());
            sent.unwrap();
            line.is_ready_within(Duration::MAX).unwrap();
            until_answered(&world);
            line
        })
        .collect();
    assert_eq!(answer(&stopped[0]), Reply::Pong {});
}

/// Waits for the end of the count: a caller is counted until it has its answer.
fn until_answered(world: &World) {
    while let Err(AskError::Refused(refusal)) = ping(&world.path()) {
        assert_eq!(refusal.error, LeaseError::Unavailable);
    }
}

#[test]
fn callers_that_are_gone_are_forgotten() {
    let world = World::new();
    for _ in 0..100 {
        drop(world.connect());
    }
    until_answered(&world);
}

#[test]
fn the_socket_of_a_killed_node_is_replaced_and_that_of_a_live_one_is_not() {
    let world = World::new();
    let path = world.path();
    let again = || LocalServer::open(&path, Tenants::new(), Vec::new(), None);
    let error = again().unwrap_err().to_string();
    assert!(error.contains("another process serves"), "{error}");
    ping(&path).unwrap();
    drop(world.server);
    assert!(!path.exists());
    assert!(matches!(ping(&path), Err(AskError::Unreachable { .. })));
    // No process listens to this name.
    let stale = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::empty(),
        None,
    )
    .unwrap();
    nix::sys::socket::bind(stale.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    drop(stale);
    drop(again().unwrap());
    fs::write(&path, "mine").unwrap();
    let error = again().unwrap_err().to_string();
    assert!(error.contains("no socket"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}

#[test]
fn every_user_may_connect_and_nobody_may_replace_the_socket() {
    let directory = reachable();
    let open = |path: &Path| LocalServer::open(path, Tenants::new(), Vec::new(), None);
    let path = directory.path().join("made/local.sock");
    let server = open(&path).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o666);
    assert_eq!(mode(path.parent().unwrap()), 0o755);
    drop(server);
    for wrong in [0o777, 0o1777, 0o775] {
        fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(wrong)).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("mode {wrong:04o}")), "{error}");
        assert!(
            error.contains("/run/fabricbios") && !error.contains("chmod"),
            "{error}"
        );
    }
    assert!(open(Path::new("local.sock")).is_err());
}

/// A directory that tenants cannot pass is refused. If only root may call, the directory may be root's alone.
#[test]
fn a_directory_that_no_tenant_passes_is_refused() {
    let directory = reachable();
    let inner = directory.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let path = inner.join("local.sock");
    let of_tenants = || Tenants::from([(REDS, vec!["red".to_owned()])]);
    for (mode, passes) in [(0o700, false), (0o744, false), (0o710, true), (0o755, true)] {
        fs::set_permissions(&inner, Permissions::from_mode(mode)).unwrap();
        let opened = LocalServer::open(&path, of_tenants(), Vec::new(), None);
        assert_eq!(opened.is_ok(), passes, "{mode:o}");
        if let Err(error) = opened.map(drop) {
            let error = error.to_string();
            assert!(
                error.contains(&format!("chmod 755 {}", inner.display())),
                "{error}"
            );
        }
        let still = fs::metadata(&inner).unwrap().permissions().mode() & 0o777;
        assert_eq!(still, mode, "the operator's");
        LocalServer::open(&path, Tenants::new(), Vec::new(), None).unwrap();
    }
}

#[test]
#[ignore = "needs the lab: root"]
fn nobody_may_move_a_directory_above_the_socket() {
    let root = reachable();
    let open = |path: PathBuf| LocalServer::open(&path, Tenants::new(), Vec::new(), None);
    let above = root.path().join("above");
    fs::create_dir_all(above.join("inner")).unwrap();
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&above, &link).unwrap();
    let mode = |mode| fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
    let paths = || [&above, &link].map(|at| at.join("inner/local.sock"));
    mode(0o777);
    for path in paths() {
        let error = open(path).unwrap_err().to_string();
        assert!(error.contains("has mode 0777"), "{error}");
    }
    // A sticky directory such as /tmp: other users' files cannot be renamed there.
    mode(0o1777);
    for path in paths() {
        drop(open(path).unwrap());
    }
    mode(0o755);
    std::os::unix::fs::chown(&above, Some(BLUES), None).unwrap();
    for path in paths() {
        let error = open(path).unwrap_err().to_string();
        assert!(error.contains(&format!("is of uid {BLUES}")), "{error}");
    }
}

fn read_all(mut from: UnixStream) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}

#[test]
#[ignore = "needs the lab: root"]
fn a_caller_is_connected_to_the_worker_of_a_session() {
    let world = World::new();
    let path = world.path();
    let worker = gpu_session(&path, WITH_SESSION, 7).unwrap();
    assert_eq!(read_all(worker), "session 7 of uid 0");
    // The place has no meaning here; it carries the text to this process.
    let (_, reply) = as_user(BLUES, || {
        of(gpu_session(&path, WITH_SESSION, u64::MAX).map(|it| at(&read_all(it))))
    });
    let place = format!("session {} of uid {BLUES}", u64::MAX);
    assert_eq!(reply, of(Ok(at(&place))));
    assert_eq!(world.moved(), []);
}

#[test]
#[ignore = "needs the lab: root"]
fn each_refusal_of_a_session_is_told_as_what_it_is() {
    let world = World::new();
    let path = world.path();
    let refusal = |lease, session| match gpu_session(&path, lease, session) {
        Err(AskError::Refused(refusal)) => (refusal.error, refusal.message),
        other => panic!("{other:?}"),
    };
    // The kind of the first lease has no sessions and does not know about them.
    assert_eq!(refusal(BLUE, 0).0, LeaseError::NotFound);
    assert_eq!(refusal(OF_NOBODY, 0).0, LeaseError::NotFound);
    let busy = gpu_session(&path, WITH_SESSION, OF_NO_QUEUE).unwrap_err();
    let AskError::Refused(busy) = busy else {
        panic!("{busy:?}")
    };
    let (error, class) = (LeaseError::ResourceBusy, RefusalClass::Transient);
    assert_eq!(busy, Refusal::new(error, class, "no queue is free"));
    let (_, reply) = as_user(REDS, || {
        of(gpu_session(&path, WITH_SESSION, 0).map(|it| at(&read_all(it))))
    });
    let (error, message) = refused(&reply);
    assert_eq!(error, LeaseError::NotPermitted);
    assert!(message.ends_with("--tenant-uid blue=12346"), "{message}");
    let without = |kinds: Vec<Arc<dyn LocalAccess>>| {
        let other = path.with_file_name("other.sock");
        let tenants = Tenants::from([(geteuid().as_raw(), Vec::new())]);
        let server = LocalServer::open(&other, tenants, kinds, None).unwrap();
        let asked = gpu_session(&other, BLUE, 0).unwrap_err();
        drop(server);
        match asked {
            AskError::Refused(refusal) => refusal.error,
            other => panic!("{other:?}"),
        }
    };
    let blue = || Arc::new(Blue::default());
    assert_eq!(without(vec![blue(), blue()]), LeaseError::Unsupported);
    assert_eq!(without(Vec::new()), LeaseError::NotFound);
}

#[test]
fn memory_goes_with_a_message_to_the_worker() {
    let (ours, its) = UnixStream::pair().unwrap();
    let memory = SharedMemory::new(4096).unwrap();
    memory.send(&ours, b"share").unwrap();
    memory.write(4000, b"later").unwrap();
    let message = Line::from(OwnedFd::from(its)).receive().unwrap().unwrap();
    assert_eq!(message.bytes, b"share");
    let file = File::from(message.descriptor.unwrap());
    let mut bytes = [0; 5];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 4000).unwrap();
    assert_eq!(&bytes, b"later");
    assert!(memory.send(&ours, b"gone").is_err());
}

/// Sends `count` descriptors beside a request, and waits until the node has closed the connection.
fn send_many(world: &World, bytes: &[u8], count: usize) -> Reply {
    let line = world.connect();
    let null = File::open("/dev/null").unwrap();
    let copies = vec![null.as_raw_fd(); count];
    let rights = [ControlMessage::ScmRights(&copies)];
    let (end, parts) = (line.as_fd().as_raw_fd(), [IoSlice::new(bytes)]);
    sendmsg::<()>(end, &parts, &rights, MsgFlags::empty(), None).unwrap();
    let reply = answer(&line);
    assert!(line.receive().unwrap().is_none(), "the end");
    reply
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn ten_thousand_connections_with_descriptors_leave_none_open() {
    let world = World::new();
    let session = Request::GpuSession {
        lease_id: OF_NOBODY,
        session: 0,
    };
    let (ping, session) = (Request::Ping {}.encode(), session.encode());
    let run = Request::Run { lease_id: BLUE }.encode();
    let before = open_files();
    for _ in 0..2_000 {
        assert_eq!(send_many(&world, &ping, 1), Reply::Pong {});
        for (bytes, count, expected) in [
            (&ping[..], 3, LeaseError::Malformed),
            (&session[..], 1, LeaseError::NotFound),
            (&run[..], 2, LeaseError::Malformed),
            (b"x", 253, LeaseError::Malformed),
        ] {
            let (error, message) = refused(&send_many(&world, bytes, count));
            assert_eq!(error, expected, "{message}");
            assert!(
                count == 1 || message.contains("descriptors beside"),
                "{message}"
            );
        }
    }
    assert_eq!(open_files(), before);
}

/// Lowers the limit so that this process can open `room` more files.
fn leave_room(room: usize) -> Vec<File> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
    let null = File::open("/dev/null").unwrap();
    let mut taken: Vec<_> = std::iter::from_fn(|| null.try_clone().ok()).collect();
    taken.truncate(taken.len() - room);
    taken.push(null);
    taken
}

/// The caller takes one descriptor for its end, and for a moment one for itself if it is to be moved. The node needs one
/// for its end, one for the caller's process, one for what the caller gives, and a copy of that for the kind; of a process
/// one more.
#[test]
fn a_node_without_descriptors_says_so_and_not_that_the_caller_is_wrong() {
    let world = World::of(Tenants::from([(geteuid().as_raw(), vec!["blue".into()])]));
    let namespace = File::open("/proc/self/ns/net").unwrap();
    let before = open_files();
    let refused = |room, ask: &dyn Fn() -> Result<Moved, AskError>| {
        let taken = leave_room(room);
        let refusal = match ask() {
            Err(AskError::Refused(refusal)) => refusal,
            other => panic!("{room}: {other:?}"),
        };
        let told = (refusal.error, refusal.class);
        let lack = (LeaseError::Unavailable, RefusalClass::Transient);
        assert_eq!(told, lack, "{room}: {refusal}");
        let says_so = refusal.message.contains("lacks file descriptors");
        assert!(says_so, "{refusal}");
        drop(taken);
        // The node closes its end after the answer.
        while open_files() > before {
            thread::yield_now();
        }
    };
    let path = world.path();
    for room in 3..6 {
        refused(room, &|| run(&path, BLUE));
    }
    for room in 2..5 {
        refused(room, &|| enter(&path, BLUE, namespace.as_fd()));
    }
    assert_eq!(world.moved(), []);
    run(&path, BLUE).unwrap();
}

/// Reports whether the other end of a pipe is closed.
struct Looks(PipeReader);

impl LocalAccess for Looks {
    fn enter(&self, _: LeaseId, _: &Caller, _: Given) -> Result<Entered, LocalRefusal> {
        Err(LocalRefusal::NotFound)
    }

    fn session(&self, _: LeaseId, _: &Caller, _: u64) -> Result<OwnedFd, LocalRefusal> {
        let mut ends = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let is_closed = poll(&mut ends, PollTimeout::from(60_000_u16)).unwrap() == 1;
        Err(LocalRefusal::NotActive(format!("closed: {is_closed}")))
    }
}

#[test]
fn a_descriptor_that_nobody_asked_for_is_closed_before_a_session_is_looked_for() {
    let directory = reachable();
    let (reader, writer) = pipe().unwrap();
    let path = directory.path().join("local.sock");
    let tenants = Tenants::from([(geteuid().as_raw(), Vec::new())]);
    let server = LocalServer::open(&path, tenants, vec![Arc::new(Looks(reader))], None).unwrap();
    let line = connect_to(&path).unwrap();
    let request = Request::GpuSession {
        lease_id: BLUE,
        session: 0,
    };
    let sent = line.send(&request.encode(), Some(writer.as_fd()), MsgFlags::empty());
    sent.unwrap();
    drop(writer);
    let (_, message) = refused(&answer(&line));
    assert!(message.contains("closed: true"), "{message}");
    drop(server);
}

/// Runs `act` as root of a container: uid 0 in its own namespace.
fn as_root_in(flag: CloneFlags, act: impl FnOnce() -> Reply) -> Reply {
    let within = || {
        unshare(flag).unwrap();
        if flag == CloneFlags::CLONE_NEWUSER {
            fs::write("/proc/self/uid_map", "0 0 1").unwrap();
        }
        // A new PID namespace applies only to children.
        as_user(0, act).1
    };
    as_user(0, within).1
}

const NAMESPACES: [CloneFlags; 3] = [
    CloneFlags::CLONE_NEWNS,
    CloneFlags::CLONE_NEWPID,
    CloneFlags::CLONE_NEWUSER,
];

#[test]
#[ignore = "needs the lab: root"]
fn root_of_a_container_is_not_root_of_the_node() {
    let world = World::of(Tenants::from([(BLUES, vec!["blue".into()])]));
    let path = world.path();
    for flag in NAMESPACES {
        let enters = || of(run(&path, BLUE));
        let opens = || of(gpu_session(&path, WITH_SESSION, 0).map(|it| at(&read_all(it))));
        for ask in [&enters as &dyn Fn() -> Reply, &opens] {
            let reply = as_root_in(flag, ask);
            let (error, message) = refused(&reply);
            assert_eq!(error, LeaseError::NotPermitted);
            assert!(message.contains("is not root of this node"), "{message}");
            assert!(message.contains("run this as a user of"), "{message}");
        }
    }
    assert_eq!(world.moved(), []);
}

#[test]
#[ignore = "needs the lab: root"]
fn root_of_a_container_has_the_tenants_of_uid_0_and_gives_no_namespace_of_the_machine() {
    let world = World::of(Tenants::from([(0, vec!["blue".into()])]));
    let path = world.path();
    let reply = as_root_in(CloneFlags::CLONE_NEWNS, || of(run(&path, BLUE)));
    assert!(matches!(reply, Reply::Entered { .. }), "{reply:?}");
    let moved = world.moved();
    assert!(!moved[0].is_root, "{moved:?}");
    assert_eq!(moved[0].tenants, ["blue"]);
    let give = || {
        let namespace = File::open("/proc/self/ns/net").unwrap();
        of(enter(&path, BLUE, namespace.as_fd()))
    };
    let (error, message) = refused(&as_root_in(CloneFlags::CLONE_NEWNS, give));
    assert_eq!(error, LeaseError::InvalidArgs);
    assert!(message.contains("root of this node"), "{message}");
    let red = World::of(Tenants::from([(0, vec!["red".into()])]));
    let reply = as_root_in(CloneFlags::CLONE_NEWNS, || of(run(&red.path(), BLUE)));
    let (error, message) = refused(&reply);
    assert_eq!(error, LeaseError::NotPermitted);
    assert!(message.ends_with("--tenant-uid blue=0"), "{message}");
    assert_eq!(red.moved(), []);
}

#[test]
#[ignore = "needs the lab: root"]
fn root_of_a_container_takes_no_place_of_root() {
    let world = World::of(Tenants::from([(0, vec!["blue".into()])]));
    let (ours, its) = Line::pair().unwrap();
    let connects = || {
        for _ in 0..8 {
            let line = OwnedFd::from(world.connect());
            its.send(b"x", Some(line.as_fd()), MsgFlags::empty())
                .unwrap();
        }
        let (error, _) = refused(&answer(&world.connect()));
        assert_eq!(error, LeaseError::Unavailable);
        // The process lives until this process has its connections.
        its.receive().unwrap();
        Reply::Pong {}
    };
    thread::scope(|scope| {
        let container = scope.spawn(|| as_root_in(CloneFlags::CLONE_NEWNS, connects));
        let _silent: Vec<_> = (0..8).map(|_| ours.receive().unwrap().unwrap()).collect();
        let pinged = ping(&world.path());
        ours.send(b"x", None, MsgFlags::empty()).unwrap();
        pinged.unwrap();
        assert_eq!(container.join().unwrap(), Reply::Pong {});
    });
}

#[test]
#[ignore = "needs the lab: root"]
fn root_of_the_node_has_it_join_a_fabric_and_nobody_else() {
    let directory = reachable();
    let path = directory.path().join("local.sock");
    let joins = Arc::new(Mutex::new(Vec::new()));
    let joined = Arc::clone(&joins);
    let join_it: fabricbios_local::Join = Arc::new(move |answer| {
        joined.lock().unwrap().push(answer.to_owned());
        Ok("joined".to_owned())
    });
    let tenants = Tenants::from([(BLUES, vec!["blue".into()]), (0, vec!["blue".into()])]);
    let _server = LocalServer::open(&path, tenants, Vec::new(), Some(join_it)).unwrap();
    let asks = || of(join(&path, "theirs").map(|told| at(&told)));
    let mut replies = vec![as_user(BLUES, asks).1, as_user(STRANGER, asks).1];
    replies.extend(NAMESPACES.map(|flag| as_root_in(flag, asks)));
    for reply in replies {
        let (error, why) = refused(&reply);
        assert_eq!(error, LeaseError::NotPermitted);
        assert!(why.contains("root of the node may"), "{why}");
    }
    assert_eq!(join(&path, "ours").unwrap(), "joined");
    assert_eq!(*joins.lock().unwrap(), ["ours"]);
}
