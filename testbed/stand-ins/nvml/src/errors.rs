//! Texts of the results.

use std::ffi::{CStr, c_char};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    text(result).as_ptr()
}

fn text(result: nvmlReturn_t) -> &'static CStr {
    match result {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        10 => c"Timeout",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"The stand-in's state directory cannot be used",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    }
}
