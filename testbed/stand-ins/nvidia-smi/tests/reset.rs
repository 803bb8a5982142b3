//! A reset of the stand-in of a device, with the stand-in of `nvidia-smi`.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../shell/mod.rs"]
mod shell;

use std::process::Command;

use shell::Shell;
use stand_in_device::{Device, Directory, Identity, Knob, Knobs, VARIABLE, Vendor};

fn reset(directory: &Directory, arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_stand-in-nvidia-smi"))
        .args(arguments)
        .env(VARIABLE, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), said)
}

#[test]
fn a_device_in_use_is_not_reset() {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::at(place.path()).unwrap();
    let uuid = Identity::whole(Vendor::Nvidia).uuid();
    let mut tenant = Shell::with_context(&directory);
    let address = tenant.value("alloc 4096");
    tenant.value(&format!("write {address} 1 2 3"));
    let faults = [Knob::Lost, Knob::Xid, Knob::ResetRequired, Knob::Gone];
    for knob in faults {
        directory.set(knob, "1").unwrap();
    }
    let (status, said) = reset(&directory, &["--gpu-reset", "-i", &uuid]);
    assert_eq!(status, 255);
    assert!(said.contains("In use by another client"), "{said}");
    tenant.kill();
    let device = Device::open_in(directory.clone(), Vendor::Nvidia).unwrap();
    let identity = Identity::whole(Vendor::Nvidia);
    let usage = device.usage(&identity).unwrap();
    let lost = usage.total - usage.free;
    assert_eq!(lost, 4 << 20, "its context's granule, and the other");
    let (status, said) = reset(&directory, &["--gpu-reset", "-i", &uuid]);
    assert_eq!(
        status, 255,
        "open in this process, without a context: {said}"
    );
    drop(device);
    let (status, said) = reset(&directory, &["--gpu-reset", "-i", &uuid]);
    assert_eq!(status, 0);
    assert!(
        said.ends_with("was successfully reset.\nAll done.\n"),
        "{said}"
    );
    let device = Device::open_in(directory.clone(), Vendor::Nvidia).unwrap();
    let usage = device.usage(&identity).unwrap();
    assert_eq!(usage.free, usage.total);
    let memory = directory.memory_of(Vendor::Nvidia).unwrap();
    assert_eq!(memory.len() as u64, usage.total);
    assert!(memory.iter().all(|byte| *byte == 0));
    let knobs = Knobs::open(&directory).unwrap();
    assert!(faults.iter().all(|knob| !knobs.is_set(*knob)));
}

#[test]
fn another_device_is_not_found() {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::at(place.path()).unwrap();
    assert_eq!(reset(&directory, &["--gpu-reset", "-i", "GPU-0"]).0, 6);
    assert_eq!(reset(&directory, &["-i", "0"]).0, 2, "nothing to do");
    assert_eq!(reset(&directory, &["-r"]).0, 0);
}
