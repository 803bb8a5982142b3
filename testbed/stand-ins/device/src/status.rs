//! The results of the driver's calls.

use crate::NullPointer;

/// A result other than success. CUDA and HIP have the same numbers for all of them except the two that
/// [`Status::is_cudas_own`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub i32);

impl Status {
    /// An argument that the call does not accept.
    pub const INVALID_VALUE: Self = Self(1);
    /// The device has no room left.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// A call before the initialisation.
    pub const NOT_INITIALIZED: Self = Self(3);
    /// The device is gone.
    pub const DEVICE_UNAVAILABLE: Self = Self(46);
    /// There is no device, or none of those that the environment makes visible.
    pub const NO_DEVICE: Self = Self(100);
    /// There is no device with this number.
    pub const INVALID_DEVICE: Self = Self(101);
    /// The bytes are no module.
    pub const INVALID_IMAGE: Self = Self(200);
    /// No context is current, or it belongs to another process or is destroyed.
    pub const INVALID_CONTEXT: Self = Self(201);
    /// The text is no PTX.
    pub const INVALID_PTX: Self = Self(218);
    /// The state directory cannot be used.
    pub const OPERATING_SYSTEM: Self = Self(304);
    /// The stream, module or function does not belong to this process.
    pub const INVALID_HANDLE: Self = Self(400);
    /// The module has no such kernel.
    pub const NOT_FOUND: Self = Self(500);
    /// A kernel has accessed memory outside the allocations of its context. The context is lost.
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    /// The host memory is pinned already.
    pub const ALREADY_REGISTERED: Self = Self(712);
    /// The host memory is not pinned.
    pub const NOT_REGISTERED: Self = Self(713);
    /// The device needs a reset.
    pub const SYSTEM_NOT_READY: Self = Self(802);

    /// Whether HIP lacks this result.
    #[must_use]
    pub fn is_cudas_own(self) -> bool {
        self == Self::DEVICE_UNAVAILABLE || self == Self::SYSTEM_NOT_READY
    }
}

impl From<NullPointer> for Status {
    fn from(_: NullPointer) -> Self {
        Self::INVALID_VALUE
    }
}
