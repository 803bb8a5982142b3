//! Every bound of the protocol, with its reason. A decoder checks a bound before it allocates.

/// Longest payload of a frame. A whole page of leases or a large inventory fits; a peer cannot make
/// the other side allocate more than this for one request.
pub const MAX_PAYLOAD: usize = 65_536;
/// Affinities of one request: more than a scheduler could weigh, and each holds up to 255 bytes.
pub const AFFINITIES_MAX: usize = 16;
/// Bytes of an affinity's target: ids take 16 or 32, the rest is for labels.
pub const AFFINITY_TARGET_BYTES_MAX: usize = 255;
/// Leases of one LEASE_LIST page: without keys, coordinates, intents and proofs each has 308 bytes at most, and
/// all of them 39 KiB.
pub const LEASES_PER_PAGE_MAX: usize = 128;
/// Fences of one FENCE_LIST answer: 128 × (46 + 400) bytes fit one payload. The others appear when some fences were
/// cleared.
pub const FENCES_MAX: usize = 128;
/// Bytes of a fence's reason; longer ones are cut at a character when they are encoded.
pub const FENCE_REASON_BYTES_MAX: usize = 400;
/// Bytes of a refusal's message; longer ones are cut at a character when they are encoded.
pub const REFUSAL_MESSAGE_BYTES_MAX: usize = 1_024;
/// Entries of a flat inventory: 1,800 × 36 bytes fit one payload.
pub const FLAT_ENTRIES_MAX: usize = 1_800;
/// Items of each list of a structured inventory: five full lists leave a quarter of the payload to
/// extensions.
pub const INVENTORY_LIST_MAX: usize = 256;
/// Known TLVs of a structured inventory: eight for each of 256 resources. An inventory with more is refused.
pub const EXTENSIONS_MAX: usize = 2_048;
/// Bytes of a resource's name; kernel names are shorter than 32.
pub const RESOURCE_NAME_BYTES_MAX: usize = 255;
/// Bytes of the reason of a health; longer ones are cut at a character when they are encoded.
pub const HEALTH_REASON_BYTES_MAX: usize = 200;
/// Class bytes of one resource: the sources define four at most.
pub const CLASSES_MAX: usize = 16;
/// Transports of one resource: there are six.
pub const TRANSPORTS_MAX: usize = 8;
/// Bytes of a tenant's name, which is also a certificate's common name (at most 64 by X.520).
pub const TENANT_BYTES_MAX: usize = 64;
/// Bytes of a daemon's version text.
pub const VERSION_BYTES_MAX: usize = 64;
/// Bytes of a certificate request: an RSA-4096 one with extensions takes 2 KiB.
pub const CSR_BYTES_MAX: usize = 4_096;
/// Bytes of one PEM text of an answer.
pub const PEM_BYTES_MAX: usize = 16_384;
/// Longest overlap of an old key and a new key, milliseconds.
pub const ROTATE_OVERLAP_MS_MAX: u32 = 60_000;
/// Queue pairs of one lease: more than one only helps a client with several threads, and each has
/// verbs objects of its own to take down in time.
pub const RDMA_PEERS_MAX: usize = 8;
/// Bytes of an NVMe Qualified Name (NVM Express base specification 2.0, section 4.5).
pub const NQN_BYTES_MAX: usize = 223;
/// Addresses of one NVMe-oF subsystem: more than the ports that a machine offers.
pub const NVMEOF_ADDRESSES_MAX: usize = 8;
/// Bytes of a DH-HMAC-CHAP secret's text: `DHHC-1:03:`, 64 bytes and a checksum in base64, `:`.
pub const DHCHAP_SECRET_BYTES_MAX: usize = 128;
/// Seconds for which a client's kernel may try to restore a lost NVMe-oF connection: after a cut, the
/// device must not stay much longer than the lease.
pub const NVMEOF_CTRL_LOSS_SECS_MAX: u32 = 30;
/// Largest queue pair number and packet sequence number: both have 24 bits in InfiniBand.
pub const U24_MAX: u32 = 0x00FF_FFFF;
/// Ranges in a list of CPUs or NUMA nodes: every second one of the 8,192 CPUs that Linux can have.
pub const CPU_RANGES_MAX: usize = 4_096;
/// Longest path of a cgroup, bytes.
pub const CPU_CGROUP_BYTES_MAX: usize = 512;
/// Longest name of a network interface, bytes (kernel, `IFNAMSIZ` less the final zero).
pub const INTERFACE_NAME_BYTES_MAX: usize = 15;
/// Longest UUID of a GPU, bytes: that of a MIG partition has 40, or 80 in the form of older drivers.
pub const GPU_UUID_BYTES_MAX: usize = 96;
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
/// Longest name of a CDI device, bytes.
pub const CDI_DEVICE_BYTES_MAX: usize = 128;
