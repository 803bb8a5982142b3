//! A connection through the kernel's connection manager (librdmacm), for one message and its answer.
//!
//! Each call waits as long as the kernel and the peer take. So it needs its own process, which can be killed and whose
//! end also ends objects that cannot be destroyed. librdmacm is loaded at the start of a program; without it every call
//! fails with `EOPNOTSUPP`.

use std::{
    cell::UnsafeCell,
    fmt,
    mem::{MaybeUninit, offset_of},
    net::SocketAddr,
    ptr::{NonNull, null_mut},
    thread,
};

use nix::{
    errno::Errno,
    sys::socket::{SockaddrLike, SockaddrStorage},
};
use rdma_mummy_sys as ffi;

use super::last_errno;

/// Bytes of private data in a request for a connection.
pub const REQUEST_BYTES: usize = 32;
/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 64;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 16;
/// Bytes that the peer may read during the exchange.
pub const DATA_BYTES: usize = 1024;

/// Time limit in milliseconds for resolving the address, and again for the route.
const RESOLVE_MS: i32 = 300;

/// `IB_CM_REJ_INVALID_SERVICE_ID` of include/rdma/ib_cm.h: no process listens on this device.
const NO_SERVICE: i32 = 8;
/// `IB_CM_REJ_CONSUMER_DEFINED`: the listener rejects the connection and gives a reason. Or a process listens on the
/// device at another address; then the connection manager itself rejects, without a reason.
const CONSUMER_DEFINED: i32 = 28;

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No process listens at the address.
    NobodyListens,
    /// This machine has no RDMA device with that address.
    NoSuchAddress,
    /// The peer rejects the connection. The reason is that of the connection manager's REJ.
    Rejected(i32),
    /// This call failed.
    Failed(&'static str, Errno),
    /// The message or the answer was lost. The status is of `enum ibv_wc_status`.
    Broken(u32),
}

/// The memory that the device reads and writes.
struct Memory {
    answer: [u8; ANSWER_BYTES],
    message: [u8; MESSAGE_BYTES],
    data: [u8; DATA_BYTES],
}

struct Call {
    id: NonNull<ffi::rdma_cm_id>,
    region: Option<NonNull<ffi::ibv_mr>>,
    memory: Box<UnsafeCell<Memory>>,
}

// SAFETY: librdmacm and libibverbs document their objects as usable from any thread, and no other code uses the memory.
unsafe impl Send for Call {}

/// Connects to `to`, an address of this machine, with `request` as private data. `message` gets the address and the key
/// with which the peer can read `data`, and returns the message to send. Returns the answer of the peer.
///
/// # Errors
/// See [`NoAnswer`].
pub fn exchange(
    to: SocketAddr,
    request: &[u8; REQUEST_BYTES],
    data: &[u8; DATA_BYTES],
    message: impl FnOnce(u64, u32) -> [u8; MESSAGE_BYTES],
) -> Result<[u8; ANSWER_BYTES], NoAnswer> {
    let mut call = Call::new()?;
    call.resolve(to)?;
    call.make_pair()?;
    call.register(data, message)?;
    call.expect_answer()?;
    call.connect(request)?;
    call.send()?;
    let answer = call.wait();
    // On another thread: ending the connection takes the kernel a while, and the caller need not wait for it.
    thread::spawn(move || drop(call));
    answer
}

impl Call {
    fn new() -> Result<Self, NoAnswer> {
        let mut id = null_mut();
        // SAFETY: `id` is writable. Without an event channel each call waits for its event.
        let code = unsafe {
            ffi::rdma_create_id(
                null_mut(),
                &raw mut id,
                null_mut(),
                ffi::rdma_port_space::RDMA_PS_TCP,
            )
        };
        done("rdma_create_id", code)?;
        let memory = Memory {
            answer: [0; ANSWER_BYTES],
            message: [0; MESSAGE_BYTES],
            data: [0; DATA_BYTES],
        };
        Ok(Self {
            id: NonNull::new(id).ok_or(NoAnswer::Failed("rdma_create_id", Errno::EIO))?,
            region: None,
            memory: Box::new(UnsafeCell::new(memory)),
        })
    }

    /// Resolves from the address to itself, so that the connection stays on this machine even if another machine has
    /// the same address.
    fn resolve(&self, to: SocketAddr) -> Result<(), NoAnswer> {
        let from = SockaddrStorage::from(SocketAddr::new(to.ip(), 0));
        let to = SockaddrStorage::from(to);
        // SAFETY: the id exists; the addresses live until after the call, which only reads them.
        let code = unsafe {
            ffi::rdma_resolve_addr(
                self.id.as_ptr(),
                from.as_ptr().cast_mut(),
                to.as_ptr().cast_mut(),
                RESOLVE_MS,
            )
        };
        done("rdma_resolve_addr", code).map_err(|failed| match failed {
            NoAnswer::Failed(_, Errno::EADDRNOTAVAIL | Errno::ENODEV) => NoAnswer::NoSuchAddress,
            failed => failed,
        })?;
        // SAFETY: the id exists and has an address.
        let code = unsafe { ffi::rdma_resolve_route(self.id.as_ptr(), RESOLVE_MS) };
        done("rdma_resolve_route", code)
    }

    /// Makes the queue pair. The library makes the protection domain and the completion queues.
    fn make_pair(&self) -> Result<(), NoAnswer> {
        // SAFETY: integers and pointers; zero is a value of each.
        let mut wanted: ffi::ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        wanted.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
        wanted.sq_sig_all = 1;
        wanted.cap.max_send_wr = 1;
        wanted.cap.max_recv_wr = 1;
        wanted.cap.max_send_sge = 1;
        wanted.cap.max_recv_sge = 1;
        // SAFETY: the id has a device since its address is resolved; `wanted` is writable.
        let code = unsafe { ffi::rdma_create_qp(self.id.as_ptr(), null_mut(), &raw mut wanted) };
        done("rdma_create_qp", code)
    }

    fn register(
        &mut self,
        data: &[u8; DATA_BYTES],
        message: impl FnOnce(u64, u32) -> [u8; MESSAGE_BYTES],
    ) -> Result<(), NoAnswer> {
        self.memory.get_mut().data = *data;
        let start = self.memory.get();
        // SAFETY: the id has a protection domain with its pair. The memory lives until the region is gone.
        let region =
            unsafe { ffi::rdma_reg_read(self.id.as_ptr(), start.cast(), size_of::<Memory>()) };
        let region = NonNull::new(region).ok_or_else(|| failed("ibv_reg_mr"))?;
        self.region = Some(region);
        let at = start.expose_provenance() + offset_of!(Memory, data);
        // SAFETY: the region exists.
        let key = unsafe { region.as_ref() }.rkey;
        self.memory.get_mut().message = message(at as u64, key);
        Ok(())
    }

    fn expect_answer(&self) -> Result<(), NoAnswer> {
        let at = self.at(offset_of!(Memory, answer));
        // SAFETY: pair and region exist; the memory belongs to the region and stays until the pair is destroyed.
        let code = unsafe {
            ffi::rdma_post_recv(
                self.id.as_ptr(),
                null_mut(),
                at,
                ANSWER_BYTES,
                self.region(),
            )
        };
        done("rdma_post_recv", code)
    }

    fn connect(&self, request: &[u8; REQUEST_BYTES]) -> Result<(), NoAnswer> {
        // SAFETY: integers and a pointer; zero is a value of each.
        let mut wanted: ffi::rdma_conn_param = unsafe { MaybeUninit::zeroed().assume_init() };
        wanted.private_data = request.as_ptr().cast();
        wanted.private_data_len = u8::try_from(REQUEST_BYTES).unwrap_or(u8::MAX);
        // The peer reads `data`.
        wanted.responder_resources = 1;
        wanted.retry_count = 3;
        wanted.rnr_retry_count = 3;
        // SAFETY: the id has a route and a pair; `request` lives until after the call, which copies it.
        let code = unsafe { ffi::rdma_connect(self.id.as_ptr(), &raw mut wanted) };
        done("rdma_connect", code).map_err(|failed| self.rejected().unwrap_or(failed))
    }

    /// The rejection in the last event, if it is a REJ.
    fn rejected(&self) -> Option<NoAnswer> {
        // SAFETY: the id exists, and keeps the event of its last call until the next one.
        let event = unsafe { self.id.as_ref().event.as_ref() }?;
        let is_rejection = event.event == ffi::rdma_cm_event_type::RDMA_CM_EVENT_REJECTED;
        is_rejection.then(|| match event.status {
            NO_SERVICE => NoAnswer::NobodyListens,
            CONSUMER_DEFINED if !gives_a_reason(event) => NoAnswer::NobodyListens,
            reason => NoAnswer::Rejected(reason),
        })
    }

    fn send(&self) -> Result<(), NoAnswer> {
        let at = self.at(offset_of!(Memory, message));
        // SAFETY: pair and region exist; the memory belongs to the region and stays until the pair is destroyed.
        let code = unsafe {
            let id = self.id.as_ptr();
            ffi::rdma_post_send(id, null_mut(), at, MESSAGE_BYTES, self.region(), 0)
        };
        done("rdma_post_send", code)
    }

    fn wait(&mut self) -> Result<[u8; ANSWER_BYTES], NoAnswer> {
        // SAFETY: integers only.
        let mut completion: ffi::ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the pair has a completion queue with a channel for what it receives.
        let count = unsafe { ffi::rdma_get_recv_comp(self.id.as_ptr(), &raw mut completion) };
        if count != 1 {
            return Err(failed("rdma_get_recv_comp"));
        }
        match completion.status {
            ffi::ibv_wc_status::IBV_WC_SUCCESS => Ok(self.memory.get_mut().answer),
            status => Err(NoAnswer::Broken(status)),
        }
    }

    fn at(&self, offset: usize) -> *mut libc::c_void {
        self.memory.get().cast::<u8>().wrapping_add(offset).cast()
    }

    fn region(&self) -> *mut ffi::ibv_mr {
        self.region.map_or(null_mut(), NonNull::as_ptr)
    }
}

impl Drop for Call {
    /// Destroys the queue pair before the region. Does not wait for the end of the connection, which ends together with
    /// the id.
    fn drop(&mut self) {
        let id = self.id.as_ptr();
        // SAFETY: the id exists, and each of its parts that exist is destroyed once.
        unsafe {
            if !(*id).qp.is_null() {
                ffi::rdma_destroy_qp(id);
            }
            if let Some(region) = self.region {
                ffi::ibv_dereg_mr(region.as_ptr());
            }
            ffi::rdma_destroy_id(id);
        }
    }
}

/// Whether the listener itself rejects. Then the private data has two bytes for the format and two for the reason,
/// `struct nvme_rdma_cm_rej` of include/linux/nvme-rdma.h.
fn gives_a_reason(rejection: &ffi::rdma_cm_event) -> bool {
    // SAFETY: the event of a connection has this member.
    let told = unsafe { rejection.param.conn };
    let bytes: *const [u8; 4] = told.private_data.cast();
    // SAFETY: these four bytes exist, since the length is checked first, and live as long as the event.
    told.private_data_len >= 4 && unsafe { bytes.as_ref() }.is_some_and(|it| it[2..] != [0, 0])
}

fn done(call: &'static str, code: i32) -> Result<(), NoAnswer> {
    match code {
        0 => Ok(()),
        _ => Err(failed(call)),
    }
}

fn failed(call: &'static str) -> NoAnswer {
    NoAnswer::Failed(call, last_errno())
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NobodyListens => f.write_str("nobody listens there"),
            Self::Rejected(reason) => write!(f, "the connection was rejected with reason {reason}"),
            Self::NoSuchAddress => f.write_str("no RDMA device of this machine has that address"),
            Self::Failed("rdma_create_id", Errno::EOPNOTSUPP) => {
                f.write_str("librdmacm is not installed")
            }
            Self::Failed(call, errno) => write!(f, "{call}: {}", errno.desc()),
            Self::Broken(status) => write!(f, "the connection broke, work completion {status}"),
        }
    }
}
