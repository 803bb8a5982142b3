//! A scheduler as a process, which can be killed and stopped.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    process::{Child, Command, ExitStatus},
};

use anyhow::{Context, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// A scheduler's process.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) command: Command,
    pub(crate) child: Option<Child>,
    pub(crate) address: SocketAddr,
    /// Where it tells how it is, for figures.
    pub(crate) http: Option<SocketAddr>,
}

impl Scheduler {
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let child = self.command.spawn();
        self.child = Some(child.context("start fabricbios-scheduler by setpriv, of util-linux")?);
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child
            && let Ok(pid) = i32::try_from(child.id())
        {
            // It runs until `dies`.
            kill(Pid::from_raw(pid), signal).ok();
        }
    }

    /// Ends it at once, also if it is stopped. Returns how it had ended by itself.
    pub(crate) fn dies(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        let ended = child.try_wait().ok().flatten();
        child.kill().ok();
        child.wait().ok();
        ended
    }

    /// The most memory that it has had, KiB.
    pub(crate) fn most_memory_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.as_ref()?.id()));
        let status = status.ok()?;
        let line = status.lines().find(|it| it.starts_with("VmHWM:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.dies();
    }
}

/// An address for a scheduler. Below the ports that the kernel gives to who asks for none: no client may have it while the scheduler is dead.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    for _ in 0..100 {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(20_000..32_000)));
        if UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free UDP port between 20000 and 32000")
}
