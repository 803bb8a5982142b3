//! NBD servers from Debian packages. `nbd-server` is not used, because it cannot bypass the page cache.

use std::{
    fmt, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use nix::{
    sys::{
        signal::{Signal, kill},
        statfs::{TMPFS_MAGIC, statfs},
    },
    unistd::Pid,
};

use crate::place::free_address;

/// A server and its kind of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// `qemu-nbd`: O_DIRECT, Linux AIO
    QemuNative,
    /// `qemu-nbd`: O_DIRECT, io_uring
    QemuUring,
    /// `nbdkit file`: 16 threads, through the page cache
    Nbdkit,
}

impl Peer {
    fn program(self) -> &'static str {
        match self {
            Self::QemuNative | Self::QemuUring => "qemu-nbd",
            Self::Nbdkit => "nbdkit",
        }
    }

    /// The package of Debian that has the program.
    fn package(self) -> &'static str {
        match self {
            Self::QemuNative | Self::QemuUring => "qemu-utils",
            Self::Nbdkit => "nbdkit",
        }
    }

    /// The reason why this server cannot be compared on a file in `dir`; `None` if it can.
    pub(super) fn obstacle(self, dir: &Path) -> anyhow::Result<Option<String>> {
        let asked = Command::new(self.program()).arg("--version").output();
        let is_installed = asked.is_ok_and(|output| output.status.success());
        Ok(match self {
            _ if !is_installed => {
                let package = self.package();
                Some(format!(
                    "no such program is in the path; on Debian: apt install {package}"
                ))
            }
            // A page cache would answer while the other server waits for the disk.
            Self::Nbdkit if !is_in_memory(dir)? => Some("cannot go past the page cache".to_owned()),
            _ => None,
        })
    }

    /// The command of the server, which goes to the background when it listens.
    fn command(self, port: u16, path: &Path, pid_file: &Path) -> Command {
        let mut command = Command::new(self.program());
        let port = port.to_string();
        let aio = match self {
            Self::QemuNative => "--aio=native",
            Self::QemuUring => "--aio=io_uring",
            Self::Nbdkit => {
                command.args(["--ipaddr=127.0.0.1", "--threads=16", "--port", &port]);
                command.arg("--pidfile").arg(pid_file).arg("file").arg(path);
                // For clients that read at random places: nbdkit-file-plugin(1), "Optimizing for random or sequential access".
                command.arg("fadvise=random");
                return command;
            }
        };
        command.args(["--fork", "--persistent", "--bind=127.0.0.1", "--format=raw"]);
        command.args(["--cache=none", aio, "--port", &port]);
        command.arg("--pid-file").arg(pid_file).arg(path);
        command
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QemuNative => "qemu-nbd --cache=none --aio=native",
            Self::QemuUring => "qemu-nbd --cache=none --aio=io_uring",
            Self::Nbdkit => "nbdkit --threads=16 file fadvise=random",
        })
    }
}

/// Whether the files of this directory lie in memory.
pub(super) fn is_in_memory(dir: &Path) -> anyhow::Result<bool> {
    Ok(statfs(dir)?.filesystem_type() == TMPFS_MAGIC)
}

/// A running server; dropping it ends the server.
#[derive(Debug)]
pub(super) struct Server {
    command: String,
    address: SocketAddr,
    pid_file: PathBuf,
}

impl Server {
    /// `place`: a directory for its pid file.
    pub(super) fn start(peer: Peer, path: &Path, place: &Path) -> anyhow::Result<Self> {
        let address = free_address()?;
        // Both servers change their directory when they go to the background.
        let (path, place) = (path.canonicalize()?, place.canonicalize()?);
        let pid_file = place.join("nbd.pid");
        let mut command = peer.command(address.port(), &path, &pid_file);
        let words = [command.get_program()]
            .into_iter()
            .chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        let words = words.join(" ");
        let status = command.status().with_context(|| format!("run {words}"))?;
        ensure!(status.success(), "{words}: {status}");
        Ok(Self {
            command: words,
            address,
            pid_file,
        })
    }

    pub(super) fn command(&self) -> &str {
        &self.command
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    fn pid(&self) -> Option<Pid> {
        let text = fs::read_to_string(&self.pid_file).ok()?;
        text.trim().parse().ok().map(Pid::from_raw)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let killed = self.pid().map(|pid| kill(pid, Signal::SIGTERM));
        if !matches!(killed, Some(Ok(()))) {
            eprintln!("still running: {}", self.command);
        }
    }
}
