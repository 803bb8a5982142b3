//! The few HIP calls of discovery.

use std::{
    ffi::{CStr, FromBytesUntilNulError, OsStr, c_char, c_int},
    path::Path,
};

use libloading::Library;

/// `hipErrorNoDevice`.
const NO_DEVICE: c_int = 100;
/// `hipDeviceAttributeMultiprocessorCount`, since ROCm 4.5.
const MULTIPROCESSORS: c_int = 63;

type Call<A> = unsafe extern "C" fn(*mut A, c_int) -> c_int;
type TextCall = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;

/// The loaded library. It is never unloaded, because its own threads run until the process ends.
pub(super) struct Hip {
    count: unsafe extern "C" fn(*mut c_int) -> c_int,
    device: Call<c_int>,
    name: TextCall,
    pci: TextCall,
    memory: Call<usize>,
    attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
    /// `hipDeviceGetUuid`, since ROCm 5.2.
    uuid: Option<Call<[u8; 16]>>,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// A visible device.
#[derive(Clone, Copy)]
pub(super) struct Ordinal(c_int);

/// Why HIP does not tell something.
#[derive(Debug, thiserror::Error)]
pub(super) enum HipError {
    /// The machine: the library cannot be loaded, or lacks a call.
    #[error(transparent)]
    Library(#[from] libloading::Error),
    /// The driver: a call failed.
    #[error("{call}: {text} ({code})")]
    Call {
        call: &'static str,
        code: c_int,
        text: String,
    },
    /// The driver: a call failed with a number that the library does not know.
    #[error("{call}: error {code}")]
    Unknown { call: &'static str, code: c_int },
    /// The driver: a text has no end.
    #[error("{call}: {error}")]
    Text {
        call: &'static str,
        error: FromBytesUntilNulError,
    },
}

impl Hip {
    /// Loads the library.
    ///
    /// # Errors
    /// It cannot be loaded, or lacks a call.
    pub(super) fn load(path: &Path) -> Result<Self, HipError> {
        // SAFETY: it is the vendor's library, which may run code when it is loaded.
        let library = unsafe { Library::new::<&OsStr>(path.as_os_str()) };
        let library = Box::leak(Box::new(library?));
        // SAFETY: the vendor's header declares the calls with these arguments.
        unsafe {
            Ok(Self {
                count: find(library, "hipGetDeviceCount")?,
                device: find(library, "hipDeviceGet")?,
                name: find(library, "hipDeviceGetName")?,
                pci: find(library, "hipDeviceGetPCIBusId")?,
                memory: find(library, "hipDeviceTotalMem")?,
                attribute: find(library, "hipDeviceGetAttribute")?,
                uuid: find(library, "hipDeviceGetUuid").ok(),
                error: find(library, "hipGetErrorString")?,
            })
        }
    }

    /// The visible devices. `None`: HIP reports that there is none.
    ///
    /// # Errors
    /// They cannot be counted.
    pub(super) fn devices(&self) -> Result<Option<Vec<Ordinal>>, HipError> {
        let mut count = 0;
        // SAFETY: `count` has room for the result. This call initialises HIP too; on a machine without devices hipInit
        // would return "invalid device".
        match unsafe { (self.count)(&raw mut count) } {
            NO_DEVICE => Ok(None),
            code => {
                self.checked("hipGetDeviceCount", code)?;
                Ok((count > 0).then(|| (0..count).map(Ordinal).collect()))
            }
        }
    }

    /// The name of the model.
    pub(super) fn name(&self, ordinal: Ordinal) -> Result<String, HipError> {
        self.text("hipDeviceGetName", self.name, ordinal)
    }

    /// The PCI address, such as `0000:03:00.0`.
    pub(super) fn pci(&self, ordinal: Ordinal) -> Result<String, HipError> {
        let text = self.text("hipDeviceGetPCIBusId", self.pci, ordinal)?;
        Ok(text.to_ascii_lowercase())
    }

    /// All memory, bytes.
    pub(super) fn memory(&self, ordinal: Ordinal) -> Result<u64, HipError> {
        let bytes = self.value("hipDeviceTotalMem", self.memory, ordinal)?;
        Ok(bytes as u64)
    }

    /// Compute units, or pairs of units on devices that use them in pairs.
    pub(super) fn compute_units(&self, ordinal: Ordinal) -> Result<u32, HipError> {
        let (mut count, device) = (0, self.device(ordinal)?);
        // SAFETY: `count` has room for the result.
        let code = unsafe { (self.attribute)(&raw mut count, MULTIPROCESSORS, device) };
        self.checked("hipDeviceGetAttribute", code)?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The UUID in the form of `ROCR_VISIBLE_DEVICES`. `None`: the device has none.
    pub(super) fn uuid(&self, ordinal: Ordinal) -> Result<Option<String>, HipError> {
        match self.uuid {
            Some(call) => Ok(uuid_of(&self.value("hipDeviceGetUuid", call, ordinal)?)),
            None => Ok(None),
        }
    }

    fn device(&self, Ordinal(ordinal): Ordinal) -> Result<c_int, HipError> {
        let mut device = 0;
        // SAFETY: `device` has room for the result.
        let code = unsafe { (self.device)(&raw mut device, ordinal) };
        self.checked("hipDeviceGet", code)?;
        Ok(device)
    }

    fn value<A: Default>(
        &self,
        name: &'static str,
        call: Call<A>,
        ordinal: Ordinal,
    ) -> Result<A, HipError> {
        let (mut value, device) = (A::default(), self.device(ordinal)?);
        // SAFETY: `value` has room for the result.
        let code = unsafe { call(&raw mut value, device) };
        self.checked(name, code)?;
        Ok(value)
    }

    fn text(
        &self,
        name: &'static str,
        call: TextCall,
        ordinal: Ordinal,
    ) -> Result<String, HipError> {
        let (mut text, device) = ([0_u8; 256], self.device(ordinal)?);
        // SAFETY: the call writes at most 255 bytes, so the last one stays zero.
        let code = unsafe { call(text.as_mut_ptr().cast(), 255, device) };
        self.checked(name, code)?;
        let text = CStr::from_bytes_until_nul(&text)
            .map_err(|error| HipError::Text { call: name, error })?;
        Ok(text.to_string_lossy().into_owned())
    }

    fn checked(&self, call: &'static str, code: c_int) -> Result<(), HipError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the call accepts any number.
        let text = unsafe { (self.error)(code) };
        if text.is_null() {
            return Err(HipError::Unknown { call, code });
        }
        // SAFETY: the library returns its own text, which ends with a zero.
        let text = unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned();
        Err(HipError::Call { call, code, text })
    }
}

/// A symbol of the library.
///
/// # Safety
/// The symbol is a function of the type `F`.
unsafe fn find<F: Copy>(library: &Library, name: &str) -> Result<F, libloading::Error> {
    // SAFETY: the caller guarantees the type.
    Ok(*unsafe { library.get::<F>(name.as_bytes()) }?)
}

/// HIP returns 16 hexadecimal digits as text; for a device without its own number, zeroes or `XX`.
fn uuid_of(bytes: &[u8; 16]) -> Option<String> {
    let is_number = bytes.iter().all(u8::is_ascii_hexdigit) && bytes.iter().any(|it| *it != b'0');
    is_number.then(|| format!("GPU-{}", String::from_utf8_lossy(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_sixteen_digits() {
        let uuid = uuid_of(b"57a4d1f1b0000002");
        assert_eq!(uuid.as_deref(), Some("GPU-57a4d1f1b0000002"));
        for none in [
            *b"0000000000000000",
            [0; 16],
            *b"XX\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ] {
            assert_eq!(uuid_of(&none), None, "{none:?}");
        }
    }
}
