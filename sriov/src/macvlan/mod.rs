//! Macvlan: a lease has an interface on a network card without SR-IOV.
//!
//! ```text
//!   tenant's end of a veth pair (fbt) | node's end (fbn) | macvlan (fbm) | parent | wire
//! ```
//!
//! The tenant gets only its end of the pair, and may be root in its namespace. The limits are at the two other devices,
//! which stay in the node's namespace: only untagged frames with the lease's source address go from `fbn` to `fbm`; only
//! frames of the lease's VLAN go from `fbm` to `fbn`; what leaves either is shaped. Every other frame is dropped. So further
//! macvlans of the tenant, other addresses and tags lead nowhere. `fbm` is of mode `private`: leases of one parent do not
//! reach each other on the node.
//!
//! The names contain the lease's id, so that each device is ended by name. [`MacvlanStore`] records what a lease has,
//! [`MacvlanPath`] makes the devices. A cut deletes the rules that pass frames; the devices go at the release, as the kernel
//! may let their deletion wait. [`MacvlanEnd`] cuts when the daemon cannot.

mod devices;
mod end;
mod kernel;
mod parent;
mod path;
mod record;
mod steps;
mod store;

pub use end::{MacvlanEnd, end_unoffered, had_leases};
pub use kernel::Kernel;
pub use parent::{Parent, ParentConfig};
pub use path::MacvlanPath;
pub use steps::STEPS;
pub use store::MacvlanStore;
