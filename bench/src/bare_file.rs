//! The minimum cost of durability: one page written in place, and an fdatasync.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;

const PAGE: [u8; 4096] = [0x5A; 4096];

/// Pages of the bare file, written in turn: enough that no round overwrites what the disk has queued.
const PAGES: u64 = 256;

/// A file that is written page by page, cyclically.
pub(crate) struct Bare {
    file: File,
    page: u64,
}

impl Bare {
    /// Writes the whole file once, so that no round has to allocate blocks.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create_new(path).with_context(|| format!("make {}", path.display()))?;
        for page in 0..PAGES {
            file.write_all_at(&PAGE, page * PAGE.len() as u64)?;
        }
        file.sync_all()?;
        Ok(Self { file, page: 0 })
    }

    /// Writes and syncs `times` pages, one after the other.
    pub(crate) fn sync(&mut self, times: u64) -> anyhow::Result<Duration> {
        let start = Instant::now();
        for _ in 0..times {
            self.file
                .write_all_at(&PAGE, self.page % PAGES * PAGE.len() as u64)?;
            self.file.sync_data()?;
            self.page += 1;
        }
        Ok(start.elapsed())
    }
}
