//! The commands of `libnvidia-ml`.

use std::{
    ffi::{CString, c_char, c_uint, c_void},
    ptr::null_mut,
};

use libloading::Library;

use super::{handle, text};

/// NVML's handles are given as numbers. Results of several numbers follow each other.
pub(super) fn answer(library: &Library, command: &str, words: &[&str]) -> (i32, String) {
    let mut out: *mut c_void = null_mut();
    let code = match command {
        "init" => call!(library, nvmlInit_v2()),
        "shutdown" => call!(library, nvmlShutdown()),
        "count" => {
            let mut count = 0;
            let code = call!(library, nvmlDeviceGetCount_v2(&raw mut count => *mut c_uint));
            return (code, count.to_string());
        }
        "device" => {
            call!(library, nvmlDeviceGetHandleByIndex_v2(0 => c_uint, &raw mut out => *mut *mut c_void))
        }
        "partition" => {
            let index = words[1].parse().unwrap();
            call!(library, nvmlDeviceGetMigDeviceHandleByIndex(handle(words[0]) => *mut c_void, index => c_uint,
                &raw mut out => *mut *mut c_void))
        }
        "find" => {
            let uuid = CString::new(words[0]).unwrap();
            call!(library, nvmlDeviceGetHandleByUUID(uuid.as_ptr() => *const c_char,
                &raw mut out => *mut *mut c_void))
        }
        "parent" => call!(library, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
            handle(words[0]) => *mut c_void, &raw mut out => *mut *mut c_void)),
        "uuid" => {
            let mut uuid = [0_u8; 96];
            let to = uuid.as_mut_ptr().cast();
            let room = words.get(1).map_or(96, |it| it.parse().unwrap());
            let code = call!(library, nvmlDeviceGetUUID(handle(words[0]) => *mut c_void, to => *mut c_char,
                room => c_uint));
            return (code, text(&uuid));
        }
        "name" => {
            let mut name = [0_u8; 96];
            let to = name.as_mut_ptr().cast();
            let code = call!(library, nvmlDeviceGetName(handle(words[0]) => *mut c_void, to => *mut c_char,
                96 => c_uint));
            return (code, text(&name));
        }
        "memory" => {
            let mut memory = [0_u64; 3];
            let code = call!(library, nvmlDeviceGetMemoryInfo(handle(words[0]) => *mut c_void,
                &raw mut memory => *mut [u64; 3]));
            return (code, memory.map(|it| it.to_string()).join(" "));
        }
        "processes" => {
            // pid, padding, bytes as two words, and the numbers of the partition.
            let mut infos = [[0_u32; 6]; 8];
            let mut count: c_uint = words.get(1).map_or(8, |it| it.parse().unwrap());
            let code = call!(library, nvmlDeviceGetComputeRunningProcesses_v3(handle(words[0]) => *mut c_void,
                &raw mut count => *mut c_uint, infos.as_mut_ptr().cast() => *mut c_void));
            let count = usize::try_from(count).unwrap();
            let listed = infos.iter().take(if code == 0 { count } else { 0 });
            let listed: Vec<String> = listed
                .map(|it| format!("{}:{}:{}", it[0], it[2], it[4].cast_signed()))
                .collect();
            return (code, format!("{count} {}", listed.join(" ")));
        }
        "mig" => {
            let (mut current, mut pending) = (0, 0);
            let code = call!(library, nvmlDeviceGetMigMode(handle(words[0]) => *mut c_void,
                &raw mut current => *mut c_uint, &raw mut pending => *mut c_uint));
            return (code, format!("{current} {pending}"));
        }
        "attributes" => {
            let mut attributes = [0_u32; 10];
            let code = call!(library, nvmlDeviceGetAttributes_v2(handle(words[0]) => *mut c_void,
                &raw mut attributes => *mut [u32; 10]));
            return (
                code,
                format!("{} {} {}", attributes[0], attributes[7], attributes[8]),
            );
        }
        "ecc" => {
            let mut count = 0;
            let code = call!(library, nvmlDeviceGetTotalEccErrors(handle(words[0]) => *mut c_void, 1 => c_uint,
                0 => c_uint, &raw mut count => *mut u64));
            return (code, count.to_string());
        }
        "set" => call!(library, nvmlEventSetCreate(&raw mut out => *mut *mut c_void)),
        "register" => {
            call!(library, nvmlDeviceRegisterEvents(handle(words[0]) => *mut c_void, 8 => u64,
            handle(words[1]) => *mut c_void))
        }
        "wait" => {
            // The device, the kind, the XID, and the numbers of the partition.
            let mut event = [0_u64; 4];
            let patience = words[1].parse().unwrap();
            let code = call!(library, nvmlEventSetWait_v2(handle(words[0]) => *mut c_void,
                &raw mut event => *mut [u64; 4], patience => c_uint));
            return (code, format!("{} {}", event[1], event[2]));
        }
        other => panic!("{other} is no command"),
    };
    (code, out.addr().to_string())
}
