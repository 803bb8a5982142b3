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
    let undone =
        "the command was not run, though this process, which ends now, may have been in the lease";
    let moved = fabricbios_local::run(&socket.local_socket, lease)
        .map_err(|error| failure(lease, error, undone))?;
    let mut words = command.into_iter();
    let Some(program) = words.next() else {
        return Err(Failure::usage("no command to run"));
    };
    let error = Command::new(&program)
        .args(words)
        .envs(moved.environment)
        .exec();
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
    let undone = "the namespace may have the interface, or get it yet: look there";
    let moved = fabricbios_local::enter(&socket.local_socket, id, namespace.as_fd())
        .map_err(|error| failure(id, error, undone))?;
    let entered = Entered {
        lease_id: id.to_string(),
        place: &moved.place,
    };
    output.print(&entered, || {
        let namespace = netns.display();
        format!(
            "lease {id}: its interface {} is in {namespace}",
            one_line(&moved.place)
        )
    })
}

/// `undone`: what else did not happen, if the node was asked and has not answered.
fn failure(lease: LeaseId, error: AskError, undone: &str) -> Failure {
    use RefusalClass::{Permanent, Transient};
    let failure = match error {
        AskError::Refused(refusal) => fabricbios_client::Error::Refused(refusal).into(),
        AskError::Unreachable { socket, error } => {
            // A daemon that was killed leaves its socket, and the next start replaces it.
            let (class, what_to_do) = match error.kind() {
                io::ErrorKind::ConnectionRefused => (
                    Transient,
                    "the one that made this socket has ended: start it again",
                ),
                _ => (
                    Permanent,
                    "this works on the node itself only, where fabricbiosd was started with --local-socket PATH: name \
                     that path with --local-socket",
                ),
            };
            let socket = socket.display();
            let message = format!("no daemon listens at {socket}: {error}; {what_to_do}");
            Failure::new(Exit::Unreachable, class, "Unreachable", message)
        }
        AskError::Unanswered { socket, why } => {
            let message = format!(
                "the daemon at {} {why}; {undone}. The daemon is stopped or hangs: continue it (SIGCONT) or \
                 restart it, see its log",
                socket.display()
            );
            Failure::new(Exit::Unreachable, Transient, "Unavailable", message)
        }
        AskError::Unexpected(why) => {
            let message = format!("{why}; {undone}");
            Failure::new(Exit::Other, Permanent, "Protocol", message)
        }
        AskError::Local(what, error) => Failure::local(what, &error),
    };
    failure.at(&format!("lease {lease}"))
}
