//! A call that several crates use: reads the beginning of a file or device.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::libc;
use serde::{Deserialize, Serialize};

use crate::{Call, Caller, Failure};

/// The number of bytes to read, and the alignment of the buffer: no device has larger blocks.
const BYTES: usize = 4096;

/// Reads the beginning of a file or device, without the page cache.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReadFirst(OsString);

impl ReadFirst {
    /// The file or device.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        Self(path.into())
    }
}

impl Call for ReadFirst {
    const NAME: &'static str = "read";
    type Answer = ();

    fn make(self, _caller: &Caller) -> Result<(), Failure> {
        read(&self).map_err(|error| Failure {
            detail: format!("read {}: {error}", self.0.display()),
            ..error.into()
        })
    }
}

fn read(ReadFirst(path): &ReadFirst) -> io::Result<()> {
    let mut open = OpenOptions::new();
    let file = open.read(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut room = vec![0; 2 * BYTES];
    let start = room.as_ptr().align_offset(BYTES);
    file.read_at(&mut room[start..start + BYTES], 0)?;
    Ok(())
}
