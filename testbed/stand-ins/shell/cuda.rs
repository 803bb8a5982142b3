//! The commands of `libcuda`.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    ptr::null_mut,
};

use libloading::Library;
use nix::{
    sys::resource::{Resource, setrlimit},
    unistd::{Uid, geteuid, setuid},
};

use super::{handle, number, text};

pub(super) fn answer(library: &Library, command: &str, words: &[&str]) -> (i32, String) {
    let mut out: *mut c_void = null_mut();
    let mut address = 0_u64;
    let at = |index: usize| number(words[index]);
    let length = |index: usize| usize::try_from(at(index)).unwrap();
    let code = match command {
        "init" => call!(library, cuInit(0 => c_uint)),
        "count" => {
            let mut count = 0;
            let code = call!(library, cuDeviceGetCount(&raw mut count => *mut c_int));
            return (code, count.to_string());
        }
        "name" => {
            let mut name = [0_u8; 64];
            let to = name.as_mut_ptr().cast();
            let code = call!(library, cuDeviceGetName(to => *mut c_char, 64 => c_int, 0 => c_int));
            return (code, text(&name));
        }
        "uuid" => {
            let mut uuid = [0_u8; 16];
            let to = &raw mut uuid;
            let code = call!(library, cuDeviceGetUuid_v2(to => *mut [u8; 16], 0 => c_int));
            return (code, uuid.map(|byte| format!("{byte:02x}")).concat());
        }
        "attribute" => {
            let (mut value, wanted) = (0, c_int::try_from(at(0)).unwrap());
            let to = &raw mut value;
            let code =
                call!(library, cuDeviceGetAttribute(to => *mut c_int, wanted => c_int, 0 => c_int));
            return (code, value.to_string());
        }
        "create" => {
            call!(library, cuCtxCreate_v2(&raw mut out => *mut *mut c_void, 0 => c_uint, 0 => c_int))
        }
        "destroy" => call!(library, cuCtxDestroy_v2(handle(words[0]) => *mut c_void)),
        "current" => call!(library, cuCtxSetCurrent(handle(words[0]) => *mut c_void)),
        "retain" => {
            call!(library, cuDevicePrimaryCtxRetain(&raw mut out => *mut *mut c_void, 0 => c_int))
        }
        "release" => call!(library, cuDevicePrimaryCtxRelease_v2(0 => c_int)),
        "sync" => call!(library, cuCtxSynchronize()),
        "info" => {
            let (mut free, mut total) = (0, 0);
            let code = call!(library, cuMemGetInfo_v2(&raw mut free => *mut usize, &raw mut total => *mut usize));
            return (code, format!("{free} {total}"));
        }
        "alloc" => {
            let code =
                call!(library, cuMemAlloc_v2(&raw mut address => *mut u64, length(0) => usize));
            return (code, address.to_string());
        }
        "free" => call!(library, cuMemFree_v2(at(0) => u64)),
        "fill" => {
            let byte = u8::try_from(at(1)).unwrap();
            call!(library, cuMemsetD8_v2(at(0) => u64, byte => u8, length(2) => usize))
        }
        "write" => {
            let bytes: Vec<u8> = words[1..].iter().map(|it| it.parse().unwrap()).collect();
            let from = bytes.as_ptr().cast();
            call!(library, cuMemcpyHtoD_v2(at(0) => u64, from => *const c_void, bytes.len() => usize))
        }
        "read" | "floats" => {
            let mut bytes = vec![0_u8; length(1)];
            let to = bytes.as_mut_ptr().cast();
            let code = call!(library, cuMemcpyDtoH_v2(to => *mut c_void, at(0) => u64, bytes.len() => usize));
            let words: Vec<String> = match command {
                "read" => bytes.iter().map(ToString::to_string).collect(),
                _ => {
                    let floats = bytes.as_chunks().0.iter().copied();
                    floats
                        .map(|it| f32::from_le_bytes(it).to_string())
                        .collect()
                }
            };
            return (code, words.join(" "));
        }
        "pinned-copy" => {
            // To the device and back through the same pinned memory, in a stream's order.
            let (stream, size) = (handle(words[1]), length(2));
            let mut bytes: Vec<u8> = (0..size).map(|it| it.to_le_bytes()[0]).collect();
            let host: *mut c_void = bytes.as_mut_ptr().cast();
            let pinned = call!(library, cuMemHostRegister_v2(host => *mut c_void, size => usize, 0 => c_uint));
            let twice = call!(library, cuMemHostRegister_v2(host => *mut c_void, size => usize, 0 => c_uint));
            let to = call!(library, cuMemcpyHtoDAsync_v2(at(0) => u64, host => *mut c_void, size => usize,
                stream => *mut c_void));
            let fill = call!(library, cuMemsetD8Async(at(0) => u64, 9 => u8, 1 => usize, stream => *mut c_void));
            let from = call!(library, cuMemcpyDtoHAsync_v2(host => *mut c_void, at(0) => u64, size => usize,
                stream => *mut c_void));
            let sync = call!(library, cuStreamSynchronize(stream => *mut c_void));
            let unpinned = call!(library, cuMemHostUnregister(host => *mut c_void));
            let again = call!(library, cuMemHostUnregister(host => *mut c_void));
            assert_eq!((pinned, twice, unpinned, again), (0, 712, 0, 713));
            let is_right = bytes[0] == 9
                && bytes
                    .iter()
                    .enumerate()
                    .skip(1)
                    .all(|(at, byte)| at.to_le_bytes()[0] == *byte);
            return (to | fill | from | sync, is_right.to_string());
        }
        // Registers memory of its own that stays.
        "register" => {
            let memory: &mut [u8] = vec![0; length(0)].leak();
            let memory: *mut c_void = memory.as_mut_ptr().cast();
            call!(library, cuMemHostRegister_v2(memory => *mut c_void, length(0) => usize, 0 => c_uint))
        }
        // From now on a user who may lock so many bytes.
        "lockable" => {
            setrlimit(Resource::RLIMIT_MEMLOCK, at(0), at(0)).unwrap();
            if geteuid().is_root() {
                setuid(Uid::from_raw(65_534)).unwrap();
            }
            0
        }
        "stream" => {
            let flags = c_uint::try_from(at(0)).unwrap();
            call!(library, cuStreamCreate(&raw mut out => *mut *mut c_void, flags => c_uint))
        }
        "sync-stream" => call!(library, cuStreamSynchronize(handle(words[0]) => *mut c_void)),
        "query" => call!(library, cuStreamQuery(handle(words[0]) => *mut c_void)),
        "end-stream" => call!(library, cuStreamDestroy_v2(handle(words[0]) => *mut c_void)),
        "load" => {
            let image = CString::new(std::fs::read(words[0]).unwrap()).unwrap();
            let image = image.as_ptr().cast();
            call!(library, cuModuleLoadData(&raw mut out => *mut *mut c_void, image => *const c_void))
        }
        "unload" => call!(library, cuModuleUnload(handle(words[0]) => *mut c_void)),
        "function" => {
            let name = CString::new(words[1]).unwrap();
            call!(library, cuModuleGetFunction(&raw mut out => *mut *mut c_void,
                handle(words[0]) => *mut c_void, name.as_ptr() => *const c_char))
        }
        "parameter" => {
            let (mut offset, mut size) = (0, 0);
            let code = call!(library, cuFuncGetParamInfo(handle(words[0]) => *mut c_void, length(1) => usize,
                &raw mut offset => *mut usize, &raw mut size => *mut usize));
            return (code, format!("{offset} {size}"));
        }
        "launch" => return (launch(library, words), String::new()),
        "error" => {
            let mut name: *const c_char = std::ptr::null();
            let error = c_int::try_from(at(0)).unwrap();
            let code =
                call!(library, cuGetErrorName(error => c_int, &raw mut name => *mut *const c_char));
            if name.is_null() {
                return (code, String::new());
            }
            // SAFETY: the library has given a text.
            let name = unsafe { std::ffi::CStr::from_ptr(name) };
            return (code, name.to_str().unwrap().to_owned());
        }
        other => panic!("{other} is no command"),
    };
    (code, out.addr().to_string())
}

/// `launch FUNCTION STREAM X,Y,Z X,Y,Z ARGUMENT…`: the blocks, the threads of a block, and arguments as `u64:7`, or all of
/// them in one buffer if the first is `buffer`.
fn launch(library: &Library, words: &[&str]) -> c_int {
    let sizes =
        |word: &str| -> Vec<c_uint> { word.split(',').map(|it| it.parse().unwrap()).collect() };
    let (blocks, block) = (sizes(words[2]), sizes(words[3]));
    let arguments = words[4..].iter().filter(|it| **it != "buffer");
    let mut arguments: Vec<Vec<u8>> = arguments
        .map(|it| match it.split_once(':').unwrap() {
            ("u32", value) => value.parse::<u32>().unwrap().to_le_bytes().to_vec(),
            (_, value) => value.parse::<u64>().unwrap().to_le_bytes().to_vec(),
        })
        .collect();
    let mut all = arguments.concat();
    let mut size = all.len();
    let end = 0;
    let name = std::ptr::without_provenance_mut;
    let mut buffer: [*mut c_void; 5] = [
        name(1),
        all.as_mut_ptr().cast(),
        name(2),
        (&raw mut size).cast(),
        name(end),
    ];
    let mut pointers: Vec<*mut c_void> = arguments
        .iter_mut()
        .map(|it| it.as_mut_ptr().cast())
        .collect();
    let (parameters, extra) = match words.get(4) {
        Some(&"buffer") => (null_mut(), buffer.as_mut_ptr()),
        _ => (pointers.as_mut_ptr(), null_mut()),
    };
    call!(library, cuLaunchKernel(handle(words[0]) => *mut c_void,
        blocks[0] => c_uint, blocks[1] => c_uint, blocks[2] => c_uint,
        block[0] => c_uint, block[1] => c_uint, block[2] => c_uint,
        0 => c_uint, handle(words[1]) => *mut c_void,
        parameters => *mut *mut c_void, extra => *mut *mut c_void))
}
