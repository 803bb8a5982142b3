//! Programs of the kernel's eBPF machine that limit the processes of a cgroup (kernel, include/uapi/linux/bpf.h): which
//! device nodes they may open, which addresses and ports they may use.

use std::{fs::File, io, path::Path};

use nix::errno::Errno;

use crate::{
    caller::DEPTH_MAX,
    devices::{CGROUP_DEVICE, EFFECTIVE, PROGRAMS_MAX, attach_program, by_id, programs_of},
};

/// Attachment types (`bpf_attach_type`) of programs that can refuse an operation: packets in and out, sockets, devices,
/// addresses to bind, to connect and to send to, sysctl, socket options.
const TYPES: [u32; 14] = [0, 1, 2, CGROUP_DEVICE, 8, 9, 10, 11, 12, 13, 14, 15, 18, 22];

/// Attaches to the cgroup `to` every program that applies to processes of `from`, unless the program already applies to
/// `to`.
///
/// # Errors
/// A program cannot be listed, opened or attached.
pub(crate) fn carry_over(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (File::open(from)?, File::open(to)?);
    for attach_type in TYPES {
        let wanted = effective(&from, attach_type)?;
        let mut has = effective(&to, attach_type)?;
        for id in wanted {
            if has.contains(&id) {
                continue;
            }
            match by_id(id) {
                // The program was detached meanwhile and no longer exists.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                program => attach_program(&to, &program?, attach_type, None)?,
            }
            has.push(id);
        }
    }
    Ok(())
}

fn effective(cgroup: &File, attach_type: u32) -> io::Result<Vec<u32>> {
    let found = programs_of(cgroup, attach_type, EFFECTIVE, PROGRAMS_MAX * DEPTH_MAX);
    let errno = |error: &io::Error| error.raw_os_error().map(Errno::from_raw);
    match found {
        // The kernel has no such programs.
        Err(error) if matches!(errno(&error), Some(Errno::EINVAL | Errno::ENOSYS)) => {
            Ok(Vec::new())
        }
        found => found,
    }
}
