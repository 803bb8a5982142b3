//! Stand-in of `libamdhip64.so.6`, the HIP run-time library: no GPU, for tests.
//!
//! It has only the symbols that the project uses, with the shapes of AMD's `hip_runtime_api.h`. Pointers that name
//! something (a stream, a module, a function) are numbers here. As in HIP, the first call initialises the library, and
//! each device has one context, made when it is needed. The emulated device is in `stand_in_device`.

mod errors;

use std::{
    cell::Cell,
    ffi::{c_char, c_int, c_uchar, c_uint, c_void},
};

use stand_in_device::{
    Attribute, Driver, Grid, HostMemory, Out, OutText, Status, Text, Vendor, Words,
};

/// `hipError_t`: 0 is success.
type Code = c_int;
/// `hipDeviceptr_t` and `void *` to device memory. They are pointers, which C passes in the same registers as this
/// type.
type DevicePointer = u64;
/// `hipStream_t`, `hipModule_t` and `hipFunction_t`: as above.
type Handle = usize;

/// `hipErrorUnknown`.
const UNKNOWN: Code = 999;

static DRIVER: Driver = Driver::new(Vendor::Amd);

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

/// The result code. HIP has no codes for a device that is gone or needs a reset.
fn code(result: Result<(), Status>) -> Code {
    match result {
        Ok(()) => 0,
        Err(Status::DEVICE_UNAVAILABLE) => Status::NO_DEVICE.0,
        Err(status) if status.is_cudas_own() => UNKNOWN,
        Err(Status(code)) => code,
    }
}

/// Initialises the library and makes the context of the thread's device current.
fn ready() -> Result<(), Status> {
    DRIVER.init()?;
    let context = DRIVER.primary(DEVICE.get())?;
    DRIVER.set_current(context)
}

#[unsafe(no_mangle)]
extern "C" fn hipInit(flags: c_uint) -> Code {
    code(if flags == 0 {
        DRIVER.init()
    } else {
        Err(Status::INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGetDeviceCount(count: Out<c_int>) -> Code {
    let visible = DRIVER.init().and_then(|()| DRIVER.count());
    let visible = visible.map(|it| c_int::try_from(it).unwrap_or(c_int::MAX));
    let told = count.put(visible.unwrap_or(0)).map_err(Status::from);
    code(visible.map(drop).and(told))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGet(device: Out<c_int>, ordinal: c_int) -> Code {
    let found = DRIVER.init().and_then(|()| DRIVER.identity(ordinal));
    code(found.and_then(|_| Ok(device.put(ordinal)?)))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetName(name: OutText, length: c_int, device: c_int) -> Code {
    let found = DRIVER.init().and_then(|()| DRIVER.identity(device));
    code(found.and_then(|it| {
        name.put(&it.name(), usize::try_from(length).unwrap_or(0))?;
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) -> Code {
    let found = DRIVER.init().and_then(|()| DRIVER.identity(device));
    code(found.and_then(|it| Ok(uuid.put(it.uuid_bytes())?)))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetPCIBusId(id: OutText, length: c_int, device: c_int) -> Code {
    let found = DRIVER.init().and_then(|()| DRIVER.identity(device));
    code(found.and_then(|it| {
        let (domain, bus, device) = it.pci();
        let text = format!("{domain:04x}:{bus:02x}:{device:02x}.0");
        let fits = id.put(&text, usize::try_from(length).unwrap_or(0))?;
        fits.then_some(()).ok_or(Status::INVALID_VALUE)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceTotalMem(bytes: Out<usize>, device: c_int) -> Code {
    let found = DRIVER.init().and_then(|()| DRIVER.memory(device));
    code(found.and_then(|it| Ok(bytes.put(size(it.total))?)))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) -> Code {
    let wanted = match attribute {
        57 => Attribute::ResidentThreads,
        63 => Attribute::Multiprocessors,
        _ => return code(Err(Status::INVALID_VALUE)),
    };
    let found = DRIVER
        .init()
        .and_then(|()| DRIVER.attribute(device, wanted));
    code(found.and_then(|it| Ok(value.put(it)?)))
}

#[unsafe(no_mangle)]
extern "C" fn hipSetDevice(device: c_int) -> Code {
    let found = DRIVER.init().and_then(|()| DRIVER.identity(device));
    code(found.map(|_| DEVICE.set(device)))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceReset() -> Code {
    let ready = DRIVER.init();
    code(ready.and_then(|()| DRIVER.reset_primary(DEVICE.get())))
}

#[unsafe(no_mangle)]
extern "C" fn hipDeviceSynchronize() -> Code {
    code(ready().and_then(|()| DRIVER.synchronize()))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemGetInfo(free: Out<usize>, total: Out<usize>) -> Code {
    code(ready().and_then(|()| DRIVER.usage()).and_then(|it| {
        free.put(size(it.free))?;
        Ok(total.put(size(it.total))?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn hipMalloc(address: Out<DevicePointer>, bytes: usize) -> Code {
    // As in HIP, an allocation of 0 bytes has address null.
    let allocated = ready().and_then(|()| match bytes {
        0 => Ok(0),
        _ => DRIVER.allocate(bytes),
    });
    code(allocated.and_then(|it| Ok(address.put(it)?)))
}

#[unsafe(no_mangle)]
extern "C" fn hipFree(address: DevicePointer) -> Code {
    code(ready().and_then(|()| match address {
        0 => Ok(()),
        _ => DRIVER.free(address),
    }))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemsetD8Async(
    to: DevicePointer,
    byte: c_uchar,
    length: usize,
    stream: Handle,
) -> Code {
    code(ready().and_then(|()| DRIVER.fill(stream, to, byte, length)))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyHtoDAsync(
    to: DevicePointer,
    from: HostMemory,
    length: usize,
    stream: Handle,
) -> Code {
    code(ready().and_then(|()| DRIVER.copy_in(stream, to, from, length)))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyDtoHAsync(
    to: HostMemory,
    from: DevicePointer,
    length: usize,
    stream: Handle,
) -> Code {
    code(ready().and_then(|()| DRIVER.copy_out(stream, to, from, length)))
}

#[unsafe(no_mangle)]
extern "C" fn hipHostMalloc(memory: Out<HostMemory>, bytes: usize, _flags: c_uint) -> Code {
    let allocated = ready().and_then(|()| DRIVER.allocate_host(bytes));
    code(allocated.and_then(|it| Ok(memory.put(it)?)))
}

#[unsafe(no_mangle)]
extern "C" fn hipHostFree(memory: HostMemory) -> Code {
    code(ready().and_then(|()| DRIVER.free_host(memory)))
}

#[unsafe(no_mangle)]
extern "C" fn hipHostRegister(memory: HostMemory, bytes: usize, _flags: c_uint) -> Code {
    code(ready().and_then(|()| DRIVER.pin(memory, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn hipHostUnregister(memory: HostMemory) -> Code {
    code(ready().and_then(|()| DRIVER.unpin(memory)))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreateWithFlags(stream: Out<Handle>, _flags: c_uint) -> Code {
    let made = ready().and_then(|()| DRIVER.create_stream());
    code(made.and_then(|it| Ok(stream.put(it)?)))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamDestroy(stream: Handle) -> Code {
    code(ready().and_then(|()| DRIVER.destroy_stream(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamSynchronize(stream: Handle) -> Code {
    code(ready().and_then(|()| DRIVER.synchronize_stream(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleLoadData(module: Out<Handle>, image: HostMemory) -> Code {
    let loaded = ready().and_then(|()| DRIVER.load_module(image));
    code(loaded.and_then(|it| Ok(module.put(it)?)))
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleUnload(module: Handle) -> Code {
    code(ready().and_then(|()| DRIVER.unload_module(module)))
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) -> Code {
    let name = ready().and_then(|()| Ok(name.get()?));
    let found = name.and_then(|name| DRIVER.function(module, &name));
    code(found.and_then(|it| Ok(function.put(it)?)))
}

#[unsafe(no_mangle)]
extern "C" fn hipFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Handle) -> Code {
    code(DRIVER.entry(function).and_then(|entry| match attribute {
        3 => Ok(value.put(c_int::try_from(entry.local_bytes).unwrap_or(c_int::MAX))?),
        _ => Err(Status::INVALID_VALUE),
    }))
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleLaunchKernel(
    function: Handle,
    blocks_x: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Handle,
    parameters: Words,
    _extra: *mut *mut c_void,
) -> Code {
    let grid = Grid {
        blocks: [blocks_x, blocks_y, blocks_z],
        block: [block_x, block_y, block_z],
        shared,
    };
    let launch = |()| DRIVER.launch(function, grid, stream, &parameters);
    code(ready().and_then(launch))
}

#[unsafe(no_mangle)]
extern "C" fn hipGetErrorName(error: Code) -> *const c_char {
    errors::of(error).0.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(error: Code) -> *const c_char {
    errors::of(error).1.as_ptr()
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
