//! The log of a daemon: lines on standard error, as text or as JSON.
//!
//! A program sets it up in this order: [`stderr`] for the writer, [`Lines`] for the format, [`Limits`] as a layer above, and
//! [`tell`], which reports what the log does not have.

#![forbid(unsafe_code)]

mod format;
mod limits;

use std::{io, sync::OnceLock, thread, time::Duration};

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

pub use format::{Fields, Lines, LogFormat};
pub use limits::Limits;

/// The target of lines about the normal life of a lease. `RUST_LOG=info,lease=debug` shows each moment of it.
pub const LEASE: &str = "lease";

/// The time for which lines are counted, and after which the log says what it does not have.
const PERIOD: Duration = Duration::from_secs(5);

/// The counter of this process's queue.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Lines of this process's log that its queue has dropped since the start.
#[must_use]
pub fn dropped_lines() -> u64 {
    DROPPED.get().map_or(0, |it| it.dropped_lines() as u64)
}

/// Writes log lines to standard error on a thread of its own, so that logging never blocks. Lines beyond the limit are
/// dropped and counted. Dropping the guard writes the waiting lines.
pub fn stderr(lines_waiting_max: usize) -> (NonBlocking, ErrorCounter, WorkerGuard) {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(lines_waiting_max)
        .thread_name("log")
        .finish(io::stderr());
    let dropped = writer.error_counter();
    DROPPED.set(dropped.clone()).ok();
    (writer, dropped, guard)
}

/// Keeps the log until it is dropped; then it says what was left out last, and writes the waiting lines.
#[derive(Debug)]
pub struct UntilWritten {
    limits: Limits,
    _guard: WorkerGuard,
}

impl Drop for UntilWritten {
    fn drop(&mut self) {
        self.limits.tell();
    }
}

/// Starts the thread that reports lines which the queue has dropped, and lines that `limits` has left out. Without the
/// thread there are no limits.
pub fn tell(dropped: ErrorCounter, limits: Limits, guard: WorkerGuard) -> UntilWritten {
    let until_written = UntilWritten {
        limits: limits.clone(),
        _guard: guard,
    };
    let tell = move || {
        let mut told = 0;
        loop {
            limits.tell();
            thread::sleep(PERIOD);
            told = tell_dropped(told, dropped.dropped_lines());
        }
    };
    let thread = thread::Builder::new().name("log drops".into());
    if let Err(error) = thread.spawn(tell) {
        tracing::error!(%error, "cannot start a thread: dropped lines of the log are not reported");
    }
    until_written
}

/// Logs the number of dropped lines whenever it has grown. If this line is dropped too, a later line has the larger
/// number.
fn tell_dropped(told: usize, dropped: usize) -> usize {
    if dropped > told {
        tracing::error!(
            dropped,
            "lines of the log were dropped since the start: it is not read as fast as it is written"
        );
    }
    dropped
}
