//! Test support: a process that uses the stand-ins of `libcuda` and `libnvidia-ml` as told, one line for each call.
//!
//! A test includes this file as a module. [`Shell::start`] runs the test's own binary again, where [`child`] answers each
//! line with the call's result and what the call has written.

use std::{
    collections::HashMap,
    ffi::{CString, c_char, c_int, c_uint, c_void},
    io::{BufRead, BufReader, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    ptr::null_mut,
};

use libloading::Library;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use stand_in_device::{Directory, VARIABLE};

/// So long is waited for an answer that must not come.
const NO_ANSWER_MS: u16 = 100;

/// Where this directory's PTX is.
#[must_use]
pub(crate) fn ptx(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../ptx").join(name).with_extension("ptx")
}

/// A process that uses the stand-ins.
#[derive(Debug)]
pub(crate) struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Shell {
    /// Starts one.
    #[must_use]
    pub(crate) fn start(directory: &Directory) -> Self {
        Self::start_with(directory, &[])
    }

    /// Starts one with more variables in its environment.
    #[must_use]
    pub(crate) fn start_with(directory: &Directory, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shell::child", "--ignored", "--nocapture"])
            .env(VARIABLE, directory.path())
            .env_remove("CUDA_VISIBLE_DEVICES")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut shell = Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        assert_eq!(shell.answer().0, 0, "it is there");
        shell
    }

    /// One with a context of the NVIDIA device.
    #[must_use]
    pub(crate) fn with_context(directory: &Directory) -> Self {
        let mut shell = Self::start(directory);
        shell.value("init");
        shell.value("create");
        shell
    }

    /// The process's number.
    #[must_use]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Says a line whose answer may not come.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
    }

    /// The answer: the result and the words behind it.
    pub(crate) fn answer(&mut self) -> (i32, Vec<String>) {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "the shell has ended"
            );
            if let Some(answer) = line.strip_prefix("= ") {
                let mut words = answer.split_whitespace().map(str::to_owned);
                let code = words.next().unwrap().parse().unwrap();
                return (code, words.collect());
            }
        }
    }

    /// Says a line; returns the result.
    pub(crate) fn code(&mut self, line: &str) -> i32 {
        self.say(line);
        self.answer().0
    }

    /// Says a line that succeeds; returns the words behind the result.
    pub(crate) fn words(&mut self, line: &str) -> Vec<String> {
        self.say(line);
        let (code, words) = self.answer();
        assert_eq!(code, 0, "{line}");
        words
    }

    /// Says a line that succeeds; returns the number behind the result, or 0.
    pub(crate) fn value(&mut self, line: &str) -> u64 {
        let words = self.words(line);
        words.first().map_or(0, |it| it.parse().unwrap())
    }

    /// No answer comes.
    pub(crate) fn hangs(&mut self) {
        assert!(self.output.buffer().is_empty());
        let mut waiting = [PollFd::new(
            self.output.get_ref().as_fd(),
            PollFlags::POLLIN,
        )];
        let ready = poll(&mut waiting, PollTimeout::from(NO_ANSWER_MS)).unwrap();
        assert_eq!(ready, 0, "the call has returned");
    }

    /// Kills the process.
    pub(crate) fn kill(self) {}

    /// Ends the process as a program does that returns from `main`. True if it does.
    #[must_use]
    pub(crate) fn ends(mut self) -> bool {
        self.input = None;
        // What it still prints is read, or it would end for that.
        std::io::copy(&mut self.output, &mut std::io::sink()).unwrap();
        self.child.wait().unwrap().success()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

macro_rules! call {
    ($library:expr, $name:ident($($value:expr => $type:ty),*)) => {{
        // SAFETY: the types are those of the vendor's header, and the pointers are of values that live.
        let result: c_int = unsafe {
            let name = concat!(stringify!($name), "\0").as_bytes();
            let function = $library.get::<unsafe extern "C" fn($($type),*) -> c_int>(name);
            function.unwrap()($($value),*)
        };
        result
    }};
}

/// The process's side. It does nothing unless [`Shell::start`] has started it.
#[test]
#[ignore = "the other side of the other tests"]
fn child() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut libraries = Libraries::default();
    // The line of the test runner before this one has no end.
    println!("\n= 0 it is there");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let (code, answer) = match words[0].strip_prefix("nvml-") {
            Some(command) => nvml(libraries.named("nvml"), command, &words[1..]),
            None => cuda(libraries.named("cuda"), words[0], &words[1..]),
        };
        println!("= {code} {answer}");
    }
}

#[derive(Default)]
struct Libraries(HashMap<&'static str, Library>);

impl Libraries {
    fn named(&mut self, name: &'static str) -> &Library {
        self.0.entry(name).or_insert_with(|| {
            let programs = std::env::current_exe().unwrap();
            let path = programs.with_file_name(format!("libstand_in_{name}.so"));
            // SAFETY: nothing runs when the library is loaded.
            unsafe { Library::new(path) }.unwrap()
        })
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap()
}

fn handle(word: &str) -> *mut c_void {
    std::ptr::without_provenance_mut(word.parse().unwrap())
}

fn text(bytes: &[u8]) -> String {
    let text = std::ffi::CStr::from_bytes_until_nul(bytes).unwrap();
    text.to_str().unwrap().replace(' ', "_")
}

fn cuda(library: &Library, command: &str, words: &[&str]) -> (i32, String) {
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

/// NVML's handles are given as numbers. Results of several numbers follow each other.
fn nvml(library: &Library, command: &str, words: &[&str]) -> (i32, String) {
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
