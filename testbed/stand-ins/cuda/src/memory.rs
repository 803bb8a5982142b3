//! Memory of the device and pinned memory of the host.

use std::ffi::{c_uchar, c_uint};

use stand_in_device::{HostMemory, Out};

use crate::{Code, DRIVER, DevicePointer, Handle, code, size};

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Code {
    code(DRIVER.usage().and_then(|it| {
        free.put(size(it.free))?;
        Ok(total.put(size(it.total))?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: Out<DevicePointer>, bytes: usize) -> Code {
    code(DRIVER.allocate(bytes).and_then(|it| Ok(address.put(it)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: DevicePointer) -> Code {
    code(DRIVER.free(address))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(
    to: DevicePointer,
    byte: c_uchar,
    length: usize,
    stream: Handle,
) -> Code {
    code(DRIVER.fill(stream, to, byte, length))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(
    to: DevicePointer,
    from: HostMemory,
    length: usize,
    stream: Handle,
) -> Code {
    code(DRIVER.copy_in(stream, to, from, length))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(
    to: HostMemory,
    from: DevicePointer,
    length: usize,
    stream: Handle,
) -> Code {
    code(DRIVER.copy_out(stream, to, from, length))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(memory: Out<HostMemory>, bytes: usize, _flags: c_uint) -> Code {
    code(
        DRIVER
            .allocate_host(bytes)
            .and_then(|it| Ok(memory.put(it)?)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(memory: HostMemory) -> Code {
    code(DRIVER.free_host(memory))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(memory: HostMemory, bytes: usize, _flags: c_uint) -> Code {
    code(DRIVER.pin(memory, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(memory: HostMemory) -> Code {
    code(DRIVER.unpin(memory))
}
