//! Stand-in of `libcuda.so.1`, the CUDA driver API: no GPU, for tests.
//!
//! It has only the symbols that the project uses, with the shapes of NVIDIA's `cuda.h`. Pointers that name something (a
//! context, a stream, a module, a function) are numbers here. The emulated device is in `stand_in_device`.

mod errors;
mod memory;
mod work;

use std::{
    ffi::{c_int, c_uint},
    fs, process,
};

use stand_in_device::{Attribute, Driver, Out, OutText, Status, Vendor};

/// `CUresult`: 0 is success.
type Code = c_int;
/// `CUdeviceptr`.
type DevicePointer = u64;
/// `CUcontext`, `CUstream`, `CUmodule` and `CUfunction`. They are pointers, which C passes in the same registers as
/// this type.
type Handle = usize;

static DRIVER: Driver = Driver::new(Vendor::Nvidia);

fn code(result: Result<(), Status>) -> Code {
    result.map_or_else(|Status(code)| code, |()| 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> Code {
    code(if flags == 0 {
        DRIVER.init().and_then(|()| can_name_threads())
    } else {
        Err(Status::INVALID_VALUE)
    })
}

/// NVIDIA's library (580.159.04) starts a thread here and writes its name into such a file; if it cannot, the library
/// does not start.
fn can_name_threads() -> Result<(), Status> {
    let file = format!("/proc/self/task/{}/comm", process::id());
    let named = fs::read(&file).and_then(|name| fs::write(file, name));
    named.or(Err(Status::OPERATING_SYSTEM))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> Code {
    code(DRIVER.count().and_then(|it| {
        let visible = c_int::try_from(it).unwrap_or(c_int::MAX);
        Ok(count.put(visible)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> Code {
    code(
        DRIVER
            .identity(ordinal)
            .and_then(|_| Ok(device.put(ordinal)?)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: OutText, length: c_int, device: c_int) -> Code {
    code(DRIVER.identity(device).and_then(|it| {
        let room = usize::try_from(length).unwrap_or(0);
        name.put(&it.name(), room)?;
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) -> Code {
    code(
        DRIVER
            .identity(device)
            .and_then(|it| Ok(uuid.put(it.uuid_bytes())?)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) -> Code {
    let wanted = match attribute {
        16 => Attribute::Multiprocessors,
        39 => Attribute::ResidentThreads,
        _ => return code(Err(Status::INVALID_VALUE)),
    };
    code(
        DRIVER
            .attribute(device, wanted)
            .and_then(|it| Ok(value.put(it)?)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) -> Code {
    code(
        DRIVER
            .retain_primary(device)
            .and_then(|it| Ok(context.put(it)?)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    code(DRIVER.release_primary(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    code(DRIVER.set_current(context))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Code {
    code(DRIVER.synchronize())
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
