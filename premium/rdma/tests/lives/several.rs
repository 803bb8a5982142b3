//! Leases with several queue pairs over the same bytes.

use fabricbios_lease::{BindError, BindOrder};
use fabricbios_rdma::{RdmaRequester, RequestError, Strategy};
use fabricbios_wire::{MemTerms, RdmaBinding, RdmaPeer, Transport};

use crate::{
    STRATEGY,
    lab::{Lab, PAGE, binding_id, client, kernel_objects, nobody, pages},
};

const CLIENTS: usize = 3;

fn order(generation: u32, peers: Vec<RdmaPeer>) -> BindOrder {
    BindOrder {
        terms: MemTerms { rdma_peers: peers }.into(),
        ..BindOrder::new(binding_id(1, generation), pages(0, 2), Transport::Rdma)
    }
}

/// Binds a lease with a queue pair for each of three clients.
fn grant(lab: &Lab, generation: u32) -> (Vec<RdmaRequester>, RdmaBinding) {
    let clients: Vec<_> = (0..CLIENTS).map(|_| client()).collect();
    let peers = clients.iter().map(RdmaRequester::peer).collect();
    let binding = lab.backend.bind(&order(generation, peers)).unwrap();
    let rdma = binding.rdma().unwrap().clone();
    for (client, binding) in clients.iter().zip(pair_bindings(&rdma)) {
        client.connect(&binding).unwrap();
    }
    (clients, rdma)
}

/// The binding of each queue pair, for its client.
fn pair_bindings(rdma: &RdmaBinding) -> Vec<RdmaBinding> {
    let further = rdma.further.iter().map(|pair| RdmaBinding {
        rkey: Some(pair.rkey),
        qp_num: pair.qp_num,
        psn: pair.psn,
        ..rdma.clone()
    });
    [rdma.clone()].into_iter().chain(further).collect()
}

fn write(client: &mut RdmaRequester, binding: &RdmaBinding, byte: u8) -> Result<(), RequestError> {
    client.write(binding.rkey.unwrap(), binding.remote_addr, &[byte; 8])
}

fn close(lab: Lab, clients: Vec<RdmaRequester>) {
    for client in clients {
        client.close().unwrap();
    }
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn every_queue_pair_reaches_the_same_bytes_and_a_cut_ends_all_of_them() {
    let lab = Lab::open();
    let before = kernel_objects();
    let (mut clients, rdma) = grant(&lab, 1);
    let pair_bindings = pair_bindings(&rdma);
    assert_eq!(pair_bindings.len(), CLIENTS);
    for (at, (client, binding)) in clients.iter_mut().zip(&pair_bindings).enumerate() {
        write(client, binding, at as u8 + 1).unwrap();
        assert_eq!(lab.bytes(pages(0, 1))[..8], [at as u8 + 1; 8]);
    }
    let proof = lab.cut(binding_id(1, 1));
    println!("{proof}");
    for step in ["destroy_qp 3 times", "restrack 3 times"] {
        assert!(proof.contains(step), "{proof}");
    }
    for (client, binding) in clients.iter_mut().zip(&pair_bindings) {
        assert!(write(client, binding, 9).is_err());
    }
    assert_ne!(lab.bytes(pages(0, 1))[..8], [9; 8]);
    lab.backend
        .release(binding_id(1, 1), pages(0, 2), &|| ())
        .unwrap();
    for client in clients {
        client.close().unwrap();
    }
    assert_eq!(kernel_objects(), before);
    lab.close();
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn windows_have_a_key_each_and_a_region_has_one_for_all() {
    let lab = Lab::open();
    let (mut clients, rdma) = grant(&lab, 1);
    let mut keys: Vec<_> = pair_bindings(&rdma)
        .iter()
        .map(|binding| binding.rkey.unwrap())
        .collect();
    keys.dedup();
    match STRATEGY {
        Strategy::Region => assert_eq!(keys.len(), 1),
        _ => {
            assert_eq!(keys.len(), CLIENTS);
            // A window works only for its own queue pair.
            let stolen = clients[0].write(keys[1], rdma.remote_addr, &[1; 8]);
            assert_eq!(stolen, Err(RequestError::RemoteAccess));
        }
    }
    lab.cut_and_release(binding_id(1, 1), pages(0, 2));
    close(lab, clients);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_rotation_gives_every_queue_pair_a_new_key_and_retires_every_old_one() {
    let lab = Lab::open();
    let (mut clients, rdma) = grant(&lab, 1);
    let old = pair_bindings(&rdma);
    let rotated = lab.backend.rotate(binding_id(1, 1)).unwrap();
    let rotated = rotated.rdma().unwrap();
    assert_eq!(rotated.previous.unwrap().rkey, rdma.rkey.unwrap());
    let again = lab.backend.rotate(binding_id(1, 1));
    assert!(matches!(again, Err(BindError::Refused(_))), "{again:?}");
    let new = pair_bindings(rotated);
    for (client, (old, new)) in clients.iter_mut().zip(old.iter().zip(&new)) {
        assert_ne!(old.rkey, new.rkey);
        assert_eq!(old.qp_num, new.qp_num);
        write(client, old, 1).unwrap();
        write(client, new, 2).unwrap();
    }
    let retired = lab.backend.retire_key(binding_id(1, 1)).unwrap();
    let retired = retired.rdma().unwrap();
    assert_eq!((retired.rkey, retired.previous), (rotated.rkey, None));
    for (client, (old, new)) in clients.iter_mut().zip(old.iter().zip(&new)) {
        write(client, new, 3).unwrap();
        assert_eq!(write(client, old, 4), Err(RequestError::RemoteAccess));
    }
    assert_eq!(lab.bytes(pages(0, 1))[..8], [3; 8]);
    lab.cut_and_release(binding_id(1, 1), pages(0, 2));
    close(lab, clients);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn one_that_fails_leaves_the_others_until_the_lease_is_bound_again() {
    let lab = Lab::open();
    let (mut clients, rdma) = grant(&lab, 1);
    let old = pair_bindings(&rdma);
    let outside = clients[1].write(old[1].rkey.unwrap(), rdma.remote_addr + 2 * PAGE, &[1]);
    assert_eq!(outside, Err(RequestError::RemoteAccess));
    write(&mut clients[0], &old[0], 1).unwrap();
    write(&mut clients[2], &old[2], 2).unwrap();
    let (mut again, rdma) = grant(&lab, 2);
    for (client, binding) in again.iter_mut().zip(pair_bindings(&rdma)) {
        write(client, &binding, 3).unwrap();
    }
    assert!(write(&mut clients[0], &old[0], 4).is_err());
    lab.cut_and_release(binding_id(1, 2), pages(0, 2));
    clients.extend(again);
    close(lab, clients);
}

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_prepared_queue_pair_stays_when_the_peer_of_another_one_cannot_be_reached() {
    let lab = Lab::open();
    let prepared = lab.bind(binding_id(1, 1), pages(0, 2), None).unwrap();
    assert_eq!(prepared.rkey, None);
    let waiting = client();
    let before = kernel_objects();
    let refused = lab.backend.bind(&order(2, vec![waiting.peer(), nobody()]));
    assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
    assert_eq!(kernel_objects(), before);
    let (mut clients, rdma) = grant(&lab, 3);
    assert_eq!((rdma.qp_num, rdma.psn), (prepared.qp_num, prepared.psn));
    for (client, binding) in clients.iter_mut().zip(pair_bindings(&rdma)) {
        write(client, &binding, 1).unwrap();
    }
    lab.cut_and_release(binding_id(1, 3), pages(0, 2));
    clients.push(waiting);
    close(lab, clients);
}
