//! Detected hardware as entries of the wire, with nothing available.

use fabricbios_gpu::Health;
use fabricbios_wire::{
    BLOCK_REMOVABLE, BLOCK_RO, BlockDev, CpuCap, Epoch, FlatEntry, GPU_CUDA, GPU_ROCM, GpuInfo,
    InventoryExtension, MemArena, NIC_LINK_UP, NIC_SRIOV, NicInfo, NodeId, ResourceId,
    ResourceInventory, ResourceType, cpu_flags, health, resource_flags,
};
use sha2::{Digest, Sha256};

use super::{BlockFound, CpuFound, Detected, GpuFound, GpuVendor, MemFound, NicFound};

const RESOURCE_ID_DOMAIN: &[u8] = b"fabricbios-resource-v0";

/// Advertised alignment of memory that is not on offer.
const PAGE_BYTES: u32 = 4096;

/// The id of a node's resource, by kind and name: the same after every restart, never zero. The first 16 bytes of
/// SHA-256 over domain, node id, type code (big-endian) and name.
#[must_use]
pub fn resource_id(node: &NodeId, kind: ResourceType, name: &str) -> ResourceId {
    let mut hash = Sha256::new_with_prefix(RESOURCE_ID_DOMAIN);
    hash.update(node.0);
    hash.update(kind.code().to_be_bytes());
    hash.update(name.as_bytes());
    let digest = hash.finalize();
    let id = digest
        .iter()
        .take(16)
        .fold(0, |id: u128, &byte| id << 8 | u128::from(byte));
    ResourceId(id.max(1))
}

impl Detected {
    /// The structured form. Each resource has a name and nothing available.
    #[must_use]
    pub fn inventory(&self, node: NodeId, epoch: Epoch) -> ResourceInventory {
        fn each<F, W>(found: &[F], to_wire: impl Fn(&F) -> W) -> Vec<W> {
            found.iter().map(to_wire).collect()
        }
        let rows = self.rows(&node);
        ResourceInventory {
            node_id: node,
            epoch,
            health: health_of(rows.iter().any(|row| row.degraded)),
            mem_arenas: each(&self.mem, |found| mem_arena(&node, found)),
            block_devs: each(&self.blocks, |found| block_dev(&node, found)),
            cpu_caps: each(&self.cpus, |found| {
                found.cap(resource_id(&node, ResourceType::Cpu, &found.name))
            }),
            nics: each(&self.nics, |found| {
                found.info(resource_id(&node, ResourceType::Net, &found.name))
            }),
            gpus: { self.gpus.iter() }
                .map(|found| gpu_info(&node, found))
                .chain(
                    { self.known_gpus.iter() }.map(|known| {
                        known.info(resource_id(&node, ResourceType::Gpu, &known.uuid))
                    }),
                )
                .collect(),
            extensions: { rows.iter().flat_map(Row::extensions) }
                .chain(self.nics.iter().filter_map(|found| functions(&node, found)))
                .collect(),
        }
    }

    /// The flat form: capacity as found, nothing available.
    #[must_use]
    pub fn flat(&self, node: &NodeId) -> Vec<FlatEntry> {
        self.rows(node).iter().map(Row::flat).collect()
    }

    fn rows(&self, node: &NodeId) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        let mut row = |kind, name, capacity, degraded| {
            let id = resource_id(node, kind, name);
            rows.push(Row {
                id,
                kind,
                name,
                capacity,
                degraded,
            });
        };
        for it in &self.mem {
            row(ResourceType::Mem, &*it.name, it.bytes, false);
        }
        for it in &self.cpus {
            let (cores, complete) = (it.cores().into(), it.topology.is_complete());
            row(ResourceType::Cpu, &it.name, cores, !complete);
        }
        for it in &self.nics {
            row(ResourceType::Net, &it.name, it.speed_bps, it.degraded);
        }
        for it in &self.gpus {
            row(ResourceType::Gpu, &it.name, it.vram_bytes, false);
        }
        for it in &self.known_gpus {
            let degraded = it.health != Health::Good;
            row(ResourceType::Gpu, &it.uuid, it.vram_bytes, degraded);
        }
        for it in &self.blocks {
            row(ResourceType::Block, &it.name, it.bytes, it.degraded);
        }
        for it in &self.vendors {
            row(ResourceType::Vendor, &it.name, it.capacity, false);
        }
        rows
    }
}

/// The fields of a resource that both forms have.
struct Row<'a> {
    id: ResourceId,
    kind: ResourceType,
    name: &'a str,
    capacity: u64,
    degraded: bool,
}

impl Row<'_> {
    fn flat(&self) -> FlatEntry {
        FlatEntry {
            resource_id: self.id,
            resource_type: self.kind,
            flags: if self.degraded {
                resource_flags::DEGRADED
            } else {
                0
            },
            capacity: self.capacity,
            available: 0,
        }
    }

    fn extensions(&self) -> [InventoryExtension; 2] {
        [
            InventoryExtension::Name(self.id, self.name.to_owned()),
            InventoryExtension::Available(self.id, 0),
        ]
    }
}

impl CpuFound {
    /// Physical cores; 0 if the topology is incomplete.
    #[must_use]
    pub fn cores(&self) -> u16 {
        match self.topology.is_complete() {
            true => u16::try_from(self.topology.groups.len()).unwrap_or(u16::MAX),
            false => 0,
        }
    }

    /// Logical CPUs that are online.
    #[must_use]
    pub fn threads(&self) -> u16 {
        u16::try_from(self.topology.online.len()).unwrap_or(u16::MAX)
    }

    /// The entry of processors that are not on offer. It has no isolation policy, so clients know that they cannot
    /// lease these cores.
    #[must_use]
    pub fn cap(&self, resource_id: ResourceId) -> CpuCap {
        let is_complete = self.topology.is_complete();
        let complete = match is_complete {
            true => cpu_flags::TOPOLOGY_COMPLETE,
            false => 0,
        };
        CpuCap {
            resource_id,
            cores: 0,
            threads: self.threads(),
            max_mhz: self.max_mhz,
            flags: self.arch_flags | complete,
            health: health_of(!is_complete),
        }
    }
}

fn health_of(degraded: bool) -> u32 {
    if degraded {
        health::DEGRADED
    } else {
        health::OK
    }
}

fn mem_arena(node: &NodeId, found: &MemFound) -> MemArena {
    MemArena {
        resource_id: resource_id(node, ResourceType::Mem, &found.name),
        base: 0,
        len: found.bytes,
        align: PAGE_BYTES,
        max_read: 0,
        max_write: 0,
        health: health::OK,
    }
}

impl NicFound {
    /// Its entry in inventories.
    #[must_use]
    pub fn info(&self, resource_id: ResourceId) -> NicInfo {
        let sriov = if self.vfs_max > 0 { NIC_SRIOV } else { 0 };
        let link = if self.link_up { NIC_LINK_UP } else { 0 };
        NicInfo {
            resource_id,
            speed_bps: self.speed_bps,
            mtu: self.mtu,
            flags: sriov | link,
            health: health_of(self.degraded),
        }
    }
}

/// The virtual functions that the card could have.
fn functions(node: &NodeId, found: &NicFound) -> Option<InventoryExtension> {
    (found.vfs_max > 0).then(|| InventoryExtension::VirtualFunctions {
        resource_id: resource_id(node, ResourceType::Net, &found.name),
        total: found.vfs_max,
        free: 0,
    })
}

fn gpu_info(node: &NodeId, found: &GpuFound) -> GpuInfo {
    let flags = match (found.driver_bound, found.vendor) {
        (false, _) => 0,
        (true, GpuVendor::Nvidia) => GPU_CUDA,
        (true, GpuVendor::Amd) => GPU_ROCM,
    };
    GpuInfo {
        resource_id: resource_id(node, ResourceType::Gpu, &found.name),
        vram_bytes: found.vram_bytes,
        compute_units: 0,
        flags,
        health: health::OK,
    }
}

fn block_dev(node: &NodeId, found: &BlockFound) -> BlockDev {
    let read_only = if found.read_only { BLOCK_RO } else { 0 };
    let removable = if found.removable { BLOCK_REMOVABLE } else { 0 };
    BlockDev {
        resource_id: resource_id(node, ResourceType::Block, &found.name),
        block_size: found.block_size,
        capacity: found.bytes,
        flags: read_only | removable,
        health: health_of(found.degraded),
    }
}
