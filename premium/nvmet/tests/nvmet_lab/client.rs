//! The client's side: nvme-cli, and programs that use a disk continuously.

use std::{
    fs,
    io::{self, BufRead, BufReader},
    net::SocketAddr,
    os::fd::AsRawFd,
    process::{Child, ChildStdout, Command, Stdio},
};

use fabricbios_wire::{NvmeofBinding, NvmeofTransport};
use nix::libc;

use super::{must, run};

/// A key of the right form that no host has.
pub(crate) const WRONG_KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

/// Connects over one transport with these secrets; returns the disk.
pub(crate) fn connect_with(
    binding: &NvmeofBinding,
    transport: usize,
    host: &str,
    secrets: &str,
) -> Result<String, String> {
    let address = binding.addresses[transport];
    let place = SocketAddr::from(address.endpoint);
    let transport = match address.transport {
        NvmeofTransport::Tcp => "tcp",
        NvmeofTransport::Rdma => "rdma",
    };
    run(&format!(
        "nvme connect -t {transport} -a {} -s {} -n {} --hostnqn {host} --hostid {} \
         --ctrl-loss-tmo {} --reconnect-delay 1 --nr-io-queues 2 {secrets}",
        place.ip(),
        place.port(),
        binding.subsystem,
        binding.host_id,
        binding.ctrl_loss_secs,
    ))?;
    Ok(disk(binding))
}

/// Connects as the binding says; returns the disk.
pub(crate) fn connect(binding: &NvmeofBinding, transport: usize) -> Result<String, String> {
    let mut secrets = format!("--dhchap-secret {}", binding.dhchap_secret.reveal());
    if let Some(ctrl) = &binding.dhchap_ctrl_secret {
        secrets.push_str(" --dhchap-ctrl-secret ");
        secrets.push_str(ctrl.reveal());
    }
    connect_with(binding, transport, binding.host_nqn.as_str(), &secrets)
}

/// The kernel's parameter for how long this host waits for the answer to an admin command, in seconds.
const ADMIN_TIMEOUT: &str = "/sys/module/nvme_core/parameters/admin_timeout";

/// Makes a connection that the target must refuse because of its key. The target may close the connection before the
/// host has read the answer (Linux 6.12, `nvmet_execute_auth_receive`); the host then waits for 5 s here, not for a
/// minute.
pub(crate) fn refused(attempt: impl FnOnce() -> Result<String, String>) {
    let before = fs::read_to_string(ADMIN_TIMEOUT).unwrap();
    fs::write(ADMIN_TIMEOUT, "5").unwrap();
    attempt().unwrap_err();
    fs::write(ADMIN_TIMEOUT, before).unwrap();
}

pub(crate) fn disconnect(binding: &NvmeofBinding) {
    must(&format!("nvme disconnect -n {}", binding.subsystem));
}

/// Waits until the kernel has made the disk of a subsystem. Returns the disk.
fn disk(binding: &NvmeofBinding) -> String {
    for _ in 0..500 {
        for entry in fs::read_dir("/sys/block").unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            // The name of one of several paths to a disk, such as nvme0c1n1, has no file in /dev.
            if name.contains('c') {
                continue;
            }
            let owner = fs::read_to_string(format!("/sys/block/{name}/device/subsysnqn"));
            if owner.is_ok_and(|owner| owner.trim() == binding.subsystem.as_str()) {
                return format!("/dev/{name}");
            }
        }
        // Without udev no event reports that a disk exists.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no disk of {}", binding.subsystem);
}

/// Reads or writes a disk repeatedly and prints a line each time, until it fails.
pub(crate) struct Busy {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Busy {
    pub(crate) fn write(disk: &str) -> Self {
        // Without nocreat, a missing disk would become a regular file.
        let script = format!(
            "while dd if=/dev/zero of={disk} bs=64k count=16 oflag=direct conv=nocreat; \
             do echo round; done; echo failed"
        );
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut busy = Self { child, lines };
        assert_eq!(busy.line(), "round");
        busy
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Waits for more lines than the pipe can already hold.
    pub(crate) fn goes_on(&mut self) {
        assert!(self.goes_on_or_fails());
    }

    /// Waits for more lines than the pipe can already hold, or until the program has failed. Whether it goes on.
    pub(crate) fn goes_on_or_fails(&mut self) -> bool {
        // Earlier lines are in a pipe of at most 64 KiB, which is never full between two looks.
        let before = self.pending();
        (0..before + 3).all(|_| self.line() == "round")
    }

    fn pending(&mut self) -> usize {
        let (pipe, mut waiting) = (self.lines.get_ref().as_raw_fd(), 0);
        // SAFETY: FIONREAD of ioctl_tty(2) writes one integer.
        let told = unsafe { libc::ioctl(pipe, libc::FIONREAD, &mut waiting) };
        assert_eq!(told, 0, "{}", io::Error::last_os_error());
        (self.lines.buffer().len() + usize::try_from(waiting).unwrap()) / "round\n".len()
    }

    /// Waits until the program has failed.
    pub(crate) fn fails(mut self) {
        while self.line() != "failed" {}
        self.child.wait().unwrap();
    }

    pub(crate) fn stop(mut self) {
        self.kill();
        while !self.line().is_empty() {}
    }

    /// Kills the shell; a write that is under way ends by itself.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
