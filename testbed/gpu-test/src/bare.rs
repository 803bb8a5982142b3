//! The bare driver in a process of its own: a process has one context of the vendor's driver.

use std::{
    env,
    io::{self, Write},
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use fabricbios_client::wire::{GpuBinding, GpuVendor};
use fabricbios_gpu::{Device, Health, Libraries, WHOLE_SLICES, bare};
use serde::{Deserialize, Serialize};

use crate::scenarios::SPIN;

/// The subcommand that runs [`main`].
pub(crate) const SUBCOMMAND: &str = "bare";

/// The times of each round.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) write: Vec<Duration>,
    pub(crate) read: Vec<Duration>,
    pub(crate) launch: Vec<Duration>,
}

/// Measures the bare driver with the device of a lease.
pub(crate) fn measure(of: &GpuBinding, bytes: u64, rounds: usize) -> Result<Times> {
    let output = Command::new(env::current_exe()?)
        .arg(SUBCOMMAND)
        .args([of.vendor.name(), &of.uuid])
        .arg(bytes.to_string())
        .arg(rounds.to_string())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("the bare driver could not be measured");
    }
    serde_json::from_slice(&output.stdout).context("times of the bare driver")
}

/// Runs in the process: the arguments are those of [`measure`].
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
    let [vendor, uuid, bytes, rounds] = &words[..] else {
        bail!("vendor, UUID, bytes and rounds");
    };
    let device = Device {
        uuid: uuid.clone(),
        vendor: vendor.parse::<GpuVendor>()?,
        name: String::new(),
        pci: None,
        vram_bytes: 0,
        compute_units: 0,
        compute_slices: WHOLE_SLICES,
        partition_of: None,
        has_partitions: false,
        nodes: Vec::new(),
        visible: uuid.clone(),
        health: Health::Good,
    };
    let (bytes, rounds) = (bytes.parse()?, rounds.parse()?);
    let times = bare(
        &Libraries::default(),
        &device,
        bytes,
        rounds,
        (SPIN, "spin"),
    )?;
    let times = Times {
        write: times.write,
        read: times.read,
        launch: times.launch,
    };
    let text = serde_json::to_vec(&times)?;
    Ok(io::stdout().write_all(&text)?)
}
