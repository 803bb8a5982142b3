//! Partitions of a device (MIG).

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDeviceAttributes_t, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};
use stand_in_device::{Identity, Out, Vendor};

use crate::{
    calls::code,
    handle::{self, Handle},
    library::Failure,
};

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(
    device: Handle,
    current: Out<c_uint>,
    pending: Out<c_uint>,
) -> nvmlReturn_t {
    code(handle::whole(device).and_then(|(device, _)| {
        let mode = c_uint::from(device.partitions() > 0);
        current.put(mode)?;
        Ok(pending.put(mode)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<c_uint>) -> nvmlReturn_t {
    code(handle::whole(device).and_then(|_| Ok(count.put(Identity::PARTITIONS_MAX)?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: Handle,
    index: c_uint,
    partition: Out<Handle>,
) -> nvmlReturn_t {
    code(handle::whole(device).and_then(|(device, _)| {
        if index >= device.partitions() {
            return Err(Failure(NOT_FOUND));
        }
        Ok(partition.put(handle::of(&Identity::partition(index)))?)
    }))
}

/// The partition of a handle.
fn partition(handle: Handle) -> Result<c_uint, Failure> {
    let (_, identity) = handle::find(handle)?;
    identity.partition.ok_or(Failure(INVALID_ARGUMENT))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    of: Handle,
    device: Out<Handle>,
) -> nvmlReturn_t {
    let whole = handle::of(&Identity::whole(Vendor::Nvidia));
    code(partition(of).and_then(|_| Ok(device.put(whole)?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig: Out<c_uint>) -> nvmlReturn_t {
    code(handle::find(device).and_then(|(_, identity)| {
        let is_partition = identity.partition.is_some();
        Ok(is_mig.put(c_uint::from(is_partition))?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceId(device: Handle, id: Out<c_uint>) -> nvmlReturn_t {
    code(partition(device).and_then(|it| Ok(id.put(it)?)))
}

/// Each partition has one compute instance.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeInstanceId(device: Handle, id: Out<c_uint>) -> nvmlReturn_t {
    code(partition(device).and_then(|_| Ok(id.put(0)?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetAttributes_v2(
    device: Handle,
    attributes: Out<nvmlDeviceAttributes_t>,
) -> nvmlReturn_t {
    code(handle::working(device).and_then(|(device, identity)| {
        if identity.partition.is_none() {
            return Err(Failure(NOT_SUPPORTED));
        }
        let slices = device.slices(&identity);
        Ok(attributes.put(nvmlDeviceAttributes_t {
            multiprocessorCount: slices * Identity::MULTIPROCESSORS_OF_A_SLICE,
            sharedCopyEngineCount: 1,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: slices,
            computeInstanceSliceCount: slices,
            memorySizeMB: device.usage(&identity)?.total >> 20,
        })?)
    }))
}
