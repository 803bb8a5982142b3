//! CPU cores.

use fabricbios_wire::*;
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::numbers;

pub(super) fn terms() -> impl Strategy<Value = CpuTerms> {
    let class = option::of(select(CpuIsolationClass::ALL));
    (class, execution()).prop_map(
        |(isolation, (execution_mode, execution_width, partition))| CpuTerms {
            isolation,
            execution_mode,
            execution_width,
            partition,
        },
    )
}

/// Terms that a request can state and an answer repeats; the partition is never `member`.
fn execution()
-> impl Strategy<Value = (Option<CpuExecutionMode>, Option<u16>, Option<CpuPartition>)> {
    (
        option::of(select(CpuExecutionMode::ALL)),
        option::of(1..=u16::MAX),
        option::of(select(vec![CpuPartition::Root, CpuPartition::Isolated])),
    )
}

pub(super) fn coordinates() -> impl Strategy<Value = CpuBinding> {
    let place = (
        vec(any::<u16>(), 1..40).prop_map(CpuRange::of),
        "[!-~]{1,512}",
        select(CpuPartition::ALL),
        // Numbers that are close together, so that some ranges have more than one number.
        vec(0..9u16, 0..9).prop_map(CpuRange::of),
    );
    let quota = (1..=u32::MAX, 1..=u32::MAX).prop_map(|(quota_us, period_us)| CpuQuota {
        quota_us,
        period_us,
    });
    (place, option::of(quota)).prop_map(|(place, quota)| CpuBinding {
        cpus: place.0,
        cgroup: place.1,
        partition: place.2,
        memory_nodes: place.3,
        quota,
    })
}

pub(super) fn entry() -> impl Strategy<Value = CpuCap> {
    (numbers(), any::<(u16, u16)>()).prop_map(
        |((resource_id, _, (max_mhz, flags, health, _)), (cores, threads))| CpuCap {
            resource_id,
            cores,
            threads,
            max_mhz,
            flags,
            health,
        },
    )
}
