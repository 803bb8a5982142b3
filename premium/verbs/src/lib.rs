//! A thin typed layer over libibverbs and librdmacm.
//!
//! Every object is destroyed by a method that consumes it. If the kernel refuses, the method returns the object with
//! the errno. `Drop` destroys nothing and only logs a forgotten object. [`managed`] is the exception, since its process
//! ends anyway. libibverbs is loaded at the first call, so a host without it works too.
//!
//! Never here: knowledge of leases.
//!
//! Read first: `memory.rs`, what a device may touch.

pub mod cm;
mod foreign;
mod handle;
pub mod managed;
mod memory;
mod pair;
mod queue;
mod work;

use std::{
    ffi::CStr,
    fmt,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, RawFd},
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use nix::errno::Errno;
use rdma_mummy_sys as ffi;

use self::handle::Handle;

pub use foreign::fail_queue_pair;
pub use memory::{Access, MemoryRegion, ProtectionDomain, Rights, Window, WindowMaker};
pub use pair::{Connection, Local, QueuePair, QueuePairState, QueueSizes, Remote};
pub use queue::{Completion, CompletionQueue, WorkError};

/// An object that the kernel refused to destroy, and the errno.
pub type Refused<T> = (T, Errno);

/// Properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Ports, counted from 1.
    pub ports: u8,
    /// Whether memory windows of type 2B exist.
    pub has_type_2b: bool,
    /// Whether remote atomics exist.
    pub atomics: bool,
    /// Largest number of reads and atomics that one queue pair answers at once.
    pub responder_reads: u8,
}

/// Properties of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortState {
    /// Whether the port carries traffic.
    pub active: bool,
    /// Path MTU in bytes.
    pub mtu_bytes: u16,
    /// Largest message in bytes.
    pub message_bytes: u32,
}

/// An entry of the GID table of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u8,
    /// The address.
    pub bytes: [u8; 16],
    /// Whether packets with this GID are RoCE v2.
    pub is_roce_v2: bool,
}

/// The devices of this host at the time of the call.
pub struct DeviceList {
    list: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

/// An opened device. Several threads may make calls on it at once.
#[derive(Debug)]
pub struct Context(Handle<ffi::ibv_context>);

/// Serialises scans: libibverbs scans for devices without a lock on its static list.
static SCAN: Mutex<()> = Mutex::new(());

impl DeviceList {
    /// Lists the devices.
    ///
    /// # Errors
    /// `ENOSYS` if libibverbs or the kernel's support is missing, or another errno of the library.
    pub fn get() -> Result<Self, Errno> {
        let _scan = SCAN
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut count = 0;
        Errno::clear();
        // SAFETY: `count` is valid for the call; the result is null or an array of `count`.
        let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(last_errno)?;
        Ok(Self {
            list,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    /// Names of the devices, in the order of the library.
    pub fn names(&self) -> Vec<String> {
        (0..self.count)
            .map(|position| self.name(position))
            .collect()
    }

    /// Opens the device with that name.
    ///
    /// # Errors
    /// `ENODEV` if there is none, or the errno of the library.
    pub fn open(&self, name: &str) -> Result<Arc<Context>, Errno> {
        let position = (0..self.count)
            .find(|at| self.name(*at) == name)
            .ok_or(Errno::ENODEV)?;
        let device = self.device(position);
        // SAFETY: `device` belongs to this list, which lives until after the call.
        let opened = Handle::make("device", name, || unsafe { ffi::ibv_open_device(device) })?;
        Ok(Arc::new(Context(opened)))
    }

    fn device(&self, position: usize) -> *mut ffi::ibv_device {
        assert!(position < self.count, "positions come from 0..count");
        // SAFETY: the list has `count` entries, checked above.
        unsafe { *self.list.as_ptr().add(position) }
    }

    fn name(&self, position: usize) -> String {
        // SAFETY: a device of the list has a NUL-terminated name that lives as long as the list.
        let name = unsafe { CStr::from_ptr(ffi::ibv_get_device_name(self.device(position))) };
        name.to_string_lossy().into_owned()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list and is freed once. Opened devices keep
        // their own reference.
        unsafe { ffi::ibv_free_device_list(self.list.as_ptr()) }
    }
}

impl Context {
    /// The device's name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Asks the device for its properties.
    ///
    /// # Errors
    /// The errno of the library.
    pub fn limits(&self) -> Result<DeviceLimits, Errno> {
        let mut attr = MaybeUninit::<ffi::ibv_device_attr>::zeroed();
        // SAFETY: the context is open and `attr` is writable.
        check(unsafe { ffi::ibv_query_device(self.as_ptr(), attr.as_mut_ptr()) })?;
        // SAFETY: plain integers, zeroed before and filled by the call.
        Ok(device_limits(&unsafe { attr.assume_init() }))
    }

    /// Asks a port for its properties.
    ///
    /// # Errors
    /// The errno of the library.
    pub fn port(&self, port: u8) -> Result<PortState, Errno> {
        let mut attr = MaybeUninit::<ffi::ibv_port_attr>::zeroed();
        // SAFETY: the context is open and `attr` is writable.
        check(unsafe { ffi::ibv_query_port(self.as_ptr(), port, attr.as_mut_ptr()) })?;
        // SAFETY: plain integers, zeroed before and filled by the call.
        let attr = unsafe { attr.assume_init() };
        Ok(PortState {
            active: attr.state == ffi::ibv_port_state::IBV_PORT_ACTIVE,
            mtu_bytes: pair::mtu_bytes(attr.active_mtu),
            message_bytes: attr.max_msg_sz,
        })
    }

    /// The entries of the first 256 places of a port's GID table. Empty places are left out.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the library is older than rdma-core 32.
    pub fn gids(&self, port: u8) -> Result<Vec<Gid>, Errno> {
        let asked = (0..=u8::MAX).map(|index| self.gid(port, index));
        asked.filter_map(Result::transpose).collect()
    }

    fn gid(&self, port: u8, index: u8) -> Result<Option<Gid>, Errno> {
        let mut entry = MaybeUninit::<ffi::ibv_gid_entry>::zeroed();
        let (port, place) = (port.into(), index.into());
        // SAFETY: the context is open, and `entry` is writable and zeroed, which is a value of its type.
        let asked = check(unsafe {
            ffi::ibv_query_gid_ex(self.as_ptr(), port, place, entry.as_mut_ptr(), 0)
        });
        match asked {
            Err(Errno::EOPNOTSUPP) => return Err(Errno::EOPNOTSUPP),
            // The place is empty, or the table is shorter.
            Err(_) => return Ok(None),
            Ok(()) => {}
        }
        // SAFETY: plain integers, zeroed before and filled by the call.
        let entry = unsafe { entry.assume_init() };
        Ok(Some(Gid {
            index,
            // SAFETY: every form of the union is 16 plain bytes.
            bytes: unsafe { entry.gid.raw },
            is_roce_v2: entry.gid_type == ffi::IBV_GID_TYPE_ROCE_V2,
        }))
    }

    /// Closes the device.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        // SAFETY: the context is open and has no other owner, since it was moved in here.
        let closed = self
            .0
            .take_down(|raw| unsafe { ffi::ibv_close_device(raw) });
        closed.map_err(|errno| (self, errno))
    }

    /// Number of the descriptor through which commands reach the device.
    pub fn descriptor(&self) -> RawFd {
        // SAFETY: the context is open, and the library never changes the field.
        unsafe { (*self.as_ptr()).cmd_fd }
    }

    fn as_ptr(&self) -> *mut ffi::ibv_context {
        self.0.as_ptr()
    }
}

fn device_limits(attr: &ffi::ibv_device_attr) -> DeviceLimits {
    let type_2b = ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    DeviceLimits {
        ports: attr.phys_port_cnt,
        has_type_2b: attr.device_cap_flags & type_2b != 0,
        atomics: attr.atomic_cap != ffi::ibv_atomic_cap::IBV_ATOMIC_NONE,
        responder_reads: u8::try_from(attr.max_qp_rd_atom.max(0)).unwrap_or(u8::MAX),
    }
}

impl fmt::Debug for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library closes the descriptor together with the context, which is borrowed for as long.
        unsafe { BorrowedFd::borrow_raw(self.descriptor()) }
    }
}

fn last_errno() -> Errno {
    match Errno::last() {
        // Some providers return a null pointer and leave errno alone.
        Errno::UnknownErrno => Errno::EIO,
        errno => errno,
    }
}

/// Verbs return 0 or an errno; some return -1 and set errno.
fn check(code: i32) -> Result<(), Errno> {
    match code {
        0 => Ok(()),
        code if code < 0 => Err(last_errno()),
        code => Err(Errno::from_raw(code)),
    }
}
