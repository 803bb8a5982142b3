//! The library, its devices, and the processes that use them.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlReturn_t,
};
use stand_in_device::{Identity, Knob, Out, OutText, Process, Text, Usage, Vendor};

use crate::{
    handle::{self, Handle},
    library::{self, Failure},
};

/// The value in place of a partition if there is none.
pub(crate) const NOT_OF_A_PARTITION: c_uint = c_uint::MAX;

/// Cores in a multiprocessor.
const CORES: c_uint = 128;
/// The device's node would be `/dev/nvidia240`, which no machine has.
const MINOR: c_uint = 240;
/// `NVML_STRUCT_VERSION(Memory, 2)`: the size and the version.
const MEMORY_V2: usize = size_of::<nvmlMemory_v2_t>() | 2 << 24;

pub(crate) fn code(result: Result<(), Failure>) -> nvmlReturn_t {
    result.map_or_else(|Failure(code)| code, |()| 0)
}

fn put_text(to: &OutText, text: &str, room: c_uint) -> Result<(), Failure> {
    let fits = to.put(text, usize::try_from(room).unwrap_or(0))?;
    fits.then_some(()).ok_or(Failure(INSUFFICIENT_SIZE))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    code(library::init())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    code(library::shutdown())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> nvmlReturn_t {
    code(library::device().and_then(|device| {
        let is_present = Vendor::Nvidia.is_present(device.knobs());
        Ok(count.put(c_uint::from(is_present))?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>) -> nvmlReturn_t {
    code(library::device().and_then(|found| {
        if index != 0 || !Vendor::Nvidia.is_present(found.knobs()) {
            return Err(Failure(INVALID_ARGUMENT));
        }
        handle::present(&found)?;
        Ok(device.put(handle::of(&Identity::whole(Vendor::Nvidia)))?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) -> nvmlReturn_t {
    code(library::device().and_then(|found| {
        let wanted = uuid.get()?;
        if !Vendor::Nvidia.is_present(found.knobs()) {
            return Err(Failure(NOT_FOUND));
        }
        handle::present(&found)?;
        let partitions = (0..found.partitions()).map(Identity::partition);
        let mut all = std::iter::once(Identity::whole(Vendor::Nvidia)).chain(partitions);
        let identity = all.find(|it| it.uuid() == wanted);
        let identity = identity.ok_or(Failure(NOT_FOUND))?;
        Ok(device.put(handle::of(&identity))?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: Handle, uuid: OutText, length: c_uint) -> nvmlReturn_t {
    code(handle::find(device).and_then(|(_, it)| put_text(&uuid, &it.uuid(), length)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: Handle, name: OutText, length: c_uint) -> nvmlReturn_t {
    code(handle::find(device).and_then(|(_, it)| put_text(&name, &it.name(), length)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: Handle, pci: Out<nvmlPciInfo_t>) -> nvmlReturn_t {
    code(handle::whole(device).and_then(|(_, identity)| {
        let (domain, bus, device) = identity.pci();
        Ok(pci.put(nvmlPciInfo_t {
            busIdLegacy: characters(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
            domain,
            bus,
            device,
            // An id that no maker has.
            pciDeviceId: u32::MAX,
            pciSubSystemId: u32::MAX,
            busId: characters(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
        })?)
    }))
}

fn characters<const LENGTH: usize>(text: &str) -> [std::ffi::c_char; LENGTH] {
    let mut characters = [0; LENGTH];
    for (to, byte) in characters.iter_mut().zip(text.bytes().take(LENGTH - 1)) {
        *to = std::ffi::c_char::from_ne_bytes([byte]);
    }
    characters
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: Handle, minor: Out<c_uint>) -> nvmlReturn_t {
    code(handle::whole(device).and_then(|_| Ok(minor.put(MINOR)?)))
}

fn usage(device: Handle) -> Result<Usage, Failure> {
    let (device, identity) = handle::working(device)?;
    Ok(device.usage(&identity)?)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: Handle,
    memory: Out<nvmlMemory_v2_t>,
) -> nvmlReturn_t {
    code(usage(device).and_then(|Usage { total, free }| {
        let reserved = library::device()?.knobs().number(Knob::Reserved);
        let version = memory.get()?.version;
        if usize::try_from(version) != Ok(MEMORY_V2) {
            return Err(Failure(VERSION_MISMATCH));
        }
        Ok(memory.put(nvmlMemory_v2_t {
            version,
            total: total + reserved,
            reserved,
            free,
            used: total - free,
        })?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNumGpuCores(device: Handle, cores: Out<c_uint>) -> nvmlReturn_t {
    code(handle::whole(device).and_then(|(device, identity)| {
        let multiprocessors = device.slices(&identity) * Identity::MULTIPROCESSORS_OF_A_SLICE;
        Ok(cores.put(multiprocessors * CORES)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Handle,
    count: Out<c_uint>,
    infos: Out<nvmlProcessInfo_t>,
) -> nvmlReturn_t {
    code(handle::working(device).and_then(|(device, identity)| {
        put_processes(&device.processes(&identity)?, &count, &infos)
    }))
}

/// Lists no process: the stand-in draws nothing.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Handle,
    count: Out<c_uint>,
    infos: Out<nvmlProcessInfo_t>,
) -> nvmlReturn_t {
    code(handle::working(device).and_then(|_| put_processes(&[], &count, &infos)))
}

/// The caller passes the number of entries that it has room for, and receives the number of processes.
fn put_processes(
    processes: &[Process],
    count: &Out<c_uint>,
    infos: &Out<nvmlProcessInfo_t>,
) -> Result<(), Failure> {
    let room = usize::try_from(count.get()?).unwrap_or(usize::MAX);
    count.put(c_uint::try_from(processes.len()).unwrap_or(c_uint::MAX))?;
    if processes.is_empty() {
        return Ok(());
    }
    if processes.len() > room {
        return Err(Failure(INSUFFICIENT_SIZE));
    }
    let each = processes.iter().map(|it| nvmlProcessInfo_t {
        pid: it.pid,
        usedGpuMemory: it.bytes,
        gpuInstanceId: it.partition.unwrap_or(NOT_OF_A_PARTITION),
        computeInstanceId: it.partition.map_or(NOT_OF_A_PARTITION, |_| 0),
    });
    Ok(infos.put_all(&each.collect::<Vec<_>>())?)
}
