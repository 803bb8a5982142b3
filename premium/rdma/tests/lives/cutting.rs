//! The end of access, as the client sees it, and the next lease of the same bytes.

use std::{
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use fabricbios_rdma::RequestError;

use crate::lab::{Lab, PAGE, binding_id, client, kernel_objects, pages};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_ends_continuous_writes_and_nothing_lands_afterwards() {
    let lab = Lab::open();
    let extent = pages(0, 16);
    let (mut client, rdma) = lab.grant(1, extent);
    let writes = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        let (started, running) = mpsc::channel();
        let writer = threads.spawn(|| {
            let started = started;
            let bytes = extent.length as usize;
            loop {
                let count = writes.fetch_add(1, Ordering::SeqCst);
                let fill = vec![(count % 255) as u8 + 1; bytes];
                let result = client.write(rdma.rkey.unwrap(), rdma.remote_addr, &fill);
                if count == 20 {
                    started.send(()).unwrap();
                }
                if let Err(error) = result {
                    return error;
                }
            }
        });
        running.recv().unwrap();
        let proof = lab.cut(binding_id(1, 1));
        let after_cut = lab.bytes(extent);
        let ended = writer.join().unwrap();
        // A write that begins after the end of the key is refused. A write in progress gets no answer any more, and the
        // client's device gives up.
        let silent = matches!(&ended, RequestError::Failed(why) if why.contains("retry"));
        assert!(
            silent || ended == RequestError::RemoteAccess,
            "{ended:?} after {proof}"
        );
        assert!(
            lab.bytes(extent) == after_cut,
            "bytes changed after the cut"
        );
        println!("cut: {proof}; client: {ended}");
    });
    assert!(writes.load(Ordering::SeqCst) > 20);
    lab.backend
        .release(binding_id(1, 1), extent, &|| ())
        .unwrap();
    client.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_after_a_tenants_fault_does_not_stall() {
    let lab = Lab::open();
    let (client_a, _) = lab.grant(1, pages(0, 1));
    let started = Instant::now();
    lab.cut(binding_id(1, 1));
    let healthy = started.elapsed();
    let (mut client_b, rdma) = lab.grant(2, pages(1, 1));
    let result = client_b.write(rdma.rkey.unwrap(), rdma.remote_addr + PAGE, &[1]);
    assert_eq!(result, Err(RequestError::RemoteAccess));
    let started = Instant::now();
    let proof = lab.cut(binding_id(2, 1));
    let faulted = started.elapsed();
    println!("healthy {healthy:?}, after a fault {faulted:?}: {proof}");
    // The stall that must not happen takes 50 s.
    assert!(faulted < Duration::from_secs(20), "{faulted:?}: {proof}");
    lab.backend
        .release(binding_id(1, 1), pages(0, 1), &|| ())
        .unwrap();
    lab.backend
        .release(binding_id(2, 1), pages(1, 1), &|| ())
        .unwrap();
    client_a.close().unwrap();
    client_b.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn leases_bound_and_cut_by_many_threads_do_not_disturb_each_other() {
    let lab = Lab::open();
    let client = client();
    let before = kernel_objects();
    std::thread::scope(|threads| {
        for thread in 0..6_u64 {
            let (lab, peer) = (&lab, client.peer());
            threads.spawn(move || {
                let extent = pages(thread * 2, 2);
                for round in 0..20_u64 {
                    let lease = binding_id(u128::from(thread * 1000 + round + 1), 1);
                    let rdma = lab.bind(lease, extent, Some(peer)).unwrap();
                    assert!(rdma.rkey.is_some());
                    lab.backend.rotate(lease).unwrap();
                    lab.cut_and_release(lease, extent);
                }
            });
        }
    });
    assert_eq!(kernel_objects(), before);
    client.close().unwrap();
    lab.close();
}
