//! Memory that a device may touch: protection domains, regions and windows.

use std::{fmt, ptr::NonNull, sync::Arc};

use fabricbios_arena::Arena;
use nix::errno::Errno;
use rdma_mummy_sys as ffi;

use super::{Context, Refused, check, forgotten, last_errno, pointer};

/// What may be done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device may write on behalf of this process; windows may be bound; nobody remote.
    UnderWindows,
    /// Only this process's own requests: the buffer of a client.
    LocalBuffer,
    /// Remote peers, as far as their queue pairs here are open: the region of a lease.
    Remote(Rights),
}

/// What a remote peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing.
    Nothing,
    /// RDMA READ and RDMA WRITE.
    ReadWrite,
    /// Those and atomics.
    ReadWriteAtomic,
}

/// Keeps the objects of one user of a device apart from those of others.
pub struct ProtectionDomain {
    raw: Option<NonNull<ffi::ibv_pd>>,
    context: Arc<Context>,
}

/// Memory registered with a device: pinned, and reachable as its access says.
pub struct MemoryRegion {
    raw: Option<NonNull<ffi::ibv_mr>>,
    arena: Arc<Arena>,
    domain: Arc<ProtectionDomain>,
}

/// A memory window of type 2: a key to part of a region that only one queue pair can use.
pub struct Window {
    raw: Option<NonNull<ffi::ibv_mw>>,
    /// The key as the kernel knows it.
    rkey: u32,
    was_bound: bool,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs documents its objects as usable from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}
// SAFETY: as above.
unsafe impl Send for Window {}
// SAFETY: as above; the library's copy of the key is written only under `&mut self`.
unsafe impl Sync for Window {}

impl ProtectionDomain {
    /// A new one.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Self>, Errno> {
        Errno::clear();
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_alloc_pd(context.as_ptr()) };
        let raw = Some(NonNull::new(raw).ok_or_else(last_errno)?);
        Ok(Arc::new(Self {
            raw,
            context: Arc::clone(context),
        }))
    }

    /// The device it is of.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Takes it away.
    pub fn dealloc(mut self) -> Result<Arc<Context>, Refused<Self>> {
        // SAFETY: the domain exists; the kernel refuses while anything uses it.
        match check(unsafe { ffi::ibv_dealloc_pd(self.as_ptr()) }) {
            Ok(()) => self.raw = None,
            Err(errno) => return Err((self, errno)),
        }
        Ok(Arc::clone(&self.context))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        pointer(self.raw)
    }
}

impl MemoryRegion {
    /// Registers `bytes` bytes of the arena from `offset`.
    pub fn register(
        domain: &Arc<ProtectionDomain>,
        arena: &Arc<Arena>,
        (offset, bytes): (u64, u64),
        access: Access,
    ) -> Result<Self, Errno> {
        let end = offset.checked_add(bytes).ok_or(Errno::EINVAL)?;
        if end > arena.bytes() {
            return Err(Errno::EINVAL);
        }
        let index = |bytes: u64| usize::try_from(bytes).or(Err(Errno::EINVAL));
        let start = arena.mapping().pointer(index(offset)?);
        let bytes = index(bytes)?;
        Errno::clear();
        // SAFETY: the range is within the mapping, checked above, and stays mapped, because the
        // region holds the arena.
        let raw = unsafe { ffi::ibv_reg_mr(domain.as_ptr(), start, bytes, access.flags()) };
        let raw = Some(NonNull::new(raw).ok_or_else(last_errno)?);
        Ok(Self {
            raw,
            arena: Arc::clone(arena),
            domain: Arc::clone(domain),
        })
    }

    /// The key for this process's own requests.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region exists, and the library never changes the field.
        unsafe { (*self.as_ptr()).lkey }
    }

    /// The key for remote peers, if they have rights.
    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.as_ptr()).rkey }
    }

    /// The memory that it is of.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Takes it away. Of a region under windows only at the end of everything: never a way to
    /// revoke, and never a probe.
    pub fn dereg(mut self) -> Result<(), Refused<Self>> {
        // SAFETY: the region exists; the kernel refuses while windows are bound to it.
        match check(unsafe { ffi::ibv_dereg_mr(self.as_ptr()) }) {
            Ok(()) => self.raw = None,
            Err(errno) => return Err((self, errno)),
        }
        Ok(())
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_mr {
        pointer(self.raw)
    }
}

impl Window {
    /// A new unbound window. Allocate it after the queue pair it is for: a process that dies has
    /// its objects taken newest first, and a window that outlives its queue pair stalls that.
    pub fn alloc(domain: &Arc<ProtectionDomain>) -> Result<Self, Errno> {
        Errno::clear();
        let kind = ffi::ibv_mw_type::IBV_MW_TYPE_2;
        // SAFETY: the domain exists.
        let raw = unsafe { ffi::ibv_alloc_mw(domain.as_ptr(), kind) };
        let raw = NonNull::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the library filled the structure.
        let rkey = unsafe { raw.as_ref().rkey };
        Ok(Self {
            raw: Some(raw),
            rkey,
            was_bound: false,
            domain: Arc::clone(domain),
        })
    }

    /// The key as the kernel knows it.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Whether it ever was. The LOCAL_INV of one that was not makes soft-RoCE's kernel fault.
    pub fn was_bound(&self) -> bool {
        self.was_bound
    }

    /// To be told after every successful bind: a bind that names a stale key kills the queue pair.
    pub fn set_rkey(&mut self, rkey: u32) {
        self.rkey = rkey;
        self.was_bound = true;
        // SAFETY: the window exists and `&mut self` keeps other users of the field away.
        unsafe { (*self.as_ptr()).rkey = rkey }
    }

    /// Takes it away, bound or not. Nothing can be reached through it afterwards.
    pub fn dealloc(mut self) -> Result<(), Refused<Self>> {
        // SAFETY: the window exists.
        match check(unsafe { ffi::ibv_dealloc_mw(self.as_ptr()) }) {
            Ok(()) => self.raw = None,
            Err(errno) => return Err((self, errno)),
        }
        Ok(())
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_mw {
        pointer(self.raw)
    }
}

impl Access {
    fn flags(self) -> i32 {
        let write = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        let flags = match self {
            Self::UnderWindows => write | ffi::ibv_access_flags::IBV_ACCESS_MW_BIND.0,
            Self::LocalBuffer => write,
            Self::Remote(rights) => write | rights.flags(),
        };
        flags.cast_signed()
    }
}

impl Rights {
    /// Everything but atomics, and those if the device has them.
    pub fn all(atomics: bool) -> Self {
        match atomics {
            true => Self::ReadWriteAtomic,
            false => Self::ReadWrite,
        }
    }

    pub(super) fn flags(self) -> u32 {
        use ffi::ibv_access_flags as access;
        let read_write = access::IBV_ACCESS_REMOTE_READ | access::IBV_ACCESS_REMOTE_WRITE;
        match self {
            Self::Nothing => 0,
            Self::ReadWrite => read_write.0,
            Self::ReadWriteAtomic => (read_write | access::IBV_ACCESS_REMOTE_ATOMIC).0,
        }
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        forgotten(
            "protection domain",
            &self.context.name(),
            self.raw.is_some(),
        );
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        forgotten(
            "memory region",
            &self.domain.context().name(),
            self.raw.is_some(),
        );
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        forgotten(
            "window of",
            &self.domain.context().name(),
            self.raw.is_some(),
        );
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({})", self.context.name())
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion(lkey {:#010x})", self.lkey())
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window(rkey {:#010x})", self.rkey())
    }
}
