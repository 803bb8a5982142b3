//! GPUs on offer: discovery, leases, and the worker processes of sessions.
//!
//! A lease of a GPU is used in a *session*: a worker process opens the one context of the lease and serves the tenant's streams
//! ([`worker`]). In an exclusive class, programs of the tenant on the node may use the device too; the device controller of
//! their cgroup opens its nodes alone. [`GpuStore`] knows the device before each grant and wipes it after the lease;
//! [`GpuPath`] connects clients and ends everything. The vendors' libraries are loaded in workers and helper processes only.

mod acl;
mod device;
pub mod driver;
mod end;
mod gpus;
mod holders;
mod libraries;
mod limits;
pub mod management;
mod owned;
mod path;
mod record;
mod sessions;
mod steps;
mod store;
pub mod worker;

pub use device::{Device, Health, Node, WHOLE_SLICES};
pub use end::GpuEnd;
pub use gpus::{GpuConfig, Gpus};
pub use libraries::Libraries;
pub use path::GpuPath;
pub use steps::STEPS;
pub use store::GpuStore;

/// How many streams a session can have at once.
pub const QUEUE_SLOTS: u16 = 16;
