//! Every tag by name. 0x0101–0x0104, 0x0201–0x0205, 0x0901–0x0903 and 0x0910 are the sources'; the
//! others are ours and extend by family: 0x02xx RDMA, 0x03xx NVMe-oF, 0x04xx NET, 0x05xx GPU,
//! 0x06xx CPU, 0x09xx what is asked for, 0x0Axx refusals, 0x0Bxx inventory, 0x0Cxx what a lease was.

macro_rules! tags {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $words:literal;)*) => {
        $($(#[$doc])* pub const $name: u16 = $code;)*

        /// Words for a known tag.
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
    /// [`crate::Affinity`]; may repeat.
    LEASE_AFFINITY = 0x0910, "affinity";
    /// `u8`, [`crate::RefusalClass`].
    REFUSAL_CLASS = 0x0A01, "refusal class";
    /// UTF-8.
    REFUSAL_MESSAGE = 0x0A02, "rejection reason";
    /// `u64`, milliseconds of wall clock.
    REFUSAL_RENEWABLE_AT = 0x0A03, "renewable at";
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
    /// UTF-8.
    LEASE_TENANT = 0x0C01, "tenant";
    /// `u64, u8`, UTF-8, [`crate::LeaseEnd`].
    LEASE_END = 0x0C02, "end";
    /// `u32, u8`, UTF-8, UTF-8, [`crate::ProofStep`]; may repeat.
    LEASE_PROOF_STEP = 0x0C03, "step of the proof";
}
