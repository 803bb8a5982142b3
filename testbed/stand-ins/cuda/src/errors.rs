//! Names and texts of the results.

use std::ffi::{CStr, c_char, c_int};

use stand_in_device::{Out, Status};

use crate::{Code, code};

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: Code, name: Out<*const c_char>) -> Code {
    said(name, of(error).map(|it| it.0.as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: Code, text: Out<*const c_char>) -> Code {
    said(text, of(error).map(|it| it.1.as_ptr()))
}

/// A result that does not exist has no text.
fn said(to: Out<*const c_char>, text: Option<*const c_char>) -> Code {
    let put = to.put(text.unwrap_or_default());
    code(
        put.map_err(Status::from)
            .and(text.map(drop).ok_or(Status::INVALID_VALUE)),
    )
}

/// Name and text of a result that the stand-in returns.
fn of(error: c_int) -> Option<(&'static CStr, &'static CStr)> {
    Some(match error {
        0 => (c"CUDA_SUCCESS", c"no error"),
        1 => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        2 => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        3 => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        46 => (
            c"CUDA_ERROR_DEVICE_UNAVAILABLE",
            c"the stand-in of a device has fallen off the bus",
        ),
        100 => (
            c"CUDA_ERROR_NO_DEVICE",
            c"no CUDA-capable device is detected",
        ),
        101 => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        200 => (
            c"CUDA_ERROR_INVALID_IMAGE",
            c"device kernel image is invalid",
        ),
        201 => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        218 => (
            c"CUDA_ERROR_INVALID_PTX",
            c"a PTX text has no version, target or entry",
        ),
        304 => (
            c"CUDA_ERROR_OPERATING_SYSTEM",
            c"the stand-in cannot use its state directory, or cannot name a thread",
        ),
        400 => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        500 => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        700 => (
            c"CUDA_ERROR_ILLEGAL_ADDRESS",
            c"an illegal memory access was encountered",
        ),
        712 => (
            c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
            c"the memory is pinned already",
        ),
        713 => (
            c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
            c"the memory is not pinned",
        ),
        802 => (
            c"CUDA_ERROR_SYSTEM_NOT_READY",
            c"the stand-in of a device needs a reset",
        ),
        _ => return None,
    })
}
