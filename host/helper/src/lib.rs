//! Calls that may never return, each made by a process that can be given up.
//!
//! A thread that waits in the kernel without being interruptible cannot be ended, and the process that it belongs to
//! neither. So such a call is another process's. A [`Supervisor`] starts one for each call: it runs a copy of the daemon's
//! program that lies in memory ([`Program`]), has nothing of the daemon but a socket, and forks. No file is opened for that,
//! no program is searched for, and every process runs the code of the daemon that asks, whatever was installed since.
//! docs/decisions/0017-helper-program.md has the reasons.
//!
//! Never here: the purpose of a call.
//!
//! Read first: `supervisor.rs`, the process that starts the others.

mod call;
mod line;
mod lock;
mod pidfd;
mod program;
mod read;
mod receive;
mod session;
mod supervisor;

pub use call::{Call, Caller, Failure, Handler};
pub use line::{Line, MESSAGE_BYTES_MAX, Message};
pub use lock::FileBytes;
pub use pidfd::{Pidfd, set_niceness};
pub use program::Program;
pub use read::ReadFirst;
pub use receive::{Received, receive};
pub use session::{CallError, Session};
pub use supervisor::{Supervisor, supervise};

#[cfg(test)]
mod tests;
