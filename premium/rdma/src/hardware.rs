//! The device and the arenas, and the state that all leases share.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use fabricbios_arena::Arenas;
use fabricbios_lease::{BindingId, Extent, StepError};
use fabricbios_verbs::Rights;
use fabricbios_wire::{
    Binding, KindBinding, Limits, PreviousKey, RdmaBinding, RdmaQueuePair, ResourceId, ResourceType,
};
use nix::errno::Errno;

use super::{
    device::Device,
    faults::Faults,
    guard::Guard,
    keys::KeyHistories,
    memory::Bytes,
    parts::{BindingParts, Pair},
    queue_pairs::QueuePairs,
    strategy::Shared,
};

/// Largest number of reads in flight per queue pair: more gain nothing and cost memory.
const RESPONDER_READS: u8 = 16;

/// The objects that every order uses.
#[derive(Debug)]
pub(crate) struct Hardware {
    pub(crate) device: Device,
    arenas: Arenas,
    pub(super) shared: Shared,
    keys: Mutex<KeyHistories>,
    /// The queue pairs of leases. The kernel reuses numbers: if the resource tracker knows a number that another lease has
    /// now, it is no leak.
    pub(super) queue_pairs: Arc<QueuePairs>,
    work: AtomicU64,
    /// `enum rdma_driver_id`; 0, which no device has, until the driver is known.
    pub(super) driver: u32,
    pub(super) guard: Option<Arc<dyn Guard>>,
    pub(super) faults: Faults,
}

impl Hardware {
    pub(crate) fn new(device: Device, arenas: Arenas, shared: Shared) -> Self {
        Self {
            device,
            arenas,
            shared,
            keys: Mutex::default(),
            queue_pairs: Arc::default(),
            work: AtomicU64::new(1),
            driver: 0,
            guard: None,
            faults: Faults::default(),
        }
    }

    /// The bytes of an extent of a resource's arena.
    pub(super) fn bytes(
        &self,
        resource_id: ResourceId,
        extent: Extent,
    ) -> Result<Bytes, StepError> {
        let arena = self.arenas.get(&resource_id).ok_or_else(|| {
            let why = format_args!("resource {resource_id} is no memory that is served here");
            StepError::new("find arena", why)
        })?;
        arena.check_extent(extent)?;
        Ok(Bytes {
            resource_id,
            arena: Arc::clone(arena),
            extent,
        })
    }

    /// The rights of a peer.
    pub(super) fn rights(&self) -> Rights {
        Rights::all(self.device.limits.atomics)
    }

    pub(super) fn responder_reads(&self) -> u8 {
        self.device.limits.responder_reads.min(RESPONDER_READS)
    }

    /// A new number for posted work.
    pub(super) fn next_work(&self) -> u64 {
        self.work.fetch_add(1, Ordering::Relaxed)
    }

    /// The coordinates of a binding for the client.
    pub(super) fn binding(&self, parts: &BindingParts) -> Binding {
        let mut pairs = parts.pairs.iter();
        let first = self.first(parts, pairs.next());
        Binding {
            limits: Some(Limits {
                offset: 0,
                length: parts.bytes.extent.length,
            }),
            kind: KindBinding::Mem(Some(RdmaBinding {
                further: pairs.map(|pair| further(parts, pair)).collect(),
                ..first
            })),
            ..Binding::plain(ResourceType::Mem)
        }
    }

    /// The coordinates with the first queue pair, or without any.
    fn first(&self, parts: &BindingParts, pair: Option<&Pair>) -> RdmaBinding {
        let key = |back| pair.and_then(|pair| parts.key(pair, back));
        RdmaBinding {
            rkey: key(0),
            remote_addr: parts.bytes.address(),
            qp_num: pair.map_or(0, |pair| pair.number),
            gid: self.device.gid.bytes,
            port: self.device.port,
            psn: pair.map_or(0, |pair| pair.psn),
            path_mtu: parts.mtu_bytes,
            strategy: self.shared.strategy(),
            // The lease table sets this time.
            previous: key(1).map(|rkey| PreviousKey {
                rkey,
                remaining_ms: 0,
            }),
            max_rd_atomic: self.responder_reads(),
            atomics: self.device.limits.atomics,
            further: Vec::new(),
            prepared_rkey: parts.prepared_key(),
            attach: None,
        }
    }

    /// An error that names the device and the lease.
    pub(super) fn error(
        &self,
        step: &'static str,
        binding_id: BindingId,
        what: impl fmt::Display,
    ) -> StepError {
        StepError::new(
            step,
            format_args!("{binding_id} on {}: {what}", self.device.name()),
        )
    }

    /// The error of a refused system call.
    pub(super) fn refused(
        &self,
        step: &'static str,
        binding_id: BindingId,
        errno: Errno,
    ) -> StepError {
        self.error(step, binding_id, errno).with_errno(errno as i32)
    }

    pub(super) fn keys(&self) -> MutexGuard<'_, KeyHistories> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue pair that could not be ended completely has no key any more.
fn further(parts: &BindingParts, pair: &Pair) -> RdmaQueuePair {
    RdmaQueuePair {
        qp_num: pair.number,
        psn: pair.psn,
        rkey: parts.key(pair, 0).unwrap_or_default(),
    }
}
