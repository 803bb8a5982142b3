//! Making access: queue pair, connection, window.
//!
//! The window is allocated after its queue pair and bound last, so whatever fails or is cancelled
//! before that leaves nothing that could be reached.

use std::{
    collections::HashSet,
    fmt,
    net::Ipv6Addr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fabricbios_arena::Arena;
use fabricbios_lease::{BindError, Extent, StepError, Tag};
use fabricbios_wire::{Binding, LeaseId, Limits, PreviousKey, RdmaBinding, RdmaPeer, RdmaStrategy};
use nix::errno::Errno;

use super::{
    device::{Device, gid_text},
    faults::Faults,
    keys::{KeyHistory, random_byte, random_psn},
    memory,
    verbs::{
        Access, CompletionQueue, Connection, Local, MemoryRegion, ProtectionDomain, QueuePair,
        QueueSizes, Remote, Window, WorkError,
    },
};

/// This side only ever posts a bind or an invalidation, one after the other.
const SIZES: QueueSizes = QueueSizes {
    send: 4,
    receive: 1,
};
const COMPLETIONS: u8 = 8;

/// A bind is done by the local device alone and takes microseconds; an emulated one milliseconds.
pub(super) const BIND_LIMIT: Duration = Duration::from_secs(2);

/// More reads in flight than this gain nothing and cost memory per queue pair.
const RESPONDER_READS: u8 = 16;

/// The device, the bytes and what is remembered about them.
#[derive(Debug)]
pub(crate) struct Hardware {
    pub(crate) device: Device,
    pub(crate) arena: Arc<Arena>,
    pub(crate) domain: Arc<ProtectionDomain>,
    /// All of the arena.
    pub(crate) region: MemoryRegion,
    /// Whether a window bound to part of the arena keeps its holder to that part.
    pub(super) windows_have_bounds: bool,
    pub(crate) keys: Mutex<KeyHistory>,
    /// Queue pair numbers in use by leases: the kernel gives numbers again, and a restrack entry
    /// of a number that another lease has by now is no leak.
    pub(super) numbers: Mutex<HashSet<u32>>,
    pub(super) work: AtomicU64,
    pub(super) faults: Faults,
}

/// Boxed, since it travels through results and states.
pub(crate) type Parts = Box<BindingParts>;

/// The verbs objects of one binding.
#[derive(Debug)]
pub(crate) struct BindingParts {
    pub(super) queue_pair: Option<QueuePair>,
    pub(super) completions: Option<CompletionQueue>,
    /// Oldest first; the last one has the current key.
    pub(super) windows: Vec<Window>,
    /// Never bound, and the kernel would not take them away yet.
    pub(super) doomed: Vec<Window>,
    /// What windows are bound to, where the arena would let them reach too far.
    pub(super) region: Option<MemoryRegion>,
    pub(super) extent: Extent,
    pub(super) number: u32,
    /// Whether the kernel has confirmed that the queue pair is gone.
    pub(super) proven_gone: bool,
    psn: u32,
    mtu_bytes: u16,
}

impl Hardware {
    pub(crate) fn new(
        device: Device,
        arena: Arc<Arena>,
        domain: Arc<ProtectionDomain>,
        region: MemoryRegion,
    ) -> Self {
        Self {
            device,
            arena,
            domain,
            region,
            windows_have_bounds: true,
            keys: Mutex::default(),
            numbers: Mutex::default(),
            work: AtomicU64::new(1),
            faults: Faults::default(),
        }
    }

    /// A queue pair in INIT, waiting for its peer. On failure nothing is left, except when the
    /// parts come back with the error.
    pub(super) fn prepare(
        &self,
        tag: Tag,
        extent: Extent,
    ) -> Result<Parts, (Option<Parts>, StepError)> {
        let mut parts = self.queues(tag, extent).map_err(|error| (None, error))?;
        match self.make_queue_pair(&mut parts) {
            Ok(()) => Ok(parts),
            Err((step, errno)) => Err((Some(parts), self.error(step, tag, errno))),
        }
    }

    fn queues(&self, tag: Tag, extent: Extent) -> Result<Parts, StepError> {
        let psn = random_psn()?;
        let completions = CompletionQueue::create(&self.device.context, COMPLETIONS)
            .map_err(|errno| self.error("create_cq", tag, errno))?;
        Ok(Box::new(BindingParts {
            queue_pair: None,
            completions: Some(completions),
            windows: Vec::new(),
            doomed: Vec::new(),
            region: None,
            extent,
            number: 0,
            proven_gone: true,
            psn,
            mtu_bytes: self.device.state.mtu_bytes,
        }))
    }

    /// Region, queue pair, and later windows: the kernel takes a dead process's objects newest
    /// first, and in that order none of them holds up another.
    fn make_queue_pair(&self, parts: &mut BindingParts) -> Result<(), (&'static str, Errno)> {
        if !self.windows_have_bounds {
            let (domain, arena) = (&self.domain, &self.arena);
            let region = memory::register(domain, arena, parts.extent, Access::UnderWindows);
            parts.region = Some(region.map_err(|errno| ("reg_mr extent", errno))?);
        }
        let completions = parts
            .completions
            .as_ref()
            .ok_or(("create_qp", Errno::EINVAL))?;
        let queue_pair = QueuePair::create(&self.domain, completions, SIZES)
            .map_err(|errno| ("create_qp", errno))?;
        parts.number = queue_pair.number();
        parts.proven_gone = false;
        self.numbers().insert(parts.number);
        let queue_pair = parts.queue_pair.insert(queue_pair);
        queue_pair
            .init(self.device.port, true, self.device.limits.atomics)
            .map_err(|errno| ("modify_qp INIT", errno))
    }

    /// Whether a peer is one that could be connected at all.
    pub(super) fn check_peer(&self, peer: &RdmaPeer) -> Result<(), StepError> {
        let wrong = |detail: String| Err(StepError::new("check peer", detail));
        if peer.qpn > 0x00ff_ffff || peer.psn > 0x00ff_ffff {
            return wrong(format!(
                "qpn {} and psn {} must fit 24 bits",
                peer.qpn, peer.psn
            ));
        }
        if !peer.names_one_port() {
            return wrong(format!(
                "GID {} names no single port: give the one that the client's port has",
                Ipv6Addr::from(peer.gid)
            ));
        }
        match choose_mtu(self.device.state.mtu_bytes, peer.path_mtu) {
            Some(_) => Ok(()),
            None => wrong(format!(
                "path MTU {} is none of 256, 512, 1024, 2048, 4096, or 0 for no wish",
                peer.path_mtu
            )),
        }
    }

    /// To RTS. May sit in the kernel for seconds, so it is called without any lock.
    pub(super) fn bring_up(
        &self,
        parts: &mut Parts,
        tag: Tag,
        peer: &RdmaPeer,
    ) -> Result<(), BindError> {
        parts.mtu_bytes = choose_mtu(self.device.state.mtu_bytes, peer.path_mtu).unwrap_or(256);
        let connection = self.connection(parts, peer);
        let failed = |step, errno| BindError::Failed(self.error(step, tag, errno));
        let queue_pair = parts
            .queue_pair
            .as_ref()
            .ok_or_else(|| failed("modify_qp RTR", Errno::EINVAL))?;
        queue_pair
            .ready_to_receive(&connection)
            .map_err(|errno| self.unreachable(tag, peer, errno))?;
        queue_pair
            .ready_to_send(&connection)
            .map_err(|errno| failed("modify_qp RTS", errno))
    }

    fn connection(&self, parts: &Parts, peer: &RdmaPeer) -> Connection {
        Connection {
            local: Local {
                port: self.device.port,
                gid_index: self.device.gid.index,
                psn: parts.psn,
            },
            remote: Remote {
                qp_num: peer.qpn,
                psn: peer.psn,
                gid: peer.gid,
            },
            mtu_bytes: parts.mtu_bytes,
            responder_reads: self.responder_reads(),
            initiator_reads: 1,
        }
    }

    fn responder_reads(&self) -> u8 {
        self.device.limits.responder_reads.min(RESPONDER_READS)
    }

    /// Explains the kernel's refusal of an address; anything else is not the client's fault.
    fn unreachable(&self, tag: Tag, peer: &RdmaPeer, errno: Errno) -> BindError {
        const STEP: &str = "modify_qp RTR";
        match errno {
            Errno::EINVAL | Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::ETIMEDOUT => {
                let gid = gid_text(peer.gid);
                let from = self.device.describe();
                BindError::Refused(StepError::new(
                    STEP,
                    format_args!(
                        "{tag}: GID {gid} cannot be reached from {from}: is the address right and \
                         is there a route? ({errno})"
                    ),
                ))
            }
            errno => BindError::Failed(self.error(STEP, tag, errno)),
        }
    }

    /// A window that is not bound yet.
    pub(super) fn new_window(&self, tag: Tag) -> Result<Window, StepError> {
        Window::alloc(&self.domain).map_err(|errno| self.error("alloc_mw", tag, errno))
    }

    /// Gives the newest window a new key to the extent and waits until it works. The only place
    /// where access opens; the caller holds the slot's lock and has looked for a cut.
    pub(super) fn bind_newest(&self, parts: &mut Parts, tag: Tag) -> Result<(), StepError> {
        let failed = |detail: &dyn fmt::Display| self.error("bind_mw", tag, detail);
        let (Some(queue_pair), Some(completions), Some(window)) = (
            &parts.queue_pair,
            &parts.completions,
            parts.windows.last_mut(),
        ) else {
            return Err(failed(&"the binding has no window"));
        };
        let rkey = self.choose_key(tag.lease_id, parts.extent, window)?;
        let region = parts.region.as_ref().unwrap_or(&self.region);
        let range = (
            memory::address(&self.arena, parts.extent),
            parts.extent.length,
        );
        let id = self.work.fetch_add(1, Ordering::Relaxed);
        queue_pair
            .post_bind(id, window, rkey, region, range, self.device.limits.atomics)
            .map_err(WorkError::Post)
            .and_then(|()| completions.wait(id, BIND_LIMIT))
            .map_err(|error| failed(&error))?;
        window.set_rkey(rkey);
        Ok(())
    }

    fn choose_key(
        &self,
        lease: LeaseId,
        extent: Extent,
        window: &Window,
    ) -> Result<u32, StepError> {
        let random = random_byte()?;
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.choose(lease, extent, window.rkey(), random)
            .ok_or_else(|| StepError::new("choose rkey", "all 256 keys of the window are retired"))
    }

    /// What the client needs to know.
    pub(super) fn binding(&self, parts: &Parts) -> Binding {
        let key = |window: &Window| window.rkey();
        let current = parts.windows.last().map(key);
        let before = parts
            .windows
            .len()
            .checked_sub(2)
            .map(|at| key(&parts.windows[at]));
        Binding {
            limits: Some(Limits {
                offset: 0,
                length: parts.extent.length,
            }),
            rdma: Some(RdmaBinding {
                rkey: current,
                remote_addr: memory::address(&self.arena, parts.extent),
                qp_num: parts.number,
                gid: self.device.gid.bytes,
                port: self.device.port,
                psn: parts.psn,
                path_mtu: parts.mtu_bytes,
                strategy: RdmaStrategy::Window,
                // How long it lives is for the lease table to say.
                previous: before.map(|rkey| PreviousKey {
                    rkey,
                    remaining_ms: 0,
                }),
                max_rd_atomic: self.responder_reads(),
                atomics: self.device.limits.atomics,
                further: Vec::new(),
            }),
            ..Binding::default()
        }
    }

    /// An error that says on which device and for which lease.
    pub(super) fn error(&self, step: &str, tag: Tag, what: impl fmt::Display) -> StepError {
        StepError::new(
            step,
            format_args!("{tag} on {}: {what}", self.device.name()),
        )
    }

    pub(super) fn numbers(&self) -> MutexGuard<'_, HashSet<u32>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The smaller of what the port does and what the peer asks for; `None` if it asks for nonsense.
fn choose_mtu(port_bytes: u16, peer_bytes: u16) -> Option<u16> {
    match peer_bytes {
        0 => Some(port_bytes),
        256 | 512 | 1024 | 2048 | 4096 => Some(port_bytes.min(peer_bytes)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_mtu_wins_and_zero_is_no_wish() {
        assert_eq!(choose_mtu(1024, 4096), Some(1024));
        assert_eq!(choose_mtu(4096, 1024), Some(1024));
        assert_eq!(choose_mtu(2048, 0), Some(2048));
    }

    #[test]
    fn an_mtu_that_does_not_exist_is_not_rounded() {
        assert_eq!(choose_mtu(4096, 1500), None);
        assert_eq!(choose_mtu(4096, 1), None);
    }
}
