//! The daemon as a process: its subcommands, start and end, its state directory, and the processes beside it.
//!
//! [`program`] has the subcommands, [`run`] the start and the signals, [`service`] the order in which the parts of a
//! node start.

mod announced;
pub mod check;
pub mod clock;
pub(crate) mod descriptors;
pub(crate) mod detached;
mod found;
pub mod helpers;
mod lease_reports;
pub(crate) mod membership;
pub mod program;
mod program_memory;
mod ready;
pub mod reload;
pub mod reports;
pub mod run;
pub mod service;
pub(crate) mod service_manager;
pub(crate) mod state_dir;
