//! Names and texts of the results.

use std::ffi::{CStr, c_int};

/// Name and text of a result that the stand-in returns.
pub(crate) fn of(error: c_int) -> (&'static CStr, &'static CStr) {
    match error {
        0 => (c"hipSuccess", c"no error"),
        1 => (c"hipErrorInvalidValue", c"invalid argument"),
        2 => (c"hipErrorOutOfMemory", c"out of memory"),
        3 => (c"hipErrorNotInitialized", c"initialization error"),
        100 => (c"hipErrorNoDevice", c"no ROCm-capable device is detected"),
        101 => (c"hipErrorInvalidDevice", c"invalid device ordinal"),
        200 => (c"hipErrorInvalidImage", c"device kernel image is invalid"),
        201 => (c"hipErrorInvalidContext", c"invalid device context"),
        218 => (c"hipErrorInvalidKernelFile", c"invalid kernel file"),
        304 => (
            c"hipErrorOperatingSystem",
            c"the stand-in's state directory cannot be used",
        ),
        400 => (c"hipErrorInvalidHandle", c"invalid resource handle"),
        500 => (c"hipErrorNotFound", c"named symbol not found"),
        700 => (
            c"hipErrorIllegalAddress",
            c"an illegal memory access was encountered",
        ),
        712 => (
            c"hipErrorHostMemoryAlreadyRegistered",
            c"the memory is pinned already",
        ),
        713 => (
            c"hipErrorHostMemoryNotRegistered",
            c"the memory is not pinned",
        ),
        _ => (c"hipErrorUnknown", c"unknown error"),
    }
}
