//! The stand-in as C programs see it: loaded by name of its file, beside a process that uses the device.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../shell/mod.rs"]
mod shell;

use nvml_wrapper_sys::bindings::NvmlLib;
use shell::Shell;
use stand_in_device::{Directory, Identity, Knob, Vendor};

const MIB: u64 = 1 << 20;

fn directory() -> (tempfile::TempDir, Directory) {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::at(place.path()).unwrap();
    directory.set(Knob::Memory, &(8 * MIB).to_string()).unwrap();
    (place, directory)
}

/// A process that has initialised NVML, and the device's handle.
fn initialised(directory: &Directory) -> (Shell, u64) {
    let mut shell = Shell::start(directory);
    shell.value("nvml-init");
    let device = shell.value("nvml-device");
    (shell, device)
}

#[test]
fn every_symbol_is_where_the_bindings_look_for_it() {
    let path = std::env::current_exe().unwrap();
    let path = path.with_file_name("libstand_in_nvml.so");
    // SAFETY: nothing runs when the library is loaded.
    let library = unsafe { NvmlLib::new(path) }.unwrap();
    macro_rules! has {
        ($($name:ident)*) => {
            $(assert!(library.$name.is_ok(), stringify!($name));)*
        };
    }
    has!(nvmlInit_v2 nvmlInitWithFlags nvmlShutdown nvmlErrorString nvmlSystemGetDriverVersion
        nvmlSystemGetCudaDriverVersion nvmlSystemGetCudaDriverVersion_v2 nvmlDeviceGetCount_v2
        nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetHandleByUUID nvmlDeviceGetUUID nvmlDeviceGetName
        nvmlDeviceGetPciInfo_v3 nvmlDeviceGetMinorNumber nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2
        nvmlDeviceGetNumGpuCores nvmlDeviceGetComputeRunningProcesses_v3
        nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlDeviceGetMigMode nvmlDeviceGetMaxMigDeviceCount
        nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetDeviceHandleFromMigDeviceHandle
        nvmlDeviceGetAttributes_v2 nvmlDeviceGetGpuInstanceId nvmlDeviceGetComputeInstanceId
        nvmlDeviceIsMigDeviceHandle nvmlDeviceGetTotalEccErrors nvmlDeviceGetEccMode
        nvmlDeviceGetRemappedRows nvmlDeviceGetRetiredPagesPendingStatus nvmlEventSetCreate
        nvmlDeviceGetSupportedEventTypes nvmlDeviceRegisterEvents nvmlEventSetWait_v2 nvmlEventSetFree);
    // SAFETY: the bindings have the shapes of NVIDIA's header, and the pointers are of values that live.
    unsafe {
        let mut count = 7;
        assert_eq!(
            library.nvmlDeviceGetCount_v2(&raw mut count),
            1,
            "not initialised"
        );
        let text = std::ffi::CStr::from_ptr(library.nvmlErrorString(16));
        assert_eq!(text, c"GPU requires reset");
    }
}

#[test]
fn the_device_says_that_it_is_a_stand_in() {
    let (_place, directory) = directory();
    let (mut shell, device) = initialised(&directory);
    assert_eq!(shell.value("nvml-count"), 1);
    assert_eq!(
        shell.words(&format!("nvml-name {device}")),
        ["Stand-in_NVIDIA_GPU"]
    );
    let uuid = Identity::whole(Vendor::Nvidia).uuid();
    assert_eq!(shell.words(&format!("nvml-uuid {device}")), [uuid.as_str()]);
    assert_eq!(
        shell.code(&format!("nvml-uuid {device} 8")),
        7,
        "too little room"
    );
    assert_eq!(shell.value(&format!("nvml-find {uuid}")), device);
    assert_eq!(shell.code("nvml-find GPU-0"), 6);
    assert_eq!(shell.code("nvml-memory 77"), 2, "no handle");
    assert_eq!(shell.words(&format!("nvml-mig {device}")), ["0", "0"]);
    shell.value("nvml-shutdown");
    assert_eq!(shell.code("nvml-count"), 1);
    directory.set(Knob::Absent, "nvidia").unwrap();
    shell.value("nvml-init");
    assert_eq!(shell.value("nvml-count"), 0);
    assert_eq!(shell.code("nvml-device"), 2);
}

#[test]
fn memory_and_processes_are_those_of_the_driver() {
    let (_place, directory) = directory();
    let (mut shell, device) = initialised(&directory);
    let memory = format!("nvml-memory {device}");
    let processes = format!("nvml-processes {device}");
    let bytes = |of: [u64; 3]| of.map(|it| (it * MIB).to_string());
    assert_eq!(shell.words(&memory), bytes([8, 8, 0]));
    assert_eq!(shell.words(&processes), ["0"]);
    let mut tenant = Shell::with_context(&directory);
    tenant.value(&format!("alloc {}", 2 * MIB));
    // Its context has 2 MiB too.
    assert_eq!(shell.words(&memory), bytes([8, 4, 4]));
    let listed = format!("{}:{}:-1", tenant.pid(), 4 * MIB);
    assert_eq!(shell.words(&processes), ["1", &listed]);
    assert_eq!(
        shell.code(&format!("{processes} 0")),
        7,
        "the caller has no room"
    );
    directory.set(Knob::Foreign, &MIB.to_string()).unwrap();
    assert_eq!(shell.words(&memory), bytes([8, 3, 5]));
    directory.set(Knob::Lingering, "3600000").unwrap();
    tenant.kill();
    assert_eq!(shell.words(&processes), ["0"]);
    assert_eq!(shell.words(&memory), bytes([8, 3, 5]), "not back yet");
    directory.set(Knob::Lingering, "1").unwrap();
    directory.settle(Vendor::Nvidia).unwrap();
    assert_eq!(shell.words(&memory), bytes([8, 7, 1]));
    directory.set(Knob::Busy, "4194305 4096").unwrap();
    assert_eq!(shell.words(&processes), ["1", "4194305:4096:-1"]);
}

#[test]
fn partitions_have_their_own_memory_and_processes() {
    let (_place, directory) = directory();
    directory.set(Knob::Mig, "2").unwrap();
    let (mut shell, device) = initialised(&directory);
    assert_eq!(shell.words(&format!("nvml-mig {device}")), ["1", "1"]);
    let second = shell.value(&format!("nvml-partition {device} 1"));
    assert_eq!(shell.code(&format!("nvml-partition {device} 2")), 6);
    let uuid = Identity::partition(1).uuid();
    assert_eq!(shell.words(&format!("nvml-uuid {second}")), [uuid.as_str()]);
    assert_eq!(shell.value(&format!("nvml-parent {second}")), device);
    assert_eq!(shell.code(&format!("nvml-parent {device}")), 2);
    assert_eq!(
        shell.words(&format!("nvml-attributes {second}")),
        ["6", "3", "4"]
    );
    assert_eq!(shell.code(&format!("nvml-attributes {device}")), 3);
    let mut tenant = Shell::start_with(&directory, &[("CUDA_VISIBLE_DEVICES", &uuid)]);
    tenant.value("init");
    tenant.value("create");
    tenant.value(&format!("alloc {MIB}"));
    let listed = format!("{}:{}:1", tenant.pid(), 4 * MIB);
    for handle in [device, second] {
        assert_eq!(
            shell.words(&format!("nvml-processes {handle}")),
            ["1", &listed]
        );
    }
    let first = shell.value(&format!("nvml-partition {device} 0"));
    assert_eq!(shell.words(&format!("nvml-processes {first}")), ["0"]);
    let free = |shell: &mut Shell, handle| shell.words(&format!("nvml-memory {handle}"))[1].clone();
    assert_eq!(free(&mut shell, second), "0");
    assert_eq!(free(&mut shell, first), (4 * MIB).to_string());
    assert_eq!(free(&mut shell, device), (4 * MIB).to_string());
}

#[test]
fn an_xid_is_reported_once_for_each_change() {
    let (_place, directory) = directory();
    let (mut shell, device) = initialised(&directory);
    directory.set(Knob::Xid, "13").unwrap();
    let set = shell.value("nvml-set");
    assert_eq!(
        shell.code(&format!("nvml-wait {set} 0")),
        10,
        "not registered"
    );
    shell.value(&format!("nvml-register {device} {set}"));
    assert_eq!(
        shell.code(&format!("nvml-wait {set} 0")),
        10,
        "it was there before"
    );
    shell.say(&format!("nvml-wait {set} 600000"));
    shell.hangs();
    directory.set(Knob::Xid, "79").unwrap();
    assert_eq!(shell.answer(), (0, vec!["8".to_owned(), "79".to_owned()]));
    assert_eq!(shell.code(&format!("nvml-wait {set} 0")), 10);
    directory.set(Knob::Xid, "").unwrap();
    assert_eq!(
        shell.code(&format!("nvml-wait {set} 0")),
        10,
        "off is no error"
    );
    assert_eq!(shell.code("nvml-wait 7 0"), 2, "no set");
}

#[test]
fn uncorrected_errors_are_counted() {
    let (_place, directory) = directory();
    let (mut shell, device) = initialised(&directory);
    assert_eq!(shell.value(&format!("nvml-ecc {device}")), 0);
    directory.set(Knob::Ecc, "3").unwrap();
    assert_eq!(shell.value(&format!("nvml-ecc {device}")), 3);
}

#[test]
fn calls_hang_while_the_knob_says_so() {
    let (_place, directory) = directory();
    let (mut shell, device) = initialised(&directory);
    directory.set(Knob::HangNvml, "1").unwrap();
    shell.say(&format!("nvml-memory {device}"));
    shell.hangs();
    let mut other = Shell::start(&directory);
    other.say("nvml-init");
    other.hangs();
    directory.clear(Knob::HangNvml).unwrap();
    assert_eq!((shell.answer().0, other.answer().0), (0, 0));
}

#[test]
fn a_device_that_needs_a_reset_says_who_it_is_and_no_more() {
    let (_place, directory) = directory();
    directory.set(Knob::ResetRequired, "1").unwrap();
    let (mut shell, device) = initialised(&directory);
    shell.words(&format!("nvml-uuid {device}"));
    for call in ["memory", "processes", "ecc"] {
        assert_eq!(shell.code(&format!("nvml-{call} {device}")), 16, "{call}");
    }
}

#[test]
fn a_device_that_is_gone_says_that_it_is_lost() {
    let (_place, directory) = directory();
    let (mut shell, device) = initialised(&directory);
    directory.set(Knob::Gone, "1").unwrap();
    for call in ["memory", "uuid", "name", "processes"] {
        assert_eq!(shell.code(&format!("nvml-{call} {device}")), 15, "{call}");
    }
    assert_eq!(shell.code("nvml-device"), 15);
    assert_eq!(shell.value("nvml-count"), 1);
}
