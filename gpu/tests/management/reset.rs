//! Resets.

use std::{fs, time::Duration};

use fabricbios_gpu::management::{Reset, Watch};
use fabricbios_helper::CallError;
use stand_in_device::{Identity, Knob, Vendor};

use crate::lab::{Lab, PATIENCE, failure};

fn reset(lab: &Lab) -> Reset {
    Reset {
        device: lab.device(Vendor::Nvidia),
    }
}

#[test]
fn the_vendors_tool_resets_the_device() {
    let lab = Lab::new();
    let said = lab.place.path().join("said");
    lab.script("nvidia-smi", &format!("echo $* > {}", said.display()));
    let reset = reset(&lab);
    lab.call(&reset).unwrap();
    let said = fs::read_to_string(said).unwrap();
    assert_eq!(said, format!("--gpu-reset -i {}\n", reset.device.uuid));
}

#[test]
fn what_the_tool_says_is_told_but_not_all_of_it() {
    let lab = Lab::new();
    // The output is larger than a pipe's buffer.
    lab.script(
        "nvidia-smi",
        "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo in use by; echo another >&2; exit 255",
    );
    let why = failure(lab.call(&reset(&lab)));
    assert!(why.contains("exit status: 255"), "{why}");
    assert!(
        why.ends_with("x in use by another") && why.len() < 4096,
        "{} {why}",
        why.len()
    );
}

#[test]
fn a_partition_is_not_reset() {
    let lab = Lab::new();
    lab.script("nvidia-smi", "exit 0");
    lab.directory.set(Knob::Mig, "2").unwrap();
    let mut devices = lab.discover().devices.into_iter();
    let whole = devices.next().unwrap();
    let uuid = Identity::partition(0).uuid();
    let device = devices.find(|it| it.uuid == uuid).unwrap();
    let why = failure(lab.call(&Reset { device }));
    let start = format!("{uuid}: a partition cannot be reset by itself");
    assert!(
        why.starts_with(&start) && why.contains(&whole.uuid),
        "{why}"
    );
    let why = failure(lab.call(&Reset { device: whole }));
    assert!(why.contains("would remove its partitions"), "{why}");
}

#[test]
fn a_device_that_the_kernel_cannot_reset_is_told() {
    let lab = Lab::new();
    let device = lab.device(Vendor::Amd);
    let why = failure(lab.call(&Reset { device }));
    assert!(
        why.contains("/sys/bus/pci/devices/f1b0:f2:00.0/reset"),
        "{why}"
    );
}

#[test]
fn the_process_that_watches_lets_go_of_the_device() {
    let lab = Lab::new();
    lab.script("nvidia-smi", "exit 0");
    let reset = reset(&lab);
    let watch = Watch {
        libraries: lab.libraries.clone(),
        devices: vec![reset.device.clone()],
        patience: Duration::ZERO,
    };
    let mut session = lab.supervisor.session().unwrap();
    for _ in 0..2 {
        let health = session.ask(&watch, PATIENCE, &|_| ()).unwrap();
        assert_eq!(
            health,
            [(reset.device.uuid.clone(), reset.device.health.clone())]
        );
    }
    lab.call(&reset).unwrap();
    let lost = session.ask(&watch, PATIENCE, &|_| ()).unwrap_err();
    assert!(matches!(lost, CallError::Lost { .. }), "{lost}");
    // The next process may watch.
    lab.call(&watch).unwrap();
}
