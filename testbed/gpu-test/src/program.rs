//! A program that uses the device without a session, in a process of its own.

use std::{
    env,
    ffi::OsStr,
    fs::OpenOptions,
    io::{self, BufRead, BufReader, Write},
    os::unix::{fs::OpenOptionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use fabricbios_client::wire::{GpuBinding, GpuVendor};
use fabricbios_gpu::{Libraries, driver::Context};
use nix::libc::{EACCES, EPERM, O_NONBLOCK};
use serde::{Deserialize, Serialize};

use crate::plain;

/// The subcommand that runs [`main`].
pub(crate) const SUBCOMMAND: &str = "program";

/// How long a killed program may take until its parent learns of it.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// What the program has seen: one line of its output.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Said {
    /// The number of the error of opening a device node; 0: it could be opened.
    pub(crate) device: i32,
    pub(crate) other: i32,
    /// Of a program that enters a lease: the node's refusal, or the same numbers in the lease.
    pub(crate) refused: Option<String>,
    pub(crate) device_inside: i32,
    pub(crate) other_inside: i32,
    /// Why nothing was computed on the device.
    pub(crate) error: Option<String>,
    /// Bytes of the pattern that it has on the device.
    pub(crate) left: u64,
}

/// Whether the user and the control group may open a device node with this result. A node without a driver gives another
/// error.
pub(crate) fn may(error: i32) -> bool {
    error != EACCES && error != EPERM
}

/// The program, which waits for its end.
pub(crate) struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// The command line. `how`: `look` only opens the nodes and ends; `enter` goes on in the lease with this socket and
    /// id; `wait` goes on with the device after a line of input.
    pub(crate) fn command(how: &str, of: &GpuBinding, device: &Path, other: &Path) -> Command {
        // Another user may have no access to the file by its name.
        let mut command = Command::new("/proc/self/exe");
        command.args([SUBCOMMAND, how, &of.uuid]);
        command.args([device, other]);
        command
    }

    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("a program of this test")?;
        let output = child.stdout.take().context("the program's output")?;
        let output = BufReader::new(output);
        Ok(Self { child, output })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets a program that waits go on.
    pub(crate) fn go_on(&mut self) -> Result<()> {
        let input = self.child.stdin.as_mut().context("the program's input")?;
        Ok(input.write_all(b"\n")?)
    }

    pub(crate) fn said(&mut self) -> Result<Said> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the program has ended: {}", self.child.wait()?);
        }
        serde_json::from_str(&line).context("the line of the program")
    }

    /// The signal that has ended it, or none if it lives on. The kernel tells the end a moment after the end of all else.
    pub(crate) fn killed(&mut self) -> Result<Option<i32>> {
        let until = Instant::now() + ENDS_WITHIN;
        loop {
            match self.child.try_wait()? {
                None if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                ended => return Ok(ended.and_then(|it| it.signal())),
            }
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs in the process: the arguments are those of [`Program::command`].
pub(crate) fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = env::args().skip(2).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [how, uuid, device, other, place @ ..] = &words[..] else {
        bail!("HOW UUID DEVICE OTHER [SOCKET LEASE]");
    };
    if *how == "wait" {
        io::stdin().read_line(&mut String::new())?;
    }
    let mut said = Said {
        device: open(device),
        other: open(other),
        ..Said::default()
    };
    // The engine of a container has set it already.
    let mut visible = env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    if let [socket, lease] = place {
        match fabricbios_local::run(Path::new(socket), lease.parse()?) {
            Ok(moved) => {
                let mut all = moved.environment.into_iter();
                let told = all.find(|(name, _)| name == "CUDA_VISIBLE_DEVICES");
                visible = told.map(|(_, value)| value).unwrap_or_default();
                (said.device_inside, said.other_inside) = (open(device), open(other));
            }
            Err(error) => said.refused = Some(format!("{error:?}")),
        }
    }
    // The context ends with the process.
    let mut held = None;
    if *how != "look" && said.refused.is_none() {
        match compute(uuid, &visible) {
            Ok((context, left)) => (held, said.left) = (Some(context), left),
            Err(error) => said.error = Some(format!("{error:#}")),
        }
    }
    println!("{}", serde_json::to_string(&said)?);
    if *how != "look" {
        io::copy(&mut io::stdin(), &mut io::sink())?;
    }
    drop(held);
    Ok(())
}

fn open(path: impl AsRef<OsStr>) -> i32 {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(O_NONBLOCK);
    let opened = options.open(PathBuf::from(path.as_ref()));
    opened.err().map_or(0, |it| it.raw_os_error().unwrap_or(-1))
}

fn compute(uuid: &str, visible: &str) -> Result<(Context, u64)> {
    if visible.is_empty() {
        bail!("the node has named no device (CUDA_VISIBLE_DEVICES)");
    }
    let context = Context::open(&Libraries::default(), GpuVendor::Nvidia, uuid, visible)?;
    if !plain::computes(&context)? {
        bail!("the kernel has filled the memory with something else");
    }
    let left = plain::leave(&context)?;
    Ok((context, left))
}
