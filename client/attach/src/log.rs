//! The log of the block daemon. Standard error is the log file.

use std::io::{self, Write};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::error::AttachError;

pub(crate) fn log(what: &str) {
    let now = OffsetDateTime::now_utc().truncate_to_second();
    let now = now.format(&Rfc3339).unwrap_or_default();
    // A failure to write the log must not end the device.
    writeln!(io::stderr(), "{now} {what}").ok();
}

pub(crate) fn log_error(what: &str, outcome: &Result<(), AttachError>) {
    if let Err(error) = outcome {
        log(&format!("{what}: {error}"));
    }
}
