//! Reads /sys/class/kfd, the files of KFD, the kernel's driver for computing on AMD's devices.

use std::str::FromStr;

use fabricbios_kernfs::Tree;

use crate::management::Process;

const NODES: &str = "class/kfd/kfd/topology/nodes";
const PROCESSES: &str = "class/kfd/kfd/proc";

/// Stream processors of a compute unit.
pub(super) const STREAM_PROCESSORS: u32 = 64;

/// A device, or a part of one, in KFD's topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KfdNode {
    gpu_id: u32,
    /// Its stream processors; 0 if unknown.
    pub(super) stream_processors: u32,
}

/// The nodes of the device at this PCI address. A device that is divided into parts has several.
pub(super) fn nodes(sys: &Tree, pci: &str) -> Vec<KfdNode> {
    let Some(place) = place(pci) else {
        return Vec::new();
    };
    let numbers = sys.list(NODES).unwrap_or_default();
    let node = |number: String| {
        let properties = sys.read(format!("{NODES}/{number}/properties")).ok()?;
        let property = |name| property::<u32>(&properties, name);
        // The upper half of the location has the number of the part.
        let location = property("location_id")? & 0xffff;
        // Kernels before 5.9 have no domain in this file.
        let domain = property("domain").unwrap_or(0);
        // The gpu_id of a processor is 0.
        let gpu_id = sys.read_as(format!("{NODES}/{number}/gpu_id")).ok();
        let gpu_id = gpu_id.filter(|id| *id != 0)?;
        let units = property("simd_count").unwrap_or(0);
        let compute_units = units
            .checked_div(property("simd_per_cu").unwrap_or(0))
            .unwrap_or(0);
        ((domain, location) == place).then(|| KfdNode {
            gpu_id,
            stream_processors: compute_units.saturating_mul(STREAM_PROCESSORS),
        })
    };
    numbers.into_iter().filter_map(node).collect()
}

/// The processes that have memory or queues on these nodes. KFD lists each process that has KFD open, for all devices.
pub(super) fn processes(sys: &Tree, nodes: &[KfdNode]) -> Vec<Process> {
    let pids = sys.list(PROCESSES).unwrap_or_default();
    let process = |name: String| {
        let pid: u32 = name.parse().ok()?;
        // A process may end meanwhile.
        let bytes = |node: &KfdNode| {
            let file = format!("{PROCESSES}/{pid}/vram_{}", node.gpu_id);
            sys.read_as::<u64>(file).unwrap_or(0)
        };
        let bytes = nodes.iter().map(bytes).fold(0, u64::saturating_add);
        (bytes > 0 || has_queue(sys, pid, nodes)).then_some(Process { pid, bytes })
    };
    pids.into_iter().filter_map(process).collect()
}

fn has_queue(sys: &Tree, pid: u32, nodes: &[KfdNode]) -> bool {
    let queues = format!("{PROCESSES}/{pid}/queues");
    let mut numbers = sys.list(&queues).unwrap_or_default().into_iter();
    numbers.any(|number| {
        let gpu_id = sys.read_as(format!("{queues}/{number}/gpuid"));
        gpu_id.is_ok_and(|gpu_id: u32| nodes.iter().any(|node| node.gpu_id == gpu_id))
    })
}

/// The domain, and bus, device and function as one number in KFD's form, of an address such as `0000:03:00.0`.
fn place(pci: &str) -> Option<(u32, u32)> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let (rest, function) = pci.rsplit_once('.')?;
    let mut parts = rest.split(':');
    let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
    let location = hex(bus)? << 8 | hex(device)? << 3 | hex(function)?;
    Some((hex(domain)?, location))
}

/// The value of a line `name value` in a node's properties.
fn property<T: FromStr>(properties: &str, name: &str) -> Option<T> {
    let value = |line: &str| {
        let (found, value) = line.split_once(' ')?;
        (found == name).then(|| value.trim().parse().ok())?
    };
    properties.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// A processor and two devices; the second device has two parts.
    fn topology() -> (tempfile::TempDir, Tree) {
        let place = tempfile::tempdir().unwrap();
        let nodes = [
            (
                0,
                "cpu_cores_count 64\nsimd_count 0\nsimd_per_cu 0\nlocation_id 0\ndomain 0",
            ),
            (
                31001,
                "simd_count 416\nsimd_per_cu 4\nlocation_id 768\ndomain 0",
            ),
            (
                31002,
                "simd_count 208\nsimd_per_cu 4\nlocation_id 33536\ndomain 1",
            ),
            (
                31003,
                "simd_count 208\nsimd_per_cu 4\nlocation_id 268468992\ndomain 1",
            ),
        ];
        for (number, (gpu_id, properties)) in nodes.into_iter().enumerate() {
            let node = format!("{NODES}/{number}");
            write(
                place.path(),
                &format!("{node}/gpu_id"),
                &format!("{gpu_id}\n"),
            );
            write(place.path(), &format!("{node}/properties"), properties);
        }
        let sys = Tree::new(place.path());
        (place, sys)
    }

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn ids(nodes: &[KfdNode]) -> Vec<(u32, u32)> {
        nodes
            .iter()
            .map(|it| (it.gpu_id, it.stream_processors))
            .collect()
    }

    #[test]
    fn nodes_are_found_by_the_pci_address() {
        let (_place, sys) = topology();
        assert_eq!(ids(&nodes(&sys, "0000:03:00.0")), [(31001, 6656)]);
        let parts = [(31002, 3328), (31003, 3328)];
        assert_eq!(ids(&nodes(&sys, "0001:83:00.0")), parts);
        // The first address is the processor's.
        for pci in [
            "0000:00:00.0",
            "0000:03:00.1",
            "0001:03:00.0",
            "",
            "x:y:z.0",
        ] {
            assert!(nodes(&sys, pci).is_empty(), "{pci}");
        }
    }

    #[test]
    fn a_process_that_uses_only_another_device_is_not_listed() {
        let (place, sys) = topology();
        let files = [
            // The files list each process that has KFD open, for each device.
            ("700/vram_31001", "8192\n"),
            ("700/vram_31002", "0\n"),
            ("701/vram_31001", "0\n"),
            ("701/vram_31002", "4096\n"),
            ("701/vram_31003", "4096\n"),
            ("702/vram_31001", "0\n"),
            ("702/queues/3/gpuid", "31001\n"),
        ];
        for (file, text) in files {
            write(place.path(), &format!("{PROCESSES}/{file}"), text);
        }
        let process = |pid, bytes| Process { pid, bytes };
        let first = nodes(&sys, "0000:03:00.0");
        assert_eq!(
            processes(&sys, &first),
            [process(700, 8192), process(702, 0)]
        );
        let second = nodes(&sys, "0001:83:00.0");
        assert_eq!(processes(&sys, &second), [process(701, 8192)]);
        assert!(processes(&sys, &[]).is_empty());
    }
}
