//! The kernel's resource tracker: its reports about queue pairs.

use std::{process, thread};

use fabricbios_rdma::restrack;

use crate::lab::{Lab, binding_id, pages};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_queue_pair_is_its_processes_whichever_thread_made_it() {
    let lab = Lab::open();
    let facts = lab.rdma.inventory();
    let index = restrack::device_index(&facts.device).unwrap();
    let look = |number| restrack::queue_pair(index, facts.port, number).unwrap();
    let grant = || {
        let (client, rdma) = lab.grant(1, pages(0, 1));
        // The thread that made the queue pair still lives.
        let tracked = look(rdma.qp_num).unwrap();
        assert!(tracked.may_be_of(process::id()), "{tracked:?}");
        assert!(!tracked.may_be_of(1), "{tracked:?}");
        (client, rdma.qp_num)
    };
    let made = thread::scope(|threads| threads.spawn(grant).join());
    let (client, number) = made.unwrap();
    assert!(look(number).unwrap().may_be_of(process::id()));
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    assert_eq!(look(number), None);
    client.close().unwrap();
    lab.close();
}
