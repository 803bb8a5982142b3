//! Every tag by name. 0x0101–0x0104, 0x0201–0x0205, 0x0901–0x0903 and 0x0910 come from the sources. The others are ours
//! and extend by family: 0x02xx RDMA, 0x03xx NVMe-oF, 0x04xx NET, 0x05xx GPU, 0x06xx CPU, 0x09xx terms of a request,
//! 0x0Axx refusals, 0x0Bxx inventory, 0x0Cxx tenant and end of a lease.

macro_rules! tags {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $words:literal;)*) => {
        $($(#[$doc])* pub const $name: u16 = $code;)*

        /// The words for a known tag; `None`: the tag is unknown.
        #[must_use]
        pub fn name(tag: u16) -> Option<&'static str> {
            match tag {
                $($name => Some($words),)*
                _ => None,
            }
        }

        /// All known tags, in ascending order.
        pub const ALL: &[u16] = &[$($name),*];
    };
}

tags! {
    /// `u128`.
    LEASE_ID = 0x0101, "lease id";
    /// `[u8; 32]`.
    DP_KEY = 0x0102, "data-plane key";
    /// `[u8; 16], u16`.
    UDP_ENDPOINT = 0x0103, "UDP endpoint";
    /// `u64, u64`.
    LIMITS = 0x0104, "limits";
    /// `u32`.
    RDMA_RKEY = 0x0201, "rkey";
    /// `u64`.
    RDMA_REMOTE_ADDR = 0x0202, "remote address";
    /// `u32`, 24 bits used.
    RDMA_QP_NUM = 0x0203, "queue pair number";
    /// `[u8; 16]`.
    RDMA_GID = 0x0204, "GID";
    /// `u8`.
    RDMA_PORT = 0x0205, "RDMA port";
    /// `u32`, 24 bits used.
    RDMA_PSN = 0x0206, "starting PSN";
    /// `u16`.
    RDMA_PATH_MTU = 0x0207, "path MTU";
    /// `u8`, [`crate::RdmaStrategy`].
    RDMA_STRATEGY = 0x0208, "RDMA strategy";
    /// `u32, u32`.
    RDMA_PREVIOUS_KEY = 0x0209, "previous rkey";
    /// `u8`.
    RDMA_MAX_RD_ATOMIC = 0x020A, "reads and atomics at once";
    /// `u8`, 0 or 1.
    RDMA_ATOMICS = 0x020B, "atomics allowed";
    /// [`crate::RdmaQueuePair`]; may repeat.
    RDMA_QUEUE_PAIR = 0x020C, "further queue pair";
    /// [`crate::RdmaPeer`]; may repeat.
    RDMA_PEER = 0x0210, "RDMA peer";
    /// [`crate::NvmeofAddress`]; may repeat.
    NVMEOF_ADDRESS = 0x0301, "NVMe-oF address";
    /// UTF-8, [`crate::Nqn`].
    NVMEOF_SUBSYSTEM = 0x0302, "subsystem NQN";
    /// `u32`.
    NVMEOF_NSID = 0x0303, "namespace id";
    /// UTF-8, [`crate::Nqn`].
    NVMEOF_HOST_NQN = 0x0304, "host NQN";
    /// `[u8; 16]`.
    NVMEOF_HOST_ID = 0x0305, "host id";
    /// ASCII, secret.
    NVMEOF_DHCHAP_SECRET = 0x0306, "DH-HMAC-CHAP secret";
    /// ASCII, secret.
    NVMEOF_DHCHAP_CTRL_SECRET = 0x0307, "DH-HMAC-CHAP controller secret";
    /// `u32`, seconds.
    NVMEOF_CTRL_LOSS = 0x0308, "controller loss time-out";
    /// `u32`.
    NVMEOF_BLOCK_BYTES = 0x0309, "block size";
    /// UTF-8, [`crate::Nqn`], of a request.
    NVMEOF_HOST = 0x0310, "host NQN asked for";
    /// `[u8; 16]`, of a request.
    NVMEOF_HOST_IDENTIFIER = 0x0311, "host id asked for";
    /// `u16` domain, `u8` bus, `u8` device and function.
    NET_PCI_FUNCTION = 0x0401, "PCI function";
    /// ASCII, 1 to 15 bytes.
    NET_INTERFACE = 0x0402, "interface name";
    /// `[u8; 6]`.
    NET_MAC = 0x0403, "MAC address";
    /// `u16`, 1 to 4094.
    NET_VLAN = 0x0404, "VLAN id";
    /// `u64`, bits per second, at least 1.
    NET_RATE = 0x0405, "transmit rate";
    /// `u8`, [`crate::HandOver`].
    NET_HAND_OVER = 0x0406, "hand-over";
    /// `u32`.
    NET_VFIO_GROUP = 0x0407, "vfio group";
    /// ASCII, 1 to 128 bytes.
    NET_CDI_DEVICE = 0x0408, "CDI device";
    /// `[u8; 6]`, of a request.
    NET_MAC_ASKED = 0x0410, "MAC address asked for";
    /// `u16`, 1 to 4094, of a request.
    NET_VLAN_ASKED = 0x0411, "VLAN id asked for";
    /// `u8`, [`crate::HandOver`], of a request.
    NET_HAND_OVER_ASKED = 0x0412, "hand-over asked for";
    /// ASCII, 1 to 96 bytes.
    GPU_UUID = 0x0501, "UUID of the GPU";
    /// `u8`, [`crate::GpuVendor`].
    GPU_VENDOR = 0x0502, "vendor of the GPU";
    /// `u64`.
    GPU_VRAM_BYTES = 0x0503, "bytes of GPU memory";
    /// `[u8; 16], u16`.
    GPU_SESSION_ENDPOINT = 0x0504, "endpoint of sessions";
    /// ASCII, 1 to 128 bytes.
    GPU_CDI_DEVICE = 0x0505, "CDI device of the GPU";
    /// `u16`, at least 1.
    GPU_COMPUTE_SLICES = 0x0506, "compute slices";
    /// `u16`.
    GPU_QUEUE_SLOTS = 0x0507, "queue slots";
    /// `u16, u16`: first and last number of a range. Further ranges follow in the same value.
    CPU_CPUS = 0x0601, "logical CPUs";
    /// ASCII, 1 to 512 bytes.
    CPU_CGROUP = 0x0602, "cgroup";
    /// `u8`, [`crate::CpuPartition`].
    CPU_PARTITION = 0x0603, "cpuset partition";
    /// As [`CPU_CPUS`].
    CPU_MEMORY_NODES = 0x0604, "NUMA nodes of memory";
    /// `u32, u32`: microseconds of CPU time in a period, microseconds of the period.
    CPU_QUOTA = 0x0605, "CPU quota";
    /// [`crate::KvCacheIntent`].
    LEASE_INTENT_KV_CACHE = 0x0901, "KV cache intent";
    /// `u8`, [`crate::CpuIsolationClass`].
    LEASE_CPU_ISOLATION = 0x0902, "CPU isolation";
    /// `u8`, [`crate::GpuExclusivityClass`].
    LEASE_GPU_EXCLUSIVITY = 0x0903, "GPU exclusivity";
    /// `u8`, [`crate::Transport`].
    LEASE_TRANSPORT = 0x0904, "transport";
    /// `u8`, 0 or 1.
    LEASE_ROTATE_ON_RENEW = 0x0905, "rotate on renew";
    /// `u8`, 0 or 1.
    LEASE_READ_ONLY = 0x0906, "read-only";
    /// `u8`, 0 or 1.
    LEASE_MUTUAL_AUTH = 0x0907, "mutual authentication";
    /// `u8`, [`crate::CpuExecutionMode`].
    LEASE_CPU_EXECUTION_MODE = 0x0908, "CPU execution mode";
    /// `u16`, threads.
    LEASE_CPU_EXECUTION_WIDTH = 0x0909, "CPU execution width";
    /// `u8`, [`crate::CpuPartition`].
    LEASE_CPU_PARTITION = 0x090A, "CPU partition";
    /// `u8`, [`crate::Enforcement`].
    LEASE_NET_RATE = 0x090B, "enforcement of the rate";
    /// `u8`, [`crate::GpuExecutionMode`].
    LEASE_GPU_EXECUTION_MODE = 0x090C, "GPU execution mode";
    /// `u16`, at least 1.
    LEASE_GPU_COMPUTE_SLICES = 0x090D, "GPU compute slices";
    /// [`crate::Affinity`]; may repeat.
    LEASE_AFFINITY = 0x0910, "affinity";
    /// `u8`, [`crate::RefusalClass`].
    REFUSAL_CLASS = 0x0A01, "refusal class";
    /// UTF-8.
    REFUSAL_MESSAGE = 0x0A02, "rejection reason";
    /// `u64`, milliseconds of wall clock.
    REFUSAL_RENEWABLE_AT = 0x0A03, "renewable at";
    /// `u32`, milliseconds.
    REFUSAL_RETRY_AFTER = 0x0A04, "retry after";
    /// `u128`, UTF-8; may repeat.
    INVENTORY_NAME = 0x0B01, "resource name";
    /// `u128, u64`; may repeat.
    INVENTORY_AVAILABLE = 0x0B02, "available";
    /// `u128, u8, u8…`; may repeat.
    INVENTORY_CLASSES = 0x0B03, "classes";
    /// `u128, u8…`; may repeat.
    INVENTORY_TRANSPORTS = 0x0B04, "transports";
    /// `u128, u64`; may repeat.
    INVENTORY_FENCED_PART = 0x0B05, "fenced part";
    /// `u128`, then `u8` class and `u8` [`crate::Enforcement`] for each class, ascending; may repeat.
    INVENTORY_CLASS_ENFORCEMENT = 0x0B06, "enforcement of classes";
    /// `u128`, then `u8` class and `u64` units for each class, ascending; may repeat.
    INVENTORY_CLASS_AVAILABLE = 0x0B07, "available by class";
    /// `u128, u32, u32`: the number of all functions and of the free ones; may repeat.
    INVENTORY_VIRTUAL_FUNCTIONS = 0x0B08, "virtual functions";
    /// `u128`, then five `u16`: all compute slices, the free ones, all session slots, the free ones, the queue slots of
    /// a session; may repeat.
    INVENTORY_GPU_SLOTS = 0x0B09, "slots of a GPU";
    /// `u128`, UTF-8; may repeat.
    INVENTORY_HEALTH_REASON = 0x0B0A, "reason of a health";
    /// UTF-8.
    LEASE_TENANT = 0x0C01, "tenant";
    /// `u64, u8`, UTF-8, [`crate::LeaseEnd`].
    LEASE_END = 0x0C02, "end";
    /// `u32, u8`, UTF-8, UTF-8, [`crate::ProofStep`]; may repeat.
    LEASE_PROOF_STEP = 0x0C03, "step of the proof";
    /// As [`LEASE_PROOF_STEP`]; may repeat.
    LEASE_CLEANING_STEP = 0x0C04, "step of the cleaning";
}
