//! `block attach`, `block detach`, and `block keep`, the block daemon that `attach` starts.

use std::{
    env,
    io::{self, Write},
    path::{self, Path},
    process::Command,
};

use fabricbios_attach::{AttachError, BlockDaemon, LeaseFiles};
use fabricbios_client::Node;
use fabricbios_wire::Transport;

use crate::{
    args::{AttachPlace, RecordedLease},
    failure::Failure,
    hint::Topic,
    json::{Object, field},
    output::Output,
    signals,
};

pub(super) fn attach(
    node: &Node,
    identity: &Path,
    place: &AttachPlace,
    output: Output,
) -> Result<(), Failure> {
    let lease = &place.recorded;
    let daemon = || daemon(node, identity, place);
    let attached = fabricbios_attach::attach(node, &files(lease), place.transport, daemon)
        .map_err(|error| failure(lease, error))?;
    let json = Object::from([
        field("lease_id", lease.id.to_string()),
        field("device", &*attached.device),
        field("transport", attached.transport.map(Transport::name)),
        field("already", attached.already),
        field("log", attached.log.display().to_string()),
    ]);
    output.print(&json, || attached.device.clone())
}

/// This program again, as the block daemon.
fn daemon(node: &Node, identity: &Path, place: &AttachPlace) -> io::Result<Command> {
    let lease = &place.recorded;
    let mut command = Command::new(env::current_exe()?);
    command.arg("--node").arg(node.address());
    if let Some(id) = node.id() {
        command.args(["--node-id", &id.to_string()]);
    }
    command.arg("--identity").arg(path::absolute(identity)?);
    command.args(["block", "keep", &lease.id.to_string()]);
    command.args(["--transport", place.transport.name()]);
    command
        .arg("--attach-dir")
        .arg(path::absolute(&lease.attach_dir)?);
    Ok(command)
}

/// Attaches the device, keeps it until it is gone, and prints a failure to attach it as JSON for `attach`.
pub(super) fn keep(node: &Node, place: &AttachPlace) -> Result<(), Failure> {
    let lease = &place.recorded;
    let started = BlockDaemon::start(node, &files(lease), place.transport, &signals::ends());
    let daemon = started.map_err(|error| {
        let failure = failure(lease, error).with_hint(Topic::Lease);
        // Without a reader the exit status is left.
        writeln!(io::stdout(), "{}", failure.json()).ok();
        failure
    })?;
    daemon.run(node).map_err(|error| failure(lease, error))
}

pub(crate) fn detach(lease: &RecordedLease, output: Output) -> Result<(), Failure> {
    let device = fabricbios_attach::detach(&files(lease)).map_err(|error| failure(lease, error))?;
    let json = Object::from([
        field("lease_id", lease.id.to_string()),
        field("device", &*device),
    ]);
    output.print(&json, || format!("{device} is detached"))
}

fn files(lease: &RecordedLease) -> LeaseFiles {
    LeaseFiles::new(&lease.attach_dir, lease.id)
}

/// The failure, which names the lease unless the whole command line is at fault.
fn failure(lease: &RecordedLease, error: AttachError) -> Failure {
    match error {
        AttachError::NotRoot | AttachError::Directory { .. } => error.into(),
        error => Failure::from(error).at(&format!("lease {}", lease.id)),
    }
}
