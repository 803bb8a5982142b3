//! Memory over RDMA: leases as type 2B memory windows, each pinned to a queue pair of its own, or as
//! regions with a protection domain of their own.
//!
//! `backend` takes the lease table's orders and `bind`, `rotate` and `release` carry them out; `life`
//! says what may follow what for one lease; `connect` and `grant` make access and `cut` ends it with
//! proof;
//! `guard` tells somebody outside how to end access when this process does not;
//! `request` is the asking half, for clients. Nothing here decides when a lease ends.

mod backend;
mod bind;
mod bounds;
mod connect;
mod cut;
mod device;
mod faults;
mod grant;
mod guard;
mod hardware;
mod keys;
mod life;
mod memory;
mod parts;
mod permits;
mod proof;
mod release;
mod request;
#[doc(hidden)]
pub mod restrack;
mod rotate;
mod slot;
mod steps;
mod strategy;

pub use backend::{RdmaBackend, RdmaConfig, RdmaInventory, RdmaOpened};
pub use device::numa_node;
pub use guard::{Guard, GuardedPair};
pub use request::{RdmaRequester, RequestError};
pub use strategy::Strategy;
