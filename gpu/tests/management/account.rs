//! Memory and processes of a device.

use fabricbios_gpu::{
    Health,
    management::{Account, Accounted, Process},
};
use stand_in_device::{Identity, Knob, Vendor};

use crate::lab::{Lab, MEMORY, MIB, VENDORS, failure};

#[test]
fn memory_that_somebody_has_is_not_free() {
    let lab = Lab::new();
    for (vendor, _) in VENDORS {
        let device = lab.device(vendor);
        lab.directory.clear(Knob::Foreign).unwrap();
        // HIP needs a context, which takes 2 MiB and is not listed.
        let context = match vendor {
            Vendor::Nvidia => 0,
            Vendor::Amd => 2 * MIB,
        };
        let expected = Accounted {
            free_bytes: MEMORY - context,
            total_bytes: MEMORY,
            processes: Vec::new(),
            health: Health::Good,
        };
        assert_eq!(lab.account(&device), expected);
        lab.directory.set(Knob::Foreign, &MIB.to_string()).unwrap();
        let free_bytes = MEMORY - MIB - context;
        assert_eq!(
            lab.account(&device),
            Accounted {
                free_bytes,
                ..expected
            }
        );
    }
}

#[test]
fn a_process_that_nvml_lists_is_listed() {
    let lab = Lab::new();
    let device = lab.device(Vendor::Nvidia);
    lab.directory.set(Knob::Busy, "4194305 4096").unwrap();
    let process = Process {
        pid: 4194305,
        bytes: 4096,
    };
    assert_eq!(lab.account(&device).processes, [process]);
}

#[test]
fn a_partition_has_its_own_memory() {
    let lab = Lab::new();
    lab.directory.set(Knob::Mig, "2").unwrap();
    let uuid = Identity::partition(1).uuid();
    let mut devices = lab.discover().devices.into_iter();
    let partition = devices.find(|it| it.uuid == uuid).unwrap();
    let account = lab.account(&partition);
    assert_eq!(account.total_bytes, partition.vram_bytes);
    assert!(account.free_bytes <= MEMORY / 2 && account.free_bytes > 0);
}

#[test]
fn a_device_that_is_lost_or_needs_a_reset_has_failed() {
    let lab = Lab::new();
    let devices = VENDORS.map(|(vendor, _)| lab.device(vendor));
    for knob in [Knob::Gone, Knob::ResetRequired] {
        lab.directory.set(knob, "1").unwrap();
        let nvidia = lab.account(&devices[0]);
        assert!(matches!(nvidia.health, Health::Failed(_)), "{nvidia:?}");
        assert_eq!((nvidia.free_bytes, nvidia.total_bytes), (0, 0));
        lab.directory.clear(knob).unwrap();
    }
    lab.directory.set(Knob::Gone, "1").unwrap();
    let amd = lab.account(&devices[1]);
    assert!(matches!(amd.health, Health::Failed(_)), "{amd:?}");
}

#[test]
fn an_unknown_device_is_named() {
    let lab = Lab::new();
    let mut device = lab.device(Vendor::Nvidia);
    device.uuid = "GPU-0".into();
    let libraries = lab.libraries.clone();
    let why = failure(lab.call(&Account { device, libraries }));
    assert!(why.starts_with("GPU-0: NVML: "), "{why}");
}
