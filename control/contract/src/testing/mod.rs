//! The tests that each store and each path passes, of whatever kind.
//!
//! A kind writes a [`Fixture`]: its store and its path on an imitation of the kernel, and how a client uses a lease
//! there. [`suites!`](crate::suites) makes each behaviour a test of the kind's crate. Suites that need more of the kind
//! have a trait of their own: [`Faulty`], [`EndedByName`], [`Entered`].
//!
//! Only tests are built with this module (feature `testing`).
//!
//! Read first: [`Fixture`]; then `suite/life.rs`, which every kind passes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod exports;
mod macros;
pub mod suite;
mod volumes;
mod watching;
mod world;

use std::sync::Arc;

use fabricbios_lease::BindOrder;
use fabricbios_wire::LeaseId;

pub use calls::{Calls, Fails, Name};
pub use exports::{Exported, Exports};
pub use volumes::Volumes;
pub use watching::Watching;
pub use world::{FOR_EVER, World, binding_id, user_of};

use crate::{Caller, DataPath, EndByName, Given, Store};

/// A machine on which a node leases one resource, for the tests of its store and its path.
pub trait Fixture: Sized {
    /// The store of the kind.
    type Store: Store;
    /// The path of the kind.
    type Path: DataPath;
    /// A client that uses a lease.
    type Client;

    /// A machine without leases.
    fn new() -> Self;

    /// The store and the path of a process that starts on this machine.
    fn start(&self, guard: Arc<Watching>) -> (Arc<Self::Store>, Arc<Self::Path>);

    /// The order of the first binding of a lease. The machine has room for the leases 1 and 2 at once. They have a
    /// tenant.
    fn order(lease: u128) -> BindOrder;

    /// A client that begins to use the lease. `None`: nothing gives it access.
    fn client(world: &World<Self>, lease: LeaseId) -> Option<Self::Client>;

    /// Whether the client still has access.
    fn has_access(&self, client: &mut Self::Client) -> bool;

    /// The objects of leases that the machine has.
    fn left(&self) -> Vec<String>;
}

/// A fixture whose fake kernel fails as the test wants.
pub trait Faulty: Fixture {
    /// The calls that change something in the fake kernel.
    fn calls(&self) -> &Calls;
}

/// A fixture of a kind whose leases the watchdog ends.
pub trait EndedByName: Fixture {
    /// What ends leases in the watchdog's process.
    fn watchdog(&self) -> Box<dyn EndByName>;
}

/// A fixture of a kind into whose leases local users put something.
pub trait Entered: Fixture<Path: crate::LocalAccess> {
    /// A user of this tenant, and something of the sort that leases take.
    fn caller(&self, tenant: &str) -> (Caller, Given);
}
