//! What stores and paths promise, and how one lease is made of both.
//!
//! A [`Store`] keeps what is leased: the bytes of an arena, the blocks of a pool. A [`DataPath`] gives a client access to
//! a part of a store: RDMA, UDP, the kernel's NVMe target. Neither knows the other. A [`Provider`] has the stores and
//! the paths of one kind of resource and carries out what the lease table orders: it opens the part, binds the paths,
//! cuts them, takes them away and gives the part back, in this order.
//!
//! Everything that goes through [`Store`] and [`DataPath`] is plain data with, at most, a descriptor beside it. So each
//! may live in a process of its own: [`remote`] has both ends of a socket between them.

mod path;
mod provider;
pub mod remote;
mod store;

pub use path::{DataPath, Revoked};
pub use provider::{Cut, Provider, Stray, stray_binding_id};
pub use store::{Part, Store, TellCondition, Volume};
