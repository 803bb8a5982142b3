//! The operations of a GPU session (docs/spec/gpu-sessions.md). A stream is one ordered queue of a session: its first
//! frame opens the session, and each further frame is one operation, which is answered in order. Bytes of copies and
//! modules follow their frames.

use alloc::{string::String, vec::Vec};

use crate::LeaseId;

/// Most bytes of one copy in a GPU session. A client splits longer copies and sends the pieces without waiting for
/// answers.
pub const GPU_COPY_BYTES_MAX: u32 = 4 << 20;
/// Longest module of a GPU session, bytes.
pub const GPU_MODULE_BYTES_MAX: u32 = 64 << 20;
/// Longest name of a kernel, bytes.
pub const GPU_KERNEL_BYTES_MAX: usize = 255;
/// Most arguments of a kernel.
pub const GPU_ARGUMENTS_MAX: usize = 256;
/// Longest argument of a kernel, bytes: CUDA's driver takes 4 KiB for all of them.
pub const GPU_ARGUMENT_BYTES_MAX: usize = 4_096;

/// Codes of the operations. The first seven are the specification's, in the order of calls of its SDK; the others are
/// ours. These are numbers of messages, not of the TLV family 0x06xx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum GpuMessageType {
    /// Opens a queue of a session, and the session if there is none.
    SessionOpen = 0x0601,
    /// Allocates memory.
    MemAlloc = 0x0602,
    /// Copies to the device.
    MemWrite = 0x0603,
    /// Loads a module.
    ModuleLoad = 0x0604,
    /// Queues a kernel.
    Launch = 0x0605,
    /// Waits for queued kernels.
    Sync = 0x0606,
    /// Copies from the device.
    MemRead = 0x0607,
    /// Wipes and frees memory.
    MemFree = 0x0608,
    /// Unloads a module.
    ModuleUnload = 0x0609,
    /// Ends the session.
    SessionClose = 0x060A,
    /// Shares memory of the client with the session (on the node only).
    MemShare = 0x060B,
    /// Copies from the shared memory to the device (on the node only).
    MemWriteShared = 0x060C,
    /// Copies from the device to the shared memory (on the node only).
    MemReadShared = 0x060D,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
#[cfg_attr(feature = "vectors", serde(rename_all = "snake_case"))]
pub enum GpuRequest {
    /// GPU_SESSION_OPEN, the first frame of each stream.
    Open {
        /// The lease.
        lease_id: LeaseId,
        /// 0: the session of the lease, which is started if there is none. Else exactly this session.
        session: u64,
    },
    /// GPU_MEM_ALLOC.
    MemAlloc {
        /// At least 1.
        bytes: u64,
    },
    /// GPU_MEM_WRITE; the bytes follow the frame.
    MemWrite {
        /// The memory.
        memory: u64,
        /// Start of the copy in the memory, bytes.
        offset: u64,
        /// 1 to [`crate::GPU_COPY_BYTES_MAX`].
        length: u32,
    },
    /// GPU_MODULE_LOAD; the module follows the frame.
    ModuleLoad {
        /// 1 to [`crate::GPU_MODULE_BYTES_MAX`].
        length: u32,
    },
    /// GPU_LAUNCH.
    Launch(GpuLaunch),
    /// GPU_SYNC.
    Sync {
        /// True: waits for all queues of the session. False: waits for this queue.
        whole_session: bool,
    },
    /// GPU_MEM_READ; the bytes follow the answer.
    MemRead {
        /// The memory.
        memory: u64,
        /// Start of the copy in the memory, bytes.
        offset: u64,
        /// 1 to [`crate::GPU_COPY_BYTES_MAX`].
        length: u32,
    },
    /// GPU_MEM_FREE.
    MemFree {
        /// The memory.
        memory: u64,
    },
    /// GPU_MODULE_UNLOAD.
    ModuleUnload {
        /// The module.
        module: u64,
    },
    /// GPU_SESSION_CLOSE.
    Close,
    /// GPU_MEM_SHARE; the descriptor of a sealed memfd comes beside the frame.
    MemShare {
        /// Length of the memfd, bytes.
        length: u64,
    },
    /// GPU_MEM_WRITE_SHARED.
    MemWriteShared(GpuSharedCopy),
    /// GPU_MEM_READ_SHARED.
    MemReadShared(GpuSharedCopy),
}

/// A copy between memory of the device and shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct GpuSharedCopy {
    /// The memory.
    pub memory: u64,
    /// Start of the copy in the memory of the device, bytes.
    pub offset: u64,
    /// Start of the copy in the shared memory, bytes.
    pub shared_offset: u64,
    /// Bytes, at least 1.
    pub length: u64,
}

/// GPU_LAUNCH: a kernel and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct GpuLaunch {
    /// The module.
    pub module: u64,
    /// The name of the kernel, 1 to 255 bytes.
    pub kernel: String,
    /// Blocks in the grid: x, y, z.
    pub grid: [u32; 3],
    /// Threads in a block: x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, bytes.
    pub shared_bytes: u32,
    /// At most 256, each of 1 to 4,096 bytes in the byte order of the device (little-endian).
    pub arguments: Vec<Vec<u8>>,
}

/// The answer to an operation that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
#[cfg_attr(feature = "vectors", serde(rename_all = "snake_case"))]
pub enum GpuReply {
    /// GPU_SESSION_OPEN.
    Opened(GpuOpened),
    /// GPU_MEM_ALLOC.
    Memory {
        /// The handle.
        memory: u64,
        /// The address on the device, for arguments of kernels.
        address: u64,
    },
    /// GPU_MODULE_LOAD.
    Module {
        /// The handle.
        module: u64,
    },
    /// GPU_MEM_READ: this many bytes follow the answer.
    Data {
        /// The requested length, bytes.
        length: u32,
    },
    /// GPU_SESSION_CLOSE.
    Closed {
        /// Bytes of the device that were overwritten with zeroes.
        wiped_bytes: u64,
        /// The most bytes that the session could allocate.
        free_bytes: u64,
    },
    /// Every other operation.
    Done,
}

/// An open session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "vectors", derive(serde::Serialize))]
pub struct GpuOpened {
    /// The number of the session, never 0.
    pub session: u64,
    /// The most bytes that the session can allocate.
    pub vram_bytes: u64,
    /// The bytes that the session has allocated.
    pub vram_used: u64,
    /// How many streams the session can have at once.
    pub queue_slots: u16,
    /// The name of the device, at most 255 bytes.
    pub device: String,
    /// The vendor's UUID of the device.
    pub uuid: String,
}

impl GpuMessageType {
    /// All operations, in the order of their codes.
    pub const ALL: &'static [Self] = &[
        Self::SessionOpen,
        Self::MemAlloc,
        Self::MemWrite,
        Self::ModuleLoad,
        Self::Launch,
        Self::Sync,
        Self::MemRead,
        Self::MemFree,
        Self::ModuleUnload,
        Self::SessionClose,
        Self::MemShare,
        Self::MemWriteShared,
        Self::MemReadShared,
    ];

    /// The operation of a code.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|it| *it as u16 == code)
    }
}

impl GpuRequest {
    /// The message type in the header.
    #[must_use]
    pub fn message_type(&self) -> GpuMessageType {
        use GpuMessageType as M;
        match self {
            Self::Open { .. } => M::SessionOpen,
            Self::MemAlloc { .. } => M::MemAlloc,
            Self::MemWrite { .. } => M::MemWrite,
            Self::ModuleLoad { .. } => M::ModuleLoad,
            Self::Launch(_) => M::Launch,
            Self::Sync { .. } => M::Sync,
            Self::MemRead { .. } => M::MemRead,
            Self::MemFree { .. } => M::MemFree,
            Self::ModuleUnload { .. } => M::ModuleUnload,
            Self::Close => M::SessionClose,
            Self::MemShare { .. } => M::MemShare,
            Self::MemWriteShared(_) => M::MemWriteShared,
            Self::MemReadShared(_) => M::MemReadShared,
        }
    }

    /// Bytes that follow the frame.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        match self {
            Self::MemWrite { length, .. } | Self::ModuleLoad { length } => {
                usize::try_from(*length).unwrap_or(usize::MAX)
            }
            _ => 0,
        }
    }
}
