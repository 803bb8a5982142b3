//! The table of the drivers' calls.

use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void},
    path::PathBuf,
    ptr,
};

use fabricbios_wire::GpuVendor;
use libloading::Library;

use super::error::DriverError;
use crate::libraries::Libraries;

/// `CUcontext`, `CUstream`, `CUmodule`, `CUfunction` and those of HIP: pointers that only the driver follows.
pub(super) type Handle = usize;
/// `CUdeviceptr` and device pointers of HIP.
pub(super) type Address = u64;

/// One line for each call: its arguments, and its names in CUDA's driver API and in HIP. An empty name: that driver has
/// no such call, and this program never makes it there. `optional` calls may be missing in older drivers.
macro_rules! calls {
    (needed { $($(#[$doc:meta])* $field:ident($($arg:ident: $type:ty),*) = $cuda:literal, $hip:literal;)* }
     optional { $($(#[$odoc:meta])* $ofield:ident($($oarg:ident: $otype:ty),*) = $ocuda:literal, $ohip:literal;)* }) => {
        struct Table {
            $($field: Option<unsafe extern "C" fn($($type),*) -> c_int>,)*
            $($ofield: Option<unsafe extern "C" fn($($otype),*) -> c_int>,)*
        }

        impl Table {
            fn of(vendor: GpuVendor, library: &Library) -> Result<Self, DriverError> {
                Ok(Self {
                    // SAFETY: the vendor's header declares the call with these arguments.
                    $($field: unsafe { find(vendor, library, named(vendor, $cuda, $hip), true) }?,)*
                    // SAFETY: as above.
                    $($ofield: unsafe { find(vendor, library, named(vendor, $ocuda, $ohip), false) }?,)*
                })
            }
        }

        impl Api {
            $($(#[$doc])*
            ///
            /// # Safety
            /// The arguments are as the vendor's header asks.
            #[allow(clippy::too_many_arguments, reason = "the vendors have chosen the shape")]
            pub(super) unsafe fn $field(&self, $($arg: $type),*) -> Result<(), DriverError> {
                let name = named(self.vendor, $cuda, $hip);
                let Some(call) = self.table.$field else { return Err(self.missing(name)) };
                // SAFETY: the caller guarantees it.
                self.checked(name, unsafe { call($($arg),*) })
            })*
            $($(#[$odoc])*
            ///
            /// `None`: the driver has no such call.
            ///
            /// # Safety
            /// The arguments are as the vendor's header asks.
            pub(super) unsafe fn $ofield(&self, $($oarg: $otype),*) -> Option<Result<(), DriverError>> {
                let name = named(self.vendor, $ocuda, $ohip);
                let call = self.table.$ofield?;
                // SAFETY: the caller guarantees it.
                Some(self.checked(name, unsafe { call($($oarg),*) }))
            })*
        }
    };
}

calls! {
    needed {
    /// Initialises the driver.
    init(flags: c_uint) = "cuInit", "hipInit";
    /// Counts the visible devices.
    device_count(count: *mut c_int) = "cuDeviceGetCount", "hipGetDeviceCount";
    /// The handle of a visible device.
    device(device: *mut c_int, ordinal: c_int) = "cuDeviceGet", "hipDeviceGet";
    /// The name of a device.
    device_name(name: *mut c_char, room: c_int, device: c_int) = "cuDeviceGetName", "hipDeviceGetName";
    /// Retains the device's primary context (CUDA).
    retain_context(context: *mut Handle, device: c_int) = "cuDevicePrimaryCtxRetain", "";
    /// Releases the device's primary context (CUDA).
    release_context(device: c_int) = "cuDevicePrimaryCtxRelease_v2", "";
    /// Makes a context current for the calling thread (CUDA).
    set_context(context: Handle) = "cuCtxSetCurrent", "";
    /// Makes a device current for the calling thread (HIP).
    set_device(device: c_int) = "", "hipSetDevice";
    /// Ends the context of the calling thread's current device (HIP).
    reset_device() = "", "hipDeviceReset";
    /// Waits for all work of the context.
    synchronize() = "cuCtxSynchronize", "hipDeviceSynchronize";
    /// Free memory and all memory of the device, bytes.
    memory_info(free: *mut usize, total: *mut usize) = "cuMemGetInfo_v2", "hipMemGetInfo";
    /// Allocates memory.
    allocate(address: *mut Address, bytes: usize) = "cuMemAlloc_v2", "hipMalloc";
    /// Frees memory.
    free(address: Address) = "cuMemFree_v2", "hipFree";
    /// Fills memory with a byte.
    fill(to: Address, value: u8, bytes: usize, stream: Handle) = "cuMemsetD8Async", "hipMemsetD8Async";
    /// Copies to the device.
    copy_to(to: Address, from: *const c_void, bytes: usize, stream: Handle)
        = "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync";
    /// Copies from the device.
    copy_from(to: *mut c_void, from: Address, bytes: usize, stream: Handle)
        = "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync";
    /// Allocates pinned memory of the host.
    allocate_host(memory: *mut *mut c_void, bytes: usize, flags: c_uint) = "cuMemHostAlloc", "hipHostMalloc";
    /// Frees pinned memory of the host.
    free_host(memory: *mut c_void) = "cuMemFreeHost", "hipHostFree";
    /// Pins memory of the host.
    register_host(memory: *mut c_void, bytes: usize, flags: c_uint) = "cuMemHostRegister_v2", "hipHostRegister";
    /// Unpins memory of the host.
    unregister_host(memory: *mut c_void) = "cuMemHostUnregister", "hipHostUnregister";
    /// Makes a stream.
    create_stream(stream: *mut Handle, flags: c_uint) = "cuStreamCreate", "hipStreamCreateWithFlags";
    /// Destroys a stream.
    destroy_stream(stream: Handle) = "cuStreamDestroy_v2", "hipStreamDestroy";
    /// Waits for all work of a stream.
    synchronize_stream(stream: Handle) = "cuStreamSynchronize", "hipStreamSynchronize";
    /// Loads a module.
    load_module(module: *mut Handle, image: *const c_void) = "cuModuleLoadData", "hipModuleLoadData";
    /// Unloads a module.
    unload_module(module: Handle) = "cuModuleUnload", "hipModuleUnload";
    /// Finds a kernel in a module.
    function(function: *mut Handle, module: Handle, name: *const c_char) = "cuModuleGetFunction", "hipModuleGetFunction";
    /// Queues a kernel.
    launch(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared_bytes: c_uint,
        stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void)
        = "cuLaunchKernel", "hipModuleLaunchKernel";
    }

    optional {
    /// The 16 bytes of a device's UUID.
    device_uuid(uuid: *mut [u8; 16], device: c_int) = "cuDeviceGetUuid_v2", "hipDeviceGetUuid";
    /// Offset and size of a kernel's parameter (CUDA 12.4).
    parameter(function: Handle, index: usize, offset: *mut usize, bytes: *mut usize) = "cuFuncGetParamInfo", "";
    /// An attribute of a kernel.
    function_attribute(value: *mut c_int, attribute: c_int, function: Handle) = "cuFuncGetAttribute", "hipFuncGetAttribute";
    /// An attribute of a device.
    device_attribute(value: *mut c_int, attribute: c_int, device: c_int) = "cuDeviceGetAttribute", "hipDeviceGetAttribute";
    /// Sets an attribute of a kernel.
    set_attribute(function: Handle, attribute: c_int, value: c_int) = "cuFuncSetAttribute", "";
    /// Loads a module, with options for the compiler.
    load_module_with(module: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_uint, values: *mut *mut c_void)
        = "cuModuleLoadDataEx", "";
    }
}

/// The loaded driver of a vendor.
pub(super) struct Api {
    pub(super) vendor: GpuVendor,
    table: Table,
    name: ErrorText,
    text: ErrorText,
}

/// A call that returns the name or the text of an error. Its shape differs between the two drivers.
enum ErrorText {
    Cuda(unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int),
    Hip(unsafe extern "C" fn(c_int) -> *const c_char),
}

impl Api {
    /// Loads the library. The library is never unloaded, because its own threads run until the process ends.
    pub(super) fn load(libraries: &Libraries, vendor: GpuVendor) -> Result<Self, DriverError> {
        let (paths, feature, is_compiled) = match vendor {
            GpuVendor::Nvidia => (&libraries.cuda, "gpu-cuda", cfg!(feature = "gpu-cuda")),
            GpuVendor::Amd => (&libraries.hip, "gpu-hip", cfg!(feature = "gpu-hip")),
        };
        if !is_compiled {
            let text = format!("this program was built without the feature {feature}");
            return Err(DriverError::own(vendor, "dlopen", text));
        }
        let library = open(vendor, paths)?;
        let table = Table::of(vendor, &library)?;
        let [name, text] = [
            ("cuGetErrorName", "hipGetErrorName"),
            ("cuGetErrorString", "hipGetErrorString"),
        ]
        .map(|(cuda, hip)| ErrorText::of(vendor, &library, named(vendor, cuda, hip)));
        let (name, text) = (name?, text?);
        std::mem::forget(library);
        Ok(Self {
            vendor,
            table,
            name,
            text,
        })
    }

    fn missing(&self, call: &'static str) -> DriverError {
        DriverError::own(self.vendor, call, "this driver has no such call")
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), DriverError> {
        if code == 0 {
            return Ok(());
        }
        let [name, text] = [&self.name, &self.text].map(|it| it.of_code(code));
        Err(DriverError {
            vendor: self.vendor,
            call,
            code,
            name: name.unwrap_or_else(|| "error".into()),
            text: text.unwrap_or_else(|| "the driver has no text for it".into()),
        })
    }
}

impl ErrorText {
    fn of(vendor: GpuVendor, library: &Library, name: &'static str) -> Result<Self, DriverError> {
        let found = match vendor {
            // SAFETY: the vendor's header declares the call with this shape.
            GpuVendor::Nvidia => unsafe { find(vendor, library, name, true) }?.map(Self::Cuda),
            // SAFETY: as above.
            GpuVendor::Amd => unsafe { find(vendor, library, name, true) }?.map(Self::Hip),
        };
        found.ok_or_else(|| DriverError::own(vendor, name, "the vendor's library has no such call"))
    }

    fn of_code(&self, code: c_int) -> Option<String> {
        let mut text = ptr::null();
        match self {
            // SAFETY: the call accepts any number.
            Self::Hip(call) => text = unsafe { call(code) },
            // SAFETY: `text` has room for the pointer. If the number is unknown, `text` stays null.
            Self::Cuda(call) => drop(unsafe { call(code, &mut text) }),
        }
        if text.is_null() {
            return None;
        }
        // SAFETY: the driver's texts are constants that end with a zero.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    }
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Api").field(&self.vendor).finish()
    }
}

fn named(vendor: GpuVendor, cuda: &'static str, hip: &'static str) -> &'static str {
    match vendor {
        GpuVendor::Nvidia => cuda,
        GpuVendor::Amd => hip,
    }
}

fn open(vendor: GpuVendor, paths: &[PathBuf]) -> Result<Library, DriverError> {
    let mut failures = Vec::new();
    for path in paths {
        // SAFETY: the operator names the vendor's library, which may run code when it is loaded.
        match unsafe { Library::new::<&OsStr>(path.as_os_str()) } {
            Ok(library) => return Ok(library),
            Err(error) => failures.push(error.to_string()),
        }
    }
    let text = format!(
        "the vendor's library cannot be loaded: {}",
        failures.join("; ")
    );
    Err(DriverError::own(vendor, "dlopen", text))
}

/// A symbol of the library; `None` for an empty name.
///
/// # Safety
/// The symbol is a function of the type `F`.
unsafe fn find<F: Copy>(
    vendor: GpuVendor,
    library: &Library,
    name: &'static str,
    is_needed: bool,
) -> Result<Option<F>, DriverError> {
    if name.is_empty() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees the type.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(symbol) => Ok(Some(*symbol)),
        Err(error) if is_needed => {
            let text = format!("the vendor's library is too old or another one: {error}");
            Err(DriverError::own(vendor, name, text))
        }
        Err(_) => Ok(None),
    }
}
