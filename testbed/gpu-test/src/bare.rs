//! The bare driver in a process of its own: a process has one context of the vendor's driver.

use std::{
    env,
    io::{self, Write},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use fabricbios_client::wire::GpuBinding;
use fabricbios_gpu::{Libraries, driver};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{launches, plain};

/// The subcommand that runs [`main`].
pub(crate) const SUBCOMMAND: &str = "bare";

/// The times of each round.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) write: Vec<Duration>,
    pub(crate) read: Vec<Duration>,
    pub(crate) launch: Vec<Duration>,
    /// The driver could pin shared memory.
    pub(crate) is_pinned: bool,
}

/// Measures the bare driver with the device of a lease.
pub(crate) fn measure(of: &GpuBinding, bytes: u64, rounds: usize) -> Result<Times> {
    ask(of, &["measure", &bytes.to_string(), &rounds.to_string()])
}

/// A plain process fills device memory with a pattern and ends. Returns the number of bytes.
pub(crate) fn leave(of: &GpuBinding) -> Result<u64> {
    ask(of, &["leave"])
}

/// Another plain process takes all memory that it can get and looks for the pattern. Returns the bytes, the number of
/// looks, and the number of looks that found the pattern.
pub(crate) fn search(of: &GpuBinding) -> Result<(u64, u64, u64)> {
    ask(of, &["search"])
}

/// Runs this program with the subcommand, the device and these arguments.
fn ask<A: DeserializeOwned>(of: &GpuBinding, words: &[&str]) -> Result<A> {
    let output = command(of, words)?.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("{words:?} by the bare driver: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("the answer of the bare driver")
}

/// Starts this program in the same way, with its input and output in pipes.
pub(crate) fn start(of: &GpuBinding, words: &[&str]) -> Result<Child> {
    let mut command = command(of, words)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().context("the bare driver")
}

fn command(of: &GpuBinding, words: &[&str]) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args([SUBCOMMAND, of.vendor.name(), &of.uuid]);
    command.args(words);
    Ok(command)
}

/// Runs in the process: the arguments are those of [`ask`].
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
    let [vendor, uuid, what @ ..] = &words[..] else {
        bail!("vendor and UUID");
    };
    let context = driver::Context::open(&Libraries::default(), vendor.parse()?, uuid, uuid)?;
    let what: Vec<&str> = what.iter().map(String::as_str).collect();
    let text = match what[..] {
        ["measure", bytes, rounds] => {
            serde_json::to_vec(&plain::measure(&context, bytes.parse()?, rounds.parse()?)?)?
        }
        ["launches"] => return launches::serve(&context),
        ["leave"] => serde_json::to_vec(&plain::leave(&context)?)?,
        ["search"] => serde_json::to_vec(&plain::search(&context)?)?,
        _ => bail!("measure BYTES ROUNDS, launches, leave or search"),
    };
    Ok(io::stdout().write_all(&text)?)
}
