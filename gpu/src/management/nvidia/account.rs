//! Memory and processes of a device.

use fabricbios_helper::Failure;
use nvml_wrapper::{
    Device as Handle,
    enums::device::UsedGpuMemory,
    error::NvmlError,
    struct_wrappers::device::{MemoryInfo, ProcessInfo},
};

use super::{health, open};
use crate::{
    Device, Health, Libraries,
    management::{Accounted, Process, Roots},
};

/// The account of a device or partition. For a device that no longer works, its health has the reason, instead of an
/// error.
pub(in crate::management) fn account(
    libraries: &Libraries,
    _roots: &Roots,
    device: &Device,
) -> Result<Accounted, Failure> {
    let nvml = open(libraries)?;
    let asked = nvml.device_by_uuid(&*device.uuid).and_then(|handle| {
        let memory = handle.memory_info()?;
        let processes = processes(&handle)?;
        Ok((handle, memory, processes))
    });
    match asked {
        Ok((handle, MemoryInfo { free, total, .. }, processes)) => Ok(Accounted {
            free_bytes: free,
            total_bytes: total,
            processes: Accounted::processes(processes),
            health: health::of(&nvml, &handle),
        }),
        Err(error) => match health::of_error(&error) {
            Some(failed @ Health::Failed(_)) => Ok(Accounted::unknown(failed)),
            _ => Err(Failure::from(format!("{}: NVML: {error}", device.uuid))),
        },
    }
}

fn processes(handle: &Handle<'_>) -> Result<Vec<Process>, NvmlError> {
    let mut all = handle.running_compute_processes()?;
    // Partitions have no graphics.
    match handle.running_graphics_processes() {
        Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
        listed => all.extend(listed?),
    }
    let process = |it: ProcessInfo| Process {
        pid: it.pid,
        bytes: match it.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => bytes,
            UsedGpuMemory::Unavailable => 0,
        },
    };
    Ok(all.into_iter().map(process).collect())
}
