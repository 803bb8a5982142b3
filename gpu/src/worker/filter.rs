//! The worker's filter of system calls.

use std::collections::BTreeMap;

use nix::libc::{self, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

/// Call numbers that all architectures share and the C library's headers may lack.
const SYS_FCHMODAT2: c_long = 452;
const SYS_SETXATTRAT: c_long = 463;
const SYS_REMOVEXATTRAT: c_long = 466;

/// Calls that fail with `EPERM`.
pub(super) const DENIED: &[c_long] = &[
    // Programs and processes. `clone` can still make a thread, see `rules`.
    libc::SYS_execve,
    libc::SYS_execveat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_tkill,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pidfd_getfd,
    libc::SYS_setns,
    libc::SYS_unshare,
    // Networks. The listening socket exists already, and accepts.
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    // Files of other processes.
    libc::SYS_open_by_handle_at,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    // The owner of a file, and the rights that it gives to a process that executes it.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    libc::SYS_mknodat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SYS_SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    SYS_REMOVEXATTRAT,
    // Parts of the kernel with a history of many faults.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // The machine as a whole.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
];

/// Bits of a mode: a program in a file with one of them runs as the file's user or group.
const SET_ID: [u64; 2] = [0o4000, 0o2000];

/// The type of a socket without its flags.
const SOCKET_TYPE: u64 = 0xf;

/// Installs the filter in all threads of the process. The kernel kills a process that makes calls of another
/// architecture (32 bits).
///
/// # Errors
/// The kernel refuses a filter.
pub(super) fn install() -> Result<(), seccompiler::Error> {
    // Without these two calls the C library makes threads with `clone` and opens files with `openat`, whose arguments a
    // filter can read.
    let not_there = [libc::SYS_clone3, libc::SYS_openat2].map(|call| (call, Vec::new()));
    let not_there = BTreeMap::from(not_there);
    for (rules, errno) in [(rules()?, libc::EPERM), (not_there, libc::ENOSYS)] {
        apply_filter_all_threads(&compile(rules, errno)?)?;
    }
    #[cfg(target_arch = "x86_64")]
    apply_filter_all_threads(&deny_x32())?;
    Ok(())
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    errno: i32,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let denied = SeccompAction::Errno(errno.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, SeccompAction::Allow, denied, arch)?.try_into()
}

fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        DENIED.iter().map(|call| (*call, Vec::new())).collect();
    let mut deny_if = |call, conditions: &[(u8, SeccompCmpOp, u64)]| {
        let of_call = rules.entry(call).or_default();
        for (argument, operator, value) in conditions {
            // The pointer of `sendto` is the only argument with 64 bits.
            let length = if *argument == 4 {
                SeccompCmpArgLen::Qword
            } else {
                SeccompCmpArgLen::Dword
            };
            let condition = SeccompCondition::new(*argument, length, operator.clone(), *value)?;
            of_call.push(SeccompRule::new(vec![condition])?);
        }
        Ok::<_, seccompiler::BackendError>(())
    };
    let flag = |flag: i32| u64::from(flag.cast_unsigned());
    let no_stream = [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET]
        .map(|kind| (1, MaskedEq(SOCKET_TYPE), flag(kind)));
    // A socket that cannot connect is useful for datagrams only, so datagram sockets are denied too.
    deny_if(libc::SYS_socket, &[(0, Ne, flag(libc::AF_UNIX))])?;
    deny_if(libc::SYS_socket, &no_stream)?;
    // `sendmsg` can name a receiver too, in memory that a filter cannot read.
    deny_if(libc::SYS_socketpair, &no_stream)?;
    deny_if(libc::SYS_sendto, &[(4, Ne, 0)])?;
    // Files with these mode bits at their creation. The argument is the mode.
    for (call, argument) in [
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, 2),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_creat, 1),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_mkdir, 1),
        (libc::SYS_openat, 3),
        (libc::SYS_mkdirat, 2),
    ] {
        let bits = SET_ID.map(|bit| (argument, MaskedEq(bit), bit));
        deny_if(call, &bits)?;
    }
    // Input to a terminal as if it were typed.
    for request in [libc::TIOCSTI, libc::TIOCLINUX] {
        deny_if(libc::SYS_ioctl, &[(1, Eq, request)])?;
    }
    // The process's own files in /proc stay root's, which `set_dumpable` has made them.
    deny_if(libc::SYS_prctl, &[(0, Eq, flag(libc::PR_SET_DUMPABLE))])?;
    // Only threads are allowed.
    let thread = flag(libc::CLONE_THREAD);
    deny_if(libc::SYS_clone, &[(0, MaskedEq(thread), 0)])?;
    // Only signals to the own process are allowed.
    let own = u64::from(std::process::id());
    for call in [
        libc::SYS_kill,
        libc::SYS_tgkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
    ] {
        deny_if(call, &[(0, Ne, own)])?;
    }
    Ok(rules)
}

/// Denies the calls of the x32 interface, whose numbers have this bit: the other filters do not check them.
#[cfg(target_arch = "x86_64")]
fn deny_x32() -> BpfProgram {
    use seccompiler::sock_filter;
    const X32_BIT: u32 = 0x4000_0000;
    let step = |code: u32, (jt, jf), k| sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt,
        jf,
        k,
    };
    vec![
        // The number of the call is at the start of the data that a filter reads.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), 0),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, (0, 1), X32_BIT),
        step(
            libc::BPF_RET | libc::BPF_K,
            (0, 0),
            libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(),
        ),
        step(libc::BPF_RET | libc::BPF_K, (0, 0), libc::SECCOMP_RET_ALLOW),
    ]
}
