//! Starts the block daemon of a lease and waits until the device is attached.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use fabricbios_client::Node;
use fabricbios_wire::{Request, Transport};
use nix::unistd::geteuid;

use crate::{
    control_socket::{self, ControlCommand},
    daemon::Ready,
    error::AttachError,
    nvme::NvmeHost,
    paths::attach_paths,
    record::LeaseFiles,
};

/// An attached device.
#[derive(Debug)]
pub struct Attached {
    /// The path of the device, such as `/dev/nvme0n1`.
    pub device: String,
    /// `None`: the transport cannot be found out.
    pub transport: Option<Transport>,
    /// Whether it was attached before.
    pub already: bool,
    /// The log of the block daemon.
    pub log: PathBuf,
}

/// Attaches a lease over the wanted transport, unless it is attached already. `daemon`: the command that runs a
/// [`BlockDaemon`](crate::BlockDaemon) for the same lease.
///
/// # Errors
/// If the caller is not root, if the lease cannot become a device, if it is attached over another transport, or if this
/// machine or the node fails to attach it.
pub fn attach(
    node: &Node,
    files: &LeaseFiles,
    wanted: Transport,
    daemon: impl FnOnce() -> io::Result<Command>,
) -> Result<Attached, AttachError> {
    need_root()?;
    files.check_dir()?;
    let attached = attached_device(files)?;
    check_transport(files, attached.is_some(), wanted)?;
    let (device, already) = match attached {
        Some(device) => (device, true),
        None => (start(node, files, wanted, daemon)?, false),
    };
    Ok(Attached {
        device,
        transport: transport(files),
        already,
        log: files.log(),
    })
}

/// Refuses every caller but root.
pub(crate) fn need_root() -> Result<(), AttachError> {
    match geteuid().is_root() {
        true => Ok(()),
        false => Err(AttachError::NotRoot),
    }
}

/// Refuses another transport than that of the attached device. Without a daemon a device over UDP is gone, and only an NVMe-oF
/// connection of an earlier daemon can be left.
fn check_transport(
    files: &LeaseFiles,
    is_attached: bool,
    wanted: Transport,
) -> Result<(), AttachError> {
    match files.read()? {
        Some(record) if is_attached || record.nvmeof.is_some() => {
            record.check_transport(&NvmeHost::this_machine(), wanted)
        }
        _ => Ok(()),
    }
}

/// The transport of the attached device; `None` if it cannot be found out.
fn transport(files: &LeaseFiles) -> Option<Transport> {
    let record = files.read().ok().flatten()?;
    record.transport(&NvmeHost::this_machine()).ok().flatten()
}

/// The device of a running daemon.
fn attached_device(files: &LeaseFiles) -> Result<Option<String>, AttachError> {
    let path = files.socket();
    let answer = control_socket::ask(&path, ControlCommand::Device)
        .map_err(|error| AttachError::local(format!("ask at {}", path.display()), error))?;
    Ok(answer.and_then(Result::ok))
}

/// Starts a daemon and waits for its device.
fn start(
    node: &Node,
    files: &LeaseFiles,
    wanted: Transport,
    daemon: impl FnOnce() -> io::Result<Command>,
) -> Result<String, AttachError> {
    // Checked here, so that the error is seen on the terminal.
    attach_paths(&node.lease(Request::LeaseQuery(files.lease_id()))?, wanted)?;
    files.make_dir()?;
    let mut daemon = spawn(daemon, files.open_log()?)
        .map_err(|error| AttachError::local("start a process that keeps the device", error))?;
    let mut report = String::new();
    if let Some(stdout) = daemon.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut report)
            .map_err(|error| {
                AttachError::local("hear from the process that keeps the device", error)
            })?;
    }
    match serde_json::from_str::<Ready>(&report) {
        Ok(ready) => Ok(ready.device),
        Err(_) => {
            daemon.wait().ok();
            Err(AttachError::DaemonEnded {
                lease_id: files.lease_id(),
                log: files.log(),
                report,
            })
        }
    }
}

/// Starts the daemon without the terminal, in `/`, so that the file system of the current directory can be unmounted.
fn spawn(daemon: impl FnOnce() -> io::Result<Command>, log: File) -> io::Result<Child> {
    daemon()?
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
}
