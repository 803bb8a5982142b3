//! Memory, shared by processes.

use stand_in_device::{Device, Identity, Knob, Vendor};

use super::{MIB, directory, free};
use crate::shell::{Shell, ptx};

#[test]
fn two_processes_share_the_memory_of_the_device() {
    let (_place, directory) = directory();
    let mut first = Shell::with_context(&directory);
    let mut second = Shell::with_context(&directory);
    // Each context has a granule of 2 MiB, and 1 MiB takes one.
    let of_first = first.value(&format!("alloc {MIB}"));
    assert_eq!(
        second.words("info"),
        [(2 * MIB).to_string(), (8 * MIB).to_string()]
    );
    assert_eq!(second.code(&format!("alloc {}", 3 * MIB)), 2);
    let of_second = second.value(&format!("alloc {MIB}"));
    assert_eq!(of_second, of_first + 2 * MIB);
    assert_eq!(second.code("alloc 1"), 2);
    first.value(&format!("free {of_first}"));
    assert_eq!(first.code(&format!("free {of_first}")), 1, "freed already");
    assert_eq!(second.words("info")[0], (2 * MIB).to_string());
    assert_eq!(
        second.code(&format!("read {of_first} 4")),
        1,
        "the first's memory"
    );
    assert!(second.ends());
    assert_eq!(free(&directory), 6 * MIB);
}

/// Small allocations share a granule, with the modules of their context; the granule goes back with the last of them.
#[test]
fn small_allocations_and_modules_share_granules() {
    let (_place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    let first = shell.value("alloc 4096");
    let second = shell.value("alloc 1");
    let module = shell.value(&format!("load {}", ptx("fill").display()));
    assert_eq!(second, first + 4096);
    assert_eq!(free(&directory), 4 * MIB);
    shell.value(&format!("free {first}"));
    shell.value(&format!("free {second}"));
    assert_eq!(free(&directory), 4 * MIB, "the module is there");
    assert_eq!(shell.value("alloc 4096"), first);
    shell.value(&format!("free {first}"));
    shell.value(&format!("unload {module}"));
    assert_eq!(free(&directory), 6 * MIB);
}

#[test]
fn bytes_stay_when_their_process_ends_and_the_next_tenant_reads_them() {
    let (_place, directory) = directory();
    let mut first = Shell::with_context(&directory);
    let address = first.value("alloc 4096");
    first.value(&format!("write {address} 83 69 67 82 69 84"));
    first.kill();
    assert_eq!(free(&directory), 8 * MIB);
    let mut second = Shell::with_context(&directory);
    assert_eq!(second.value("alloc 4096"), address);
    let found = second.words(&format!("read {address} 6"));
    assert_eq!(found, ["83", "69", "67", "82", "69", "84"]);
    let memory = directory.memory_of(Vendor::Nvidia).unwrap();
    // Behind the granule of the context.
    assert_eq!(memory[2 << 20..][..6], *b"SECRET");
    second.value(&format!("fill {address} 0 4096"));
    let memory = directory.memory_of(Vendor::Nvidia).unwrap();
    assert!(memory.iter().all(|byte| *byte == 0));
}

#[test]
fn a_killed_process_keeps_nothing_unless_its_memory_is_lost() {
    let (_place, directory) = directory();
    let mut killed = Shell::with_context(&directory);
    killed.value(&format!("alloc {}", 2 * MIB));
    assert_eq!(free(&directory), 4 * MIB);
    killed.kill();
    assert_eq!(free(&directory), 8 * MIB);
    directory.set(Knob::Lost, "1").unwrap();
    let mut killed = Shell::with_context(&directory);
    killed.value(&format!("alloc {}", 2 * MIB));
    killed.kill();
    assert_eq!(free(&directory), 4 * MIB);
    directory.clear(Knob::Lost).unwrap();
    assert_eq!(free(&directory), 4 * MIB, "it never comes back by itself");
    let device = Device::open_in(directory.clone(), Vendor::Nvidia).unwrap();
    assert_eq!(device.reset().unwrap(), []);
    assert_eq!(free(&directory), 8 * MIB);
}

#[test]
fn a_process_that_is_killed_anywhere_leaves_the_table_whole() {
    let (_place, directory) = directory();
    let mut other = Shell::with_context(&directory);
    let address = other.value("alloc 4096");
    for lines in 0..30 {
        let mut killed = Shell::with_context(&directory);
        for _ in 0..lines * 3 {
            killed.say(&format!("alloc {MIB}"));
        }
        killed.kill();
        assert_eq!(free(&directory), 4 * MIB);
        let next = other.value(&format!("alloc {MIB}"));
        assert_eq!(next, address + 2 * MIB);
        other.value(&format!("free {next}"));
    }
}

#[test]
fn a_context_ends_with_its_memory() {
    let (_place, directory) = directory();
    let mut shell = Shell::start(&directory);
    shell.value("init");
    let context = shell.value("create");
    let address = shell.value("alloc 8192");
    shell.value(&format!("destroy {context}"));
    assert_eq!(free(&directory), 8 * MIB);
    assert_eq!(shell.code(&format!("read {address} 4")), 201);
    assert_eq!(shell.code(&format!("destroy {context}")), 201);
    // The primary context is held twice and ends with the second release.
    let primary = shell.value("retain");
    assert_eq!(shell.value("retain"), primary);
    shell.value(&format!("current {primary}"));
    shell.value("alloc 8192");
    shell.value("release");
    assert_eq!(free(&directory), 4 * MIB);
    shell.value("release");
    assert_eq!(free(&directory), 8 * MIB);
    assert_eq!(shell.code("release"), 201);
}

#[test]
fn memory_that_nobody_has_and_memory_that_cannot_be_had() {
    let (_place, directory) = directory();
    let bytes = (2 * MIB).to_string();
    directory.set(Knob::Foreign, &bytes).unwrap();
    directory.set(Knob::ShortScrub, &bytes).unwrap();
    let mut shell = Shell::with_context(&directory);
    assert_eq!(shell.words("info")[0], (4 * MIB).to_string());
    assert_eq!(shell.code(&format!("alloc {}", 4 * MIB)), 2);
    shell.value(&format!("alloc {}", 2 * MIB));
    assert_eq!(shell.words("info")[0], bytes);
}

#[test]
fn a_partition_has_its_share_only() {
    let (_place, directory) = directory();
    directory.set(Knob::Mig, "2").unwrap();
    let of = |number: u32| {
        let uuid = Identity::partition(number).uuid();
        let mut shell = Shell::start_with(&directory, &[("CUDA_VISIBLE_DEVICES", &uuid)]);
        shell.value("init");
        shell.value("create");
        shell
    };
    let (mut first, mut second) = (of(0), of(1));
    assert_eq!(
        first.words("info"),
        [(2 * MIB).to_string(), (4 * MIB).to_string()]
    );
    let a = first.value(&format!("alloc {}", 2 * MIB));
    assert_eq!(first.code("alloc 1"), 2);
    let b = second.value("alloc 4096");
    assert_eq!(b, a + 4 * MIB);
    assert_eq!(second.words("name"), ["Stand-in_NVIDIA_GPU_MIG_1"]);
    assert_eq!(second.value("attribute 16"), 6, "3 of 7 slices");
    let unknown = Identity::partition(2).uuid();
    let mut third = Shell::start_with(&directory, &[("CUDA_VISIBLE_DEVICES", &unknown)]);
    assert_eq!(third.code("init"), 100);
}

#[test]
fn a_user_pins_no_more_than_may_be_locked() {
    let (_place, directory) = directory();
    let mut shell = Shell::with_context(&directory);
    shell.value(&format!("lockable {MIB}"));
    assert_eq!(shell.code("register 4096"), 0);
    assert_eq!(
        shell.code(&format!("register {MIB}")),
        2,
        "more than is left"
    );
    assert_eq!(shell.code(&format!("register {}", MIB - 4096)), 0);
    assert_eq!(shell.code("register 1"), 2);
}

#[test]
fn a_reset_is_refused_while_any_process_has_the_device_open() {
    let (_place, directory) = directory();
    let mut shell = Shell::start(&directory);
    shell.value("init");
    let device = Device::open_in(directory.clone(), Vendor::Nvidia).unwrap();
    assert_eq!(device.reset().unwrap(), [shell.pid()], "it has no context");
    shell.kill();
    assert_eq!(device.reset().unwrap(), []);
}
