//! A lease of an arena that ends by its name alone.

use fabricbios_contract::{DataPath, stray_binding_id};
use fabricbios_lease::{BindOrder, Linger};
use fabricbios_wire::{LeaseId, MemTerms, Transport};

use crate::lab::{Lab, RESOURCE, binding_id, client, kernel_objects, pages};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_lease_is_ended_by_name_alone_and_cleaned() {
    let lab = Lab::open();
    let before = kernel_objects();
    let mut client = client();
    let bound = lab.backend.bind(&BindOrder {
        terms: MemTerms {
            rdma_peers: vec![client.peer()],
        }
        .into(),
        ..BindOrder::new(binding_id(1, 1), pages(0, 1), Transport::Rdma)
    });
    let rdma = bound.unwrap().rdma().unwrap().clone();
    client.connect(&rdma).unwrap();
    let rkey = rdma.rkey.unwrap();
    client.write(rkey, rdma.remote_addr, b"here").unwrap();
    assert_eq!(&lab.bytes(pages(0, 1))[..4], b"here");
    let its = stray_binding_id(RESOURCE, LeaseId(1));
    assert!(lab.rdma.verify(its, None).is_err(), "it is in use");
    let proof = lab.backend.cut(its, Linger::Brief).unwrap().to_string();
    assert!(proof.contains("restrack"), "{proof}");
    assert_eq!(lab.rdma.verify(its, None).unwrap().to_string(), proof);
    let refused = client.write(rkey, rdma.remote_addr, b"gone");
    refused.unwrap_err();
    lab.backend.release(its, pages(0, 1), &|| ()).unwrap();
    assert_eq!(&lab.bytes(pages(0, 1))[..4], [0; 4]);
    client.close().unwrap();
    assert_eq!(kernel_objects(), before);
    lab.close();
}
