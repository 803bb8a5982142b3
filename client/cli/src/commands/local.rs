//! `run`, `lease enter`: a process or a namespace of this machine goes into a lease, over the node's local socket.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::process::CommandExt},
    process::Command,
};

use fabricbios_local::AskError;
use fabricbios_wire::{LeaseError, LeaseId, RefusalClass, Request};

use super::{Access, run_watch};
use crate::{
    args::{Enter, Run},
    failure::{Exit, Failure},
    json::{Object, field},
    kinds,
    output::{Output, one_line},
};

/// Moves this process into the lease and then executes the command, so that its exit status becomes that of this
/// process. A second process stays outside and watches the end of the lease. Returns only after a failure.
pub(super) fn run(run: Run, access: &Access, output: Output) -> Result<(), Failure> {
    let Run {
        lease,
        socket,
        end,
        command,
    } = run;
    let watcher = run_watch::start(lease, &socket.local_socket, end, access, output)?;
    let undone =
        "the command was not run, though this process, which ends now, may have been in the lease";
    let moved = fabricbios_local::run(&socket.local_socket, lease).map_err(|error| {
        other_kind(lease, &error, access).unwrap_or_else(|| failure(lease, error, undone))
    })?;
    watcher.entered();
    let mut words = command.into_iter();
    let Some(program) = words.next() else {
        return Err(Failure::usage("no command to run"));
    };
    let error = Command::new(&program)
        .args(words)
        .envs(moved.environment)
        .exec();
    let message = format!("cannot run {}: {error}", program.to_string_lossy());
    let (exit, code) = match error.kind() {
        io::ErrorKind::NotFound => (Exit::NoCommand, "NoCommand"),
        _ => (Exit::NotExecutable, "NotExecutable"),
    };
    Err(Failure::new(exit, RefusalClass::Permanent, code, message))
}

/// The refusal for a lease that the local socket does not know, if the node reports that the lease is of another kind.
fn other_kind(lease: LeaseId, error: &AskError, access: &Access) -> Option<Failure> {
    let AskError::Refused(refusal) = error else {
        return None;
    };
    if refusal.error != LeaseError::NotFound {
        return None;
    }
    let info = access
        .connect()
        .ok()?
        .lease(Request::LeaseQuery(lease))
        .ok()?;
    let kind = info.resource_type();
    // `None`: the lease is of a kind that takes processes, but this node does not have it.
    let instead = kinds::face(kind).instead_of_run()?;
    let takers = kinds::that_run_commands().join(" or ");
    let message = format!(
        "lease {lease} is one of {kind}, and `fabricctl run` needs one of {takers}; {instead}"
    );
    let class = RefusalClass::Permanent;
    Some(Failure::new(Exit::NotFound, class, "NotFound", message))
}

/// Hands the lease over to the network namespace.
pub(super) fn enter(enter: Enter, output: Output) -> Result<(), Failure> {
    let Enter { id, netns, socket } = enter;
    let namespace = File::open(&netns).map_err(|error| {
        Failure::usage(format!(
            "--netns {}: cannot open the namespace: {error}",
            netns.display()
        ))
    })?;
    let undone = "the namespace may have the interface, or get it yet: look into the namespace";
    let moved = fabricbios_local::enter(&socket.local_socket, id, namespace.as_fd())
        .map_err(|error| failure(id, error, undone))?;
    let entered = Object::from([
        field("lease_id", id.to_string()),
        field("place", &*moved.place),
    ]);
    output.print(&entered, || {
        let namespace = netns.display();
        format!(
            "lease {id}: its interface {} is in {namespace}",
            one_line(&moved.place)
        )
    })
}

fn of_which_kind() -> String {
    format!(
        "leases of {} are used with `fabricctl run`, those of net with `fabricctl lease enter`, and others are not used \
         here: `fabricctl lease query` shows the kind",
        kinds::that_run_commands().join(" and ")
    )
}

/// `undone`: text about the step that did not happen, if the node received the request and has not answered.
fn failure(lease: LeaseId, error: AskError, undone: &str) -> Failure {
    use RefusalClass::{Permanent, Transient};
    let failure = match error {
        AskError::Refused(refusal) => {
            let is_unknown = refusal.error == LeaseError::NotFound;
            let failure = Failure::from(fabricbios_client::Error::Refused(refusal));
            match is_unknown {
                true => failure.and_message(&of_which_kind()),
                false => failure,
            }
        }
        AskError::Unreachable { socket, error } => {
            // A daemon that was killed leaves its socket, and the next start replaces it.
            let (class, what, what_to_do) = match error.kind() {
                io::ErrorKind::PermissionDenied => (
                    Permanent,
                    "this user may not reach the socket",
                    "the socket or a directory above it is closed to this user: ask the node's operator to open it (chmod 755 \
                     the directory)",
                ),
                io::ErrorKind::ConnectionRefused => (
                    Transient,
                    "no daemon listens at",
                    "the daemon that made this socket has ended: start it again",
                ),
                _ => (
                    Permanent,
                    "no daemon listens at",
                    "the command works on the node itself only, where fabricbiosd was started with --local-socket PATH: \
                     name that path with --local-socket",
                ),
            };
            let socket = socket.display();
            let message = format!("{what} {socket}: {error}; {what_to_do}");
            Failure::new(Exit::Unreachable, class, "Unreachable", message)
        }
        AskError::Unanswered { socket, why } => {
            let message = format!(
                "the daemon at {} {why}; {undone}. The daemon is stopped or hangs: continue it (SIGCONT) or \
                 restart it, and see the daemon's log",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_closed_to_this_user_is_not_one_without_a_daemon() {
        let of = |kind| {
            let error = AskError::Unreachable {
                socket: "/run/fabricbios/local.sock".into(),
                error: io::Error::from(kind),
            };
            failure(LeaseId(7), error, "nothing runs").json()
        };
        let closed = of(io::ErrorKind::PermissionDenied);
        assert!(
            closed.contains("may not reach the socket /run/fabricbios/local.sock"),
            "{closed}"
        );
        assert!(
            closed.contains("permanent") && !closed.contains("no daemon"),
            "{closed}"
        );
        assert!(of(io::ErrorKind::NotFound).contains("no daemon listens"));
    }
}
