//! Discovery by NVML.

use std::{ffi::c_uint, path::PathBuf, process::Command};

use fabricbios_wire::GpuVendor;
use nvml_wrapper::{
    Device as Handle, Nvml,
    error::{NvmlError, nvml_sym, nvml_try},
    struct_wrappers::device::MemoryInfo,
};
use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::{NotOpened, health, open};
use crate::{
    Device, Libraries, Node, WHOLE_SLICES,
    management::{Probed, Roots, nodes::nodes},
};

/// Finds all devices and their partitions.
pub(in crate::management) fn probe(libraries: &Libraries, roots: &Roots, probed: &mut Probed) {
    let nvml = match open(libraries) {
        Ok(nvml) => nvml,
        Err(NotOpened::NoDevice(why)) => return probed.notes.push(why),
        Err(NotOpened::Fault(why)) => {
            let warning = format!("NVIDIA's devices cannot be looked for: {why}");
            return probed.warnings.push(warning);
        }
    };
    let count = match nvml.device_count() {
        Ok(0) => return probed.notes.push("NVML finds no device".into()),
        Ok(count) => count,
        Err(error) => {
            let warning = format!("NVML cannot count its devices: {error}");
            return probed.warnings.push(warning);
        }
    };
    let mut search = Search {
        nvml: &nvml,
        roots,
        probed,
    };
    for index in 0..count {
        let found = nvml
            .device_by_index(index)
            .and_then(|handle| Ok((handle.uuid()?, handle)));
        match found {
            Ok((uuid, handle)) => search.add(uuid, &handle),
            Err(error) => search.warn(&format!("device {index} of NVML"), "is left out", error),
        }
    }
}

struct Search<'a> {
    nvml: &'a Nvml,
    roots: &'a Roots,
    probed: &'a mut Probed,
}

impl Search<'_> {
    fn warn(&mut self, of: &str, what: &str, why: impl std::fmt::Display) {
        self.probed.warnings.push(format!("{of}: {what}: {why}"));
    }

    /// A value that a device may lack.
    fn keep<T>(&mut self, of: &str, what: &str, value: Result<T, NvmlError>) -> Option<T> {
        match value {
            Ok(value) => Some(value),
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => None,
            Err(error) => {
                self.warn(of, &format!("NVML does not tell its {what}"), error);
                None
            }
        }
    }

    fn add(&mut self, uuid: String, handle: &Handle<'_>) {
        let name = self.keep(&uuid, "name", handle.name());
        let pci = self
            .keep(&uuid, "PCI address", handle.pci_info())
            .map(|it| {
                let function = it.bus_id.rsplit_once('.').map_or("0", |(_, it)| it);
                format!(
                    "{:04x}:{:02x}:{:02x}.{function}",
                    it.domain, it.bus, it.device
                )
            });
        let memory = self.keep(&uuid, "memory", handle.memory_info());
        let cores = self.keep(&uuid, "cores", handle.num_cores());
        let minor = self.keep(&uuid, "device node", handle.minor_number());
        let mig = self.keep(&uuid, "MIG mode", handle.mig_mode());
        let device = Device {
            visible: uuid.clone(),
            uuid,
            vendor: GpuVendor::Nvidia,
            name: name.unwrap_or_else(|| "NVIDIA GPU".into()),
            pci,
            vram_bytes: memory.map_or(0, |it| usable(&it)),
            compute_units: cores.unwrap_or(0),
            compute_slices: WHOLE_SLICES,
            partition_of: None,
            has_partitions: mig.is_some_and(|it| it.current == 1),
            nodes: Vec::new(),
            health: health::of(self.nvml, handle),
        };
        let nodes = self.nodes(&device, minor);
        let device = Device { nodes, ..device };
        self.probed.devices.push(device.clone());
        if device.has_partitions {
            self.add_partitions(&device, handle, minor);
        }
    }

    /// The nodes of the device. If they are missing, the vendor's program makes them; the driver runs this program too.
    fn nodes(&mut self, device: &Device, minor: Option<u32>) -> Vec<Node> {
        let Some(minor) = minor else {
            return Vec::new();
        };
        let names = [
            format!("nvidia{minor}"),
            "nvidiactl".into(),
            "nvidia-uvm".into(),
        ];
        let paths = names.map(|name| {
            let is_shared = name != format!("nvidia{minor}");
            (self.roots.dev.join(name), is_shared)
        });
        if nodes(&paths).is_err() {
            let minor = minor.to_string();
            // With -u, the 0 is the minor number of nvidia-uvm; its node is replaced. Nodes that are missing after this
            // cause a warning.
            for arguments in [&["-c", &minor][..], &["-u", "-c", "0"]] {
                let mut make = Command::new("nvidia-modprobe");
                make.args(arguments).output().ok();
            }
        }
        self.existing(device, &paths)
    }

    fn existing(&mut self, device: &Device, paths: &[(PathBuf, bool)]) -> Vec<Node> {
        nodes(paths).unwrap_or_else(|why| {
            let what = "programs on this machine cannot use it (nvidia-modprobe -c MINOR makes the nodes of a device, nvidia-modprobe -u -c 0 those of nvidia-uvm)";
            self.warn(&device.uuid, what, why);
            Vec::new()
        })
    }

    fn add_partitions(&mut self, device: &Device, handle: &Handle<'_>, minor: Option<u32>) {
        let most = self.keep(&device.uuid, "partitions", handle.mig_device_count());
        for index in 0..most.unwrap_or(0) {
            let found = handle
                .mig_device_by_index(index)
                .and_then(|partition| Ok((partition.uuid()?, partition)));
            match found {
                Ok((uuid, partition)) => {
                    self.add_partition(device, handle, uuid, &partition, minor);
                }
                // The device has fewer partitions than the maximum.
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
                Err(error) => {
                    let what = format!("partition {index} is left out");
                    self.warn(&device.uuid, &what, error);
                }
            }
        }
    }

    fn add_partition(
        &mut self,
        device: &Device,
        whole: &Handle<'_>,
        uuid: String,
        handle: &Handle<'_>,
        minor: Option<u32>,
    ) {
        let name = self.keep(&uuid, "name", handle.name());
        let memory = self.keep(&uuid, "memory", handle.memory_info());
        let attributes = self.keep(&uuid, "attributes", handle.attributes());
        let slices = attributes
            .as_ref()
            .map_or(0, |it| it.compute_instance_slice_count);
        let multiprocessors = attributes.as_ref().map_or(0, |it| it.multiprocessor_count);
        let partition = Device {
            visible: uuid.clone(),
            uuid,
            vendor: GpuVendor::Nvidia,
            name: name.unwrap_or_else(|| device.name.clone()),
            pci: device.pci.clone(),
            vram_bytes: match memory {
                Some(memory) => usable(&memory),
                None => attributes.map_or(0, |it| it.memory_size_mb << 20),
            },
            compute_units: multiprocessors.saturating_mul(cores_each(whole)),
            compute_slices: u16::try_from(slices).unwrap_or(WHOLE_SLICES).max(1),
            partition_of: Some(device.uuid.clone()),
            has_partitions: false,
            nodes: Vec::new(),
            health: health::of(self.nvml, handle),
        };
        let capabilities = self.capabilities(&partition, handle, minor);
        // Other partitions use the nodes of the device too.
        let of_device = device.nodes.iter().map(|it| Node {
            is_shared: true,
            ..it.clone()
        });
        let nodes = if device.nodes.is_empty() || capabilities.is_empty() {
            Vec::new()
        } else {
            of_device.chain(capabilities).collect()
        };
        self.probed.devices.push(Device { nodes, ..partition });
    }

    /// The nodes of a partition's GPU instance and compute instance: without both a program cannot use the partition.
    fn capabilities(
        &mut self,
        partition: &Device,
        handle: &Handle<'_>,
        minor: Option<u32>,
    ) -> Vec<Node> {
        let Some(minor) = minor else {
            return Vec::new();
        };
        let (gpu, compute) = (self.gpu_instance(handle), self.compute_instance(handle));
        let gpu = self.keep(&partition.uuid, "GPU instance", gpu);
        let compute = self.keep(&partition.uuid, "compute instance", compute);
        let (Some(gpu), Some(compute)) = (gpu, compute) else {
            return Vec::new();
        };
        let of_gpu = format!("driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu}");
        let mut paths = Vec::new();
        for file in [
            format!("{of_gpu}/access"),
            format!("{of_gpu}/ci{compute}/access"),
        ] {
            match self.roots.proc.read(&file) {
                Ok(text) => match capability_minor(&text) {
                    Some(number) => {
                        let name = format!("nvidia-caps/nvidia-cap{number}");
                        paths.push((self.roots.dev.join(name), false));
                    }
                    None => self.warn(&partition.uuid, "no DeviceFileMinor in", file),
                },
                Err(error) => self.warn(&partition.uuid, "only root can use it", error),
            }
        }
        // Programs need the nodes of both instances.
        if paths.len() < 2 {
            return Vec::new();
        }
        self.existing(partition, &paths)
    }

    fn gpu_instance(&self, handle: &Handle<'_>) -> Result<u32, NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
        // SAFETY: the handle is of this library, and the variable has room for the result.
        number(|to| unsafe { call(handle.handle(), to) })
    }

    fn compute_instance(&self, handle: &Handle<'_>) -> Result<u32, NvmlError> {
        let call = nvml_sym(self.nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
        // SAFETY: the handle is of this library, and the variable has room for the result.
        number(|to| unsafe { call(handle.handle(), to) })
    }
}

fn number(call: impl FnOnce(*mut c_uint) -> nvmlReturn_t) -> Result<u32, NvmlError> {
    let mut number = 0;
    nvml_try(call(&raw mut number))?;
    Ok(number)
}

/// Cores of a streaming multiprocessor: 64 in A100 and A30, 128 in all other divisible devices.
fn cores_each(whole: &Handle<'_>) -> u32 {
    match whole.cuda_compute_capability() {
        Ok(capability) if (capability.major, capability.minor) == (8, 0) => 64,
        _ => 128,
    }
}

/// The part of a device's memory that programs can have. The driver keeps the rest.
fn usable(memory: &MemoryInfo) -> u64 {
    memory.total.saturating_sub(memory.reserved)
}

/// The minor number in a file of `/proc/driver/nvidia/capabilities`.
fn capability_minor(text: &str) -> Option<u32> {
    let value = |line: &str| line.strip_prefix("DeviceFileMinor:")?.trim().parse().ok();
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_of_a_capability_is_in_its_file() {
        let text = "DeviceFileMinor: 21\nDeviceFileMode: 256\nDeviceFileModify: 1";
        assert_eq!(capability_minor(text), Some(21));
        assert_eq!(capability_minor("DeviceFileMode: 256"), None);
        assert_eq!(capability_minor("DeviceFileMinor: many"), None);
    }
}
