//! Modules and their kernels.

use std::{
    ffi::{CString, c_void},
    sync::Arc,
};

use fabricbios_wire::GpuVendor;

use super::{api::Handle, context::Context, error::DriverError};

/// Drivers find the end of an image by reading it, so this many zeroes follow the image.
const PADDING_BYTES: usize = 64 << 10;
/// The longest log of the compiler.
const LOG_BYTES: usize = 8 << 10;
/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const LOG_OPTIONS: [u32; 2] = [5, 6];
/// No kernel has more parameters.
const PARAMETERS_MAX: usize = 32 << 10;
/// `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES` and `HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
const LOCAL_SIZE: i32 = 3;
/// The error for a parameter that a kernel does not have (`CUDA_ERROR_INVALID_VALUE`).
const INVALID_VALUE: i32 = 1;

/// The bytes of a module, with zeroes behind them.
#[derive(Debug)]
pub struct Image(Vec<u8>);

impl Image {
    /// The image of these bytes, with the zeroes appended.
    #[must_use]
    pub fn of(mut bytes: Vec<u8>) -> Self {
        bytes.resize(bytes.len() + PADDING_BYTES, 0);
        Self(bytes)
    }
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    context: Context,
    handle: Handle,
}

/// A kernel. Its module stays loaded while the kernel exists.
#[derive(Debug)]
pub struct Kernel {
    _module: Arc<Module>,
    handle: Handle,
    /// Bytes of each parameter, if the driver can report them.
    pub(crate) parameters: Option<Vec<usize>>,
    /// Bytes of each thread's local variables in the device's memory; 0 if the driver cannot report it.
    pub(crate) local_bytes: u64,
}

impl Module {
    /// Loads an image. Drivers compile PTX in this call, which can take seconds.
    ///
    /// # Errors
    /// The driver rejects the image, or the context is lost.
    pub fn load(context: &Context, image: &Image) -> Result<Self, DriverError> {
        let image: *const c_void = image.0.as_ptr().cast();
        let mut log = vec![0_u8; LOG_BYTES];
        let mut options = LOG_OPTIONS;
        // The size is passed as a pointer; the last byte stays zero.
        let mut values = [
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(LOG_BYTES - 1),
        ];
        let mut handle = 0;
        let api = context.api()?;
        // SAFETY: zeroes follow the image, and the options are a buffer and its size.
        let loaded = unsafe {
            api.load_module_with(
                &mut handle,
                image,
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        // SAFETY: zeroes follow the image.
        let loaded = loaded.unwrap_or_else(|| unsafe { api.load_module(&mut handle, image) });
        loaded.map_err(|error| explained(error, &log))?;
        Ok(Self {
            context: context.clone(),
            handle,
        })
    }

    /// Finds a kernel.
    ///
    /// # Errors
    /// The module has no such kernel, or the context is lost.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel, DriverError> {
        let vendor = self.context.vendor();
        let name = CString::new(name)
            .map_err(|error| DriverError::own(vendor, "find kernel", error.to_string()))?;
        let api = self.context.api()?;
        let mut handle = 0;
        // SAFETY: the module is loaded, and the name ends with a zero.
        unsafe { api.function(&mut handle, self.handle, name.as_ptr()) }?;
        let mut parameters = Some(Vec::new());
        while let Some(sizes) = parameters.as_mut().filter(|it| it.len() < PARAMETERS_MAX) {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the kernel is of a loaded module, and both have room for the results.
            let asked = unsafe { api.parameter(handle, sizes.len(), &mut offset, &mut bytes) };
            match asked {
                Some(Ok(())) => sizes.push(bytes),
                Some(Err(error)) if error.code == INVALID_VALUE => break,
                Some(Err(error)) if error.is_lost() => return Err(error),
                Some(Err(_)) | None => parameters = None,
            }
        }
        let mut local = 0;
        // SAFETY: the kernel is of a loaded module, and `local` has room for the result.
        let asked = unsafe { api.function_attribute(&mut local, LOCAL_SIZE, handle) };
        let is_told = matches!(asked, Some(Ok(())));
        Ok(Kernel {
            _module: Arc::clone(self),
            handle,
            parameters,
            local_bytes: u64::try_from(local).ok().filter(|_| is_told).unwrap_or(0),
        })
    }
}

impl Kernel {
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }
}

impl Drop for Module {
    /// If the context is lost or released, the module ends with the process.
    fn drop(&mut self) {
        if let Ok(api) = self.context.api() {
            // SAFETY: the module is loaded, and no kernel of it exists any more.
            unsafe { api.unload_module(self.handle) }.ok();
        }
    }
}

/// Adds the messages of the compiler.
fn explained(mut error: DriverError, log: &[u8]) -> DriverError {
    let log = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let log = String::from_utf8_lossy(log);
    let lines: Vec<&str> = log
        .lines()
        .map(str::trim)
        .filter(|it| !it.is_empty())
        .collect();
    if !lines.is_empty() && error.vendor == GpuVendor::Nvidia {
        error.text = format!("{}: {}", error.text, lines.join("; "));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_compiler_says_is_in_the_error() {
        let error = DriverError::own(GpuVendor::Nvidia, "cuModuleLoadDataEx", "a PTX error");
        let told = explained(
            error.clone(),
            b"ptxas, line 3; error\n\n ptxas fatal \n\0rest",
        );
        assert_eq!(told.text, "a PTX error: ptxas, line 3; error; ptxas fatal");
        assert_eq!(explained(error.clone(), &[0; 8]), error);
    }
}
