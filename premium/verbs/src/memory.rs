//! Memory that a device may touch: protection domains, regions and windows.

use std::sync::{Arc, Weak};

use fabricbios_arena::Arena;
use nix::errno::Errno;
use rdma_mummy_sys as ffi;

use super::{Context, Refused, handle::Handle};

/// Access to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The device may write for this process, and windows may be bound to the region. No remote access.
    UnderWindows,
    /// Only requests of this process: the buffer of a client.
    LocalBuffer,
    /// Remote peers, if their queue pairs here are open: the region of a lease.
    Remote(Rights),
}

/// Rights of a remote peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// No access.
    Nothing,
    /// RDMA READ and RDMA WRITE.
    ReadWrite,
    /// RDMA READ, RDMA WRITE and atomics.
    ReadWriteAtomic,
}

/// Separates the objects of one user of a device from those of other users.
#[derive(Debug)]
pub struct ProtectionDomain {
    raw: Handle<ffi::ibv_pd>,
    context: Arc<Context>,
}

/// Memory registered with a device: pinned, and accessible according to its [`Access`].
#[derive(Debug)]
pub struct MemoryRegion {
    raw: Handle<ffi::ibv_mr>,
    arena: Arc<Arena>,
    _domain: Arc<ProtectionDomain>,
}

/// Allocates the windows of one queue pair. Only the queue pair makes it, so that every window is newer than its queue
/// pair: the kernel destroys the objects of a dead process newest first, and a window that outlives its queue pair
/// stalls that.
#[derive(Clone, Debug)]
pub struct WindowMaker {
    domain: Arc<ProtectionDomain>,
    queue_pair: Weak<()>,
}

/// A memory window of type 2: a key to part of a region that works for one queue pair only.
#[derive(Debug)]
pub struct Window {
    raw: Handle<ffi::ibv_mw>,
    /// The key as the kernel knows it.
    rkey: u32,
    was_bound: bool,
    /// The mark of its queue pair.
    queue_pair: Weak<()>,
    /// The same while it may be bound: the queue pair cannot be destroyed meanwhile.
    in_use: Option<Arc<()>>,
    _domain: Arc<ProtectionDomain>,
}

impl ProtectionDomain {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn alloc(context: &Arc<Context>) -> Result<Arc<Self>, Errno> {
        // SAFETY: the context is open.
        let make = || unsafe { ffi::ibv_alloc_pd(context.as_ptr()) };
        Ok(Arc::new(Self {
            raw: Handle::make("protection domain", context.name(), make)?,
            context: Arc::clone(context),
        }))
    }

    /// The device of the domain.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Deallocates the domain.
    ///
    /// # Errors
    /// The kernel refuses, as long as another object uses the domain.
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
    ///
    /// # Errors
    /// The range is not in the arena (`EINVAL`), or the kernel refuses.
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

    /// The key for requests of this process.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region exists, and the library never changes the field.
        unsafe { (*self.as_ptr()).lkey }
    }

    /// The key for remote peers, if they have rights.
    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.as_ptr()).rkey }
    }

    /// The arena of the region.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Deregisters the region. For a region with windows only when everything ends: never to revoke access, and never
    /// as a test.
    ///
    /// # Errors
    /// The kernel refuses, as long as a window is bound to the region.
    pub fn dereg(mut self) -> Result<(), Refused<Self>> {
        // SAFETY: the region exists; the kernel refuses while windows are bound to it.
        let taken = self.raw.take_down(|raw| unsafe { ffi::ibv_dereg_mr(raw) });
        taken.map_err(|errno| (self, errno))
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_mr {
        self.raw.as_ptr()
    }
}

impl WindowMaker {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, mark: &Arc<()>) -> Self {
        Self {
            domain: Arc::clone(domain),
            queue_pair: Arc::downgrade(mark),
        }
    }

    /// Allocates an unbound window.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn alloc(&self) -> Result<Window, Errno> {
        let kind = ffi::ibv_mw_type::IBV_MW_TYPE_2;
        // SAFETY: the domain exists.
        let make = || unsafe { ffi::ibv_alloc_mw(self.domain.as_ptr(), kind) };
        let raw = Handle::make("window of", self.domain.context().name(), make)?;
        // SAFETY: the library filled the structure.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        Ok(Window {
            raw,
            rkey,
            was_bound: false,
            queue_pair: Weak::clone(&self.queue_pair),
            in_use: None,
            _domain: Arc::clone(&self.domain),
        })
    }
}

impl Window {
    /// The key as the kernel knows it.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Whether the window was ever bound. LOCAL_INV of a window that was never bound makes the kernel of soft-RoCE
    /// fault.
    pub fn was_bound(&self) -> bool {
        self.was_bound
    }

    /// Stores the new key. Call it after every successful bind: a bind that names an old key puts the queue pair in
    /// ERR.
    pub fn set_rkey(&mut self, rkey: u32) {
        self.rkey = rkey;
        self.was_bound = true;
        // SAFETY: the window exists and `&mut self` keeps other users of the field away.
        unsafe { (*self.as_ptr()).rkey = rkey }
    }

    /// Marks the window as not bound any more. Call it only after LOCAL_INV of its key has completed.
    pub fn set_invalid(&mut self) {
        self.in_use = None;
    }

    /// Whether it was allocated for the queue pair with this mark.
    pub(super) fn is_of(&self, mark: &Arc<()>) -> bool {
        self.queue_pair.as_ptr() == Arc::as_ptr(mark)
    }

    /// Holds its queue pair from now on.
    pub(super) fn hold(&mut self, mark: &Arc<()>) {
        self.in_use = Some(Arc::clone(mark));
    }

    /// Deallocates the window, bound or not. It gives no access afterwards.
    ///
    /// # Errors
    /// The kernel refuses.
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
    /// All rights; atomics only if the device has them.
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
