//! Handles of the device and its partitions.

use std::sync::Arc;

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED as RESET_REQUIRED,
};
use stand_in_device::{Device, Identity, Knob, Vendor};

use crate::library::{self, Failure};

/// `nvmlDevice_t`. It is a pointer, which C passes in the same register as this type.
pub(crate) type Handle = usize;

/// The handle of the device. Those of its partitions follow.
const WHOLE: Handle = 0x5A_0000;

pub(crate) fn of(identity: &Identity) -> Handle {
    let number = identity.partition.map_or(0, |it| it + 1);
    WHOLE + usize::try_from(number).unwrap_or_default()
}

/// The device or partition of a handle. A device that is gone answers nothing.
pub(crate) fn find(handle: Handle) -> Result<(Arc<Device>, Identity), Failure> {
    let device = library::device()?;
    let number = handle
        .checked_sub(WHOLE)
        .and_then(|it| u32::try_from(it).ok());
    let identity = match number {
        Some(0) => Identity::whole(Vendor::Nvidia),
        Some(number) if number <= device.partitions() => Identity::partition(number - 1),
        _ => return Err(Failure(INVALID_ARGUMENT)),
    };
    present(&device)?;
    Ok((device, identity))
}

/// The same, for calls about the state of the device: a device that needs a reset answers only calls about its
/// identity.
pub(crate) fn working(handle: Handle) -> Result<(Arc<Device>, Identity), Failure> {
    let (device, identity) = find(handle)?;
    if device.knobs().is_set(Knob::ResetRequired) {
        return Err(Failure(RESET_REQUIRED));
    }
    Ok((device, identity))
}

/// The same, for calls that accept no partition.
pub(crate) fn whole(handle: Handle) -> Result<(Arc<Device>, Identity), Failure> {
    find(handle).and_then(|(device, identity)| match identity.partition {
        None => Ok((device, identity)),
        Some(_) => Err(Failure(INVALID_ARGUMENT)),
    })
}

/// Whether the device is still on the bus.
pub(crate) fn present(device: &Device) -> Result<(), Failure> {
    if device.knobs().is_set(Knob::Gone) {
        return Err(Failure(GPU_IS_LOST));
    }
    Ok(())
}
