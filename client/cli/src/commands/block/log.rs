//! The log of the block daemon. Standard error is the log file.

use std::{
    io::{self, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{failure::Failure, time_text};

pub(super) fn log(what: &str) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ms = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
    // A failure to write the log must not end the device.
    writeln!(io::stderr(), "{} {what}", time_text::utc(ms)).ok();
}

pub(super) fn log_failure(what: &str, outcome: &Result<(), Failure>) {
    if let Err(failure) = outcome {
        log(&format!("{what}: {}", failure.message()));
    }
}
