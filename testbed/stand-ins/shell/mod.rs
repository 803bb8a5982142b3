//! Test support: a process that uses the stand-ins of `libcuda` and `libnvidia-ml` as told, one line for each call.
//!
//! A test includes this file as a module. [`Shell::start`] runs the test's own binary again, where [`child`] answers each
//! line with the call's result and what the call has written.

macro_rules! call {
    ($library:expr, $name:ident($($value:expr => $type:ty),*)) => {{
        // SAFETY: the types are those of the vendor's header, and the pointers are of values that live.
        let result: std::ffi::c_int = unsafe {
            let name = concat!(stringify!($name), "\0").as_bytes();
            let function = $library.get::<unsafe extern "C" fn($($type),*) -> std::ffi::c_int>(name);
            function.unwrap()($($value),*)
        };
        result
    }};
}

mod cuda;
mod nvml;

use std::{
    collections::HashMap,
    ffi::{CStr, c_void},
    io::{BufRead, BufReader, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
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
            Some(command) => nvml::answer(libraries.named("nvml"), command, &words[1..]),
            None => cuda::answer(libraries.named("cuda"), words[0], &words[1..]),
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
    let text = CStr::from_bytes_until_nul(bytes).unwrap();
    text.to_str().unwrap().replace(' ', "_")
}
