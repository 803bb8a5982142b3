//! Memory over RDMA: leases as type 2B memory windows, each pinned to a queue pair of its own, or as
//! regions with a protection domain of their own.
//!
//! `path` takes the orders of the lease table; `bind`, `peers`, `rotate` and `release` carry them out. `binding_state` has the
//! phases of one binding and their order. `connect` and `grant` make access, and `cut` ends access with proof. `guard`
//! gives the watchdog what it needs to end access when this process does not. `request` is the client. Nothing here
//! decides when a lease ends.
//!
//! Read first: `cut.rs`, how access ends; then `path.rs`.

mod bind;
mod binding_cell;
mod binding_state;
mod binding_step;
mod bounds;
mod connect;
mod cut;
mod device;
mod faults;
mod grant;
mod guard;
mod hardware;
mod keys;
mod memory;
mod no_device;
mod parts;
mod path;
mod peers;
mod proof;
mod queue_pairs;
mod release;
mod request;
#[doc(hidden)]
pub mod restrack;
mod rotate;
mod steps;
mod strategy;

pub use device::numa_node;
pub use guard::{Guard, GuardedPair};
pub use path::{RdmaConfig, RdmaInventory, RdmaOpened, RdmaPath};
pub use queue_pairs::QueuePairs;
pub use request::{RdmaRequester, RequestError};
pub use strategy::Strategy;
