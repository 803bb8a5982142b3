//! What the device is called, and its faults.

use std::{sync::mpsc, thread, time::Duration};

use stand_in_device::{Device, Identity, Knob, Vendor};

use super::{MIB, directory, kernel};
use crate::shell::Shell;

#[test]
fn the_device_says_that_it_is_a_stand_in() {
    let (_place, directory) = directory();
    let mut shell = Shell::start(&directory);
    assert_eq!(shell.code("count"), 3, "not initialised");
    shell.value("init");
    assert_eq!(shell.value("count"), 1);
    assert_eq!(shell.words("name"), ["Stand-in_NVIDIA_GPU"]);
    assert_eq!(shell.words("uuid"), ["57a4d1f1000040008000000000000001"]);
    assert_eq!(shell.value("attribute 16"), 14);
    assert_eq!(shell.code("attribute 9999"), 1);
    assert_eq!(shell.words("error 700"), ["CUDA_ERROR_ILLEGAL_ADDRESS"]);
    assert_eq!(shell.code("error 12345"), 1);
    assert_eq!(shell.code("alloc 4096"), 201, "no context");
}

#[test]
fn the_environment_chooses_the_device() {
    let (_place, directory) = directory();
    let uuid = Identity::whole(Vendor::Nvidia).uuid();
    for (wanted, code) in [
        (uuid.as_str(), 0),
        ("0", 0),
        ("GPU-0", 100),
        ("", 100),
        ("1", 100),
    ] {
        let mut shell = Shell::start_with(&directory, &[("CUDA_VISIBLE_DEVICES", wanted)]);
        assert_eq!(shell.code("init"), code, "{wanted}");
    }
    directory.set(Knob::Absent, "amd nvidia").unwrap();
    assert_eq!(Shell::start(&directory).code("init"), 100);
}

#[test]
fn kernels_hang_while_the_knob_says_so() {
    let (_place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    let fill = kernel(&mut shell, "fill");
    let p = shell.value("alloc 4096");
    directory.set(Knob::HangLaunch, "1").unwrap();
    shell.value(&format!("launch {fill} 0 1,1,1 1,1,1 u64:{p} u32:7 u32:1"));
    shell.say("sync");
    shell.hangs();
    directory.clear(Knob::HangLaunch).unwrap();
    assert_eq!(shell.answer().0, 0);
}

#[test]
fn the_end_of_a_context_and_of_a_process_hangs_while_the_knob_says_so() {
    let (_place, directory) = directory();
    let mut shell = Shell::start(&directory);
    shell.value("init");
    let context = shell.value("create");
    directory.set(Knob::HangTeardown, "1").unwrap();
    shell.say(&format!("destroy {context}"));
    shell.hangs();
    directory.clear(Knob::HangTeardown).unwrap();
    assert_eq!(shell.answer().0, 0);

    shell.value("create");
    shell.value(&format!("alloc {MIB}"));
    directory.set(Knob::HangTeardown, "1").unwrap();
    let device = Device::open_in(directory.clone(), Vendor::Nvidia).unwrap();
    let is_listed = |pid| {
        let listed = device.processes(&Identity::whole(Vendor::Nvidia)).unwrap();
        listed.iter().any(|it| it.pid == pid)
    };
    let pid = shell.pid();
    let (say, said) = mpsc::channel();
    thread::spawn(move || say.send(shell.ends()));
    let waited = said.recv_timeout(Duration::from_millis(100));
    assert!(waited.is_err() && is_listed(pid), "the process has ended");
    directory.clear(Knob::HangTeardown).unwrap();
    assert!(said.recv().unwrap());
    assert!(!is_listed(pid));
}

#[test]
fn a_process_without_a_context_ends_whatever_the_knob_says() {
    let (_place, directory) = directory();
    directory.set(Knob::HangTeardown, "1").unwrap();
    let mut shell = Shell::start(&directory);
    shell.value("init");
    assert!(shell.ends());
}

#[test]
fn a_device_that_is_gone_answers_nothing_more() {
    let (_place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    let spin = kernel(&mut shell, "spin");
    shell.value(&format!("launch {spin} 0 1,1,1 1,1,1 u64:{}", u64::MAX));
    shell.say("sync");
    shell.hangs();
    directory.set(Knob::Gone, "1").unwrap();
    assert_eq!(shell.answer().0, 46, "a call that waits returns");
    for line in ["sync", "info", "alloc 4096", "count", "init"] {
        assert_eq!(shell.code(line), 46, "{line}");
    }
    assert_eq!(Shell::start(&directory).code("init"), 46);
}

#[test]
fn a_device_that_needs_a_reset_cannot_be_used() {
    let (_place, directory) = directory();
    directory.set(Knob::ResetRequired, "1").unwrap();
    let mut shell = Shell::start(&directory);
    assert_eq!(shell.code("init"), 802);
    let device = Device::open_in(directory.clone(), Vendor::Nvidia).unwrap();
    let open = [shell.pid()];
    assert_eq!(device.reset().unwrap(), open, "refused while it is open");
    shell.kill();
    assert_eq!(device.reset().unwrap(), []);
    let mut shell = Shell::with_context(&directory);
    assert_eq!(device.reset().unwrap(), [shell.pid()], "and in use");
    shell.value("info");
}
