//! A progress bar on standard error, if this is a terminal and the transfer takes long.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// There is no bar before this time.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    total: Option<u64>,
    wanted: bool,
    since: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// `total`: number of bytes, if known.
    pub(crate) fn new(total: Option<u64>, output: Output) -> Self {
        Self {
            total,
            wanted: !output.json && stderr().is_terminal(),
            since: Instant::now(),
            bar: None,
        }
    }

    /// Shows that `done` bytes are done.
    pub(crate) fn at(&mut self, done: u64) {
        if self.wanted && self.since.elapsed() >= PATIENCE {
            let total = self.total;
            let began = self.bar.is_none();
            let bar = self.bar.get_or_insert_with(|| bar(total));
            bar.set_position(done);
            if began {
                // The rate is measured from now on.
                bar.reset_eta();
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(total: Option<u64>) -> ProgressBar {
    let (bar, form) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "{wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        ),
        None => (
            ProgressBar::new_spinner(),
            "{spinner} {binary_bytes} {binary_bytes_per_sec}",
        ),
    };
    match ProgressStyle::with_template(form) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
