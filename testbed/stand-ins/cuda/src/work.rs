//! Streams, modules and launches.

use std::ffi::{c_int, c_uint, c_void};

use stand_in_device::{Grid, HostMemory, Out, Status, Text, Words};

use crate::{Code, DRIVER, Handle, code};

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: Out<Handle>, _flags: c_uint) -> Code {
    code(DRIVER.create_stream().and_then(|it| Ok(stream.put(it)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    code(DRIVER.destroy_stream(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    code(DRIVER.synchronize_stream(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(module: Out<Handle>, image: HostMemory) -> Code {
    code(DRIVER.load_module(image).and_then(|it| Ok(module.put(it)?)))
}

/// Ignores the options: they are for a compiler, which the stand-in does not have.
#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: Out<Handle>,
    image: HostMemory,
    _count: c_uint,
    _options: *mut c_uint,
    _values: *mut *mut c_void,
) -> Code {
    cuModuleLoadData(module, image)
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> Code {
    code(DRIVER.unload_module(module))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) -> Code {
    let name = name.get().map_err(Status::from);
    let found = name.and_then(|name| DRIVER.function(module, &name));
    code(found.and_then(|it| Ok(function.put(it)?)))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Handle) -> Code {
    code(DRIVER.entry(function).and_then(|entry| {
        let threads: u32 = entry.block.map_or(1024, |block| block.iter().product());
        let found = match attribute {
            0 => c_int::try_from(threads).unwrap_or(c_int::MAX),
            // Shared and constant bytes: the stand-in has none.
            1 | 2 => 0,
            3 => c_int::try_from(entry.local_bytes).unwrap_or(c_int::MAX),
            // Registers; PTX and binary version, times ten.
            4 => 32,
            5 => 70,
            6 => 90,
            _ => return Err(Status::INVALID_VALUE),
        };
        Ok(value.put(found)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetParamInfo(
    function: Handle,
    index: usize,
    offset: Out<usize>,
    bytes: Out<usize>,
) -> Code {
    code(DRIVER.entry(function).and_then(|entry| {
        let found = entry.parameters.get(index).ok_or(Status::INVALID_VALUE)?;
        offset.put(found.offset)?;
        // The caller may want only the offset.
        if !bytes.is_null() {
            bytes.put(found.size)?;
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
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
    code(DRIVER.launch(function, grid, stream, &parameters))
}
