//! Memory over RDMA: leases as type 2B memory windows, each pinned to a queue pair of its own.
//!
//! `backend` takes the lease table's orders and `bind`, `rotate` and `release` carry them out; `life`
//! says what may follow what for one lease; `connect` makes access and `cut` ends it with proof;
//! `request` is the asking half, for clients.
//! `verbs` is the only place with unsafe code. Nothing here decides when a lease ends.

mod backend;
mod bind;
mod bounds;
mod connect;
mod cut;
mod device;
mod faults;
mod keys;
mod life;
mod memory;
mod permits;
mod release;
mod request;
#[doc(hidden)]
pub mod restrack;
mod rotate;
mod slot;
mod table;
#[doc(hidden)]
pub mod verbs;

pub use backend::{RdmaBackend, RdmaConfig, RdmaInventory, RdmaOpened};
pub use request::{RdmaRequester, RequestError};
