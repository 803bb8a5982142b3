//! Failed calls of a vendor's driver.

use fabricbios_wire::GpuVendor;

/// A call of a vendor's driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The vendor of the driver.
    pub vendor: GpuVendor,
    /// The call, such as `cuMemAlloc_v2`.
    pub call: &'static str,
    /// The vendor's number of the error (`CUresult`, `hipError_t`). 0: the error is not the vendor's.
    pub code: i32,
    /// The vendor's name of the error. Empty if there is none.
    pub name: String,
    /// For people.
    pub text: String,
}

/// Out of memory (`CUDA_ERROR_OUT_OF_MEMORY`, `hipErrorOutOfMemory`).
const OUT_OF_MEMORY: i32 = 2;
/// The module has no such kernel (`CUDA_ERROR_NOT_FOUND`, `hipErrorNotFound`).
const NOT_FOUND: i32 = 500;
/// `CUDA_ERROR_UNKNOWN`. HIP uses the number for refusals too.
const UNKNOWN: i32 = 999;

impl DriverError {
    /// An error that this program detected, not the vendor.
    pub(crate) fn own(vendor: GpuVendor, call: &'static str, text: impl Into<String>) -> Self {
        Self {
            vendor,
            call,
            code: 0,
            name: String::new(),
            text: text.into(),
        }
    }

    /// The device has no memory left.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }

    /// A module has no kernel of this name.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == NOT_FOUND
    }

    /// A kernel ended its context: by an illegal address or instruction, a failed assertion, a time limit, or memory
    /// that it kept.
    #[must_use]
    pub fn is_kernel_fault(&self) -> bool {
        matches!(self.code, 700 | 702 | 710 | 714..=719 | 721)
    }

    /// The context or the device is lost: no later call on this context can succeed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let is_lost = match self.code {
            // The driver is shutting down; the device is unavailable, missing, or needs a reset.
            4 | 46 | 100 | 802 => true,
            // The MPS server has ended this process; a device of another machine has failed.
            810 | 911 => true,
            // The context is invalid or destroyed.
            201 | 709 => true,
            // Memory or link errors that cannot be corrected.
            214 | 220 | 226 => true,
            UNKNOWN => self.vendor == GpuVendor::Nvidia,
            _ => false,
        };
        is_lost || self.is_kernel_fault()
    }
}

impl std::fmt::Display for DriverError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.code {
            0 => write!(f, "{}: {}", self.call, self.text),
            code => write!(f, "{}: {} ({code}): {}", self.call, self.name, self.text),
        }
    }
}

impl std::error::Error for DriverError {}
