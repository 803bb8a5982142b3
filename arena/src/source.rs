//! Where the bytes come from: a file of the operator's, or a new file in memory.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use nix::sys::memfd::{MFdFlags, memfd_create};

/// What to make the arena of.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// A file of the operator's, in tmpfs, hugetlbfs or on a file system; made if it is not there.
    /// Without one, memory that ends with the process.
    pub file: Option<PathBuf>,
    /// NUMA node to take the memory from, such as that of the network card.
    pub numa_node: Option<u32>,
}

/// What the arena turned out to be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Bytes of a page; more than 4096 for huge pages.
    pub page_bytes: u64,
    /// The node that the memory was asked from.
    pub numa_node: Option<u32>,
    /// Whether the bytes are still there when this process has ended.
    pub outlives_process: bool,
}

impl Source {
    pub(crate) fn open(&self, bytes: u64) -> io::Result<(File, Backing)> {
        let file = match &self.file {
            Some(path) => OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)?,
            None => File::from(memfd_create(c"fabricbios-arena", MFdFlags::MFD_CLOEXEC)?),
        };
        if file.metadata()?.len() < bytes {
            file.set_len(bytes)?;
        }
        let backing = Backing {
            page_bytes: 4096,
            numa_node: None,
            outlives_process: self.file.is_some(),
        };
        Ok((file, backing))
    }
}
