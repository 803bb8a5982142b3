//! Stand-in of `nvidia-smi` for tests: it can reset the stand-in of a GPU, and nothing else.

use std::process::ExitCode;

use clap::Parser;
use stand_in_device::{Device, Identity, Vendor};

/// Statuses of the real program.
const NOT_FOUND: u8 = 6;
const FAILED: u8 = 255;

#[derive(Debug, Parser)]
#[command(
    name = "nvidia-smi",
    about = "Stand-in of nvidia-smi: resets the stand-in of a GPU"
)]
struct Arguments {
    /// Reset the GPU: its memory is free and zero, its faults are gone
    #[arg(short = 'r', long, required = true)]
    gpu_reset: bool,
    /// The GPU: its UUID, its index, or its place on the PCI bus. All if there is none
    #[arg(short, long)]
    id: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let identity = Identity::whole(Vendor::Nvidia);
    let (domain, bus, device) = identity.pci();
    let pci = format!("{domain:08X}:{bus:02X}:{device:02X}.0");
    if let Some(id) = arguments.id
        && ![identity.uuid(), "0".to_owned(), pci.clone()].contains(&id)
    {
        println!("No devices were found: the stand-in is {}", identity.uuid());
        return ExitCode::from(NOT_FOUND);
    }
    match Device::open(Vendor::Nvidia).and_then(|device| device.reset()) {
        Ok(open) if open.is_empty() => {
            println!("GPU {pci} (stand-in) was successfully reset.\nAll done.");
            ExitCode::SUCCESS
        }
        Ok(open) => {
            println!(
                "The following GPUs could not be reset:\n  GPU {pci}: In use by another client\n\n\
                 1 device is currently being used by one or more other processes: {open:?}. Please first \
                 kill all processes using this device."
            );
            ExitCode::from(FAILED)
        }
        Err(error) => {
            eprintln!("the stand-in's state directory cannot be used: {error}");
            ExitCode::from(FAILED)
        }
    }
}
