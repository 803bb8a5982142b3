//! The contract of stores and paths, and the provider that makes one lease of both.
//!
//! A [`Store`] keeps the leased bytes or blocks: an arena, a pool. A [`DataPath`] gives a client access to
//! a part of a store: RDMA, UDP, the kernel's NVMe target. Neither knows the other. A [`Provider`] has the stores and
//! the paths of one kind of resource and carries out the orders of the lease table: it opens the part, binds the paths,
//! cuts them, removes them and releases the part, in this order.
//!
//! Never here: a kind of hardware.
//!
//! Read first: `store.rs` and `path.rs`, the two interfaces; then `provider/mod.rs`, which makes one lease of both.

mod bindings;
mod cdi;
mod guard;
mod health;
mod local;
mod path;
mod provider;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use bindings::{Admission, Bindings, Entry, Making};
pub use cdi::{Cdi, Edits};
pub use guard::{EndByName, Guard};
pub use health::{Check, Health};
pub use local::{Caller, Entered, Given, LocalAccess, LocalRefusal};
pub use path::{DataPath, Inline, Revoked};
pub use provider::{Cut, Provider, Removal, Stray, stray_binding_id};
pub use store::{Part, Store, TellCondition, Volume};
