//! `run`, `lease enter`: a process or a namespace of this machine goes into a lease, over the node's local socket.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::process::CommandExt},
    process::Command,
};

use fabricbios_local::AskError;
use fabricbios_wire::{LeaseId, RefusalClass};
use serde::Serialize;

use crate::{
    args::{Enter, Run},
    failure::{Exit, Failure},
    output::{Output, one_line},
};

/// Moves this process into the lease and then runs the command in it, which has its exit status. Returns only after a
/// failure.
pub(super) fn run(run: Run) -> Result<(), Failure> {
    let Run {
        lease,
        socket,
        command,
    } = run;
    fabricbios_local::run(&socket.local_socket, lease).map_err(|error| failure(lease, error))?;
    let mut words = command.into_iter();
    let Some(program) = words.next() else {
        return Err(Failure::usage("no command to run"));
    };
    let error = Command::new(&program).args(words).exec();
    let name = program.to_string_lossy();
    Err(match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            Failure::usage(format!("cannot run {name}: {error}"))
        }
        _ => Failure::local(&format!("run {name}"), &error),
    })
}

#[derive(Serialize)]
struct Entered<'a> {
    lease_id: String,
    place: &'a str,
}

/// Hands the lease over to the network namespace.
pub(super) fn enter(enter: Enter, output: Output) -> Result<(), Failure> {
    let Enter { id, netns, socket } = enter;
    let namespace = File::open(&netns).map_err(|error| {
        Failure::usage(format!(
            "--netns {}: cannot open it: {error}",
            netns.display()
        ))
    })?;
    let place = fabricbios_local::enter(&socket.local_socket, id, namespace.as_fd())
        .map_err(|error| failure(id, error))?;
    let entered = Entered {
        lease_id: id.to_string(),
        place: &place,
    };
    output.print(&entered, || {
        format!("lease {id} is in {}", one_line(&place))
    })
}

fn failure(lease: LeaseId, error: AskError) -> Failure {
    use RefusalClass::{Permanent, Transient};
    let failure = match error {
        AskError::Refused(refusal) => fabricbios_client::Error::Refused(refusal).into(),
        AskError::Unreachable { socket, error } => {
            let message = format!(
                "{}: {error}; this works on the node itself only, where fabricbiosd has --local-socket PATH: give that \
                 path, or run fabricctl there",
                socket.display()
            );
            Failure::new(Exit::Unreachable, Transient, "Unreachable", message)
        }
        AskError::NoAnswer(why) => Failure::new(Exit::Other, Permanent, "Protocol", why),
        AskError::Local(what, error) => Failure::local(what, &error),
    };
    failure.at(&format!("lease {lease}"))
}
