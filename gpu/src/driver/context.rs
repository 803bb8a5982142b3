//! The context of a device in this process.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_int},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use fabricbios_wire::GpuVendor;

use super::{
    api::{Address, Api, Handle},
    environment,
    error::DriverError,
};
use crate::libraries::Libraries;

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and `…_MAX_THREADS_PER_MULTIPROCESSOR`.
const CUDA_RESIDENT: [c_int; 2] = [16, 39];
/// `hipDeviceAttributeMultiprocessorCount` and `…MaxThreadsPerMultiProcessor`.
const HIP_RESIDENT: [c_int; 2] = [63, 57];

/// Numbers of the contexts of this process.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The number of the context that is current in this thread.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// A context, by which a process uses one device. All threads can use it.
#[derive(Clone, Debug)]
pub struct Context(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    api: Api,
    number: u64,
    device: c_int,
    /// 0 in HIP, which has one context for each device.
    handle: Handle,
    name: String,
    is_released: AtomicBool,
}

/// Memory of a device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free.
    pub free: u64,
    /// All.
    pub total: u64,
}

/// A loaded vendor's library that has not opened a device yet.
#[derive(Debug)]
pub(crate) struct Driver {
    api: Api,
    visible: String,
}

impl Driver {
    /// Loads the library. The same conditions apply to the process as for [`Context::open`].
    ///
    /// # Errors
    /// The library cannot be loaded.
    pub(crate) fn load(
        libraries: &Libraries,
        vendor: GpuVendor,
        visible: &str,
    ) -> Result<Self, DriverError> {
        environment::prepare(vendor, visible);
        Ok(Self {
            api: Api::load(libraries, vendor)?,
            visible: visible.to_owned(),
        })
    }

    /// Opens a context of the device with this UUID. The process may have given up rights after the library was loaded.
    ///
    /// # Errors
    /// As [`Context::open`].
    pub(crate) fn open(self, uuid: &str) -> Result<Context, DriverError> {
        let Self { api, visible } = self;
        // SAFETY: no flags are defined.
        unsafe { api.init(0) }?;
        let device = find_device(&api, &visible, uuid)?;
        let mut handle = 0;
        if api.vendor == GpuVendor::Nvidia {
            // SAFETY: `handle` has room for the result.
            unsafe { api.retain_context(&mut handle, device) }?;
        }
        let context = Context(Arc::new(Inner {
            name: name_of(&api, device)?,
            api,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            device,
            handle,
            is_released: AtomicBool::new(false),
        }));
        // HIP creates its context at the first call that needs one.
        context.memory()?;
        Ok(context)
    }
}

impl Context {
    /// Loads the vendor's library and opens a context of the device with this UUID. `visible` is the value of
    /// `CUDA_VISIBLE_DEVICES` or `ROCR_VISIBLE_DEVICES`.
    ///
    /// The process must have one thread and must not have loaded anything of the vendor's: it is a worker or a helper
    /// process, which uses one device until it ends.
    ///
    /// # Errors
    /// The library cannot be loaded, the device is not visible, or a call of the driver fails.
    pub fn open(
        libraries: &Libraries,
        vendor: GpuVendor,
        visible: &str,
        uuid: &str,
    ) -> Result<Self, DriverError> {
        Driver::load(libraries, vendor, visible)?.open(uuid)
    }

    /// The vendor of the driver.
    #[must_use]
    pub fn vendor(&self) -> GpuVendor {
        self.0.api.vendor
    }

    /// The name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Memory of the device.
    ///
    /// # Errors
    /// The context is lost.
    pub fn memory(&self) -> Result<MemoryInfo, DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both have room for the results.
        unsafe { self.api()?.memory_info(&mut free, &mut total) }?;
        let (free, total) = (free as u64, total as u64);
        Ok(MemoryInfo { free, total })
    }

    /// Threads that the whole device can run at once; 0 if the driver cannot report it.
    pub(crate) fn resident_threads(&self) -> u64 {
        let attributes = match self.vendor() {
            GpuVendor::Nvidia => CUDA_RESIDENT,
            GpuVendor::Amd => HIP_RESIDENT,
        };
        let value = |attribute| {
            let mut value = 0;
            // SAFETY: `value` has room for the result.
            let asked = unsafe {
                self.api()
                    .ok()?
                    .device_attribute(&mut value, attribute, self.0.device)
            };
            asked?.ok()?;
            u64::try_from(value).ok()
        };
        attributes
            .map(|it| value(it).unwrap_or(0))
            .into_iter()
            .product()
    }

    /// Allocates memory; it still has the bytes of its previous owner. Returns its address on the device.
    ///
    /// # Errors
    /// The device has no memory left, or the context is lost.
    pub fn allocate(&self, bytes: u64) -> Result<Address, DriverError> {
        let mut address = 0;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: `address` has room for the result.
        unsafe { self.api()?.allocate(&mut address, bytes) }?;
        Ok(address)
    }

    /// Frees memory. The bytes are not overwritten.
    ///
    /// # Errors
    /// Nothing is allocated at this address, or the context is lost.
    pub fn free(&self, address: Address) -> Result<(), DriverError> {
        // SAFETY: the driver looks the address up; memory of the host is not touched.
        unsafe { self.api()?.free(address) }
    }

    /// Waits for all work of the context.
    ///
    /// # Errors
    /// A kernel failed, or the context is lost.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the call has no arguments.
        unsafe { self.api()?.synchronize() }
    }

    /// Ends the context. Later calls fail. Without this call the context ends with the process.
    ///
    /// # Errors
    /// The context is lost.
    pub fn release(&self) -> Result<(), DriverError> {
        let api = self.api()?;
        if self.0.is_released.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match api.vendor {
            // SAFETY: `open` has retained it once.
            GpuVendor::Nvidia => unsafe { api.release_context(self.0.device) },
            // SAFETY: the call has no arguments.
            GpuVendor::Amd => unsafe { api.reset_device() },
        }
    }

    /// The driver's calls. Makes the context current in the calling thread.
    pub(super) fn api(&self) -> Result<&Api, DriverError> {
        let inner = &*self.0;
        if inner.is_released.load(Ordering::Acquire) {
            let text = "the context was released";
            return Err(DriverError::own(inner.api.vendor, "context", text));
        }
        if CURRENT.get() != inner.number {
            match inner.api.vendor {
                // SAFETY: the context lives until it is released.
                GpuVendor::Nvidia => unsafe { inner.api.set_context(inner.handle) }?,
                // SAFETY: the driver has returned this number.
                GpuVendor::Amd => unsafe { inner.api.set_device(inner.device) }?,
            }
            CURRENT.set(inner.number);
        }
        Ok(&inner.api)
    }
}

/// The visible device with this UUID.
fn find_device(api: &Api, visible: &str, uuid: &str) -> Result<c_int, DriverError> {
    let mut count = 0;
    // SAFETY: `count` has room for the result.
    unsafe { api.device_count(&mut count) }?;
    let mut found = Vec::new();
    for ordinal in 0..count {
        let mut device = 0;
        // SAFETY: `device` has room for the result.
        unsafe { api.device(&mut device, ordinal) }?;
        let mut bytes = [0; 16];
        // SAFETY: `bytes` has room for the result.
        let asked = unsafe { api.device_uuid(&mut bytes, device) };
        asked.transpose()?;
        match text_of(api.vendor, &bytes) {
            Some(text) if !is_same(&text, uuid) => found.push(text),
            None if count > 1 => found.push("a device without a UUID".into()),
            // A device without a UUID is the right device if no other device is visible.
            _ => return Ok(device),
        }
    }
    let text = format!(
        "no visible device is {uuid}; visible with {visible:?}: {}",
        if found.is_empty() {
            "none".into()
        } else {
            found.join(", ")
        }
    );
    Err(DriverError::own(api.vendor, "find device", text))
}

/// The digits of a UUID. AMD's UUIDs are text; a device without a UUID has another text, or zeroes.
fn text_of(vendor: GpuVendor, bytes: &[u8; 16]) -> Option<String> {
    let digits: String = match vendor {
        GpuVendor::Nvidia => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        GpuVendor::Amd => String::from_utf8_lossy(bytes).into_owned(),
    };
    let is_number = digits.bytes().all(|it| it.is_ascii_hexdigit());
    (is_number && digits.bytes().any(|it| it != b'0')).then_some(digits)
}

/// True if `digits` are the digits of `uuid`, which has a prefix for the kind of device, and hyphens.
fn is_same(digits: &str, uuid: &str) -> bool {
    let (_, rest) = uuid.split_once('-').unwrap_or(("", uuid));
    rest.replace('-', "")
        .eq_ignore_ascii_case(&digits.replace('-', ""))
}

fn name_of(api: &Api, device: c_int) -> Result<String, DriverError> {
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the driver writes at most 255 bytes, so the last one stays zero.
    unsafe { api.device_name(name.as_mut_ptr(), 255, device) }?;
    // SAFETY: the last byte is zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Ok(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_compared_by_their_digits() {
        let uuid = "GPU-57a4d1f1-0000-4000-8000-00000000000A";
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[0x57, 0xa4, 0xd1, 0xf1]);
        (bytes[6], bytes[8], bytes[15]) = (0x40, 0x80, 10);
        let digits = text_of(GpuVendor::Nvidia, &bytes).unwrap();
        assert!(is_same(&digits, uuid));
        assert!(is_same(&digits, &uuid.replace("GPU", "MIG")));
        bytes[15] = 11;
        assert!(!is_same(&text_of(GpuVendor::Nvidia, &bytes).unwrap(), uuid));
        let amd = text_of(GpuVendor::Amd, b"57a4d1f1b0000002").unwrap();
        assert!(is_same(&amd, "GPU-57a4d1f1b0000002"));
        assert!(!is_same(&amd, "GPU-57a4d1f1b0000003"));
        assert_eq!(text_of(GpuVendor::Amd, &[0; 16]), None);
    }
}
