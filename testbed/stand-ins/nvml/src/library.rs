//! The library in this process: opened by the first `nvmlInit`.

use std::{
    io,
    sync::{Mutex, PoisonError},
};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM as OPERATING_SYSTEM,
    nvmlReturn_enum_NVML_ERROR_UNINITIALIZED as UNINITIALIZED, nvmlReturn_t,
};
use stand_in_device::{Device, Knob, NullPointer, Vendor};
use std::sync::Arc;

/// A result other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) nvmlReturn_t);

impl From<NullPointer> for Failure {
    fn from(_: NullPointer) -> Self {
        Self(INVALID_ARGUMENT)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        eprintln!("stand-in of NVML: {error}");
        Self(OPERATING_SYSTEM)
    }
}

struct Library {
    /// The number of initialisations without a shutdown.
    users: u32,
    device: Option<Arc<Device>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library {
    users: 0,
    device: None,
});

fn library() -> std::sync::MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn init() -> Result<(), Failure> {
    let mut library = library();
    let device = match library.device.take() {
        Some(device) => device,
        None => Arc::new(Device::open(Vendor::Nvidia)?),
    };
    library.users += 1;
    library.device = Some(Arc::clone(&device));
    drop(library);
    device.knobs().hang(Knob::HangNvml);
    Ok(())
}

pub(crate) fn shutdown() -> Result<(), Failure> {
    device()?;
    let mut library = library();
    library.users = library.users.saturating_sub(1);
    Ok(())
}

/// The device. Every call needs it, so every call hangs while the knob says so.
pub(crate) fn device() -> Result<Arc<Device>, Failure> {
    let library = library();
    let device = library.device.clone().filter(|_| library.users > 0);
    drop(library);
    let device = device.ok_or(Failure(UNINITIALIZED))?;
    device.knobs().hang(Knob::HangNvml);
    Ok(device)
}
