//! Loaded modules.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::driver::{Context, DriverError, Image, Kernel, Module};

/// A module that seems to take more device memory than this, in bytes, is measured again: other sessions may have taken
/// memory meanwhile.
const MEASURED_ONCE_BYTES: u64 = 32 << 20;
const MEASUREMENTS: usize = 3;

/// A loaded module, and the kernels that were looked up.
#[derive(Debug)]
pub(super) struct Loaded {
    module: Arc<Module>,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
    /// Bytes of the image that the client sent.
    pub(super) image_bytes: u64,
    /// Bytes of device memory that the module takes.
    pub(super) device_bytes: u64,
}

impl Loaded {
    /// The kernel of this name.
    pub(super) fn kernel(&self, name: &str) -> Result<Arc<Kernel>, DriverError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name) {
            return Ok(Arc::clone(kernel));
        }
        let kernel = Arc::new(self.module.kernel(name)?);
        kernels.insert(name.to_owned(), Arc::clone(&kernel));
        Ok(kernel)
    }
}

/// Loads a module, and measures its device memory: its variables are memory of the lease too. The driver only reports
/// the free memory, and other sessions of the device change that. So a large difference is measured again, and the
/// smallest counts.
pub(super) fn load(context: &Context, bytes: Vec<u8>) -> Result<Loaded, DriverError> {
    let image_bytes = bytes.len() as u64;
    let image = Image::of(bytes);
    let mut device_bytes = u64::MAX;
    let mut round = 0;
    let module = loop {
        let before = context.memory()?.free;
        let module = Module::load(context, &image)?;
        let taken = before.saturating_sub(context.memory()?.free);
        device_bytes = device_bytes.min(taken);
        round += 1;
        if device_bytes <= MEASURED_ONCE_BYTES || round == MEASUREMENTS {
            break module;
        }
    };
    Ok(Loaded {
        module: Arc::new(module),
        kernels: Mutex::default(),
        image_bytes,
        device_bytes,
    })
}
