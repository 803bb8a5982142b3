//! The structured inventory (000, "Structured Inventory Format"): node, epoch, health, five lists, and then (ours) an
//! area of TLVs for later additions about the same resources.

use alloc::vec::Vec;

use crate::{
    BlockDev, CpuCap, Epoch, GpuInfo, INVENTORY_LIST_MAX, MemArena, NicInfo, NodeId,
    ResourceInventory, inventory_tlv,
    read::{Decoded, Reader},
    write::Writer,
};

const MEM_ARENA_LEN: usize = 48;
const BLOCK_DEV_LEN: usize = 36;
const CPU_CAP_LEN: usize = 32;
const NIC_INFO_LEN: usize = 36;
const GPU_INFO_LEN: usize = 36;

/// Reads a whole structured inventory.
///
/// # Errors
/// If the bytes are no structured inventory.
pub fn decode_structured(bytes: &[u8]) -> Decoded<ResourceInventory> {
    let mut r = Reader::new(bytes, 0);
    let inventory = read(&mut r)?;
    r.finish()?;
    Ok(inventory)
}

/// Writes a whole structured inventory; `None` when it is longer than a payload may be.
#[must_use]
pub fn encode_structured(inventory: &ResourceInventory) -> Option<Vec<u8>> {
    let mut w = Writer::new();
    write(&mut w, inventory);
    w.payload()
}

pub(crate) fn read(r: &mut Reader<'_>) -> Decoded<ResourceInventory> {
    Ok(ResourceInventory {
        node_id: NodeId(r.array("node_id")?),
        epoch: Epoch(r.u64("epoch")?),
        health: r.u32("health")?,
        mem_arenas: r.list(INVENTORY_LIST_MAX, MEM_ARENA_LEN, "mem_arenas", read_mem)?,
        block_devs: r.list(INVENTORY_LIST_MAX, BLOCK_DEV_LEN, "block_devs", read_block)?,
        cpu_caps: r.list(INVENTORY_LIST_MAX, CPU_CAP_LEN, "cpu_caps", read_cpu)?,
        nics: r.list(INVENTORY_LIST_MAX, NIC_INFO_LEN, "nics", read_nic)?,
        gpus: r.list(INVENTORY_LIST_MAX, GPU_INFO_LEN, "gpus", read_gpu)?,
        extensions: inventory_tlv::read(&r.area("extensions")?)?,
    })
}

fn read_mem(r: &mut Reader<'_>) -> Decoded<MemArena> {
    Ok(MemArena {
        resource_id: r.resource_id()?,
        base: r.u64("base")?,
        len: r.u64("len")?,
        align: r.u32("align")?,
        max_read: r.u32("max_read")?,
        max_write: r.u32("max_write")?,
        health: r.u32("health")?,
    })
}

fn read_block(r: &mut Reader<'_>) -> Decoded<BlockDev> {
    Ok(BlockDev {
        resource_id: r.resource_id()?,
        block_size: r.u32("block_size")?,
        capacity: r.u64("capacity")?,
        flags: r.u32("flags")?,
        health: r.u32("health")?,
    })
}

fn read_cpu(r: &mut Reader<'_>) -> Decoded<CpuCap> {
    Ok(CpuCap {
        resource_id: r.resource_id()?,
        cores: r.u16("cores")?,
        threads: r.u16("threads")?,
        max_mhz: r.u32("max_mhz")?,
        flags: r.u32("flags")?,
        health: r.u32("health")?,
    })
}

fn read_nic(r: &mut Reader<'_>) -> Decoded<NicInfo> {
    Ok(NicInfo {
        resource_id: r.resource_id()?,
        speed_bps: r.u64("speed_bps")?,
        mtu: r.u32("mtu")?,
        flags: r.u32("flags")?,
        health: r.u32("health")?,
    })
}

fn read_gpu(r: &mut Reader<'_>) -> Decoded<GpuInfo> {
    Ok(GpuInfo {
        resource_id: r.resource_id()?,
        vram_bytes: r.u64("vram_bytes")?,
        compute_units: r.u32("compute_units")?,
        flags: r.u32("flags")?,
        health: r.u32("health")?,
    })
}

pub(crate) fn write(w: &mut Writer, inventory: &ResourceInventory) {
    w.raw(&inventory.node_id.0)
        .u64(inventory.epoch.0)
        .u32(inventory.health);
    w.list(&inventory.mem_arenas, INVENTORY_LIST_MAX, write_mem);
    w.list(&inventory.block_devs, INVENTORY_LIST_MAX, |w, dev| {
        w.u128(dev.resource_id.0)
            .u32(dev.block_size)
            .u64(dev.capacity);
        w.u32(dev.flags).u32(dev.health);
    });
    w.list(&inventory.cpu_caps, INVENTORY_LIST_MAX, |w, cpu| {
        w.u128(cpu.resource_id.0).u16(cpu.cores).u16(cpu.threads);
        w.u32(cpu.max_mhz).u32(cpu.flags).u32(cpu.health);
    });
    w.list(&inventory.nics, INVENTORY_LIST_MAX, |w, nic| {
        w.u128(nic.resource_id.0).u64(nic.speed_bps).u32(nic.mtu);
        w.u32(nic.flags).u32(nic.health);
    });
    w.list(&inventory.gpus, INVENTORY_LIST_MAX, |w, gpu| {
        w.u128(gpu.resource_id.0)
            .u64(gpu.vram_bytes)
            .u32(gpu.compute_units);
        w.u32(gpu.flags).u32(gpu.health);
    });
    w.area(|w| inventory_tlv::write(w, &inventory.extensions));
}

fn write_mem(w: &mut Writer, arena: &MemArena) {
    w.u128(arena.resource_id.0)
        .u64(arena.base)
        .u64(arena.len)
        .u32(arena.align);
    w.u32(arena.max_read).u32(arena.max_write).u32(arena.health);
}
