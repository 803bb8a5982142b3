//! GPUs.

use fabricbios_wire::*;
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::{endpoint, lease_id, numbers};

pub(super) fn terms() -> impl Strategy<Value = GpuTerms> {
    (
        option::of(select(GpuExclusivityClass::ALL)),
        option::of(select(GpuExecutionMode::ALL)),
        option::of(1..=u16::MAX),
    )
        .prop_map(|(exclusivity, execution_mode, compute_slices)| GpuTerms {
            exclusivity,
            execution_mode,
            compute_slices,
        })
}

pub(super) fn coordinates() -> impl Strategy<Value = GpuBinding> {
    (
        "[!-~]{1,96}",
        select(GpuVendor::ALL),
        any::<u64>(),
        option::of(endpoint()),
        option::of("[!-~]{1,128}"),
        option::of(1..=u16::MAX),
        any::<u16>(),
    )
        .prop_map(
            |(
                uuid,
                vendor,
                vram_bytes,
                session_endpoint,
                cdi_device,
                compute_slices,
                queue_slots,
            )| {
                GpuBinding {
                    uuid,
                    vendor,
                    vram_bytes,
                    session_endpoint,
                    cdi_device,
                    compute_slices,
                    queue_slots,
                }
            },
        )
}

pub(super) fn entry() -> impl Strategy<Value = GpuInfo> {
    numbers().prop_map(
        |(resource_id, (vram_bytes, _), (units, flags, health, _))| GpuInfo {
            resource_id,
            vram_bytes,
            compute_units: units,
            flags,
            health,
        },
    )
}

/// Any operation of a GPU session.
pub(crate) fn request() -> impl Strategy<Value = GpuRequest> {
    let three = || any::<[u32; 3]>();
    let launch = (
        (any::<u64>(), "[^\0]{1,63}", three(), three(), any::<u32>()),
        vec(vec(any::<u8>(), 1..=64), 0..=GPU_ARGUMENTS_MAX),
    );
    let launch = launch.prop_map(|((module, kernel, grid, block, shared_bytes), arguments)| {
        GpuRequest::Launch(GpuLaunch {
            module,
            kernel,
            grid,
            block,
            shared_bytes,
            arguments,
        })
    });
    let copy = || (any::<u64>(), any::<u64>(), 1..=GPU_COPY_BYTES_MAX);
    let shared = || {
        (any::<u64>(), any::<u64>(), any::<u64>(), 1..=u64::MAX).prop_map(
            |(memory, offset, shared_offset, length)| GpuSharedCopy {
                memory,
                offset,
                shared_offset,
                length,
            },
        )
    };
    prop_oneof![
        (lease_id(), any::<u64>())
            .prop_map(|(lease_id, session)| GpuRequest::Open { lease_id, session }),
        (1..=u64::MAX).prop_map(|bytes| GpuRequest::MemAlloc { bytes }),
        copy().prop_map(|(memory, offset, length)| GpuRequest::MemWrite {
            memory,
            offset,
            length
        }),
        (1..=GPU_MODULE_BYTES_MAX).prop_map(|length| GpuRequest::ModuleLoad { length }),
        launch,
        any::<bool>().prop_map(|whole_session| GpuRequest::Sync { whole_session }),
        copy().prop_map(|(memory, offset, length)| GpuRequest::MemRead {
            memory,
            offset,
            length
        }),
        any::<u64>().prop_map(|memory| GpuRequest::MemFree { memory }),
        any::<u64>().prop_map(|module| GpuRequest::ModuleUnload { module }),
        Just(GpuRequest::Close),
        (1..=u64::MAX).prop_map(|length| GpuRequest::MemShare { length }),
        shared().prop_map(GpuRequest::MemWriteShared),
        shared().prop_map(GpuRequest::MemReadShared),
    ]
}
