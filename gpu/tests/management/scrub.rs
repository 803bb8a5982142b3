//! Wiping.

use std::{cell::RefCell, fs};

use fabricbios_gpu::{driver::Wiped, management::Scrub};
use stand_in_device::{Identity, Knob, Vendor};

use crate::lab::{Lab, MEMORY, MIB, PATIENCE, VENDORS, failure};

/// Memory that a context of the stand-ins takes, bytes.
const CONTEXT: u64 = 2 * MIB;

fn scrub(lab: &Lab, vendor: Vendor) -> Scrub {
    Scrub {
        device: lab.device(vendor),
        libraries: lab.libraries.clone(),
    }
}

#[test]
fn all_free_memory_is_wiped() {
    let lab = Lab::new();
    for (vendor, _) in VENDORS {
        let scrub = scrub(&lab, vendor);
        let expected = Wiped {
            bytes: MEMORY - CONTEXT,
            free_bytes: MEMORY - CONTEXT,
        };
        assert_eq!(lab.call(&scrub).unwrap(), expected);
        lab.wait_until_free(vendor);
        let memory = lab.directory.path().join(vendor.memory_file());
        fs::write(&memory, vec![7; usize::try_from(MEMORY).unwrap()]).unwrap();
        let heard = RefCell::new(Vec::new());
        let note = |what: &str| heard.borrow_mut().push(what.to_owned());
        let wiped = lab.supervisor.call(&scrub, PATIENCE, &note).unwrap();
        assert_eq!(wiped, expected);
        let memory = lab.directory.memory_of(vendor).unwrap();
        let left = memory.iter().filter(|byte| **byte != 0).count();
        assert_eq!(left as u64, CONTEXT);
        let heard = heard.into_inner();
        assert_eq!(heard[..2], ["opening a context", "the context is open"]);
        let all = expected.bytes;
        let last = format!("{all} of {all} bytes are wiped");
        assert_eq!(heard.last(), Some(&last));
    }
}

#[test]
fn the_memory_of_the_wiping_context_is_wiped_too() {
    let lab = Lab::new();
    let bytes = &(6 * MIB).to_string();
    for (vendor, _) in VENDORS {
        let scrub = scrub(&lab, vendor);
        lab.directory.clear(Knob::Context).unwrap();
        // The first call creates the file of the device's memory.
        lab.call(&scrub).unwrap();
        lab.wait_until_free(vendor);
        lab.directory.set(Knob::Context, bytes).unwrap();
        let memory = lab.directory.path().join(vendor.memory_file());
        fs::write(&memory, vec![7; usize::try_from(MEMORY).unwrap()]).unwrap();
        let wiped = scrub.twice(&lab.supervisor, PATIENCE, &|_| ()).unwrap();
        let expected = Wiped {
            bytes: MEMORY,
            free_bytes: MEMORY,
        };
        assert_eq!(wiped, expected);
        let memory = lab.directory.memory_of(vendor).unwrap();
        assert!(memory.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn memory_that_cannot_be_taken_is_not_called_wiped() {
    let lab = Lab::new();
    let scrub = scrub(&lab, Vendor::Nvidia);
    lab.directory
        .set(Knob::ShortScrub, &(4 * MIB).to_string())
        .unwrap();
    let once = lab.call(&scrub).unwrap();
    assert_eq!(once.free_bytes, MEMORY - CONTEXT);
    assert_eq!(once.bytes, MEMORY - CONTEXT - 4 * MIB);
    lab.wait_until_free(Vendor::Nvidia);
    let twice = scrub.twice(&lab.supervisor, PATIENCE, &|_| ()).unwrap();
    assert_eq!(twice.free_bytes, MEMORY);
    assert!(twice.bytes <= MEMORY - 4 * MIB, "{twice:?}");
}

#[test]
fn a_partition_is_wiped_alone() {
    let lab = Lab::new();
    // The first call creates the file of the device's memory.
    lab.call(&scrub(&lab, Vendor::Nvidia)).unwrap();
    lab.wait_until_free(Vendor::Nvidia);
    lab.directory.set(Knob::Mig, "2").unwrap();
    let memory = lab.directory.path().join(Vendor::Nvidia.memory_file());
    fs::write(&memory, vec![7; usize::try_from(MEMORY).unwrap()]).unwrap();
    let uuid = Identity::partition(1).uuid();
    let mut devices = lab.discover().devices.into_iter();
    let device = devices.find(|it| it.uuid == uuid).unwrap();
    let size = device.vram_bytes;
    let libraries = lab.libraries.clone();
    let wiped = lab.call(&Scrub { device, libraries }).unwrap();
    assert_eq!(wiped.bytes, size - CONTEXT);
    let memory = lab.directory.memory_of(Vendor::Nvidia).unwrap();
    let zeroes = memory.iter().filter(|byte| **byte == 0).count() as u64;
    assert_eq!(zeroes, size - CONTEXT);
}

#[test]
fn a_device_that_is_gone_is_named() {
    let lab = Lab::new();
    let scrub = scrub(&lab, Vendor::Nvidia);
    lab.directory.set(Knob::Gone, "1").unwrap();
    let why = failure(lab.call(&scrub));
    assert!(
        why.starts_with(&format!("{}: cu", scrub.device.uuid)),
        "{why}"
    );
}
