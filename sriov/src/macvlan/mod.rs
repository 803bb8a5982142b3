//! Macvlan leases: a lease is an interface on a network card without SR-IOV.
//!
//! ```text
//!   tenant's end of a veth pair (fbt) | node's end (fbn) | macvlan (fbm) | parent | wire
//! ```
//!
//! The tenant gets only its end of the pair, and may be root in its namespace. The two other devices stay in the node's
//! namespace and enforce the limits. Only untagged frames with the lease's source address pass from `fbn` to `fbm`;
//! only frames of the lease's VLAN pass from `fbm` to `fbn`. Both devices shape the frames that leave them. Every other
//! frame is dropped. So the tenant gains nothing by further macvlans, other addresses or tags. `fbm` is of mode
//! `private`: leases of one parent do not reach each other on the node.
//!
//! The names contain the beginning of the lease's id, so that each device can be ended by name. [`MacvlanStore`]
//! records the address, VLAN and rate of each lease; [`MacvlanPath`] makes the devices. A cut deletes the rules that
//! pass frames. The release deletes the devices, since the kernel may make their deletion wait. [`MacvlanEnd`] cuts
//! when the daemon cannot.

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
pub(crate) use record::MacvlanRecord;

pub use parent::{Parent, ParentConfig};
pub use path::MacvlanPath;
pub use steps::STEPS;
pub use store::MacvlanStore;
