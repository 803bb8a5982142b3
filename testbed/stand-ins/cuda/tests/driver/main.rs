//! The stand-in as C programs see it: loaded by name of its file, called through the C ABI, in several processes.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

#[path = "../../../shell/mod.rs"]
mod shell;

mod devices;
mod kernels;
mod memory;

use shell::{Shell, ptx};
use stand_in_device::{Device, Directory, Identity, Knob, Vendor};

const MIB: u64 = 1 << 20;

fn directory() -> (tempfile::TempDir, Directory) {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::at(place.path()).unwrap();
    directory.set(Knob::Memory, &(8 * MIB).to_string()).unwrap();
    (place, directory)
}

/// The free memory, with that of the dead.
fn free(directory: &Directory) -> u64 {
    directory.settle(Vendor::Nvidia).unwrap();
    let device = Device::open_in(directory.clone(), Vendor::Nvidia).unwrap();
    device.usage(&Identity::whole(Vendor::Nvidia)).unwrap().free
}

/// A kernel of this directory's PTX.
fn kernel(shell: &mut Shell, name: &str) -> u64 {
    let module = shell.value(&format!("load {}", ptx(name).display()));
    shell.value(&format!("function {module} {name}"))
}
