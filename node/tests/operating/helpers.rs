//! Processes for calls that may hang: the program that they run, and the effect on other processes when one hangs or
//! dies.

use std::{
    env,
    fs::{self, File, OpenOptions, Permissions},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use fabricbios_client::Error;
use fabricbios_helper::{CallError, ReadFirst, Supervisor};
use fabricbios_wire::{LeaseError, LeasePhase, Request, ResourceType};
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};

use crate::daemon::*;

const BRIEF: Duration = Duration::from_millis(200);

/// A supervisor, and files to read.
struct Scene {
    directory: tempfile::TempDir,
    supervisor: Supervisor,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let lock = File::create(directory.path().join("calls.lock")).unwrap();
        let supervisor = Supervisor::start(&program(), "supervisor", lock).unwrap();
        fs::write(directory.path().join("file"), [7; 8192]).unwrap();
        // Opening this FIFO for reading waits for a writer.
        mkfifo(&directory.path().join("hangs"), Mode::S_IRWXU).unwrap();
        Self {
            directory,
            supervisor,
        }
    }

    fn read(&self, name: &str, patience: Duration) -> Result<(), CallError> {
        let call = ReadFirst::of(&self.directory.path().join(name));
        self.supervisor.call(&call, patience, &|_| ())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.supervisor.pid().unwrap().try_into().unwrap())
    }
}

/// True if the process exists, even if it has ended and its parent has not waited for it.
fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn wait_for_the_end_of(pid: u32) {
    let what = format!("the end of process {pid}");
    wait_for(&what, || (!exists(pid)).then_some(()));
}

/// Waits for a living child of `parent` whose name satisfies `is_meant`.
fn child_of(parent: u32, is_meant: impl Fn(&str) -> bool) -> Pid {
    wait_for(&format!("a child of process {parent}"), || {
        for entry in fs::read_dir("/proc").unwrap() {
            let pid = entry.unwrap().file_name();
            let Some(pid) = pid.to_str().and_then(|pid| pid.parse().ok()) else {
                continue;
            };
            // `PID (NAME) STATE PARENT …`; the process may be gone.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let Some((name, rest)) = stat.split_once(" (").and_then(|it| it.1.split_once(") "))
            else {
                continue;
            };
            let mut fields = rest.split(' ');
            let is_alive = fields.next() != Some("Z");
            if is_alive && is_meant(name) && fields.next() == Some(&parent.to_string()) {
                return Some(Pid::from_raw(pid));
            }
        }
        None
    })
}

#[test]
fn a_call_that_hangs_holds_up_no_other_and_leaves_nothing() {
    let scene = Scene::new();
    thread::scope(|scope| {
        let hangs = scope.spawn(|| scene.read("hangs", PATIENCE));
        let process = child_of(scene.pid().as_raw().unsigned_abs(), |it| it == "fb-read");
        for _ in 0..8 {
            scene.read("file", PATIENCE).unwrap();
        }
        // A stopped process behaves like one that is stuck in the kernel.
        kill(process, Signal::SIGSTOP).unwrap();
        scene.read("file", PATIENCE).unwrap();
        kill(process, Signal::SIGKILL).unwrap();
        let lost = hangs.join().unwrap().unwrap_err();
        assert!(matches!(lost, CallError::Lost { .. }), "{lost}");
    });
    let CallError::Stuck { pid, .. } = scene.read("hangs", BRIEF).unwrap_err() else {
        panic!("it waits for a writer");
    };
    wait_for_the_end_of(pid);
}

#[test]
fn what_the_system_refuses_is_told_with_its_number() {
    let scene = Scene::new();
    let CallError::Failed(failure) = scene.read("absent", PATIENCE).unwrap_err() else {
        panic!("it was made");
    };
    assert_eq!(failure.errno, Some(2));
    assert!(
        failure.detail.contains("/absent: No such file"),
        "{failure}"
    );
}

#[test]
fn a_supervisor_that_dies_takes_its_calls_along_and_the_next_call_works() {
    let scene = Scene::new();
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let first = scene.pid();
        let its = first.as_raw().unsigned_abs();
        thread::scope(|scope| {
            let hangs = scope.spawn(|| scene.read("hangs", PATIENCE));
            let process = child_of(its, |it| it == "fb-read");
            kill(first, signal).unwrap();
            scene.read("file", PATIENCE).unwrap();
            assert_ne!(scene.pid(), first);
            let lost = hangs.join().unwrap().unwrap_err();
            assert!(matches!(lost, CallError::Lost { .. }), "{lost}");
            wait_for_the_end_of(process.as_raw().unsigned_abs());
        });
    }
}

#[test]
fn a_call_has_no_descriptor_but_its_line_and_the_lock() {
    let inherited = File::open("/dev/zero").unwrap();
    let scene = Scene::new();
    thread::scope(|scope| {
        let hangs = scope.spawn(|| scene.read("hangs", PATIENCE));
        let process = child_of(scene.pid().as_raw().unsigned_abs(), |it| it == "fb-read");
        let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        let open = open.map(|entry| fs::read_link(entry.unwrap().path()).unwrap());
        for target in open {
            let target = target.to_string_lossy().into_owned();
            let expected = target.starts_with("socket:")
                || target.ends_with("/calls.lock")
                || target == "/dev/null";
            assert!(expected, "{target}");
        }
        kill(process, Signal::SIGKILL).unwrap();
        hangs.join().unwrap().unwrap_err();
    });
    drop(inherited);
}

/// Grants and frees a lease of blocks: calls that may hang make, read and remove its volume.
async fn leases(place: &Place, daemon: &Daemon) {
    let node = daemon.client(&place.admin()).await;
    // While a new process takes over the journal, the node grants no lease.
    let begin = Instant::now();
    let lease = loop {
        match node.alloc_async(request(ResourceType::Block)).await {
            Err(error) if is_for_now(&error) && begin.elapsed() < PATIENCE => {}
            granted => break granted.unwrap(),
        }
    };
    let freed = node.lease_async(Request::LeaseFree(lease.lease_id)).await;
    assert_eq!(freed.unwrap().phase, LeasePhase::Freed);
    let volume = place.at(&format!("pool/{}.volume", lease.lease_id));
    wait_for("the removal of the volume", || {
        (!volume.exists()).then_some(())
    });
}

fn is_for_now(error: &Error) -> bool {
    let refusal = error.refusal();
    refusal.is_some_and(|refusal| refusal.error == LeaseError::Unavailable)
}

/// Makes a program that appends to the file `mark` when it runs.
fn script(at: &Path, mark: &Path) {
    let text = format!("#!/bin/sh\necho \"$0 $*\" >>{}\nexit 1\n", mark.display());
    let mut file = OpenOptions::new();
    let file = file.write(true).create_new(true).mode(0o755).open(at);
    std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
}

#[tokio::test]
async fn no_program_is_searched_for() {
    let place = Place::new();
    let (bin, mark) = (place.at("bin"), place.at("mark"));
    fs::create_dir(&bin).unwrap();
    for name in ["dd", "rmdir", "sh", "modprobe", "fabricbiosd"] {
        script(&bin.join(name), &mark);
    }
    let path = [bin, PathBuf::from("/nonexistent")];
    let path = env::join_paths(path).unwrap();
    let mut command = place.command(&place.pool());
    command.env("PATH", path);
    let daemon = place.begin(command, place.new_log());
    leases(&place, &daemon).await;
    assert!(!mark.exists(), "{}", fs::read_to_string(mark).unwrap());
}

#[tokio::test]
async fn an_upgrade_under_a_running_daemon_changes_nothing_of_what_it_starts() {
    let place = Place::new();
    let (program, mark) = (place.at("installed"), place.at("mark"));
    fs::copy(PROGRAM, &program).unwrap();
    let command = place.command_of(&program, &place.pool());
    let daemon = place.begin(command, place.new_log());
    let child = |name: &str| child_of(daemon.child.id(), |it| it == name);
    // The file that the daemon was started from cannot be executed any more, and another file has its name.
    fs::set_permissions(&program, Permissions::from_mode(0o600)).unwrap();
    let next = program.with_extension("next");
    script(&next, &mark);
    fs::rename(&next, &program).unwrap();
    leases(&place, &daemon).await;
    for name in ["fb-supervisor", "fb-journal"] {
        let before = child(name);
        kill(before, Signal::SIGKILL).unwrap();
        leases(&place, &daemon).await;
        let after = child(name);
        let exe = fs::read_link(format!("/proc/{after}/exe")).unwrap();
        assert_eq!(exe, Path::new("/memfd:fabricbiosd (deleted)"), "{name}");
    }
    fs::remove_file(&program).unwrap();
    leases(&place, &daemon).await;
    assert!(!mark.exists(), "{}", fs::read_to_string(mark).unwrap());
}
