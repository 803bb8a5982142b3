//! The minimum cost of durability: some bytes written in place, and an fdatasync.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;

/// Places of the bare file, written in turn: enough that no round overwrites what the disk has queued.
const PLACES: u64 = 256;

/// A file that is written place by place, cyclically.
pub(crate) struct Bare {
    file: File,
    bytes: Vec<u8>,
    place: u64,
}

impl Bare {
    /// A file for so many bytes a round. Writes the whole file once, so that no round has to allocate blocks.
    pub(crate) fn create(path: &Path, bytes: usize) -> anyhow::Result<Self> {
        let file = File::create_new(path).with_context(|| format!("make {}", path.display()))?;
        let bytes = vec![0x5A; bytes];
        for place in 0..PLACES {
            file.write_all_at(&bytes, place * bytes.len() as u64)?;
        }
        file.sync_all()?;
        Ok(Self {
            file,
            bytes,
            place: 0,
        })
    }

    /// Writes and syncs the bytes once.
    pub(crate) fn sync(&mut self) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let at = self.place % PLACES * self.bytes.len() as u64;
        self.file.write_all_at(&self.bytes, at)?;
        self.file.sync_data()?;
        self.place += 1;
        Ok(start.elapsed())
    }
}
