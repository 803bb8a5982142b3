//! The bounds of the protocol, with their reasons; those of one kind are in its module. A decoder checks a bound before it allocates.

/// Longest payload of a frame. A whole page of leases or a large inventory fits; a peer cannot make
/// the other side allocate more than this for one request.
pub const MAX_PAYLOAD: usize = 65_536;
/// Affinities of one request: more than a scheduler could weigh, and each holds up to 255 bytes.
pub const AFFINITIES_MAX: usize = 16;
/// Bytes of an affinity's target: ids take 16 or 32, the rest is for labels.
pub const AFFINITY_TARGET_BYTES_MAX: usize = 255;
/// Tried nodes of one request: two answers of a scheduler.
pub const TRIED_MAX: usize = 16;
/// Bytes of an explanation: a line for each of eight candidates, and one of what was left out.
pub const EXPLANATION_BYTES_MAX: usize = 4_096;
/// Leases of one LEASE_LIST page: without keys, coordinates, intents and proofs each has 308 bytes at most, and
/// all of them 39 KiB.
pub const LEASES_PER_PAGE_MAX: usize = 128;
/// Fences of one FENCE_LIST answer: 128 × (46 + 400) bytes fit one payload. The others appear when some fences were
/// cleared.
pub const FENCES_MAX: usize = 128;
/// Bytes of a fence's reason; longer ones are cut at a character when they are encoded.
pub const FENCE_REASON_BYTES_MAX: usize = 400;
/// Candidates of a redirect: a client asks one after the other.
pub const CANDIDATES_MAX: usize = 8;
/// Nodes of one NODE_LIST page. Large inventories fill a page earlier.
pub const NODES_PER_PAGE_MAX: usize = 256;
/// Bytes of the inventory of a NODE_REPORT: with its node it fits a page of NODE_LIST.
pub const REPORT_BYTES_MAX: usize = 57_344;
/// Leases, and ids of leases that are gone, of one NODE_LEASES: 256 × (152 + 16) bytes fit one payload, and a node makes
/// them in one short turn.
pub const LEASES_PER_REPORT_MAX: usize = 256;
/// Leases of one FLEET_LEASES page: 256 × 184 bytes fit one payload.
pub const FLEET_LEASES_PER_PAGE_MAX: usize = 256;
/// Bytes of a tenant's name with the fingerprint of its fabric: name, `@`, 32 digits.
pub const TENANT_KEY_BYTES_MAX: usize = TENANT_BYTES_MAX + 33;
/// Labels of a node's certificate.
pub const LABELS_MAX: usize = 16;
/// Bytes of a label, `NAME=VALUE`.
pub const LABEL_BYTES_MAX: usize = 255;
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
/// Amounts of one resource by the way in which leases hold their part: there are five.
pub const ADMISSION_MOST_MAX: usize = 8;
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
/// Longest name of a CDI device, bytes.
pub const CDI_DEVICE_BYTES_MAX: usize = 128;
