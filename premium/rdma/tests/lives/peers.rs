//! Queue pairs that join a live binding or leave it.

use std::sync::mpsc;

use fabricbios_lease::{BindError, BindingId, BootTime};
use fabricbios_rdma::{RdmaRequester, RequestError};
use fabricbios_wire::{PeerChange, RdmaBinding, RdmaPeer};

use super::guard::guarded;
use crate::lab::{Lab, binding_id, client, kernel_objects, nobody, pages};

/// Lets these peers join. Returns the coordinates of each.
fn join(lab: &Lab, id: BindingId, peers: Vec<RdmaPeer>) -> Result<Vec<RdmaBinding>, BindError> {
    let count = peers.len();
    let binding = lab.backend.change_peers(id, &PeerChange::Add(peers))?;
    let rdma = binding.rdma().unwrap().clone();
    let of = |pair: &fabricbios_wire::RdmaQueuePair| RdmaBinding {
        rkey: Some(pair.rkey),
        qp_num: pair.qp_num,
        psn: pair.psn,
        ..rdma.clone()
    };
    let last = rdma.further.len() - count;
    Ok(rdma.further[last..].iter().map(of).collect())
}

fn write(client: &mut RdmaRequester, to: &RdmaBinding, byte: u8) -> Result<(), RequestError> {
    client.write(to.rkey.unwrap(), to.remote_addr, &[byte; 8])
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_peer_that_cannot_join_takes_nothing_from_the_others() {
    let lab = Lab::open();
    let (mut first, rdma) = lab.grant(1, pages(0, 1));
    let mut second = client();
    let before = kernel_objects();
    let unreachable = join(&lab, binding_id(1, 1), vec![second.peer(), nobody()]);
    assert!(
        matches!(unreachable, Err(BindError::Refused(_))),
        "{unreachable:?}"
    );
    assert_eq!(kernel_objects(), before);
    for step in [
        "create_qp",
        "modify_qp RTS",
        "alloc_mw",
        "bind_mw",
        "modify_qp access",
    ] {
        lab.fail_next(&[step]);
        let failed = join(&lab, binding_id(1, 1), vec![second.peer()]);
        match failed {
            Err(BindError::Failed(error)) => assert_eq!(error.step.name(), step),
            // Windows and regions open in different steps.
            Ok(_) => {
                let all = lab
                    .backend
                    .change_peers(binding_id(1, 1), &leaves(&failed.unwrap()));
                all.unwrap();
            }
            other => panic!("{step}: {other:?}"),
        }
        assert_eq!(kernel_objects(), before, "{step}");
        write(&mut first, &rdma, 1).unwrap();
    }
    lab.fail_next(&[]);
    let joined = join(&lab, binding_id(1, 1), vec![second.peer()]).unwrap();
    second.connect(&joined[0]).unwrap();
    write(&mut second, &joined[0], 2).unwrap();
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    assert!(write(&mut second, &joined[0], 3).is_err());
    assert!(write(&mut first, &rdma, 3).is_err());
    first.close().unwrap();
    second.close().unwrap();
    lab.close();
}

fn leaves(of: &[RdmaBinding]) -> PeerChange {
    PeerChange::Remove(of.iter().map(|it| it.qp_num).collect())
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_queue_pair_that_cannot_be_ended_stays_until_it_can() {
    let lab = Lab::open();
    let (mut first, rdma) = lab.grant(1, pages(0, 1));
    let mut second = client();
    let joined = join(&lab, binding_id(1, 1), vec![second.peer()]).unwrap();
    second.connect(&joined[0]).unwrap();
    write(&mut second, &joined[0], 1).unwrap();
    for step in ["destroy_qp", "restrack"] {
        lab.fail_next(&[step]);
        let failed = lab.backend.change_peers(binding_id(1, 1), &leaves(&joined));
        let Err(BindError::Failed(error)) = failed else {
            panic!("{failed:?}")
        };
        assert_eq!(error.step.name(), step);
        assert!(write(&mut second, &joined[0], 2).is_err(), "it is in ERR");
        write(&mut first, &rdma, 3).unwrap();
    }
    let left = lab.backend.change_peers(binding_id(1, 1), &leaves(&joined));
    assert_eq!(left.unwrap().rdma().unwrap().further, []);
    write(&mut first, &rdma, 4).unwrap();
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    first.close().unwrap();
    second.close().unwrap();
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_cut_while_peers_join_waits_for_none_and_leaves_nothing() {
    let lab = Lab::open();
    let clients: Vec<_> = (0..8).map(|_| client()).collect();
    let before = kernel_objects();
    let mut cut_first = 0;
    for lease in 1..=24 {
        let (first, _) = lab.grant(lease, pages(0, 1));
        // Every third one waits for an address that nobody has.
        let last = (lease % 3 == 0).then(nobody);
        let peers: Vec<_> = { clients.iter().map(RdmaRequester::peer) }
            .chain(last)
            .collect();
        let peers = peers[peers.len() - 8..].to_vec();
        std::thread::scope(|threads| {
            let (started, joining) = mpsc::channel();
            let lab = &lab;
            let joined = threads.spawn(move || {
                started.send(()).unwrap();
                join(lab, binding_id(lease, 1), peers)
            });
            joining.recv().unwrap();
            lab.cut(binding_id(lease, 1));
            let joined = joined.join().unwrap();
            cut_first += usize::from(joined == Err(BindError::Cancelled));
            assert!(!matches!(joined, Err(BindError::Stranded(_))), "{joined:?}");
        });
        lab.backend
            .release(binding_id(lease, 1), pages(0, 1), &|| ())
            .unwrap();
        first.close().unwrap();
        assert_eq!(kernel_objects(), before, "lease {lease}");
    }
    assert!(cut_first > 0, "every peer had joined before the cut");
    for client in clients {
        client.close().unwrap();
    }
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn the_guard_knows_who_joins_before_access_opens_and_until_the_proof() {
    let (lab, guard) = guarded();
    let (first, rdma) = lab.grant(1, pages(0, 1));
    lab.backend.extend(binding_id(1, 1), BootTime(7)).unwrap();
    guard.said.lock().unwrap().clear();
    let second = client();
    let joined = join(&lab, binding_id(1, 1), vec![second.peer()]).unwrap();
    let number = joined[0].qp_num;
    let [opens, ends] = ["opens", "ends"].map(|it| format!("{it} 1 {number}"));
    assert_eq!(*guard.said.lock().unwrap(), [&*opens]);
    lab.backend
        .change_peers(binding_id(1, 1), &leaves(&joined))
        .unwrap();
    assert_eq!(*guard.said.lock().unwrap(), [&opens, "moves", &ends]);
    let third = client();
    let outside = join(&lab, binding_id(1, 1), vec![third.peer()]).unwrap();
    guard.said.lock().unwrap().clear();
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    let ends = [rdma.qp_num, outside[0].qp_num].map(|number| format!("ends 1 {number}"));
    assert_eq!(guard.said.lock().unwrap()[1..], ends);
    for client in [first, second, third] {
        client.close().unwrap();
    }
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_peer_that_asks_for_less_mtu_than_the_binding_has_is_refused() {
    let lab = Lab::open();
    let (first, rdma) = lab.grant(1, pages(0, 1));
    let small = client();
    let peer = RdmaPeer {
        path_mtu: 256,
        ..small.peer()
    };
    assert!(rdma.path_mtu > 256);
    let refused = join(&lab, binding_id(1, 1), vec![peer]);
    let Err(BindError::Refused(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.detail.contains("path MTU 256"), "{why}");
    lab.cut_and_release(binding_id(1, 1), pages(0, 1));
    first.close().unwrap();
    small.close().unwrap();
    lab.close();
}
