//! The watchdog as a process, and its supervision by the daemon. The lab shows its effects in the kernel
//! (`suite_block_restart`, `suite_mem_stopped`).

use std::{
    fs::OpenOptions,
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::ExitStatusExt},
    },
    path::Path,
    process::{Child, Command},
};

use fabricbios_channel::Channel;
use fabricbios_lease::BootTime;
use fabricbios_node::watchdog::{CHANNEL, Watchdog, WatchdogMessage, WatchdogReply};
use fabricbios_wire::{Generation, LeaseId, ResourceType};
use nix::{
    fcntl::{FcntlArg, fcntl},
    libc,
    sys::{
        signal::{Signal, kill},
        socket::MsgFlags,
    },
    unistd::Pid,
};

use crate::daemon::{PROGRAM, program, wait_for};

/// A lease without a subsystem, whose deadline is long after the test.
const FAR: WatchdogMessage = until(0xA, 9_000_000_000_000_000_000);
const PAST: WatchdogMessage = until(0xB, 1);

const fn until(lease: u128, deadline: u64) -> WatchdogMessage {
    let (lease, deadline) = (LeaseId(lease), BootTime(deadline));
    WatchdogMessage::Until(ResourceType::Block, lease, Generation(1), deadline)
}

fn start(directory: &Path) -> (Child, Channel) {
    let (ours, its) = Channel::pair(CHANNEL).unwrap();
    let lock = OpenOptions::new()
        .create(true)
        .append(true)
        .open(lock(directory))
        .unwrap();
    let child = Command::new(PROGRAM)
        .args(["watchdog", "--end", "block", &"ab".repeat(32)])
        .stdin(its)
        .stdout(lock)
        .spawn()
        .unwrap();
    (child, ours)
}

fn lock(directory: &Path) -> std::path::PathBuf {
    directory.join("watchdog.lock")
}

fn begun(directory: &Path, messages: &[WatchdogMessage]) -> (Child, Channel) {
    let (child, mut channel) = start(directory);
    messages.iter().for_each(|it| tell(&channel, *it));
    tell(&channel, WatchdogMessage::Begin);
    assert_eq!(answer(&mut channel), WatchdogReply::Watches);
    (child, channel)
}

fn tell(channel: &Channel, message: WatchdogMessage) {
    channel.send(&message, None, MsgFlags::empty()).unwrap();
}

fn answer(channel: &mut Channel) -> WatchdogReply {
    channel.receive().unwrap().unwrap()
}

#[test]
fn the_next_one_takes_the_place_of_one_whose_daemon_died() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, socket) = begun(directory.path(), &[FAR]);
    drop(socket);
    assert!(first.try_wait().unwrap().is_none(), "it still has a lease");
    let (mut second, socket) = begun(directory.path(), &[FAR]);
    assert_eq!(first.wait().unwrap().signal(), Some(9));
    drop(socket);
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn it_goes_when_its_daemon_is_gone_and_nothing_is_left_to_cut() {
    let directory = tempfile::tempdir().unwrap();
    let over = WatchdogMessage::Over(ResourceType::Block, LeaseId(0xA), Generation(1));
    for messages in [&[][..], &[PAST], &[FAR, over, PAST]] {
        let (mut child, channel) = begun(directory.path(), messages);
        drop(channel);
        assert!(child.wait().unwrap().success(), "{messages:?}");
    }
}

#[test]
fn before_it_is_told_to_begin_it_takes_nobodys_place() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, first_socket) = begun(directory.path(), &[FAR]);
    let (mut second, socket) = start(directory.path());
    drop(socket);
    assert!(second.wait().unwrap().success());
    assert!(first.try_wait().unwrap().is_none());
    drop(first_socket);
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn what_stops_a_daemon_does_not_stop_it_and_it_answers() {
    let directory = tempfile::tempdir().unwrap();
    let (mut child, mut channel) = begun(directory.path(), &[]);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        kill(pid, signal).unwrap();
    }
    tell(&channel, WatchdogMessage::Ping);
    assert_eq!(answer(&mut channel), WatchdogReply::IsWell);
    drop(channel);
    assert!(
        child.wait().unwrap().success(),
        "its own end, not a signal's"
    );
}

#[test]
fn it_waits_for_no_log() {
    let directory = tempfile::tempdir().unwrap();
    let (mut ours, its) = UnixStream::pair().unwrap();
    // Nobody reads this log, as with a disk that does not answer.
    let (_unread, log) = UnixStream::pair().unwrap();
    let mut child = Command::new(PROGRAM)
        .args(["watchdog", "--end", "block", &"ab".repeat(32)])
        .stdin(OwnedFd::from(its))
        .stdout(tempfile::tempfile_in(&directory).unwrap())
        .stderr(OwnedFd::from(log))
        .spawn()
        .unwrap();
    let mut channel = Channel::over(CHANNEL, ours.try_clone().unwrap());
    tell(&channel, WatchdogMessage::Begin);
    assert_eq!(answer(&mut channel), WatchdogReply::Watches);
    let no_message = [&[1, 0, 0, 0][..], &[0xFF]].concat();
    for _ in 0..1_000 {
        ours.write_all(&no_message).unwrap();
    }
    tell(&channel, WatchdogMessage::Ping);
    assert_eq!(answer(&mut channel), WatchdogReply::IsWell);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A watchdog that this process supervises as a daemon does.
fn kept(directory: &Path) -> Watchdog {
    let watchdog = Watchdog::new(&program(), directory).unwrap();
    assert!(!watchdog.watches(), "it has not begun");
    watchdog.begin().unwrap();
    assert!(watchdog.watches());
    watchdog
}

fn holder(directory: &Path) -> Pid {
    let file = OpenOptions::new().append(true).open(lock(directory));
    wait_for("a process that holds the lock", || {
        let mut lock = libc::flock {
            l_type: libc::F_WRLCK.try_into().unwrap(),
            l_whence: libc::SEEK_SET.try_into().unwrap(),
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        fcntl(file.as_ref().unwrap(), FcntlArg::F_GETLK(&mut lock)).unwrap();
        (i32::from(lock.l_type) != libc::F_UNLCK).then(|| Pid::from_raw(lock.l_pid))
    })
}

/// Ends the current watchdog; returns when another one watches.
fn replaced_after(watchdog: &Watchdog, directory: &Path, signal: Signal) {
    let before = holder(directory);
    kill(before, signal).unwrap();
    wait_for("the loss of the watchdog", || {
        (!watchdog.watches()).then_some(())
    });
    wait_for("another watchdog", || watchdog.watches().then_some(()));
    assert_ne!(holder(directory), before);
}

#[test]
fn one_that_is_killed_again_and_again_and_one_that_is_stopped_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let watchdog = kept(directory.path());
    replaced_after(&watchdog, directory.path(), Signal::SIGKILL);
    replaced_after(&watchdog, directory.path(), Signal::SIGKILL);
    replaced_after(&watchdog, directory.path(), Signal::SIGSTOP);
}

#[test]
fn why_a_daemon_was_killed_is_told_once() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(lock(directory.path()), "the reason").unwrap();
    Watchdog::new(&program(), directory.path()).unwrap();
    let mut left = String::new();
    let mut file = std::fs::File::open(lock(directory.path())).unwrap();
    file.read_to_string(&mut left).unwrap();
    assert_eq!(left, "");
}
