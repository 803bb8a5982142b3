//! GPUs on offer: discovery, leases, and the worker processes of sessions.
//!
//! The tenant uses a lease of a GPU in a *session*: a worker process opens the one context of the lease and serves the
//! tenant's streams ([`worker`]). In an exclusive class, programs of the tenant on the node may use the device too; the
//! device controller of their cgroup lets them open the nodes of this device only. [`GpuStore`] examines the device
//! before each grant and wipes it after the lease; [`GpuPath`] connects clients and ends all access. Only workers and
//! helper processes load the vendors' libraries.

mod cut;
mod device;
pub mod driver;
mod end;
mod gpus;
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

pub use device::{Device, Health, WHOLE_SLICES};
pub use end::GpuEnd;
pub use fabricbios_cgroup::nodes::Node;
pub use gpus::{GpuConfig, Gpus, Tenants};
pub use libraries::Libraries;
pub use owned::NotOwned;
pub use path::GpuPath;
pub use steps::STEPS;
pub use store::GpuStore;

/// Most streams of a session at once.
pub const QUEUE_SLOTS: u16 = 16;
