//! NVIDIA's devices, by NVML.

mod account;
mod devices;
mod health;
mod watcher;
mod xid;

use fabricbios_helper::Failure;
use nvml_wrapper::{Nvml, error::NvmlError};

use super::is_absent;
use crate::Libraries;

pub(super) use account::account;
pub(super) use devices::probe;
pub(super) use watcher::watcher;

/// Why NVML cannot be used; for people.
enum NotOpened {
    /// The machine has no NVIDIA device.
    NoDevice(String),
    /// NVML or the driver is faulty.
    Fault(String),
}

impl From<NotOpened> for Failure {
    fn from(why: NotOpened) -> Self {
        let (NotOpened::NoDevice(why) | NotOpened::Fault(why)) = why;
        Self::from(why)
    }
}

/// Loads and initialises NVML. The process has the devices open until it ends or drops the result.
fn open(libraries: &Libraries) -> Result<Nvml, NotOpened> {
    for library in &libraries.nvml {
        let shown = library.display();
        match Nvml::builder().lib_path(library.as_os_str()).init() {
            Ok(nvml) => return Ok(nvml),
            Err(NvmlError::LibloadingError(error)) if is_absent(library, &error.to_string()) => {}
            Err(NvmlError::DriverNotLoaded) => {
                let why = format!("{shown}: NVIDIA's driver is not loaded");
                return Err(NotOpened::NoDevice(why));
            }
            Err(error) => return Err(NotOpened::Fault(format!("{shown}: {error}"))),
        }
    }
    let why = format!(
        "NVML is not installed: there is none of {:?}",
        libraries.nvml
    );
    Err(NotOpened::NoDevice(why))
}
