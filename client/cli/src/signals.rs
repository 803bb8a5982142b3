//! The signals that end a command which runs until then.

use nix::sys::signal::{SigSet, Signal};

/// SIGTERM and SIGINT.
pub(crate) fn ends() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

/// Blocks these signals until the command reads them. Call this before there is a second thread: each thread inherits the
/// mask.
pub(crate) fn hold() -> nix::Result<()> {
    ends().thread_block()
}
