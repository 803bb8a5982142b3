//! Checks memory that a client on the node shares.

use std::os::fd::BorrowedFd;

use fabricbios_wire::Refusal;
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::{
        stat::fstat,
        statfs::{TMPFS_MAGIC, fstatfs},
    },
};

use super::refusal::invalid;

/// Checks that a file is memory (a memfd) that cannot shrink: the kernel kills a worker that touches a mapping beyond
/// the end of its file.
pub(super) fn check(file: BorrowedFd<'_>, length: u64, most: u64) -> Result<(), Refusal> {
    if length > most {
        let why = format!(
            "length is {length}; a session shares at most as much as it can allocate, {most} bytes"
        );
        return Err(invalid(why));
    }
    let no_memory = |what: &str| {
        let why = format!(
            "the descriptor is {what}: share a memfd that has the seal F_SEAL_SHRINK and no huge pages"
        );
        invalid(why)
    };
    let system =
        fstatfs(file).map_err(|errno| no_memory(&format!("of no file system ({errno})")))?;
    if system.filesystem_type() != TMPFS_MAGIC {
        return Err(no_memory("no file in memory"));
    }
    let seals = fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
    if !seals.is_ok_and(|seals| seals.contains(SealFlag::F_SEAL_SHRINK)) {
        return Err(no_memory("a file that can become shorter"));
    }
    let has = fstat(file).map(|it| u64::try_from(it.st_size).unwrap_or(0));
    match has {
        Ok(has) if has >= length => Ok(()),
        Ok(has) => Err(invalid(format!(
            "length is {length}, and the shared memory has {has} bytes"
        ))),
        Err(errno) => Err(no_memory(&format!("not readable ({errno})"))),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsFd};

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    #[test]
    fn only_memory_that_cannot_shrink_is_shared() {
        let memory = File::from(memfd_create("shared", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        memory.set_len(4096).unwrap();
        let refused = check(memory.as_fd(), 4096, 1 << 20).unwrap_err();
        assert!(refused.message.contains("can become shorter"), "{refused}");
        fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert_eq!(check(memory.as_fd(), 4096, 1 << 20), Ok(()));
        let refused = check(memory.as_fd(), 4097, 1 << 20).unwrap_err();
        assert!(refused.message.contains("has 4096 bytes"), "{refused}");
        let refused = check(memory.as_fd(), 4096, 4095).unwrap_err();
        assert!(refused.message.contains("at most"), "{refused}");
        let (end, _other) = std::io::pipe().unwrap();
        let refused = check(end.as_fd(), 1, 1).unwrap_err();
        assert!(refused.message.contains("no file in memory"), "{refused}");
    }
}
