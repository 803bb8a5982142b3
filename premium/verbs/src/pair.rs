//! Queue pairs of the reliable connected type, and their states.

use std::{mem::MaybeUninit, ptr::null_mut, sync::Arc};

use nix::errno::Errno;
use rdma_mummy_sys as ffi;

use super::{
    CompletionQueue, ProtectionDomain, Refused, Rights, WindowMaker, check, handle::Handle,
};

/// A queue pair of the reliable connected type.
#[derive(Debug)]
pub struct QueuePair {
    raw: Handle<ffi::ibv_qp>,
    number: u32,
    /// Each window that may be bound to the queue pair has a clone.
    pub(super) mark: Arc<()>,
    domain: Arc<ProtectionDomain>,
}

/// Depths of the queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSizes {
    /// Largest number of outstanding requests.
    pub send: u32,
    /// Largest number of outstanding receives.
    pub receive: u32,
}

/// This side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Port of the device.
    pub port: u8,
    /// Index of the local GID in the table of the port.
    pub gid_index: u8,
    /// First PSN that this side sends, 24 bits.
    pub psn: u32,
}

/// The other side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Queue pair number, 24 bits.
    pub qp_num: u32,
    /// First PSN that the peer sends, 24 bits.
    pub psn: u32,
    /// GID.
    pub gid: [u8; 16],
}

/// Both sides of a connection, and the values on which they agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// This side.
    pub local: Local,
    /// The other side.
    pub remote: Remote,
    /// Path MTU: 256, 512, 1024, 2048 or 4096.
    pub mtu_bytes: u16,
    /// Largest number of reads and atomics that this side answers at once.
    pub responder_reads: u8,
    /// Largest number of reads and atomics that this side has outstanding.
    pub initiator_reads: u8,
}

/// State of a queue pair, as far as this project needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// RESET or INIT.
    NotConnected,
    /// RTS: the queue pair works.
    ReadyToSend,
    /// ERR: the queue pair does nothing any more.
    Error,
    /// Any other state.
    Other,
}

impl QueuePair {
    /// Makes a queue pair whose work completes on `queue`.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn create(
        domain: &Arc<ProtectionDomain>,
        queue: &CompletionQueue,
        sizes: QueueSizes,
    ) -> Result<Self, Errno> {
        let mut attr = init_attributes(queue, sizes);
        let device = domain.context().name();
        // SAFETY: domain and queue exist and `attr` is valid for the call.
        let make = || unsafe { ffi::ibv_create_qp(domain.as_ptr(), &raw mut attr) };
        let mut raw = Handle::make("queue pair", device, make)?;
        // SAFETY: the library filled the structure.
        let number = unsafe { (*raw.as_ptr()).qp_num };
        raw.rename(format!("{number} of {device}"));
        Ok(Self {
            raw,
            number,
            mark: Arc::default(),
            domain: Arc::clone(domain),
        })
    }

    /// Allocates windows that work for this queue pair only.
    pub fn window_maker(&self) -> WindowMaker {
        WindowMaker::new(&self.domain, &self.mark)
    }

    /// Number of the queue pair on the wire.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The kernel's handle of the queue pair, in this process.
    pub fn handle(&self) -> u32 {
        // SAFETY: the queue pair exists, and the library never changes the field.
        unsafe { (*self.as_ptr()).handle }
    }

    /// Brings the queue pair from RESET to INIT, on a port, with these rights for the peer.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn init(&self, port: u8, rights: Rights) -> Result<(), Errno> {
        use ffi::ibv_qp_attr_mask as mask;
        let mut attr = blank();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = port;
        attr.qp_access_flags = rights.flags();
        self.modify(
            &mut attr,
            mask::IBV_QP_STATE
                | mask::IBV_QP_PKEY_INDEX
                | mask::IBV_QP_PORT
                | mask::IBV_QP_ACCESS_FLAGS,
        )
    }

    /// Brings the queue pair from INIT to RTR: connects it to the peer. The kernel resolves the GID, which can take
    /// seconds.
    ///
    /// # Errors
    /// The MTU is invalid (`EINVAL`), the GID cannot be resolved, or the kernel refuses.
    pub fn ready_to_receive(&self, to: &Connection) -> Result<(), Errno> {
        use ffi::ibv_qp_attr_mask as mask;
        let mut attr = blank();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = mtu_code(to.mtu_bytes).ok_or(Errno::EINVAL)?;
        attr.dest_qp_num = to.remote.qp_num;
        attr.rq_psn = to.remote.psn;
        attr.max_dest_rd_atomic = to.responder_reads;
        attr.min_rnr_timer = 12;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = to.local.port;
        attr.ah_attr.grh.dgid = ffi::ibv_gid { raw: to.remote.gid };
        attr.ah_attr.grh.sgid_index = to.local.gid_index;
        attr.ah_attr.grh.hop_limit = 64;
        self.modify(
            &mut attr,
            mask::IBV_QP_STATE
                | mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER,
        )
    }

    /// Brings the queue pair from RTR to RTS: then work can be posted.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn ready_to_send(&self, to: &Connection) -> Result<(), Errno> {
        use ffi::ibv_qp_attr_mask as mask;
        let mut attr = blank();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTS;
        attr.sq_psn = to.local.psn;
        attr.max_rd_atomic = to.initiator_reads;
        attr.timeout = 15;
        // With 7, hardware tries once more, but soft-RoCE tries for ever.
        attr.retry_cnt = 6;
        attr.rnr_retry = 7;
        self.modify(
            &mut attr,
            mask::IBV_QP_STATE
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Puts the queue pair in ERR, from any state.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn fail(&self) -> Result<(), Errno> {
        let mut attr = blank();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attr, ffi::ibv_qp_attr_mask::IBV_QP_STATE)
    }

    /// Reads the state from the kernel.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn state(&self) -> Result<QueuePairState, Errno> {
        let mut attr = blank();
        // SAFETY: plain integers and pointers, for which zero is a value.
        let mut init = unsafe { MaybeUninit::<ffi::ibv_qp_init_attr>::zeroed().assume_init() };
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: the queue pair exists and both structures are writable.
        check(unsafe { ffi::ibv_query_qp(self.as_ptr(), &raw mut attr, mask, &raw mut init) })?;
        Ok(match attr.qp_state {
            ffi::ibv_qp_state::IBV_QPS_RESET | ffi::ibv_qp_state::IBV_QPS_INIT => {
                QueuePairState::NotConnected
            }
            ffi::ibv_qp_state::IBV_QPS_RTS => QueuePairState::ReadyToSend,
            ffi::ibv_qp_state::IBV_QPS_ERR => QueuePairState::Error,
            _ => QueuePairState::Other,
        })
    }

    /// Sets the rights of the peer for all keys (RTS to RTS). Only the local device is involved.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open_to(&self, rights: Rights) -> Result<(), Errno> {
        use ffi::ibv_qp_attr_mask as mask;
        let mut attr = blank();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTS;
        attr.qp_access_flags = rights.flags();
        self.modify(&mut attr, mask::IBV_QP_STATE | mask::IBV_QP_ACCESS_FLAGS)
    }

    /// Destroys the queue pair.
    ///
    /// # Errors
    /// A window may still be bound to it (`EBUSY`): the kernel would wait for that window, up to 50 s. Or the kernel
    /// refuses.
    pub fn destroy(mut self) -> Result<(), Refused<Self>> {
        if Arc::strong_count(&self.mark) > 1 {
            return Err((self, Errno::EBUSY));
        }
        // SAFETY: the queue pair exists.
        let taken = self
            .raw
            .take_down(|raw| unsafe { ffi::ibv_destroy_qp(raw) });
        taken.map_err(|errno| (self, errno))
    }

    fn modify(
        &self,
        attr: &mut ffi::ibv_qp_attr,
        mask: ffi::ibv_qp_attr_mask,
    ) -> Result<(), Errno> {
        // SAFETY: the queue pair exists and `attr` is valid for the call.
        check(unsafe { ffi::ibv_modify_qp(self.as_ptr(), attr, mask.0.cast_signed()) })
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_qp {
        self.raw.as_ptr()
    }
}

/// The path MTU in bytes of a verbs code.
pub(super) fn mtu_bytes(code: ffi::ibv_mtu::Type) -> u16 {
    match code {
        1..=5 => 128 << code,
        _ => 256,
    }
}

fn mtu_code(bytes: u16) -> Option<ffi::ibv_mtu::Type> {
    (1..=5).find(|code| mtu_bytes(*code) == bytes)
}

fn init_attributes(queue: &CompletionQueue, sizes: QueueSizes) -> ffi::ibv_qp_init_attr {
    ffi::ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: queue.as_ptr(),
        recv_cq: queue.as_ptr(),
        srq: null_mut(),
        cap: ffi::ibv_qp_cap {
            max_send_wr: sizes.send,
            max_recv_wr: sizes.receive,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    }
}

fn blank() -> ffi::ibv_qp_attr {
    // SAFETY: plain integers, for which zero is a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
