//! Binding: absent peers, cuts during a bind, and binding again.

use std::sync::{
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use fabricbios_lease::BindError;
use fabricbios_rdma::{RequestError, Strategy};

use crate::{
    STRATEGY,
    lab::{Lab, PAGE, binding_id, client, kernel_objects, nobody, pages},
};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_peer_that_cannot_be_reached_is_refused_by_name_and_delays_nobody() {
    let lab = Lab::open();
    let client = client();
    let before = kernel_objects();
    let finished = AtomicBool::new(false);
    let cuts = std::thread::scope(|threads| {
        let (starting, started) = mpsc::channel();
        let stuck = threads.spawn(|| {
            let starting = starting;
            starting.send(()).unwrap();
            let result = lab.bind(binding_id(1, 1), pages(0, 1), Some(nobody()));
            finished.store(true, Ordering::SeqCst);
            result
        });
        started.recv().unwrap();
        let mut cuts = 0;
        for lease in 2.. {
            lab.bind(binding_id(lease, 1), pages(1, 1), Some(client.peer()))
                .unwrap();
            lab.cut(binding_id(lease, 1));
            if finished.load(Ordering::SeqCst) {
                break;
            }
            cuts += 1;
            lab.backend
                .release(binding_id(lease, 1), pages(1, 1), &|| ())
                .unwrap();
        }
        match stuck.join().unwrap() {
            Err(BindError::Refused(error)) => {
                let text = error.to_string();
                println!("{text}");
                assert!(
                    text.contains("::ffff:10.77.0.250 cannot be reached"),
                    "{text}"
                );
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
        cuts
    });
    println!("{cuts} other leases were cut meanwhile");
    assert!(
        cuts >= 1,
        "no other lease was cut while one peer was looked for"
    );
    assert_eq!(kernel_objects(), before);
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_does_not_wait_for_a_bind_that_is_looking_for_its_peer() {
    let lab = Lab::open();
    // The test needs a moment to see that the bind has begun, and the kernel's search for the peer ends by itself. On a
    // slow machine the search may end before the cut; such a round shows nothing.
    let cancelled = (1..=5).find(|lease| cut_while_connecting(&lab, *lease));
    let lease = cancelled.expect("every bind had ended before its cut");
    let again = lab.bind(binding_id(lease, 1), pages(0, 1), Some(nobody()));
    assert_eq!(
        again,
        Err(BindError::Cancelled),
        "a straggler after the release"
    );
    lab.close();
}

/// Returns whether the bind was still in progress when the cut returned.
fn cut_while_connecting(lab: &Lab, lease: u128) -> bool {
    let before = kernel_objects();
    let finished = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let stuck = threads.spawn(|| {
            let result = lab.bind(binding_id(lease, 1), pages(0, 1), Some(nobody()));
            finished.store(true, Ordering::SeqCst);
            result
        });
        // The queue pair shows that the bind has begun.
        while kernel_objects() == before && !finished.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        lab.cut(binding_id(lease, 1));
        let cut_first = !finished.load(Ordering::SeqCst);
        lab.backend
            .release(binding_id(lease, 1), pages(0, 1), &|| ())
            .unwrap();
        assert_eq!(
            kernel_objects(),
            before,
            "release came before the bind had ended"
        );
        let result = stuck.join().unwrap();
        assert!(
            !cut_first || result == Err(BindError::Cancelled),
            "{result:?}"
        );
        cut_first
    })
}

/// The steps at which a binding beside an older one can fail before the older one ends.
const BEFORE_THE_CUT: &[&[&str]] = &[
    &["create_qp"],
    &["modify_qp RTR"],
    &["modify_qp RTS"],
    match STRATEGY {
        Strategy::Region => &["create_qp"],
        _ => &["alloc_mw"],
    },
    // In addition, the objects made so far cannot be destroyed at first.
    &["modify_qp RTS", "destroy_qp"],
];

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_binding_that_cannot_be_connected_takes_nothing_from_the_one_in_use() {
    let lab = Lab::open();
    let before = kernel_objects();
    let (mut first, old) = lab.grant(1, pages(0, 1));
    let mut second = client();
    let in_use = kernel_objects();
    let refused = lab.bind(binding_id(1, 2), pages(0, 1), Some(nobody()));
    assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
    assert_eq!(kernel_objects(), in_use);
    let mut generation = 2;
    for faults in BEFORE_THE_CUT {
        generation += 1;
        lab.fail_next(faults);
        let failed = lab.bind(binding_id(1, generation), pages(0, 1), Some(second.peer()));
        let Err(BindError::Failed(error)) = failed else {
            panic!("{faults:?}: {failed:?}");
        };
        assert_eq!(error.step.name(), faults[0]);
        let written = first.write(old.rkey.unwrap(), old.remote_addr, &[3; 8]);
        assert_eq!(written, Ok(()), "{faults:?}");
    }
    generation += 1;
    let new = lab.bind(binding_id(1, generation), pages(0, 1), Some(second.peer()));
    let new = new.unwrap();
    second.connect(&new).unwrap();
    assert!(
        first
            .write(old.rkey.unwrap(), old.remote_addr, &[4; 8])
            .is_err()
    );
    second
        .write(new.rkey.unwrap(), new.remote_addr, &[5; 8])
        .unwrap();
    assert_eq!(lab.bytes(pages(0, 1))[..8], [5; 8]);
    lab.cut_and_release(binding_id(1, generation), pages(0, 1));
    first.close().unwrap();
    second.close().unwrap();
    assert_eq!(kernel_objects(), before);
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_binding_that_cannot_be_opened_says_that_the_one_before_is_gone() {
    let lab = Lab::open();
    let before = kernel_objects();
    let (mut first, old) = lab.grant(1, pages(0, 1));
    let second = client();
    lab.fail_next(&[OPENS]);
    let lost = lab.bind(binding_id(1, 2), pages(0, 1), Some(second.peer()));
    assert!(matches!(lost, Err(BindError::Lost(_))), "{lost:?}");
    assert!(
        first
            .write(old.rkey.unwrap(), old.remote_addr, &[1])
            .is_err()
    );
    let new = lab.bind(binding_id(1, 3), pages(0, 1), Some(second.peer()));
    second.connect(&new.unwrap()).unwrap();
    lab.cut_and_release(binding_id(1, 3), pages(0, 1));
    first.close().unwrap();
    second.close().unwrap();
    assert_eq!(kernel_objects(), before);
    lab.close();
}

/// The name of the step that opens access.
pub(super) const OPENS: &str = match STRATEGY {
    Strategy::Region => "modify_qp access",
    _ => "bind_mw",
};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_ends_the_binding_in_use_and_waits_for_none_that_is_made_beside_it() {
    let lab = Lab::open();
    let before = kernel_objects();
    let cut_first = (1..=5).any(|lease| {
        let (mut first, old) = lab.grant(lease, pages(0, 1));
        let in_use = kernel_objects();
        let finished = AtomicBool::new(false);
        let cut_first = std::thread::scope(|threads| {
            let stuck = threads.spawn(|| {
                let result = lab.bind(binding_id(lease, 2), pages(0, 1), Some(nobody()));
                finished.store(true, Ordering::SeqCst);
                result
            });
            while kernel_objects() == in_use && !finished.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            lab.cut(binding_id(lease, 2));
            let cut_first = !finished.load(Ordering::SeqCst);
            let written = first.write(old.rkey.unwrap(), old.remote_addr, &[1]);
            assert!(written.is_err(), "after the cut");
            let result = stuck.join().unwrap();
            assert!(
                !cut_first || result == Err(BindError::Cancelled),
                "{result:?}"
            );
            cut_first
        });
        let released = lab
            .backend
            .release(binding_id(lease, 2), pages(0, 1), &|| ());
        released.unwrap();
        first.close().unwrap();
        cut_first
    });
    assert!(cut_first, "every bind had ended before its cut");
    assert_eq!(kernel_objects(), before);
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_queue_pair_that_was_told_stays_when_its_peer_cannot_be_reached() {
    let lab = Lab::open();
    let prepared = lab.bind(binding_id(1, 1), pages(0, 1), None).unwrap();
    assert_eq!(prepared.rkey, None);
    let before = kernel_objects();
    let refused = lab.bind(binding_id(1, 2), pages(0, 1), Some(nobody()));
    assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
    assert_eq!(kernel_objects(), before);
    let mut client = client();
    let bound = lab.bind(binding_id(1, 3), pages(0, 1), Some(client.peer()));
    let bound = bound.unwrap();
    assert_eq!((bound.qp_num, bound.psn), (prepared.qp_num, prepared.psn));
    client.connect(&bound).unwrap();
    client
        .write(bound.rkey.unwrap(), bound.remote_addr, &[5; 8])
        .unwrap();
    lab.cut_and_release(binding_id(1, 3), pages(0, 1));
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_client_whose_own_fault_killed_its_connection_binds_again() {
    let lab = Lab::open();
    let (mut failed, first) = lab.grant(1, pages(0, 1));
    let result = failed.write(first.rkey.unwrap(), first.remote_addr + PAGE, &[1]);
    assert_eq!(result, Err(RequestError::RemoteAccess));
    let refused = lab.backend.rotate(binding_id(1, 1));
    assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
    let mut client = client();
    let second = lab
        .bind(binding_id(1, 2), pages(0, 1), Some(client.peer()))
        .unwrap();
    assert_ne!(second.rkey, first.rkey);
    client.connect(&second).unwrap();
    client
        .write(second.rkey.unwrap(), second.remote_addr, &[6; 8])
        .unwrap();
    // An order for the old binding does not change the new one.
    lab.cut(binding_id(1, 1));
    client
        .write(second.rkey.unwrap(), second.remote_addr, &[7; 8])
        .unwrap();
    lab.cut_and_release(binding_id(1, 2), pages(0, 1));
    failed.close().unwrap();
    client.close().unwrap();
    lab.close();
}
