//! `block attach`: starts the keeper of a lease and waits until its device is there.

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
    need_root,
    nvme_host::NvmeHost,
    record::Files,
    socket::{self, Word},
    ways::ways,
};
use crate::{args::AttachPlace, failure::Failure, output::Output};

#[derive(Serialize)]
struct Attached {
    lease_id: String,
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'static str>,
    /// It was before.
    already: bool,
    log: PathBuf,
}

#[derive(Deserialize)]
struct Ready {
    device: String,
}

pub(super) fn run(
    node: &Node,
    identity: &Path,
    place: &AttachPlace,
    output: Output,
) -> Result<(), Failure> {
    need_root()?;
    let lease_id = place.kept.id;
    let files = Files::new(&place.kept.attach_dir, lease_id);
    let named = |failure: Failure| failure.at(&format!("lease {lease_id}"));
    files.check_dir()?;
    let kept = kept(&files)?;
    check_road(&files, kept.is_some(), place.transport)?;
    let (device, already) = match kept {
        Some(device) => (device, true),
        None => (attach(node, identity, place, &files).map_err(named)?, false),
    };
    let attached = Attached {
        lease_id: lease_id.to_string(),
        device,
        transport: road(&files).map(Transport::name),
        already,
        log: files.log(),
    };
    output.print(&attached, || attached.device.clone())
}

/// A device has one road. Without a keeper one over UDP is gone, and only what an earlier keeper connected is
/// left.
fn check_road(files: &Files, is_kept: bool, wanted: Transport) -> Result<(), Failure> {
    match files.read()? {
        Some(record) if is_kept || record.nvmeof.is_some() => {
            record.check_road(&NvmeHost::this_machine(), wanted)
        }
        _ => Ok(()),
    }
}

/// What cannot be seen is not said.
fn road(files: &Files) -> Option<Transport> {
    let record = files.read().ok().flatten()?;
    record.road(&NvmeHost::this_machine()).ok().flatten()
}

/// The device of a keeper that is there.
fn kept(files: &Files) -> Result<Option<String>, Failure> {
    let path = files.socket();
    match socket::ask(&path, Word::Device) {
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
    // What cannot be is told here, where somebody reads it.
    let lease_id = place.kept.id;
    let info = ask(node, lease_id, Request::LeaseQuery(lease_id))?;
    ways(&info, place.transport)?;
    files.make_dir()?;
    let mut keeper = start(node, identity, place, files)?;
    let mut line = String::new();
    if let Some(stdout) = keeper.stdout.take() {
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(|error| {
            Failure::local("hear from the process that keeps the device", &error)
        })?;
    }
    match serde_json::from_str::<Ready>(&line) {
        Ok(ready) => Ok(ready.device),
        Err(_) => Err(why(keeper, &line, place, files)),
    }
}

/// This program again, with nothing of the terminal's.
fn start(
    node: &Node,
    identity: &Path,
    place: &AttachPlace,
    files: &Files,
) -> Result<Child, Failure> {
    let cannot =
        |error: &std::io::Error| Failure::local("start a process that keeps the device", error);
    let program = env::current_exe().map_err(|error| cannot(&error))?;
    let [identity, dir] = [identity, &place.kept.attach_dir].map(path::absolute);
    let mut command = Command::new(program);
    command.arg("--node").arg(node.address());
    command.arg("--identity");
    command.arg(identity.map_err(|error| cannot(&error))?);
    command
        .args(["block", "keep"])
        .arg(place.kept.id.to_string());
    command.args(["--transport", place.transport.name()]);
    command.arg("--attach-dir");
    command.arg(dir.map_err(|error| cannot(&error))?);
    // Whatever is mounted where this was called can be unmounted.
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(files.open_log()?);
    command.spawn().map_err(|error| cannot(&error))
}

/// Why there is no device, in the keeper's words if it had some.
fn why(mut keeper: Child, line: &str, place: &AttachPlace, files: &Files) -> Failure {
    let status = keeper.wait().ok().and_then(|status| status.code());
    Failure::from_json(line, status).unwrap_or_else(|| {
        let (log, lease_id) = (files.log(), place.kept.id);
        let what = format!(
            "its process ended; see {}. `fabricctl block attach {lease_id}` tries again, `fabricctl block \
             detach {lease_id}` takes away what it may have connected",
            log.display()
        );
        Failure::local("keep the device", &what)
    })
}
