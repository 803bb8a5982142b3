//! A listener at the kernel's connection manager (librdmacm) that accepts for queue pairs which others have made.
//!
//! No call waits for a peer. The identifier of a connection has no queue pair of its own, so a refused caller costs none.

use std::{
    fmt,
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    ptr::{NonNull, null_mut},
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::socket::{SockaddrLike, SockaddrStorage},
};
use rdma_mummy_sys as ffi;
use zeroize::{Zeroize, Zeroizing};

use super::{last_errno, pair};

/// Most bytes of a reason that a rejection carries (`IB_CM_REJ_PRIVATE_DATA_SIZE` of include/rdma/ib_cm.h).
pub const REASON_BYTES_MAX: usize = 148;

/// A listener.
pub struct CmListener {
    id: Id,
}

/// One connection, from the request on. Dropped, it ends.
pub struct CmConnection {
    id: Id,
}

/// Names a connection among the live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CmKey(usize);

/// News of the connections.
#[derive(Debug)]
pub enum CmEvent {
    /// A caller asks for a connection.
    Request(CmRequest),
    /// The caller has heard that it is accepted.
    Established(CmKey),
    /// The connection has ended, or will not be made.
    Over(CmKey),
    /// The device of the listener is gone.
    ListenerLost,
    /// Nothing to act on.
    Other,
}

/// The request of a caller.
pub struct CmRequest {
    /// Its connection.
    pub connection: CmConnection,
    /// The caller's queue pair; `None`: the kernel does not tell it.
    pub caller: Option<CmCaller>,
    /// What the caller sent; the connection manager of InfiniBand and RoCE pads it with zeroes to 56 bytes. It may be a
    /// secret, and is wiped.
    pub private_data: Zeroizing<Vec<u8>>,
    /// Largest number of reads and atomics that the caller wants answered at once.
    pub responder_reads: u8,
}

/// The queue pair of a caller, see [`super::Remote`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmCaller {
    /// Queue pair number, 24 bits.
    pub qp_num: u32,
    /// First PSN that it sends, 24 bits.
    pub psn: u32,
    /// GID.
    pub gid: [u8; 16],
    /// The path MTU that it uses.
    pub mtu_bytes: u16,
}

/// A failed step of [`CmListener::bind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {}", errno.desc())]
pub struct NotListening {
    /// The call.
    pub step: &'static str,
    /// Why it failed; `EOPNOTSUPP`: librdmacm is not installed.
    pub errno: Errno,
}

struct Channel(NonNull<ffi::rdma_event_channel>);

/// Each id keeps its channel.
struct Id {
    raw: NonNull<ffi::rdma_cm_id>,
    channel: Arc<Channel>,
}

// SAFETY: librdmacm documents its objects as usable from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}
// SAFETY: as above; one owner destroys the id.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl CmListener {
    /// Listens at an address of this machine. `backlog`: most requests that wait for [`CmListener::next`]; the kernel
    /// rejects others.
    ///
    /// # Errors
    /// The address is no RDMA device's, or is taken, or a library is missing.
    pub fn bind(at: SocketAddr, backlog: u8) -> Result<Self, NotListening> {
        Errno::clear();
        // SAFETY: a call without arguments.
        let channel = NonNull::new(unsafe { ffi::rdma_create_event_channel() });
        let channel = channel.ok_or_else(|| failed("rdma_create_event_channel"))?;
        let channel = Arc::new(Channel(channel));
        channel.set_nonblocking()?;
        let mut raw = null_mut();
        // SAFETY: the channel exists and `raw` is writable.
        let code = unsafe {
            ffi::rdma_create_id(
                channel.0.as_ptr(),
                &raw mut raw,
                null_mut(),
                ffi::rdma_port_space::RDMA_PS_TCP,
            )
        };
        done("rdma_create_id", code)?;
        let raw = NonNull::new(raw).ok_or_else(|| failed("rdma_create_id"))?;
        let id = Id { raw, channel };
        let address = SockaddrStorage::from(at);
        // SAFETY: the id exists; the address lives until after the call, which only reads it.
        let code = unsafe { ffi::rdma_bind_addr(id.as_ptr(), address.as_ptr().cast_mut()) };
        done("rdma_bind_addr", code)?;
        // SAFETY: the id exists and has an address.
        let code = unsafe { ffi::rdma_listen(id.as_ptr(), backlog.into()) };
        done("rdma_listen", code)?;
        Ok(Self { id })
    }

    /// The name of the device with the address; `None`: the address is a wildcard.
    pub fn device(&self) -> Option<String> {
        // SAFETY: the id exists; its device is null or lives as long as the program.
        unsafe {
            let context = self.id.raw.as_ref().verbs.as_ref()?;
            let name = std::ffi::CStr::from_ptr(ffi::ibv_get_device_name(context.device));
            Some(name.to_string_lossy().into_owned())
        }
    }

    /// The next news; `None`: there is none now, and the descriptor becomes readable when there is.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn next(&self) -> Result<Option<CmEvent>, Errno> {
        let mut event = null_mut();
        // SAFETY: the channel exists and `event` is writable.
        let code = unsafe { ffi::rdma_get_cm_event(self.id.channel.0.as_ptr(), &raw mut event) };
        if code != 0 {
            return match last_errno() {
                Errno::EAGAIN => Ok(None),
                errno => Err(errno),
            };
        }
        let event = NonNull::new(event).ok_or(Errno::EIO)?;
        // SAFETY: the event lives until it is acknowledged, below.
        let news = self.news(unsafe { event.as_ref() });
        // SAFETY: acknowledged once, and not used after.
        unsafe { ffi::rdma_ack_cm_event(event.as_ptr()) };
        Ok(Some(news))
    }

    fn news(&self, event: &ffi::rdma_cm_event) -> CmEvent {
        use ffi::rdma_cm_event_type as kind;
        let key = CmKey(event.id.addr());
        let is_listener = key == self.id.key();
        match event.event {
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                self.request(event).map_or(CmEvent::Other, CmEvent::Request)
            }
            kind::RDMA_CM_EVENT_ESTABLISHED => CmEvent::Established(key),
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL if is_listener => CmEvent::ListenerLost,
            kind::RDMA_CM_EVENT_CONNECT_ERROR
            | kind::RDMA_CM_EVENT_UNREACHABLE
            | kind::RDMA_CM_EVENT_REJECTED
            | kind::RDMA_CM_EVENT_DISCONNECTED
            | kind::RDMA_CM_EVENT_DEVICE_REMOVAL
            | kind::RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEvent::Over(key),
            _ => CmEvent::Other,
        }
    }

    fn request(&self, event: &ffi::rdma_cm_event) -> Option<CmRequest> {
        let id = Id {
            raw: NonNull::new(event.id)?,
            channel: Arc::clone(&self.id.channel),
        };
        // SAFETY: the event of a request has this member.
        let told = unsafe { event.param.conn };
        let private_data = match told.private_data.is_null() {
            true => Zeroizing::default(),
            false => {
                let length = told.private_data_len.into();
                let bytes = told.private_data.cast::<u8>().cast_mut();
                // SAFETY: the event has so many bytes, in memory of the library that nobody else uses until the event is
                // acknowledged.
                let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, length) };
                let copy = Zeroizing::new(bytes.to_vec());
                bytes.zeroize();
                copy
            }
        };
        Some(CmRequest {
            caller: id.caller(),
            connection: CmConnection { id },
            private_data,
            responder_reads: told.responder_resources,
        })
    }
}

impl AsRawFd for CmListener {
    fn as_raw_fd(&self) -> RawFd {
        self.id.channel.descriptor()
    }
}

impl CmConnection {
    /// The name of the connection in events.
    pub fn key(&self) -> CmKey {
        self.id.key()
    }

    /// Accepts for a queue pair that is connected to the caller's already. `responder_reads`: the most reads and atomics
    /// that it answers at once.
    ///
    /// # Errors
    /// The caller has gone, or the kernel refuses.
    pub fn accept(
        &self,
        qp_num: u32,
        responder_reads: u8,
        private_data: &[u8],
    ) -> Result<(), Errno> {
        // SAFETY: integers and a pointer; zero is a value of each.
        let mut told: ffi::rdma_conn_param = unsafe { MaybeUninit::zeroed().assume_init() };
        told.private_data = private_data.as_ptr().cast();
        told.private_data_len =
            u8::try_from(private_data.len()).map_err(|_too_long| Errno::EINVAL)?;
        told.qp_num = qp_num;
        told.responder_resources = responder_reads;
        told.rnr_retry_count = 7;
        // SAFETY: the id exists; the data lives until after the call, which copies it.
        match unsafe { ffi::rdma_accept(self.id.as_ptr(), &raw mut told) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Refuses the caller, with a reason for people of at most [`REASON_BYTES_MAX`] bytes; more are cut off.
    ///
    /// # Errors
    /// The caller has gone, or the kernel refuses.
    pub fn reject(&self, reason: &str) -> Result<(), Errno> {
        let length = reason.len().min(REASON_BYTES_MAX);
        let bytes = u8::try_from(length).unwrap_or(u8::MAX);
        // SAFETY: the id exists; the text has so many bytes and lives until after the call, which copies them.
        match unsafe { ffi::rdma_reject(self.id.as_ptr(), reason.as_ptr().cast(), bytes) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }

    /// Tells the peer that the connection ends, or answers that the peer has ended it.
    ///
    /// # Errors
    /// It has ended already, or the kernel refuses.
    pub fn disconnect(&self) -> Result<(), Errno> {
        // SAFETY: the id exists.
        match unsafe { ffi::rdma_disconnect(self.id.as_ptr()) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }
}

impl Channel {
    fn descriptor(&self) -> RawFd {
        // SAFETY: the channel exists, and the library never changes the field.
        unsafe { self.0.as_ref() }.fd
    }

    fn set_nonblocking(&self) -> Result<(), NotListening> {
        // SAFETY: the descriptor is open as long as the channel, which is borrowed for as long.
        let descriptor = unsafe { BorrowedFd::borrow_raw(self.descriptor()) };
        let set = fcntl(descriptor, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        let step = "fcntl";
        set.map(drop).map_err(|errno| NotListening { step, errno })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every id of the channel is destroyed, since each keeps the channel.
        unsafe { ffi::rdma_destroy_event_channel(self.0.as_ptr()) }
    }
}

impl Id {
    fn as_ptr(&self) -> *mut ffi::rdma_cm_id {
        self.raw.as_ptr()
    }

    fn key(&self) -> CmKey {
        CmKey(self.as_ptr().addr())
    }

    /// What the request says of the caller's queue pair: what a queue pair of this side would need for RTR.
    fn caller(&self) -> Option<CmCaller> {
        // SAFETY: plain integers, for which zero is a value.
        let mut attr: ffi::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTR;
        let mut mask = 0;
        // SAFETY: the id exists, and both are writable.
        let code = unsafe { ffi::rdma_init_qp_attr(self.as_ptr(), &raw mut attr, &raw mut mask) };
        (code == 0).then(|| CmCaller {
            qp_num: attr.dest_qp_num,
            psn: attr.rq_psn,
            // SAFETY: every form of the union is 16 plain bytes.
            gid: unsafe { attr.ah_attr.grh.dgid.raw },
            mtu_bytes: pair::mtu_bytes(attr.path_mtu),
        })
    }
}

impl Drop for Id {
    /// The library waits for the acknowledgement of events, which [`CmListener::next`] gives at once.
    fn drop(&mut self) {
        // SAFETY: the id exists and is destroyed once. Its events that nobody has taken go with it.
        if unsafe { ffi::rdma_destroy_id(self.as_ptr()) } != 0 {
            tracing::warn!(errno = %last_errno(), "a connection of rdma_cm could not be destroyed");
        }
    }
}

fn done(step: &'static str, code: i32) -> Result<(), NotListening> {
    match code {
        0 => Ok(()),
        _ => Err(failed(step)),
    }
}

fn failed(step: &'static str) -> NotListening {
    let errno = last_errno();
    NotListening { step, errno }
}

impl fmt::Debug for CmListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmListener").finish_non_exhaustive()
    }
}

impl fmt::Debug for CmConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CmConnection").field(&self.key()).finish()
    }
}

impl fmt::Debug for CmRequest {
    /// Without the private data, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmRequest")
            .field("connection", &self.connection)
            .field("caller", &self.caller)
            .finish_non_exhaustive()
    }
}
