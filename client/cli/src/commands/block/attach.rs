//! `block attach`: starts the block daemon of a lease and waits until the device is attached.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{self, Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fabricbios_client::Node;
use fabricbios_wire::{Request, Transport};
use serde::{Deserialize, Serialize};

use super::{
    super::lease::ask,
    attach_paths::attach_paths,
    control_socket::{self, ControlCommand},
    need_root,
    nvme_host::NvmeHost,
    record::Files,
};
use crate::{args::AttachPlace, failure::Failure, output::Output};

#[derive(Serialize)]
struct Attached {
    lease_id: String,
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
    /// Whether it was attached before.
    already: bool,
    log: PathBuf,
}

/// The line that the daemon prints when the device is attached.
#[derive(Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) device: String,
}

pub(super) fn run(
    node: &Node,
    identity: &Path,
    place: &AttachPlace,
    output: Output,
) -> Result<(), Failure> {
    need_root()?;
    let lease_id = place.recorded.id;
    let files = Files::new(&place.recorded.attach_dir, lease_id);
    let named = |failure: Failure| failure.at(&format!("lease {lease_id}"));
    files.check_dir()?;
    let attached = attached_device(&files)?;
    check_transport(&files, attached.is_some(), place.transport)?;
    let (device, already) = match attached {
        Some(device) => (device, true),
        None => (attach(node, identity, place, &files).map_err(named)?, false),
    };
    let attached = Attached {
        lease_id: lease_id.to_string(),
        device,
        transport: transport(&files).map(Transport::name),
        already,
        log: files.log(),
    };
    output.print(&attached, || attached.device.clone())
}

/// Refuses another transport than that of the attached device. Without a daemon a device over UDP is gone, and only an NVMe-oF
/// connection of an earlier daemon can be left.
fn check_transport(files: &Files, is_attached: bool, wanted: Transport) -> Result<(), Failure> {
    match files.read()? {
        Some(record) if is_attached || record.nvmeof.is_some() => {
            record.check_transport(&NvmeHost::this_machine(), wanted)
        }
        _ => Ok(()),
    }
}

/// The transport of the attached device; `None` if it cannot be found out.
fn transport(files: &Files) -> Option<Transport> {
    let record = files.read().ok().flatten()?;
    record.transport(&NvmeHost::this_machine()).ok().flatten()
}

/// The device of a running daemon.
fn attached_device(files: &Files) -> Result<Option<String>, Failure> {
    let path = files.socket();
    match control_socket::ask(&path, ControlCommand::Device) {
        Ok(answer) => Ok(answer.and_then(Result::ok)),
        Err(error) => Err(Failure::local(
            &format!("ask at {}", path.display()),
            &error,
        )),
    }
}

fn attach(
    node: &Node,
    identity: &Path,
    place: &AttachPlace,
    files: &Files,
) -> Result<String, Failure> {
    // Checked here, so that the error is seen on the terminal.
    let lease_id = place.recorded.id;
    let info = ask(node, lease_id, Request::LeaseQuery(lease_id))?;
    attach_paths(&info, place.transport)?;
    files.make_dir()?;
    let mut daemon = start(node, identity, place, files)?;
    let mut line = String::new();
    if let Some(stdout) = daemon.stdout.take() {
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(|error| {
            Failure::local("hear from the process that keeps the device", &error)
        })?;
    }
    match serde_json::from_str::<Ready>(&line) {
        Ok(ready) => Ok(ready.device),
        Err(_) => Err(why(daemon, &line, place, files)),
    }
}

/// Starts this program again as the daemon, without the terminal.
fn start(
    node: &Node,
    identity: &Path,
    place: &AttachPlace,
    files: &Files,
) -> Result<Child, Failure> {
    let cannot =
        |error: &std::io::Error| Failure::local("start a process that keeps the device", error);
    let program = env::current_exe().map_err(|error| cannot(&error))?;
    let [identity, dir] = [identity, &place.recorded.attach_dir].map(path::absolute);
    let mut command = Command::new(program);
    command.arg("--node").arg(node.address());
    command.arg("--identity");
    command.arg(identity.map_err(|error| cannot(&error))?);
    command
        .args(["block", "keep"])
        .arg(place.recorded.id.to_string());
    command.args(["--transport", place.transport.name()]);
    command.arg("--attach-dir");
    command.arg(dir.map_err(|error| cannot(&error))?);
    // In `/`, so that the file system of the current directory can be unmounted.
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(files.open_log()?);
    command.spawn().map_err(|error| cannot(&error))
}

/// The failure of the daemon, in its own words if it reported one.
fn why(mut daemon: Child, line: &str, place: &AttachPlace, files: &Files) -> Failure {
    daemon.wait().ok();
    Failure::from_json(line).unwrap_or_else(|| {
        let (log, lease_id) = (files.log(), place.recorded.id);
        let what = format!(
            "its process ended; see {}. `fabricctl block attach {lease_id}` tries again, `fabricctl block \
             detach {lease_id}` takes away what it may have connected",
            log.display()
        );
        Failure::local("keep the device", &what)
    })
}
