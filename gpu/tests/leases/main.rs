//! Tests of the store and the path without a node, with stand-ins for the vendors' libraries.

#![cfg(all(feature = "gpu-cuda", feature = "gpu-hip"))]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod failed;
#[path = "../management/lab.rs"]
#[allow(
    dead_code,
    reason = "the tests of the management libraries use all of it"
)]
mod lab;
mod strangers;
mod wiping;
mod workers;
mod world;

use std::{
    cell::Cell,
    collections::BTreeSet,
    fs,
    io::Write,
    os::{
        fd::AsFd,
        unix::{
            fs::{MetadataExt, OpenOptionsExt},
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::mpsc,
    thread,
};

use fabricbios_contract::{Cdi, Edits, Store, testing::EndedByName};
use fabricbios_gpu::{Device, Health, Node};
use fabricbios_lease::{BindError, BindOrder, BootTime, Condition};
use fabricbios_wire::{GpuRequest, LeaseError, LeaseId};
use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    libc,
    pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt},
    sys::{
        signal::{Signal, kill},
        stat::{Mode, major, minor},
    },
    unistd::mkfifo,
};
use stand_in_device::{Knob, Vendor};

use lab::{Lab, MEMORY, MIB};
use world::{Session, World, lease_id, part, signal_worker, whole, worker_user};

#[test]
fn a_cut_ends_the_session_and_the_release_leaves_no_byte() {
    let world = World::new();
    let lease = whole(1);
    let binding = world.bound(&lease);
    assert_eq!(binding.uuid, world.machine.device.uuid);
    assert_eq!(binding.vram_bytes, MEMORY);
    let stranger = world.path.connect(lease_id(1), "blue", 0).unwrap_err();
    assert_eq!(stranger.error, LeaseError::NotFound);
    let mut session = world.filled(lease_id(1));
    let again = world.session(lease_id(1)).unwrap();
    assert_eq!(again.number, session.number);
    let proof = world.cut(&lease);
    assert!(session.is_over());
    let steps: Vec<&str> = proof.steps().iter().map(|it| &*it.step).collect();
    assert_eq!(steps, ["kill worker", "look for processes"]);
    let refused = world.session(lease_id(1)).err().unwrap();
    assert_eq!(refused.error, LeaseError::Expired);
    assert!(world.has_pattern());
    let cleaned = world.release(&lease).unwrap().to_string();
    assert!(cleaned.contains("wipe device"), "{cleaned}");
    assert!(
        cleaned.contains("bytes overwritten with zeroes"),
        "{cleaned}"
    );
    assert!(!world.has_pattern());
}

#[test]
fn nothing_connects_after_the_deadline() {
    let world = World::new();
    let lease = whole(1);
    world.bound(&lease);
    world
        .provider
        .extend(lease.binding_id, BootTime(1))
        .unwrap();
    let refused = world.session(lease_id(1)).err().unwrap();
    assert_eq!(refused.error, LeaseError::Expired);
    assert!(refused.message.contains("deadline"), "{refused:?}");
}

/// Kills the worker, and returns when the path has waited for its child.
fn kill_worker(world: &World, lease: LeaseId, session: &mut Session) {
    let worker = signal_worker(world, lease, Signal::SIGKILL);
    assert!(session.is_over());
    while kill(worker, None).is_ok() {
        thread::yield_now();
    }
}

#[test]
fn what_a_bind_that_failed_has_opened_goes_with_its_part() {
    let world = World::new();
    let order = whole(1);
    world.store.open(&order).unwrap();
    let cdi = Cdi::at(world.machine.lab.place.path().join("cdi"), "gpu");
    let edits = Edits {
        environment: &[],
        nodes: &[],
        hook: &[],
    };
    cdi.write(lease_id(1), &edits).unwrap();
    world
        .store
        .forget(order.binding_id, &order.placement)
        .unwrap();
    assert!(!cdi.exists(lease_id(1)));
    world.bound(&whole(2));
}

#[test]
fn a_session_and_its_bytes_outlive_the_daemon() {
    let world = World::new();
    let lease = whole(1);
    world.bound(&lease);
    let session = world.filled(lease_id(1));
    let next = World(world.0.restarted());
    let adopted = BindOrder {
        adopts: true,
        ..whole(1)
    };
    next.bound(&adopted);
    assert_eq!(next.session(lease_id(1)).unwrap().number, session.number);
    assert!(next.has_pattern());
    next.cut(&adopted);
    next.release(&adopted).unwrap();
    assert!(!next.has_pattern());
}

mod suite {
    use crate::world::Machine;
    fabricbios_contract::suites!(Machine: life, adoption, by_name, entry);
}
