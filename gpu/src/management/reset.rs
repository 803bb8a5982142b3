//! Resets.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use fabricbios_helper::{Call, Caller, Failure, Pidfd};
use fabricbios_wire::GpuVendor;
use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::Signal,
    },
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use super::{Roots, watch};
use crate::Device;

/// NVIDIA's tool.
const TOOL: &str = "nvidia-smi";
/// Its path if PATH does not contain it.
const TOOL_PATH: &str = "/usr/bin/nvidia-smi";

/// The tool takes some seconds for a device, and longer if the device is linked to others.
const ENDS_WITHIN: Duration = Duration::from_secs(180);

/// How often the caller gets the report that the tool still runs.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// This many bytes of the end of the tool's output are kept.
const OUTPUT_BYTES_MAX: u64 = 2048;

/// Resets a device that no process uses. All of its memory is lost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reset {
    /// The device, never a partition.
    pub device: Device,
}

impl Call for Reset {
    const NAME: &'static str = "gpu-reset";
    type Answer = ();

    fn make(self, caller: &Caller) -> Result<(), Failure> {
        let device = &self.device;
        let refused = |why: &str| Failure::from(format!("{}: {why}", device.uuid));
        if let Some(whole) = &device.partition_of {
            return Err(refused(&format!(
                "a partition cannot be reset by itself: end what uses the other partitions of {whole}, then reset that"
            )));
        }
        if device.has_partitions {
            return Err(refused(
                "a reset would remove its partitions; it is to be made by hand",
            ));
        }
        match device.vendor {
            GpuVendor::Nvidia => {
                caller.progress("waiting until no other process watches or resets devices")?;
                watch::lock(caller, end)?;
                run_tool(device, caller)
            }
            GpuVendor::Amd => {
                let Some(pci) = &device.pci else {
                    return Err(refused("it has no PCI address by which it could be reset"));
                };
                caller.progress("resetting")?;
                write_reset(&Roots::real(), pci)
            }
        }
    }
}

/// Ends the process that watches devices, because a process that has the device open prevents a reset. The daemon
/// starts another one.
fn end(pid: i32) -> Result<(), Failure> {
    if pid == 0 {
        let why = "a process in another PID namespace watches the devices";
        return Err(Failure::from(why.to_owned()));
    }
    let ended = Pidfd::open(Pid::from_raw(pid)).and_then(|it| it.signal(Signal::SIGKILL));
    match ended {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(io::Error::from(errno).into()),
    }
}

fn run_tool(device: &Device, caller: &Caller) -> Result<(), Failure> {
    // A file, not a pipe: much output would fill a pipe.
    let mut output =
        File::from(memfd_create("output", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
    let start = |program: &str| -> io::Result<Child> {
        Command::new(program)
            .args(["--gpu-reset", "-i", &device.uuid])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .spawn()
    };
    let failed = |why: String| {
        let uuid = &device.uuid;
        Failure::from(format!("{TOOL} --gpu-reset -i {uuid}: {why}"))
    };
    let mut child = match start(TOOL) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => start(TOOL_PATH),
        started => started,
    }
    .map_err(|error| failed(format!("it cannot be started: {error}")))?;
    let process = Pidfd::open(Pid::from_raw(child.id().cast_signed())).map_err(io::Error::from)?;
    let began = Instant::now();
    while !process.ends_within(REPORT_EVERY)? {
        if began.elapsed() > ENDS_WITHIN {
            child.kill()?;
            let said = last_of(&mut output)?;
            let seconds = ENDS_WITHIN.as_secs();
            return Err(failed(format!(
                "killed, as it has not ended after {seconds} s: {said}"
            )));
        }
        caller.progress("resetting")?;
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    Err(failed(format!("{status}: {}", last_of(&mut output)?)))
}

/// The end of the tool's output, in one line.
fn last_of(output: &mut File) -> io::Result<String> {
    let start = output.metadata()?.len().saturating_sub(OUTPUT_BYTES_MAX);
    output.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    output.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Lets the kernel reset the device over PCI.
fn write_reset(roots: &Roots, pci: &str) -> Result<(), Failure> {
    let file = format!("bus/pci/devices/{pci}/reset");
    roots.sys.write(file, "1").map_err(|error| Failure {
        errno: error.errno(),
        detail: error.to_string(),
    })
}
