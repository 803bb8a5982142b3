//! The end of the serving process.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use fabricbios_rdma::RequestError;

use crate::lab::{self, Lab, binding_id, client, kernel_objects, pages};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_server_killed_under_writes_between_two_keys_takes_its_access_along_at_once() {
    let lab = Lab::open();
    let before = kernel_objects();
    let (mut client, like) = {
        let prepared = lab.bind(binding_id(9, 1), pages(0, 1), None).unwrap();
        lab.cut_and_release(binding_id(9, 1), pages(0, 1));
        (client(), prepared)
    };
    let (mut child, rdma) = lab::child::serve_in_child(client.peer(), &like);
    client.connect(&rdma).unwrap();
    let rkey = rdma.rkey.unwrap();
    let (ended, reaped) = std::thread::scope(|threads| {
        let (started, running) = mpsc::channel();
        let client = &mut client;
        let writer = threads.spawn(move || {
            for count in 0.. {
                let result = client.write(rkey, rdma.remote_addr, &[1; 65536]);
                if count == 20 {
                    started.send(()).unwrap();
                }
                if let Err(error) = result {
                    return error;
                }
            }
            unreachable!("writes until one fails");
        });
        running.recv().unwrap();
        let killed = Instant::now();
        child.kill().unwrap();
        child.wait().unwrap();
        let reaped = killed.elapsed();
        (writer.join().unwrap(), reaped)
    });
    println!("reaped {reaped:?} after the kill; client: {ended}");
    // If objects are destroyed in a wrong order, the kernel stalls for 50 s.
    assert!(reaped < Duration::from_secs(20), "{reaped:?}");
    assert!(
        matches!(ended, RequestError::RemoteAccess | RequestError::Failed(_)),
        "{ended:?}"
    );
    client.close().unwrap();
    assert_eq!(
        kernel_objects(),
        before,
        "the dead process left objects behind"
    );
    lab.close();
}

#[test]
#[ignore = "the server half of the test above"]
fn serves_one_lease_as_a_child() {
    lab::child::serve();
}
