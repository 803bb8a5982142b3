//! Discovery.

use std::fs;

use fabricbios_gpu::{
    Device, Health, Libraries, WHOLE_SLICES,
    management::{Probe, Probed, discover},
};
use fabricbios_helper::{Call, Handler, Supervisor};
use fabricbios_wire::{GPU_CUDA, GPU_MIG, GPU_ROCM, GpuVendor, ResourceId, health};
use stand_in_device::{Identity, Knob, Vendor};

use crate::lab::{Lab, MEMORY, MIB, PATIENCE, stand_ins};

fn uuids(devices: &[Device]) -> Vec<&str> {
    devices.iter().map(|it| &*it.uuid).collect()
}

#[test]
fn a_device_of_each_vendor_is_found() {
    let lab = Lab::new();
    let asked = lab.place.path().join("asked");
    lab.script(
        "nvidia-modprobe",
        &format!("echo \"$@\" >> {}", asked.display()),
    );
    lab.directory.set(Knob::Reserved, &MIB.to_string()).unwrap();
    let probed = lab.discover();
    let [nvidia, amd] = &probed.devices[..] else {
        panic!("{probed:?}");
    };
    let expected = Device {
        uuid: "GPU-57a4d1f1-0000-4000-8000-000000000001".into(),
        vendor: GpuVendor::Nvidia,
        name: "Stand-in NVIDIA GPU".into(),
        pci: Some("f1b0:f1:00.0".into()),
        vram_bytes: MEMORY,
        compute_units: 7 * Identity::MULTIPROCESSORS_OF_A_SLICE * 128,
        compute_slices: WHOLE_SLICES,
        partition_of: None,
        has_partitions: false,
        // Only the shared nodes exist, and a program cannot use the device with these alone.
        nodes: Vec::new(),
        visible: "GPU-57a4d1f1-0000-4000-8000-000000000001".into(),
        health: Health::Good,
    };
    assert_eq!(*nvidia, expected);
    let expected = Device {
        uuid: "GPU-57a4d1f1b0000002".into(),
        vendor: GpuVendor::Amd,
        name: "Stand-in AMD GPU".into(),
        pci: Some("f1b0:f2:00.0".into()),
        compute_units: 7 * Identity::MULTIPROCESSORS_OF_A_SLICE * 64,
        visible: "GPU-57a4d1f1b0000002".into(),
        ..expected
    };
    assert_eq!(*amd, expected);
    assert_eq!(fs::read_to_string(asked).unwrap(), "-c 240\n-u -c 0\n");
    // The emulated devices have no nodes.
    for (device, missing) in [(nvidia, "/dev/nvidia240"), (amd, "it has no render node")] {
        let of_device = |it: &&String| it.starts_with(&device.uuid) && it.contains(missing);
        assert_eq!(
            probed.warnings.iter().filter(of_device).count(),
            1,
            "{probed:?}"
        );
    }
    let id = ResourceId(7);
    let (nvidia, amd) = (nvidia.info(id), amd.info(id));
    assert_eq!((nvidia.flags, nvidia.health), (GPU_CUDA, health::OK));
    assert_eq!((amd.flags, amd.vram_bytes), (GPU_ROCM, MEMORY));
}

#[test]
fn partitions_are_devices_of_their_own() {
    let lab = Lab::new();
    lab.directory.set(Knob::Mig, "3").unwrap();
    lab.directory.set(Knob::Ecc, "1").unwrap();
    let devices = lab.discover().devices;
    let whole = &devices[0];
    assert!(whole.has_partitions && whole.partition_of.is_none());
    let partitions: Vec<&Device> = { devices.iter() }
        .filter(|it| it.vendor == GpuVendor::Nvidia && it.uuid != whole.uuid)
        .collect();
    assert_eq!(partitions.len(), 3);
    for (number, partition) in (0..).zip(&partitions) {
        assert_eq!(partition.uuid, Identity::partition(number).uuid());
        assert_eq!(partition.visible, partition.uuid);
        assert_eq!(partition.partition_of.as_ref(), Some(&whole.uuid));
        assert_eq!(partition.pci, whole.pci);
        assert!(!partition.has_partitions && partition.vram_bytes <= MEMORY / 3);
        let cores = u32::from(partition.compute_slices) * 128;
        let cores = cores * Identity::MULTIPROCESSORS_OF_A_SLICE;
        assert_eq!(partition.compute_units, cores);
        // The errors of the device count for its partitions.
        assert_eq!(partition.health, whole.health);
        let flags = partition.info(ResourceId(1)).flags;
        assert_eq!(flags, GPU_CUDA | GPU_MIG);
    }
    let slices: u16 = partitions.iter().map(|it| it.compute_slices).sum();
    assert!((3..=WHOLE_SLICES).contains(&slices));
    assert!(matches!(&whole.health, Health::Degraded(why) if why.starts_with("1 memory error")));
}

#[test]
fn a_machine_without_devices_is_a_normal_one() {
    let lab = Lab::new();
    lab.directory.set(Knob::Absent, "nvidia amd").unwrap();
    let probed = lab.discover();
    let notes = ["NVML finds no device", "HIP finds no device"];
    let expected = Probed {
        notes: notes.map(Into::into).to_vec(),
        ..Probed::default()
    };
    assert_eq!(probed, expected);
    let names = |name: &str| vec![name.into(), format!("/nonexistent/{name}").into()];
    let libraries = Libraries {
        nvml: names("libno-nvml.so.1"),
        cuda: names("libno-cuda.so.1"),
        hip: names("libno-hip.so.5"),
    };
    let probed = discover(&lab.supervisor, &libraries, PATIENCE);
    assert!(
        probed.devices.is_empty() && probed.warnings.is_empty(),
        "{probed:?}"
    );
    assert_eq!(probed.notes.len(), 2, "{probed:?}");
    assert!(
        probed
            .notes
            .iter()
            .all(|it| it.contains("is not installed"))
    );
}

#[test]
fn a_library_that_is_broken_is_told() {
    let lab = Lab::new();
    let broken = lab.place.path().join("libbroken.so");
    fs::write(&broken, "no library").unwrap();
    let libraries = Libraries {
        nvml: vec![broken.clone()],
        hip: vec![broken],
        ..stand_ins()
    };
    let probed = discover(&lab.supervisor, &libraries, PATIENCE);
    assert!(probed.devices.is_empty(), "{probed:?}");
    assert_eq!(probed.warnings.len(), 2, "{probed:?}");
    for (warning, vendor) in probed.warnings.iter().zip(["NVIDIA's", "AMD's"]) {
        let start = format!("{vendor} devices cannot be looked for: ");
        assert!(
            warning.starts_with(&start) && warning.contains("libbroken.so"),
            "{warning}"
        );
    }
}

#[test]
fn a_device_that_cannot_be_used_has_failed() {
    let lab = Lab::new();
    lab.directory.set(Knob::ResetRequired, "1").unwrap();
    let device = lab.device(Vendor::Nvidia);
    assert_eq!(device.health, Health::Failed("it needs a reset".into()));
    assert_eq!(device.info(ResourceId(1)).health, health::FENCED);
    lab.directory.clear(Knob::ResetRequired).unwrap();
    lab.directory.set(Knob::Gone, "1").unwrap();
    let probed = lab.discover();
    assert_eq!(uuids(&probed.devices), [""; 0]);
    let warning = &probed.warnings[0];
    assert!(
        warning.starts_with("device 0 of NVML: is left out: "),
        "{warning}"
    );
}

#[test]
fn variables_of_the_daemon_hide_no_device() {
    let lab = Lab::with(&[("ROCR_VISIBLE_DEVICES", "7"), ("HIP_VISIBLE_DEVICES", "-1")]);
    let amd = Identity::whole(Vendor::Amd).uuid();
    assert!(uuids(&lab.discover().devices).contains(&&*amd));
}

#[test]
fn a_library_that_crashes_costs_its_own_devices_only() {
    // A panic of the thread stands for the end of a killed process.
    let crashes = |probe: Probe, caller: &fabricbios_helper::Caller| {
        assert!(probe.libraries.hip.is_empty(), "as the library would");
        Call::make(probe, caller).map(|_| Probed {
            notes: vec!["NVIDIA's".into()],
            ..Probed::default()
        })
    };
    let supervisor = Supervisor::of_threads(vec![Handler::by(crashes)]);
    let libraries = Libraries {
        nvml: vec!["libno-nvml.so.1".into()],
        ..stand_ins()
    };
    let probed = discover(&supervisor, &libraries, PATIENCE);
    assert_eq!(probed.notes, ["NVIDIA's"]);
    let [warning] = &probed.warnings[..] else {
        panic!("{probed:?}");
    };
    assert!(
        warning.starts_with("devices of AMD cannot be looked for"),
        "{warning}"
    );
    assert!(warning.ends_with("ended without an answer"), "{warning}");
}

/// Set `LD_LIBRARY_PATH` if the library and its dependencies are not installed.
#[test]
#[ignore = "needs AMD's own library, such as Debian's libamdhip64-5, on a machine without a device"]
fn amds_own_library_finds_no_device() {
    let lab = Lab::new();
    let libraries = Libraries {
        nvml: Vec::new(),
        ..Libraries::default()
    };
    let probed = discover(&lab.supervisor, &libraries, PATIENCE);
    let expected = Probed {
        notes: vec!["HIP finds no device".into()],
        ..Probed::default()
    };
    assert_eq!(probed, expected);
}
