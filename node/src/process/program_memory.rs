//! Keeps the program and its libraries in memory: the disk with their files may stop answering, and a cut must not wait
//! for it.
//!
//! The processes that the daemon starts lock their memory themselves (`host/helper/src/supervisor.rs`,
//! `watchdog/process.rs`). The daemon locks only memory that is mapped from files: its heap needs no disk, and the
//! arena of leased memory may be larger than the limit of locked memory.

use std::{ffi::c_void, fs, io, ptr::NonNull};

use anyhow::Context;
use nix::sys::mman::mlock;

/// Loads and locks every private mapping of a file. Call it after all libraries are loaded. If the kernel refuses, the
/// daemon works without the lock and logs a warning.
pub(crate) fn lock() {
    match mappings().and_then(|it| it.iter().try_fold(0, |sum, one| Ok(sum + one.lock()?))) {
        Ok(bytes) => tracing::info!(bytes, "program and libraries are locked in memory"),
        Err(error) => tracing::warn!(
            "the program is not locked in memory: a cut waits for the disk of the program if that does not answer; \
             give the daemon CAP_IPC_LOCK, or a higher limit (LimitMEMLOCK= of systemd): {error:#}"
        ),
    }
}

/// Addresses of one mapping, page by page.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    end: usize,
}

impl Mapping {
    /// Locks the mapping. Returns the number of locked bytes.
    fn lock(&self) -> anyhow::Result<usize> {
        let length = self.end - self.start;
        let address = NonNull::new(self.start as *mut c_void).context("a mapping at 0")?;
        // SAFETY: mlock(2) changes no byte and no right of a page; the kernel refuses addresses that are not mapped.
        let locked = unsafe { mlock(address, length) };
        locked
            .map(|()| length)
            .with_context(|| format!("mlock of {length} bytes at {:#x}", self.start))
    }
}

fn mappings() -> anyhow::Result<Vec<Mapping>> {
    let path = "/proc/self/maps";
    let text = fs::read_to_string(path).context(path)?;
    let of_files = text.lines().filter_map(|line| of_a_file(line).transpose());
    of_files.collect::<io::Result<_>>().context(path)
}

/// Reads one line of proc_pid_maps(5): `START-END PERMISSIONS OFFSET DEVICE INODE PATH`. `None`: the mapping is shared
/// (the arena), cannot be read (a guard page), or belongs to no file.
fn of_a_file(line: &str) -> io::Result<Option<Mapping>> {
    let unreadable = || {
        io::Error::other(format!(
            "a line that proc_pid_maps(5) does not describe: {line}"
        ))
    };
    let mut words = line.split_ascii_whitespace();
    let mut word = || words.next().ok_or_else(unreadable);
    let (range, permissions) = (word()?, word()?);
    let inode = {
        word()?;
        word()?;
        word()?
    };
    if inode == "0" || !permissions.starts_with('r') || !permissions.ends_with('p') {
        return Ok(None);
    }
    let address = |text: &str| usize::from_str_radix(text, 16).map_err(io::Error::other);
    let (start, end) = range.split_once('-').ok_or_else(unreadable)?;
    let (start, end) = (address(start)?, address(end)?);
    Ok(Some(Mapping { start, end }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_from_files_is_found_and_nothing_else() {
        let program = "55d0c8a00000-55d0c8a51000 r-xp 00002000 fe:00 1311 /usr/sbin/fabricbiosd";
        let (start, end) = (0x55d0_c8a0_0000, 0x55d0_c8a5_1000);
        assert_eq!(of_a_file(program).unwrap(), Some(Mapping { start, end }));
        for other in [
            "55d0c9000000-55d0c9021000 rw-p 00000000 00:00 0 [heap]",
            "7f0000000000-7f0040000000 rw-s 00000000 00:01 7 /memfd:arena (deleted)",
            "7f1000000000-7f1000001000 ---p 00000000 fe:00 1311 /usr/sbin/fabricbiosd",
        ] {
            assert_eq!(of_a_file(other).unwrap(), None, "{other}");
        }
        of_a_file("55d0c8a00000 r-xp").unwrap_err();
    }

    #[test]
    fn this_program_is_among_its_own_mappings() {
        let own = lock as *const () as usize;
        let found = mappings().unwrap();
        assert!(found.iter().any(|it| (it.start..it.end).contains(&own)));
    }
}
