//! AMD's devices, by HIP and the kernel's files.

mod devices;
mod hip;
mod kfd;
mod sysfs;

use std::{thread, time::Duration};

use fabricbios_helper::Failure;

use super::{Accounted, Roots, watch::Watcher};
use crate::{
    Device, Health, Libraries,
    driver::{Context, DriverError, MemoryInfo},
};

pub(super) use devices::probe;

/// The account of a device. The kernel reports the memory; if it does not, HIP does, in a context of this process.
pub(super) fn account(
    libraries: &Libraries,
    roots: &Roots,
    device: &Device,
) -> Result<Accounted, Failure> {
    let pci = device.pci.as_deref().unwrap_or_default();
    let memory = match sysfs::memory(&roots.sys, pci) {
        Some(memory) => memory,
        None => match asked(libraries, device) {
            Ok(memory) => memory,
            Err(error) if error.is_lost() => {
                return Ok(Accounted::unknown(Health::Failed(error.to_string())));
            }
            Err(error) => return Err(Failure::from(format!("{}: {error}", device.uuid))),
        },
    };
    let nodes = kfd::nodes(&roots.sys, pci);
    Ok(Accounted {
        free_bytes: memory.free,
        total_bytes: memory.total,
        processes: Accounted::processes(kfd::processes(&roots.sys, &nodes)),
        health: sysfs::health(&roots.sys, pci),
    })
}

fn asked(libraries: &Libraries, device: &Device) -> Result<MemoryInfo, DriverError> {
    let context = Context::open(libraries, device.vendor, &device.visible, &device.uuid)?;
    let memory = context.memory()?;
    context.release()?;
    Ok(memory)
}

/// A watcher of these devices. It reads the kernel's error counters.
pub(super) fn watcher(
    _libraries: &Libraries,
    roots: Roots,
    _devices: &[Device],
) -> Result<Box<dyn Watcher>, Failure> {
    Ok(Box::new(SysfsWatcher(roots)))
}

struct SysfsWatcher(Roots);

impl Watcher for SysfsWatcher {
    fn wait(&mut self, patience: Duration) -> bool {
        thread::sleep(patience);
        false
    }

    fn health(&self, device: &Device) -> Health {
        sysfs::health(&self.0.sys, device.pci.as_deref().unwrap_or_default())
    }
}
