//! The local socket of a daemon, as a process.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

use fabricbios_local::{AskError, ping, run};
use fabricbios_wire::{LeaseError, LeaseId};
use nix::{sys::signal::Signal, unistd::geteuid};

use crate::daemon::Place;

#[test]
fn it_is_there_while_the_node_serves_and_again_after_a_crash() {
    let place = Place::new();
    fs::set_permissions(place.at(""), Permissions::from_mode(0o755)).unwrap();
    let socket = place.at("local.sock");
    // A user without a tenant is refused; root is accepted.
    let words = [
        format!("--tenant-uid=blue={}", geteuid().as_raw().max(1000)),
        format!("--local-socket={}", socket.display()),
    ];
    let daemon = place.start(&words);
    ping(&socket).unwrap();
    let Err(AskError::Refused(refusal)) = run(&socket, LeaseId(1)) else {
        panic!("there is no such lease");
    };
    assert_eq!(refusal.error, LeaseError::NotFound);
    daemon.end(Signal::SIGKILL);
    assert!(matches!(ping(&socket), Err(AskError::Unreachable { .. })));

    let daemon = place.start(&words);
    ping(&socket).unwrap();
    assert!(daemon.end(Signal::SIGTERM).success());
    assert!(!socket.exists());
}
