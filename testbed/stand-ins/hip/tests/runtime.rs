//! The stand-in as C programs see it: loaded by name of its file.

#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    process::Command,
    ptr::null_mut,
};

use libloading::Library;
use stand_in_device::{Device, Directory, Identity, Knob, Module, VARIABLE, Vendor};

/// What the library is called with, as in AMD's header.
struct Hip(Library);

macro_rules! call {
    ($hip:expr, $name:ident($($value:expr => $type:ty),*)) => {{
        // SAFETY: the types are those of the vendor's header, and the pointers are of values that live.
        let result: c_int = unsafe {
            let name = concat!(stringify!($name), "\0").as_bytes();
            let function = $hip.0.get::<unsafe extern "C" fn($($type),*) -> c_int>(name);
            function.unwrap()($($value),*)
        };
        result
    }};
}

impl Hip {
    fn load() -> Self {
        let path = std::env::current_exe().unwrap();
        // SAFETY: nothing runs when the library is loaded.
        Self(unsafe { Library::new(path.with_file_name("libstand_in_hip.so")) }.unwrap())
    }

    fn free(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        let (to_free, to_total) = (&raw mut free, &raw mut total);
        assert_eq!(
            call!(self, hipMemGetInfo(to_free => *mut usize, to_total => *mut usize)),
            0
        );
        free
    }

    fn allocate(&self, bytes: usize) -> *mut c_void {
        let mut memory = null_mut();
        let to = &raw mut memory;
        assert_eq!(
            call!(self, hipMalloc(to => *mut *mut c_void, bytes => usize)),
            0
        );
        memory
    }

    fn load_module(&self, image: &[u8]) -> Result<*mut c_void, c_int> {
        let mut module = null_mut();
        let (to, image) = (&raw mut module, image.as_ptr().cast());
        match call!(self, hipModuleLoadData(to => *mut *mut c_void, image => *const c_void)) {
            0 => Ok(module),
            error => Err(error),
        }
    }

    fn function(&self, module: *mut c_void, name: &CStr) -> *mut c_void {
        let mut function = null_mut();
        let (to, name) = (&raw mut function, name.as_ptr());
        let code = call!(self, hipModuleGetFunction(to => *mut *mut c_void, module => *mut c_void,
            name => *const c_char));
        assert_eq!(code, 0);
        function
    }

    /// One block of 32 threads.
    fn launch(&self, function: *mut c_void, arguments: &mut [*mut c_void]) -> c_int {
        let arguments = arguments.as_mut_ptr();
        call!(self, hipModuleLaunchKernel(function => *mut c_void,
            1 => c_uint, 1 => c_uint, 1 => c_uint, 32 => c_uint, 1 => c_uint, 1 => c_uint,
            0 => c_uint, null_mut() => *mut c_void,
            arguments => *mut *mut c_void, null_mut() => *mut *mut c_void))
    }

    fn synchronize(&self) -> c_int {
        call!(self, hipDeviceSynchronize())
    }
}

/// Runs one of the ignored tests below in a process of its own, with an own state directory. They read the environment.
fn in_process(name: &str, directory: &Directory, variables: &[(&str, &str)]) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(VARIABLE, directory.path())
        .envs(variables.iter().copied())
        .status()
        .unwrap();
    assert!(status.success(), "{name} {variables:?}");
}

fn directory() -> (tempfile::TempDir, Directory) {
    let place = tempfile::tempdir().unwrap();
    let directory = Directory::at(place.path()).unwrap();
    (place, directory)
}

/// The directory of the test that has started this process. None if nobody has.
fn given() -> Option<Directory> {
    std::env::var_os(VARIABLE)?;
    Some(Directory::from_environment().unwrap())
}

#[test]
fn memory_and_kernels() {
    let (_place, directory) = directory();
    in_process("use_memory_and_kernels", &directory, &[]);
    directory.settle(Vendor::Amd).unwrap();
    let device = Device::open_in(directory.clone(), Vendor::Amd).unwrap();
    let usage = device.usage(&Identity::whole(Vendor::Amd)).unwrap();
    assert_eq!(usage.free, usage.total, "the process has ended");
    // It has left its bytes, and the other vendor's device has nothing of them.
    assert_eq!(
        directory.memory_of(Vendor::Amd).unwrap()[2 << 20..][..8],
        [7, 0, 0, 0, 7, 0, 0, 0]
    );
    assert!(directory.memory_of(Vendor::Nvidia).is_err());
}

#[test]
#[ignore = "part of memory_and_kernels"]
fn use_memory_and_kernels() {
    let Some(_directory) = given() else { return };
    let hip = Hip::load();
    let all = hip.free();
    let memory = hip.allocate(4096);
    assert_eq!(hip.free(), all - (2 << 20));
    let fill = "// of the stand-in\n.entry fill(.param .u64 p, .param .u32 value, .param .u32 n) { }\n\
                .entry fault() { }";
    let module = hip.load_module(&Module::code_object(fill)).unwrap();
    assert_eq!(hip.load_module(b"\x7fELF and something else"), Err(200));
    assert_eq!(
        hip.load_module(b".version 7.0\0 no code object of this stand-in"),
        Err(200)
    );
    let (mut p, mut value, mut n) = (memory, 7_u32, 2_u32);
    let mut arguments = [
        (&raw mut p).cast(),
        (&raw mut value).cast(),
        (&raw mut n).cast::<c_void>(),
    ];
    let function = hip.function(module, c"fill");
    assert_eq!(hip.launch(function, &mut arguments), 0);
    assert_eq!(hip.synchronize(), 0);
    let mut words = [0_u32; 3];
    let to = (&raw mut words).cast();
    let code = call!(hip, hipMemcpyDtoHAsync(to => *mut c_void, memory => *mut c_void, 12 => usize,
        null_mut() => *mut c_void));
    assert_eq!(
        (code, words),
        (0, [7, 7, 0]),
        "not pinned: it is there at once"
    );
    assert_eq!(hip.launch(hip.function(module, c"fault"), &mut []), 0);
    assert_eq!(hip.synchronize(), 700);
    // A reset of the device ends the context and the error.
    assert_eq!(call!(hip, hipDeviceReset()), 0);
    assert_eq!(hip.synchronize(), 0);
    assert_eq!(hip.free(), all);
    assert_eq!(
        call!(hip, hipFree(memory => *mut c_void)),
        1,
        "it was of the other context"
    );
}

#[test]
fn the_device_says_that_it_is_a_stand_in() {
    let (_place, directory) = directory();
    in_process("use_names", &directory, &[]);
}

#[test]
#[ignore = "part of the_device_says_that_it_is_a_stand_in"]
fn use_names() {
    let Some(directory) = given() else { return };
    let hip = Hip::load();
    let (mut name, mut pci, mut uuid, mut units) = ([0_u8; 64], [0_u8; 32], [0_u8; 16], 0);
    let text = |bytes: &[u8]| CStr::from_bytes_until_nul(bytes).unwrap().to_owned();
    let to = name.as_mut_ptr().cast();
    assert_eq!(
        call!(hip, hipDeviceGetName(to => *mut c_char, 64 => c_int, 0 => c_int)),
        0
    );
    assert_eq!(text(&name).as_c_str(), c"Stand-in AMD GPU");
    let to = pci.as_mut_ptr().cast();
    assert_eq!(
        call!(hip, hipDeviceGetPCIBusId(to => *mut c_char, 32 => c_int, 0 => c_int)),
        0
    );
    assert_eq!(text(&pci).as_c_str(), c"f1b0:f2:00.0");
    let to = &raw mut uuid;
    assert_eq!(
        call!(hip, hipDeviceGetUuid(to => *mut [u8; 16], 0 => c_int)),
        0
    );
    assert_eq!(uuid, *b"57a4d1f1b0000002");
    let to = &raw mut units;
    assert_eq!(
        call!(hip, hipDeviceGetAttribute(to => *mut c_int, 63 => c_int, 0 => c_int)),
        0
    );
    assert_eq!(units, 14);
    directory.set(Knob::Gone, "1").unwrap();
    assert_eq!(hip.synchronize(), 100);
    directory.clear(Knob::Gone).unwrap();
    directory.set(Knob::ResetRequired, "1").unwrap();
    assert_eq!(hip.synchronize(), 999);
}

#[test]
fn the_environment_chooses_the_device() {
    let (_place, directory) = directory();
    let uuid = Identity::whole(Vendor::Amd).uuid();
    let (rocr, hip) = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES");
    let seen = [
        vec![],
        vec![(rocr, uuid.as_str())],
        vec![(rocr, "0"), (hip, "0")],
    ];
    for variables in seen {
        in_process("use_one_device", &directory, &variables);
    }
    for variable in [(rocr, "GPU-57a4"), (rocr, "1"), (hip, "-1"), (hip, "")] {
        in_process("use_no_device", &directory, &[variable]);
    }
    directory.set(Knob::Absent, "amd").unwrap();
    in_process("use_no_device", &directory, &[]);
}

fn count(hip: &Hip) -> (c_int, c_int) {
    let mut count = 7;
    let to = &raw mut count;
    (call!(hip, hipGetDeviceCount(to => *mut c_int)), count)
}

#[test]
#[ignore = "part of the_environment_chooses_the_device"]
fn use_one_device() {
    if given().is_some() {
        assert_eq!(count(&Hip::load()), (0, 1));
    }
}

#[test]
#[ignore = "part of the_environment_chooses_the_device"]
fn use_no_device() {
    if given().is_some() {
        let hip = Hip::load();
        assert_eq!(count(&hip), (100, 0));
        assert_eq!(call!(hip, hipInit(0 => c_uint)), 100);
    }
}
