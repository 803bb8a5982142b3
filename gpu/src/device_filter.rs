//! The device controller of cgroup v2: a program of the kernel's eBPF machine that decides which device nodes the processes of a
//! cgroup may open (kernel, Documentation/admin-guide/cgroup-v2.rst, "Device controller"; include/uapi/linux/bpf.h).

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
};

use fabricbios_lease::StepError;
use nix::{errno::Errno, libc};

use crate::Node;

/// What every program needs: null, zero, full, random, urandom, tty, ptmx, and the pseudo terminals.
const PSEUDO: [(u32, Option<u32>); 8] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(2)),
    (136, None),
];

/// `bpf_cmd`, `bpf_prog_type`, `bpf_attach_type` and a flag of BPF_PROG_ATTACH.
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const CGROUP_DEVICE_PROGRAM: u32 = 15;
const CGROUP_DEVICE: u32 = 6;
/// Programs below still apply: each of them has to allow an access.
const ALLOW_MULTI: u32 = 1 << 1;

/// `BPF_DEVCG_DEV_CHAR`.
const CHARACTER: u32 = 2;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The part of `union bpf_attr` for BPF_PROG_LOAD that is used; the kernel takes the rest as zeroes.
#[repr(C)]
struct Load {
    program_type: u32,
    instructions: u32,
    instruction_list: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

/// The part for BPF_PROG_ATTACH.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
}

/// From now on processes of the cgroup at `directory` can open these character devices and what every program needs, and
/// no other device. What they have open stays open. The cgroup's removal ends this.
///
/// # Errors
/// The kernel refuses; it may have no device controller (CONFIG_CGROUP_BPF).
pub(crate) fn allow_only(
    step: &'static str,
    directory: &Path,
    nodes: &[Node],
) -> Result<(), StepError> {
    let fail = |error: io::Error| {
        let hint = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EINVAL | Errno::ENOSYS) => {
                "; this kernel has no device controller of cgroup v2 (CONFIG_CGROUP_BPF)"
            }
            Some(Errno::EPERM) => "; this needs root with CAP_BPF and CAP_NET_ADMIN",
            _ => "",
        };
        let at = directory.display();
        StepError::new(step, format_args!("{at}: device controller: {error}{hint}"))
            .with_errno(error.raw_os_error())
    };
    let rules = nodes.iter().map(|node| (node.major, Some(node.minor)));
    let program = load(&program(rules.chain(PSEUDO))).map_err(fail)?;
    let cgroup = File::open(directory).map_err(fail)?;
    let number = |descriptor: RawFd| u32::try_from(descriptor).unwrap_or(u32::MAX);
    let attach = Attach {
        target: number(cgroup.as_raw_fd()),
        program: number(program.as_raw_fd()),
        attach_type: CGROUP_DEVICE,
        flags: ALLOW_MULTI,
    };
    // SAFETY: the structure is the kernel's, and both descriptors are open.
    unsafe { bpf(PROG_ATTACH, &attach) }.map(drop).map_err(fail)
}

/// The instructions for these rules: a major number, and a minor number or any. The context has the kind of access and of
/// device (u32), the major (u32) and the minor number (u32).
fn program(rules: impl Iterator<Item = (u32, Option<u32>)>) -> Vec<Instruction> {
    const LOAD_WORD: u8 = 0x61;
    const AND: u8 = 0x57;
    const SET: u8 = 0xb7;
    const SKIP_IF: u8 = 0x15;
    const SKIP_UNLESS: u8 = 0x55;
    const EXIT: u8 = 0x95;
    let op = |code, registers, offset, immediate: u32| Instruction {
        code,
        registers,
        offset,
        immediate: immediate.cast_signed(),
    };
    // r1 is the context; r2 is the kind, r3 the major and r4 the minor number; r0 is the answer.
    let mut out = vec![
        op(LOAD_WORD, 0x12, 0, 0),
        op(AND, 0x02, 0, 0xffff),
        op(LOAD_WORD, 0x13, 4, 0),
        op(LOAD_WORD, 0x14, 8, 0),
        // Other than character devices: refused.
        op(SKIP_IF, 0x02, 2, CHARACTER),
        op(SET, 0x00, 0, 0),
        op(EXIT, 0, 0, 0),
    ];
    for (major, minor) in rules {
        let rest = 2 + i16::from(minor.is_some());
        out.push(op(SKIP_UNLESS, 0x03, rest, major));
        if let Some(minor) = minor {
            out.push(op(SKIP_UNLESS, 0x04, 2, minor));
        }
        out.push(op(SET, 0x00, 0, 1));
        out.push(op(EXIT, 0, 0, 0));
    }
    out.push(op(SET, 0x00, 0, 0));
    out.push(op(EXIT, 0, 0, 0));
    out
}

fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let load = Load {
        program_type: CGROUP_DEVICE_PROGRAM,
        instructions: u32::try_from(program.len()).unwrap_or(u32::MAX),
        instruction_list: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
    };
    // SAFETY: the structure is the kernel's; program and license live until the call returns.
    let made = unsafe { bpf(PROG_LOAD, &load) }?;
    // SAFETY: the kernel has just made the descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// # Safety
/// `T` is the structure of this command, with valid pointers.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: of the caller.
    let made = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    let made = Errno::result(made)?;
    RawFd::try_from(made).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, OpenOptions},
        os::unix::process::CommandExt,
        process::Command,
    };

    use super::*;

    fn node(path: &str, major: u32, minor: u32) -> Node {
        Node {
            path: path.into(),
            major,
            minor,
            is_shared: false,
        }
    }

    /// Runs a shell in the cgroup and returns which of the nodes it can open.
    fn opens(cgroup: &Path, nodes: &[&str]) -> Vec<bool> {
        let procs = cgroup.join("cgroup.procs");
        let opens = |node: &&str| {
            let procs = procs.clone();
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(format!("exec 3<{node}"));
            // SAFETY: only system calls between fork and exec.
            unsafe {
                shell.pre_exec(move || {
                    use std::io::Write;
                    let own = std::process::id().to_string();
                    let mut file = OpenOptions::new().write(true).open(&procs)?;
                    file.write_all(own.as_bytes())
                });
            }
            shell.stderr(std::process::Stdio::null());
            shell.status().unwrap().success()
        };
        nodes.iter().map(opens).collect()
    }

    #[test]
    fn the_kernel_opens_the_listed_nodes_alone() {
        let mounts = fabricbios_kernfs::mounts();
        let Some(mount) = mounts.iter().find(|mount| mount.kind == "cgroup2") else {
            return eprintln!("skipped: no cgroup v2 is mounted here");
        };
        let cgroup = mount
            .place
            .join(format!("fb-filter-{}", std::process::id()));
        if fs::create_dir(&cgroup).is_err() {
            return eprintln!(
                "skipped: this user can make no cgroup in {}",
                mount.place.display()
            );
        }
        let all = ["/dev/null", "/dev/kmsg", "/dev/full", "/dev/port"];
        let before = opens(&cgroup, &all);
        let limited = allow_only("test", &cgroup, &[node("/dev/kmsg", 1, 11)]);
        let after = opens(&cgroup, &all);
        let closed = allow_only("test", &cgroup, &[]);
        let at_the_end = opens(&cgroup, &all);
        fs::remove_dir(&cgroup).unwrap();
        match limited {
            // A container may not load programs.
            Err(error) if error.errno == Some(libc::EPERM) => {
                return eprintln!("skipped: {error}");
            }
            limited => limited.unwrap(),
        }
        closed.unwrap();
        assert_eq!(after, [true, before[1], true, false]);
        assert_eq!(at_the_end, [true, false, true, false]);
    }
}
