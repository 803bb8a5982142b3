//! Memory that a device may touch: protection domains, regions and windows.

use std::sync::Arc;

use fabricbios_arena::Arena;
use nix::errno::Errno;
use rdma_mummy_sys as ffi;

use super::{Context, Refused, handle::Handle};

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
#[derive(Debug)]
pub struct ProtectionDomain {
    raw: Handle<ffi::ibv_pd>,
    context: Arc<Context>,
}

/// Memory registered with a device: pinned, and reachable as its access says.
#[derive(Debug)]
pub struct MemoryRegion {
    raw: Handle<ffi::ibv_mr>,
    arena: Arc<Arena>,
    _domain: Arc<ProtectionDomain>,
}

/// A memory window of type 2: a key to part of a region that only one queue pair can use.
#[derive(Debug)]
pub struct Window {
    raw: Handle<ffi::ibv_mw>,
    /// The key as the kernel knows it.
    rkey: u32,
    was_bound: bool,
    _domain: Arc<ProtectionDomain>,
}

impl ProtectionDomain {
    /// A new one.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Self>, Errno> {
        // SAFETY: the context is open.
        let make = || unsafe { ffi::ibv_alloc_pd(context.as_ptr()) };
        Ok(Arc::new(Self {
            raw: Handle::make("protection domain", context.name(), make)?,
            context: Arc::clone(context),
        }))
    }

    /// The device it is of.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Takes it away.
    pub fn dealloc(mut self) -> Result<(), Refused<Self>> {
        // SAFETY: the domain exists; the kernel refuses while anything uses it.
        let taken = self
            .raw
            .take_down(|raw| unsafe { ffi::ibv_dealloc_pd(raw) });
        taken.map_err(|errno| (self, errno))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
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
        // SAFETY: the range is within the mapping, checked above, and stays mapped, because the
        // region holds the arena.
        let make = || unsafe { ffi::ibv_reg_mr(domain.as_ptr(), start, bytes, access.flags()) };
        Ok(Self {
            raw: Handle::make("memory region", domain.context().name(), make)?,
            arena: Arc::clone(arena),
            _domain: Arc::clone(domain),
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
        let taken = self.raw.take_down(|raw| unsafe { ffi::ibv_dereg_mr(raw) });
        taken.map_err(|errno| (self, errno))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_mr {
        self.raw.as_ptr()
    }
}

impl Window {
    /// A new unbound window. Allocate it after the queue pair it is for: a process that dies has
    /// its objects taken newest first, and a window that outlives its queue pair stalls that.
    pub fn alloc(domain: &Arc<ProtectionDomain>) -> Result<Self, Errno> {
        let kind = ffi::ibv_mw_type::IBV_MW_TYPE_2;
        // SAFETY: the domain exists.
        let make = || unsafe { ffi::ibv_alloc_mw(domain.as_ptr(), kind) };
        let raw = Handle::make("window of", domain.context().name(), make)?;
        // SAFETY: the library filled the structure.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        Ok(Self {
            raw,
            rkey,
            was_bound: false,
            _domain: Arc::clone(domain),
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
        let taken = self
            .raw
            .take_down(|raw| unsafe { ffi::ibv_dealloc_mw(raw) });
        taken.map_err(|errno| (self, errno))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_mw {
        self.raw.as_ptr()
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
