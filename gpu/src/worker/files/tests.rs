//! A child process isolates itself from the machine's files, in both ways, and tries to reach them.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::process::parent_id,
    path::Path,
    sync::mpsc,
    thread,
};

use nix::unistd::gettid;

use super::{super::sandbox::tests, Access, Files};
use crate::{Libraries, Node};

/// A file that everybody may read, and a directory for the child.
fn try_in_a_child(test: &str) {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("readable"), "of another").unwrap();
    fs::create_dir(place.path().join("state")).unwrap();
    tests::in_a_child(&format!("files::tests::{test}"), place.path());
    assert!(place.path().join("state/made").exists() && place.path().join("readable").exists());
}

#[test]
fn landlock_leaves_a_worker_its_own_files() {
    try_in_a_child("by_landlock");
}

#[test]
fn a_root_directory_leaves_a_worker_its_own_files() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "only root mounts: only root runs this test"
    );
    try_in_a_child("by_root");
}

#[test]
#[ignore = "a process of another test"]
fn by_landlock() {
    try_files(|files, place| {
        if !files.by_landlock().unwrap() {
            eprintln!(
                "landlock_leaves_a_worker_its_own_files: skipped: this kernel has no Landlock"
            );
            assert!(
                std::env::var_os("CI").is_none(),
                "a run with CI set skips nothing"
            );
            fs::write(place.join("state/made"), "").unwrap();
            return false;
        }
        true
    });
}

#[test]
#[ignore = "a process of another test"]
fn by_root() {
    try_files(|files, _| {
        files.by_root().unwrap();
        true
    });
}

fn try_files(shut_in: impl FnOnce(&Files, &Path) -> bool) {
    let Some(place) = tests::place_of_child() else {
        return;
    };
    let readable = place.join("readable");
    // The child has one of the device's nodes; the second node has the same mode.
    let full = Node {
        path: "/dev/full".into(),
        major: 1,
        minor: 7,
        is_shared: false,
    };
    let mut files = Files::of(&Libraries::default(), &[full]);
    files.0.push((place.join("state"), Access::Change));
    let others = [
        readable.clone(),
        "/etc/passwd".into(),
        format!("/proc/{}/cmdline", parent_id()).into(),
        "/proc/1/status".into(),
    ];
    for path in &others {
        fs::read(path).unwrap();
    }
    let mut held = File::open(&readable).unwrap();
    if !shut_in(&files, &place) {
        return;
    }
    let tried = others.clone();
    let by_thread = thread::spawn(move || tried.map(|path| fs::read(path).is_err()));
    assert_eq!(by_thread.join().unwrap(), [true; 4]);
    for path in others {
        assert!(fs::read(&path).is_err(), "{}", path.display());
    }
    assert!(File::create(place.join("new")).is_err());
    assert!(File::create("/usr/new").is_err());
    assert!(fs::create_dir("/new").is_err());
    assert!(fs::remove_file(&readable).is_err());
    assert!(fs::hard_link("/dev/null", place.join("link")).is_err());
    assert!(File::options().write(true).open("/dev/tty").is_err());
    assert!(File::open("/dev/ptmx").is_err());

    let mut text = String::new();
    held.read_to_string(&mut text).unwrap();
    assert_eq!(text, "of another");
    for path in ["/proc/self/maps", "/proc/self/status", "/proc/cpuinfo"] {
        fs::read(path).unwrap();
    }
    let own = format!("/proc/{}/status", std::process::id());
    fs::read(own).unwrap();
    // As CUDA names a thread that it has started.
    let (stop, stopped) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let named = thread::spawn(move || {
        tell.send(gettid()).unwrap();
        stopped.recv().unwrap_err();
    });
    let comm = format!("/proc/self/task/{}/comm", told.recv().unwrap());
    fs::write(&comm, "named").unwrap();
    assert_eq!(fs::read_to_string(comm).unwrap(), "named\n");
    drop(stop);
    named.join().unwrap();
    assert!(fs::write("/proc/self/oom_score_adj", "1").is_err());
    assert!(fs::read_dir("/usr").unwrap().count() > 0);
    assert!(fs::read_dir("/sys").unwrap().count() > 0);
    fs::write("/dev/null", "x").unwrap();
    assert!(fs::write("/dev/full", "x").is_err_and(|it| it.raw_os_error() == Some(28)));
    File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut [0; 4])
        .unwrap();
    fs::write(place.join("state/made"), "x").unwrap();
}
