//! The device controller of cgroup v2: a program of the kernel's eBPF machine that decides which device nodes the
//! processes of a cgroup may open (kernel, Documentation/admin-guide/cgroup-v2.rst, "Device controller";
//! include/uapi/linux/bpf.h).

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
};

use fabricbios_lease::StepError;
use nix::{errno::Errno, libc};

/// A character device: its major and its minor number.
pub type DeviceNumber = (u32, u32);

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

/// `bpf_cmd`, `bpf_prog_type`, `bpf_attach_type` and flags of BPF_PROG_ATTACH.
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const PROG_QUERY: libc::c_long = 16;
const CGROUP_DEVICE_PROGRAM: u32 = 15;
pub(crate) const CGROUP_DEVICE: u32 = 6;
/// Programs in the cgroups below still apply: each of them must allow an access.
const ALLOW_MULTI: u32 = 1 << 1;
/// Replaces an attached program.
const REPLACE: u32 = 1 << 2;

/// `BPF_F_QUERY_EFFECTIVE`: the programs of the cgroups above too.
pub(crate) const EFFECTIVE: u32 = 1;

/// Largest number of programs of one type that the kernel attaches to one cgroup (`BPF_CGROUP_MAX_PROGS`).
pub(crate) const PROGRAMS_MAX: usize = 64;

/// The name of this node's programs (`BPF_OBJ_NAME_LEN`).
const NAME: [u8; 16] = *b"fabricbios_dev\0\0";

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

/// The used part of `union bpf_attr` for BPF_PROG_LOAD; the kernel reads the rest as zeros.
#[repr(C)]
struct Load {
    program_type: u32,
    instructions: u32,
    instruction_list: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// The part for BPF_PROG_ATTACH.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    replaced: u32,
}

/// The part for BPF_PROG_QUERY.
#[repr(C)]
struct Query {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    padding: u32,
}

/// The part for BPF_PROG_GET_FD_BY_ID.
#[repr(C)]
struct ById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

/// The part for BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
struct InfoOf {
    program: u32,
    length: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Info {
    program_type: u32,
    id: u32,
    /// A digest of the instructions.
    tag: [u8; 8],
    jited_length: u32,
    translated_length: u32,
    jited: u64,
    translated: u64,
    load_time: u64,
    created_by: u32,
    maps: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// From now on processes of the cgroup at `directory` can open only these character devices and those that every
/// program needs. Files that are open stay open. A later call replaces the program of an earlier call. Programs of
/// others stay; an access needs the permission of each program. The program ends with the cgroup.
///
/// # Errors
/// The program cannot be loaded or attached; the kernel may have no device controller (CONFIG_CGROUP_BPF).
pub fn allow_only(
    step: &'static str,
    directory: &Path,
    devices: &[DeviceNumber],
) -> Result<(), StepError> {
    let rules = devices.iter().map(|(major, minor)| (*major, Some(*minor)));
    let attached = load(&program(rules.chain(PSEUDO))).and_then(|new| attach(directory, &new));
    attached.map_err(|error| {
        let hint = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EINVAL | Errno::ENOSYS) => {
                "; this kernel has no device controller of cgroup v2 (CONFIG_CGROUP_BPF)"
            }
            Some(Errno::EPERM) => {
                "; this needs root with CAP_BPF and CAP_NET_ADMIN, and a cgroup whose other programs allow more of them"
            }
            _ => "",
        };
        let at = directory.display();
        StepError::new(step, format_args!("{at}: device controller: {error}{hint}"))
            .with_errno(error.raw_os_error())
    })
}

/// Attaches a program of this node, or replaces this node's attached one.
fn attach(directory: &Path, new: &OwnedFd) -> io::Result<()> {
    let cgroup = File::open(directory)?;
    let mut replaced = None;
    for id in programs_of(&cgroup, CGROUP_DEVICE, 0, PROGRAMS_MAX)? {
        // The program was detached meanwhile and no longer exists.
        let Ok(program) = by_id(id) else { continue };
        let found = info(&program)?;
        if found.name == NAME {
            if found.tag == info(new)?.tag {
                return Ok(());
            }
            replaced = Some(program);
        }
    }
    attach_program(&cgroup, new, CGROUP_DEVICE, replaced.as_ref())
}

/// Attaches a program beside those of others, or replaces one of them.
pub(crate) fn attach_program(
    cgroup: &File,
    program: &OwnedFd,
    attach_type: u32,
    replaced: Option<&OwnedFd>,
) -> io::Result<()> {
    let attach = Attach {
        target: number(cgroup),
        program: number(program),
        attach_type,
        flags: ALLOW_MULTI | replaced.map_or(0, |_| REPLACE),
        replaced: replaced.map_or(0, number),
    };
    // SAFETY: the structure is the kernel's, and the descriptors are open.
    unsafe { bpf(PROG_ATTACH, &attach) }.map(drop)
}

/// The programs of a type that are attached to this cgroup itself; with the flag [`EFFECTIVE`], those that apply to it.
/// ENOSPC: there are more than `most`.
pub(crate) fn programs_of(
    cgroup: &File,
    attach_type: u32,
    query_flags: u32,
    most: usize,
) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; most];
    let mut query = Query {
        target: number(cgroup),
        attach_type,
        query_flags,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: u32::try_from(ids.len()).unwrap_or(u32::MAX),
        padding: 0,
    };
    // SAFETY: the structure is the kernel's, and `ids` has room for the count that the structure names.
    unsafe { bpf_into(PROG_QUERY, &mut query) }?;
    ids.truncate(query.count as usize);
    Ok(ids)
}

/// Opens a program.
pub(crate) fn by_id(id: u32) -> io::Result<OwnedFd> {
    let by_id = ById {
        id,
        next_id: 0,
        open_flags: 0,
    };
    // SAFETY: the structure is the kernel's.
    let opened = unsafe { bpf(PROG_GET_FD_BY_ID, &by_id) }?;
    // SAFETY: the kernel has just made the descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

fn info(program: &OwnedFd) -> io::Result<Info> {
    let mut info = Info::default();
    let of = InfoOf {
        program: number(program),
        length: u32::try_from(size_of::<Info>()).unwrap_or(u32::MAX),
        info: (&raw mut info) as u64,
    };
    // SAFETY: both structures are the kernel's, and `info` is as long as the length says.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &of) }?;
    Ok(info)
}

fn number(descriptor: &impl AsRawFd) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// The instructions for these rules: a major number, and one minor number or any. The context of the program has three
/// u32 fields: the kinds of access and of device, the major number, the minor number.
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
    // r1 is the context; r2 the kind of device, r3 the major number, r4 the minor number; r0 the result.
    let mut out = vec![
        op(LOAD_WORD, 0x12, 0, 0),
        op(AND, 0x02, 0, 0xffff),
        op(LOAD_WORD, 0x13, 4, 0),
        op(LOAD_WORD, 0x14, 8, 0),
        // Refuses everything but character devices.
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
        kernel_version: 0,
        flags: 0,
        name: NAME,
    };
    // SAFETY: the structure is the kernel's; program and license live until the call returns.
    let made = unsafe { bpf(PROG_LOAD, &load) }?;
    // SAFETY: the kernel has just made the descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// # Safety
/// `T` is the structure of this command, with valid pointers, and the kernel does not write to it.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<RawFd> {
    // SAFETY: the caller ensures it.
    let made = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    let made = Errno::result(made)?;
    RawFd::try_from(made).map_err(io::Error::other)
}

/// # Safety
/// `T` is the structure of this command, with valid pointers.
unsafe fn bpf_into<T>(command: libc::c_long, attributes: &mut T) -> io::Result<()> {
    // SAFETY: the caller ensures it.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    Errno::result(done)?;
    Ok(())
}
