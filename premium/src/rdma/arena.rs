//! The bytes that leases are cut from: one file in memory, mapped and registered once.
//!
//! The arena has no remote rights of its own: what is not under a bound window cannot be reached.
//! It is never registered again and never deregistered to revoke anything.

use std::{fs::File, num::NonZeroUsize, os::unix::fs::FileExt, sync::Arc};

use fabricbios_lease::{Extent, StepError};
use nix::{
    errno::Errno,
    sys::memfd::{MFdFlags, memfd_create},
};

use super::verbs::{Access, Mapping, MemoryRegion, ProtectionDomain};

/// Extents start and end on this.
pub(crate) const ALIGN: u64 = 4096;

/// Scrubs report at least this often; the contract of `Backend::release`.
const SCRUB_CHUNK_BYTES: usize = 1 << 20;

/// The registered memory.
#[derive(Debug)]
pub(crate) struct Arena {
    file: File,
    region: MemoryRegion,
    bytes: u64,
}

impl Arena {
    /// Makes, maps, pins and registers `bytes` bytes of `file`, or of a new memory file.
    pub(crate) fn open(
        domain: &Arc<ProtectionDomain>,
        file: Option<File>,
        bytes: u64,
    ) -> Result<Self, StepError> {
        let file = file.map_or_else(|| memory_file(bytes), |file| long_enough(file, bytes))?;
        let length = usize::try_from(bytes).ok().and_then(NonZeroUsize::new);
        let length = length.ok_or_else(|| StepError::new("size arena", "0 bytes"))?;
        let mapping = Mapping::of(&file, length).map_err(|errno| {
            StepError::new("mmap arena", format_args!("{bytes} bytes: {errno}"))
        })?;
        let region = MemoryRegion::register(
            domain,
            &Arc::new(mapping),
            (0, length.get()),
            Access::ArenaOfWindows,
        )
        .map_err(|errno| registration_failed(domain, bytes, errno))?;
        Ok(Self {
            file,
            region,
            bytes,
        })
    }

    /// How many bytes there are.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The registration, for binding windows.
    pub(crate) fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// A registration of one extent alone, still without remote rights: for devices whose windows
    /// have no bounds of their own.
    pub(crate) fn region_of(
        &self,
        domain: &Arc<ProtectionDomain>,
        extent: Extent,
    ) -> Result<MemoryRegion, Errno> {
        let part = |bytes: u64| usize::try_from(bytes).or(Err(Errno::EINVAL));
        let range = (part(extent.offset)?, part(extent.length)?);
        MemoryRegion::register(domain, self.region.mapping(), range, Access::ArenaOfWindows)
    }

    /// The file, for the other road over the same bytes.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Where the bytes of an extent are, as remote peers name them.
    pub(crate) fn address(&self, extent: Extent) -> u64 {
        self.region.mapping().address() + extent.offset
    }

    /// Whether an extent is part of the arena.
    pub(crate) fn check(&self, extent: Extent) -> Result<(), StepError> {
        let whole = extent.offset.is_multiple_of(ALIGN) && extent.length.is_multiple_of(ALIGN);
        let inside = extent
            .offset
            .checked_add(extent.length)
            .is_some_and(|end| end <= self.bytes);
        if extent.length > 0 && whole && inside {
            return Ok(());
        }
        let Extent { offset, length } = extent;
        Err(StepError::new(
            "check extent",
            format_args!(
                "{length} bytes at {offset} must be a positive multiple of {ALIGN} within the \
                 arena of {} bytes",
                self.bytes
            ),
        ))
    }

    /// Overwrites an extent with zeros, through the page cache that the device's pages are in. A
    /// punched hole would not do: the device would keep the old pages.
    pub(crate) fn scrub(&self, extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        let zeros = vec![0; SCRUB_CHUNK_BYTES];
        let mut at = extent.offset;
        while at < extent.end() {
            let left = usize::try_from(extent.end() - at).unwrap_or(usize::MAX);
            let chunk = &zeros[..left.min(zeros.len())];
            self.file.write_all_at(chunk, at).map_err(|error| {
                StepError::new(
                    "zero arena",
                    format_args!("{} bytes at {at}: {error}", chunk.len()),
                )
            })?;
            at += chunk.len() as u64;
            progress();
        }
        Ok(())
    }

    /// Ends the registration, when everything else has ended.
    pub(crate) fn close(self) -> Result<(), StepError> {
        self.region.dereg().map_err(|(_, errno)| {
            StepError::new(
                "dereg_mr",
                format_args!("arena of {} bytes: {errno}", self.bytes),
            )
        })
    }
}

fn memory_file(bytes: u64) -> Result<File, StepError> {
    let failed = |error| StepError::new("make arena", format_args!("{bytes} bytes: {error}"));
    let fd = memfd_create(c"fabricbios-arena", MFdFlags::MFD_CLOEXEC)
        .map_err(|errno| failed(errno.into()))?;
    let file = File::from(fd);
    file.set_len(bytes).map_err(failed)?;
    Ok(file)
}

fn long_enough(file: File, bytes: u64) -> Result<File, StepError> {
    let failed = |detail: String| Err(StepError::new("use arena file", detail));
    match file.metadata() {
        Ok(metadata) if metadata.len() >= bytes => Ok(file),
        Ok(metadata) => failed(format!(
            "it has {} bytes, {bytes} are wanted",
            metadata.len()
        )),
        Err(error) => failed(error.to_string()),
    }
}

fn registration_failed(domain: &ProtectionDomain, bytes: u64, errno: Errno) -> StepError {
    let hint = match errno {
        Errno::ENOMEM => {
            " (too little free memory, or a locked-memory limit: see `ulimit -l`, or give the \
             daemon CAP_IPC_LOCK)"
        }
        Errno::EOPNOTSUPP | Errno::EFAULT => {
            " (the file system of the arena file cannot pin pages: use memory, tmpfs or hugetlbfs)"
        }
        _ => "",
    };
    let device = domain.context().name();
    StepError::new(
        "reg_mr arena",
        format_args!("{bytes} bytes on {device}: {errno}{hint}"),
    )
}
