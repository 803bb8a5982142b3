//! The lab: a real kernel with soft-RoCE in a virtual machine, on any Debian machine.
//!
//! This crate finds missing requirements of the host, gets Debian's 6.12 kernel without changing the host's own
//! apt configuration, boots it on the host's own root file system (read-only), and returns a command's exit
//! code so that a crash cannot be mistaken for it. It does not decide what is tested. `docs/testing.md`
//! explains its use.
//!
//! Read first: `lab.rs`, a prepared kernel and a way to run it.

mod accelerator;
mod apt;
pub mod browser;
mod disk;
pub mod fakes;
mod guest;
mod initramfs;
mod job;
mod kernel;
mod lab;
mod machine;
mod modules;
pub mod pages;
mod process;
mod report;
pub mod requirements;
mod run_directory;
pub mod scrapes;
mod session;
pub mod shell;
mod sources;
pub mod suite;
mod system;

pub use disk::Disk;
pub use guest::{Echo, Finished, Show};
pub use job::{Job, Prelude};
pub use lab::{Lab, Layout};
pub use machine::{Accelerator, Nic, Processors, VmSpec};
pub use process::{end_with_parent, tail};
pub use report::{Outcome, Report};
pub use session::{Session, Turn};
pub use sources::{Source, derive, parse_deb822, parse_one_line};
pub use system::System;
