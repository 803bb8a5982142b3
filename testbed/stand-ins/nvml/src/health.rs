//! The health of a device.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlEccCounterType_t, nvmlEnableState_enum_NVML_FEATURE_DISABLED, nvmlEnableState_t,
    nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvmlMemoryErrorType_t,
    nvmlReturn_t,
};
use stand_in_device::{Knob, Out};

use crate::{
    calls::code,
    handle::{self, Handle},
};

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: Handle,
    kind: nvmlMemoryErrorType_t,
    _counter: nvmlEccCounterType_t,
    count: Out<c_ulonglong>,
) -> nvmlReturn_t {
    code(handle::working(device).and_then(|(device, _)| {
        let is_uncorrected = kind == nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED;
        Ok(count.put(match is_uncorrected {
            true => device.knobs().number(Knob::Ecc),
            false => 0,
        })?)
    }))
}

/// Reports no rows: the stand-in remaps nothing.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRemappedRows(
    device: Handle,
    corrected: Out<c_uint>,
    uncorrected: Out<c_uint>,
    is_pending: Out<c_uint>,
    has_failed: Out<c_uint>,
) -> nvmlReturn_t {
    code(handle::working(device).and_then(|_| {
        let all = [corrected, uncorrected, is_pending, has_failed];
        Ok(all.iter().try_for_each(|it| it.put(0))?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRetiredPagesPendingStatus(
    device: Handle,
    is_pending: Out<nvmlEnableState_t>,
) -> nvmlReturn_t {
    let none = nvmlEnableState_enum_NVML_FEATURE_DISABLED;
    code(handle::working(device).and_then(|_| Ok(is_pending.put(none)?)))
}
