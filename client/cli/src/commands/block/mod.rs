//! `block …`: a lease of block storage as a device of this machine, or its blocks without one.
//!
//! A process of its own, the block daemon, attaches the device, watches the lease, and detaches the device before the lease
//! ends. `attach` starts the daemon and `detach` asks it to stop.

mod attach;
mod attach_paths;
mod attachment;
mod control_socket;
mod daemon;
mod detach;
mod device;
mod events;
mod in_use;
mod key_change;
mod log;
mod modules;
mod nvme_connect;
mod nvme_device;
mod nvme_host;
mod nvme_keys;
mod record;
mod transfer;
mod uevents;
mod watch;

use std::{path::Path, sync::mpsc, thread, time::Duration};

use fabricbios_client::Node;
use fabricbios_wire::RefusalClass;
use nix::unistd::geteuid;

pub(super) use detach::run as detach;
pub(super) use events::{ends, hold_signals};
pub(super) use uevents::wait_for;

use crate::{
    args::Block,
    failure::{Exit, Failure},
    output::Output,
};

pub(super) fn run(
    node: &Node,
    identity: &Path,
    command: Block,
    output: Output,
) -> Result<(), Failure> {
    match command {
        Block::Read { place, len } => transfer::read(node, &place, len, output),
        Block::Write { place } => transfer::write(node, &place, output),
        Block::Attach(place) => attach::run(node, identity, &place, output),
        Block::Keep(place) => daemon::run(node, &place),
        Block::Detach(place) => detach(&place, output),
    }
}

/// The result of `work` on another thread, which may hang; `None`: it is not there in time.
fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(work()));
    told.recv_timeout(limit).ok()
}

fn need_root() -> Result<(), Failure> {
    if geteuid().is_root() {
        return Ok(());
    }
    let message = "block devices are attached and detached by root; run this with sudo";
    Err(Failure::new(
        Exit::Other,
        RefusalClass::Policy,
        "NotRoot",
        message,
    ))
}
