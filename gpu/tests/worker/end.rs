//! Checks that no bytes of a tenant stay on the device.

use std::{fs, path::Path};

use fabricbios_wire::{GpuReply, GpuRequest, LeaseError, RefusalClass};
use nix::sys::signal::{Signal, kill};
use stand_in_device::Knob;

use crate::{
    client::{launch, refused},
    vendors,
    worker::{DEVICE_BYTES, FILL, LEASE, Lab, SESSION, SPIN, VRAM},
};

/// Memory that a context of the stand-ins takes, bytes.
const CONTEXT: u64 = 2 << 20;

const SECRET: &[u8] = b"a secret of the tenant's";

#[test]
fn memory_is_wiped_when_it_is_freed() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let mut client = worker.open();
        let (memory, address) = client.allocate(1 << 20);
        let (other, _) = client.allocate(4096);
        client.write(other, 0, &[5; 4096]);
        client.write(memory, 1000, SECRET);
        assert!(lab.has(SECRET));
        // A kernel that is still queued must not write after the wipe.
        let module = client.load(&lab.module(FILL));
        let address = address.to_le_bytes();
        let arguments: [&[u8]; 3] = [&address, &[0x77; 4], &1024_u32.to_le_bytes()];
        let mut launch = launch(module, "fill", (1, 1), &arguments);
        launch.block[0] = 1024;
        let launched = client.send(&GpuRequest::Launch(launch), &[]);
        let freed = client.send(&GpuRequest::MemFree { memory }, &[]);
        assert_eq!(client.answer(&launched), Ok(GpuReply::Done));
        assert_eq!(client.answer(&freed), Ok(GpuReply::Done));
        assert!(!lab.has(SECRET) && !lab.has(&[0x77; 8]));
        assert_eq!(client.read(other, 0, 4096), [5; 4096]);
    }
}

#[test]
fn a_closed_session_leaves_nothing() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let (mut one, mut other) = (worker.open(), worker.open());
        for size in [1, 4096, 3 << 20] {
            let (memory, _) = one.allocate(size);
            one.write(memory, size - 1, &[0xee]);
        }
        one.load(&lab.module(FILL));
        assert!(lab.has(&[0xee]));
        assert_eq!(other.close(), (1 + 4096 + (3 << 20), VRAM));
        assert!(lab.is_clean());
        one.ended();
        assert_eq!(worker.ended(), Some(0));
        assert_eq!(worker.wiped(), format!("{SESSION}\n"));
    }
}

#[test]
fn what_a_kernel_prints_does_not_say_that_the_session_was_wiped() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let prints_to = fs::read_link(format!("/proc/{}/fd/1", worker.pid)).unwrap();
    assert_eq!(prints_to, Path::new("/dev/null"));
}

#[test]
fn a_kernel_that_does_not_end_holds_no_close_up() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let (mut spins, mut other) = (worker.open(), worker.open());
        spins.allocate(4096);
        let module = spins.load(&lab.module(SPIN));
        let for_ever = u64::MAX.to_le_bytes();
        spins.done(
            &GpuRequest::Launch(launch(module, "spin", (1, 1), &[&for_ever])),
            &[],
        );
        spins.send(
            &GpuRequest::Sync {
                whole_session: true,
            },
            &[],
        );
        let closed = other.ask(&GpuRequest::Close);
        let says = ["a kernel has not ended 5 s after the close"];
        refused(
            &closed,
            LeaseError::Unavailable,
            RefusalClass::Permanent,
            &says,
        );
        assert_eq!(worker.ended(), Some(3));
        assert_eq!(worker.wiped(), "");
    }
}

#[test]
fn operations_are_refused_while_a_session_is_closed() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let worker = lab.worker();
        let (mut one, mut other) = (worker.open(), worker.open());
        let (memory, address) = one.allocate(4096);
        let module = one.load(&lab.module(FILL));
        lab.directory.set(Knob::HangLaunch, "1").unwrap();
        let address = address.to_le_bytes();
        let arguments: [&[u8]; 3] = [&address, &[0x77; 4], &[1, 0, 0, 0]];
        one.done(
            &GpuRequest::Launch(launch(module, "fill", (1, 1), &arguments)),
            &[],
        );
        // The close waits for the kernel.
        let closing = one.send(&GpuRequest::Close, &[]);
        let session = SESSION.to_string();
        let refusal = loop {
            match other.ask(&GpuRequest::MemRead {
                memory: 0,
                offset: 0,
                length: 1,
            }) {
                Err(refusal) if refusal.message.contains("of another session") => {}
                refusal => break refusal,
            }
        };
        let says = [session.as_str(), "was closed"];
        refused(
            &refusal,
            LeaseError::NotFound,
            RefusalClass::Permanent,
            &says,
        );
        let late = other.ask(&GpuRequest::MemAlloc { bytes: 1 });
        refused(&late, LeaseError::NotFound, RefusalClass::Permanent, &says);
        let late = other.ask(&GpuRequest::Close);
        refused(&late, LeaseError::NotFound, RefusalClass::Permanent, &says);
        assert!(worker.is_there());
        lab.directory.clear(Knob::HangLaunch).unwrap();
        let closed = GpuReply::Closed {
            wiped_bytes: 4096,
            free_bytes: VRAM,
        };
        assert_eq!(one.answer(&closing), Ok(closed));
        assert!(lab.is_clean());
        assert_eq!(worker.ended(), Some(0));
        assert_ne!(memory, 0);
    }
}

#[test]
fn a_session_that_is_exclusive_wipes_the_whole_device() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        // A session of another tenant, whose worker is killed.
        let before = lab.worker();
        let mut client = before.open();
        let (memory, _) = client.allocate(8 << 20);
        client.write(memory, 5 << 20, SECRET);
        kill(before.pid, Signal::SIGKILL).unwrap();
        assert_eq!(before.ended(), None);
        assert!(lab.has(SECRET));
        lab.settle();
        let mut order = lab.order();
        order.scrub_at_close = true;
        let worker = lab.start(&order);
        let mut client = worker.open();
        client.allocate(4096);
        let all = DEVICE_BYTES - CONTEXT;
        assert_eq!(client.close(), (all, all));
        assert!(lab.is_clean());
        assert_eq!(worker.ended(), Some(0));
    }
}

#[test]
fn memory_that_cannot_be_wiped_is_not_counted() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        lab.directory
            .set(Knob::ShortScrub, &(2 << 20).to_string())
            .unwrap();
        let mut order = lab.order();
        order.scrub_at_close = true;
        let worker = lab.start(&order);
        let mut client = worker.open();
        let all = DEVICE_BYTES - CONTEXT;
        assert_eq!(client.close(), (all - (2 << 20), all));
        assert_eq!(worker.ended(), Some(0));
    }
}

#[test]
fn a_one_shot_session_ends_with_its_stream() {
    for vendor in vendors() {
        let lab = Lab::new(vendor);
        let mut order = lab.order();
        order.one_shot = true;
        let worker = lab.start(&order);
        let mut client = worker.open();
        let (memory, _) = client.allocate(1 << 20);
        client.write(memory, 0, SECRET);
        let mut other = worker.connect();
        let open = GpuRequest::Open {
            lease_id: LEASE,
            session: 0,
        };
        let busy = other.ask(&open);
        refused(
            &busy,
            LeaseError::ResourceBusy,
            RefusalClass::Transient,
            &["1 streams"],
        );
        assert_eq!(client.read(memory, 0, 2), SECRET[..2]);
        drop(client);
        assert_eq!(worker.ended(), Some(0));
        assert!(lab.is_clean());
        assert_eq!(worker.wiped(), format!("{SESSION}\n"));
    }
}

#[test]
fn a_one_shot_session_can_be_closed_by_the_node() {
    let Some(lab) = Lab::any() else { return };
    let mut order = lab.order();
    order.one_shot = true;
    let worker = lab.start(&order);
    let mut client = worker.open();
    let (memory, _) = client.allocate(4096);
    client.write(memory, 0, SECRET);
    let mut node = worker.connect();
    assert!(
        node.ask(&GpuRequest::Open {
            lease_id: LEASE,
            session: 0
        })
        .is_err()
    );
    assert_eq!(node.close(), (4096, VRAM));
    client.ended();
    assert_eq!(worker.ended(), Some(0));
    assert!(lab.is_clean());
}

#[test]
fn a_session_outlives_the_line_to_its_daemon() {
    let Some(lab) = Lab::any() else { return };
    // `Worker::start` has closed the line when it returns.
    let worker = lab.worker();
    worker.open().sync();
    assert!(worker.is_there());
}

#[test]
fn a_context_that_does_not_end_does_not_hold_the_answer() {
    let Some(lab) = Lab::any() else { return };
    let worker = lab.worker();
    let mut client = worker.open();
    let (memory, _) = client.allocate(4096);
    client.write(memory, 0, SECRET);
    lab.directory.set(Knob::HangTeardown, "1").unwrap();
    assert_eq!(client.close(), (4096, VRAM));
    assert!(lab.is_clean());
    assert_eq!(worker.wiped(), format!("{SESSION}\n"));
    lab.directory.clear(Knob::HangTeardown).unwrap();
    assert_eq!(worker.ended(), Some(0));
}
