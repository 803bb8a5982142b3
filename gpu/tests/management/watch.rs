//! The health watch.

use std::{
    cell::Cell,
    fs,
    io::Write,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

use fabricbios_gpu::{
    Device, Health,
    management::{HealthWatch, Reset, Watch},
};
use nix::{sys::stat::Mode, unistd::mkfifo};
use stand_in_device::{Identity, Knob, Vendor};

use crate::lab::{Lab, PATIENCE};

/// In these tests a library that is silent for this time counts as hung.
const SILENCE: Duration = Duration::from_secs(3);

type Told = (String, Health);

fn watch(lab: &Lab, devices: Vec<Device>) -> (HealthWatch, Receiver<Told>) {
    let (tell, told) = channel();
    let tell = move |uuid: &str, health: &Health| {
        // The receiver is gone when the test is over.
        tell.send((uuid.to_owned(), health.clone())).ok();
    };
    let (supervisor, libraries) = (lab.supervisor.clone(), lab.libraries.clone());
    let watch =
        HealthWatch::start(supervisor, libraries, devices, Arc::new(tell), SILENCE).unwrap();
    (watch, told)
}

/// Waits until a health that satisfies `is_meant` is reported. On a slow machine other reports may come first.
fn wait_for(told: &Receiver<Told>, uuid: &str, is_meant: impl Fn(&Health) -> bool) -> Health {
    loop {
        let (of, health) = told.recv_timeout(PATIENCE).unwrap();
        if of == uuid && is_meant(&health) {
            return health;
        }
    }
}

#[test]
fn errors_are_told_when_they_happen() {
    let lab = Lab::new();
    let devices = lab.discover().devices;
    let uuid = devices[0].uuid.clone();
    // The first look reports this; later looks wait for errors.
    lab.directory.set(Knob::Ecc, "2").unwrap();
    let (watch, told) = watch(&lab, devices);
    wait_for(
        &told,
        &uuid,
        |it| matches!(it, Health::Degraded(why) if why.starts_with("2 ")),
    );
    lab.directory.set(Knob::Xid, "94").unwrap();
    let health = wait_for(
        &told,
        &uuid,
        |it| matches!(it, Health::Degraded(why) if why.contains("XID")),
    );
    let Health::Degraded(why) = health else {
        unreachable!()
    };
    assert!(
        why.starts_with("XID 94: ") && why.contains("; 2 memory errors"),
        "{why}"
    );
    lab.directory.set(Knob::Xid, "79").unwrap();
    let failed = "XID 79: it has fallen off the bus: restart the machine";
    wait_for(&told, &uuid, |it| *it == Health::Failed(failed.into()));
    drop(watch);
}

#[test]
fn a_device_that_was_reset_may_fail_again_in_the_same_way() {
    let lab = Lab::new();
    let device = lab.device(Vendor::Nvidia);
    let uuid = device.uuid.clone();
    let gone = lab.directory.path().join("gone");
    lab.script("nvidia-smi", &format!("echo 0 > {}", gone.display()));
    let (watch, told) = watch(&lab, vec![device.clone()]);
    let failed = |it: &Health| matches!(it, Health::Failed(_));
    for _ in 0..2 {
        lab.directory.set(Knob::Gone, "1").unwrap();
        wait_for(&told, &uuid, failed);
        let reset = Reset {
            device: device.clone(),
        };
        lab.call(&reset).unwrap();
        while told.try_recv().is_ok() {}
    }
    drop(watch);
}

/// The watching process waits for the resetting one. Its reports meanwhile show that it does not hang.
#[test]
fn a_watch_that_waits_for_a_reset_says_so_again_and_again() {
    let lab = Lab::new();
    let device = lab.device(Vendor::Nvidia);
    let end = lab.place.path().join("end");
    mkfifo(&end, Mode::S_IRWXU).unwrap();
    lab.script("nvidia-smi", &format!("read line < {}", end.display()));
    let watch = Watch {
        libraries: lab.libraries.clone(),
        devices: vec![device.clone()],
        patience: Duration::ZERO,
    };
    thread::scope(|scope| {
        let reset = scope.spawn(|| lab.call(&Reset { device }));
        // This returns when the tool runs.
        let ends = fs::File::options().write(true).open(&end).unwrap();
        let waits = Cell::new(0);
        let note = |what: &str| {
            if what.contains("resets a device") {
                waits.set(waits.get() + 1);
                if waits.get() == 2 {
                    (&ends).write_all(b"\n").unwrap();
                }
            }
        };
        lab.supervisor.call(&watch, PATIENCE, &note).unwrap();
        assert!(waits.get() >= 2);
        reset.join().unwrap().unwrap();
    });
}

#[test]
fn an_error_of_a_device_is_one_of_its_partitions() {
    let lab = Lab::new();
    lab.directory.set(Knob::Mig, "2").unwrap();
    let devices = lab.discover().devices;
    lab.directory.set(Knob::Ecc, "1").unwrap();
    let (_watch, told) = watch(&lab, devices);
    let uuid = Identity::partition(1).uuid();
    wait_for(&told, &uuid, |it| matches!(it, Health::Degraded(_)));
    lab.directory.set(Knob::Xid, "95").unwrap();
    wait_for(
        &told,
        &uuid,
        |it| matches!(it, Health::Failed(why) if why.starts_with("XID 95")),
    );
}

#[test]
fn a_library_that_hangs_is_told_and_asked_again() {
    let lab = Lab::new();
    let devices = vec![lab.device(Vendor::Nvidia)];
    let uuid = devices[0].uuid.clone();
    let (watch, told) = watch(&lab, devices);
    lab.directory.set(Knob::HangNvml, "1").unwrap();
    let silent = |it: &Health| {
        matches!(it, Health::Silent(why) if why.starts_with("NVML does not answer since 20")
            && why.contains("no progress for 3000 ms"))
    };
    wait_for(&told, &uuid, silent);
    lab.directory.clear(Knob::HangNvml).unwrap();
    wait_for(&told, &uuid, |it| *it == Health::Good);
    // No report comes after the end. The threads end when the library counts as hung.
    lab.directory.set(Knob::HangNvml, "1").unwrap();
    drop(watch);
    let left: Vec<Told> = told.iter().collect();
    assert_eq!(left, []);
}
