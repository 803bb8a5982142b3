//! A lease of block storage as a block device of this machine, over NVMe-oF or, by the kernel's NBD driver, over UDP.
//!
//! A process of its own, the [`BlockDaemon`], attaches the device, watches the lease, and detaches the device before the lease
//! ends. [`attach`] starts the daemon and [`detach`] asks it to stop. Never here: the command line, or a renewal of the lease.
//! Read first: `daemon.rs`, the life of an attached device; `error.rs`, what can go wrong.
#![deny(unsafe_code)]

mod attach;
mod attachment;
mod control_socket;
mod daemon;
mod detach;
mod device;
mod error;
mod events;
mod in_use;
mod key_change;
mod log;
mod nbd;
mod nvme;
mod paths;
mod record;
mod wait;
mod watch;

pub use attach::{Attached, attach};
pub use daemon::BlockDaemon;
pub use detach::detach;
pub use error::AttachError;
pub use record::LeaseFiles;
