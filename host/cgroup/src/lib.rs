//! Cgroups of leases (cgroup v2): processes of tenants enter a cgroup and end with its lease. Device nodes: who may open
//! them, and who has them open.
//!
//! Never here: code for one kind of resource.
//!
//! Read first: `enter.rs`, how a process enters a lease; then `end.rs`, how all of a lease's processes end.

mod caller;
mod containers;
mod controllers;
mod devices;
mod end;
mod endings;
mod enter;
pub mod holders;
mod hook;
mod limits;
pub mod nodes;
mod process;
mod programs;
pub mod records;
mod root;

pub use containers::Containers;
pub use devices::{DeviceNumber, allow_only};
pub use end::{described, end_killed, end_processes, freeze_and_kill};
pub use endings::Endings;
pub use enter::enter;
pub use hook::{HOOK, hook, hook_main};
pub use limits::Limits;
pub use process::{Process, state_of};
pub use root::{Cgroupfs, LEASE, NoRoot, Root, failed, join};
