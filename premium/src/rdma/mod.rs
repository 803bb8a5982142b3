//! Memory over RDMA: leases as type 2B memory windows, each pinned to a queue pair of its own.
//!
//! `backend` carries out the lease table's orders; `slot` says what may follow what for one lease;
//! `connect` makes access and `cut` ends it with proof; `request` is the asking half, for clients.
//! `verbs` is the only place with unsafe code. Nothing here decides when a lease ends.

mod arena;
mod backend;
mod bounds;
mod connect;
mod cut;
mod device;
mod keys;
mod permits;
mod request;
#[doc(hidden)]
pub mod restrack;
mod slot;
mod table;
#[doc(hidden)]
pub mod verbs;

pub use backend::{RdmaBackend, RdmaConfig, RdmaInventory, RdmaOpened};
pub use request::{RdmaRequester, RequestError};
