//! Calls that may never return, each made by a process that can be given up.
//!
//! A thread that waits uninterruptibly in the kernel cannot be ended, and neither can its process. So another process
//! makes such a call. A [`Supervisor`] starts one helper process for each session by forking. The supervisor runs a
//! copy of the daemon's program in memory ([`Program`]) and gets nothing from the daemon but a socket and the lock
//! file. So a new helper process opens no file and searches for no program, and it runs the same code as its daemon,
//! whatever was installed since. docs/decisions/0017-helper-program.md has the reasons.
//!
//! Never here: what a call is for.
//!
//! Read first: `supervisor.rs`, the process that starts the others.

mod call;
mod in_flight;
mod lock;
mod pidfd;
mod program;
mod read;
mod session;
mod supervisor;

pub use call::{Call, Caller, Failure, Handler};
pub use in_flight::InFlight;
pub use lock::FileBytes;
pub use pidfd::{Pidfd, set_niceness};
pub use program::Program;
pub use read::ReadFirst;
pub use session::{CallError, Session};
pub use supervisor::{Supervisor, supervise};

#[cfg(test)]
mod tests;
