//! Cgroups of leases (cgroup v2): processes of tenants enter them, and end with them.
#![forbid(unsafe_code)]

mod bindings;
mod end;
mod enter;
mod root;

pub use bindings::{Bindings, Entry};
pub use end::{described, end_processes};
pub use enter::enter;
pub use root::{Cgroupfs, LEASE, Root, failed, join};
