//! A lease whose orders reach arena and device through sockets, as in processes of their own.

use std::{os::unix::net::UnixStream, sync::Arc, thread};

use fabricbios_arena::ArenaStore;
use fabricbios_contract::{
    DataPath, Provider, Store,
    remote::{RemotePath, RemoteStore, serve_path, serve_store},
    stray_binding_id,
};
use fabricbios_lease::{BindOrder, Linger};
use fabricbios_wire::{LeaseId, MemTerms, Transport};

use crate::lab::{Lab, RESOURCE, binding_id, client, kernel_objects, pages};

#[test]
#[ignore = "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"]
fn a_lease_lives_and_ends_over_a_socket() {
    let lab = Lab::open();
    let before = kernel_objects();
    let (path_here, path_there) = UnixStream::pair().unwrap();
    let (store_here, store_there) = UnixStream::pair().unwrap();
    let path: Arc<dyn DataPath> = lab.rdma.clone();
    let store: Arc<dyn Store> = Arc::new(ArenaStore::new(lab.arena.clone()));
    let serving = thread::spawn(move || serve_path(path_there, &path));
    thread::spawn(move || serve_store(store_there, &store));
    let path = Arc::new(RemotePath::new(path_here).unwrap());
    let provider = Provider::new()
        .with_store(RESOURCE, Arc::new(RemoteStore::new(store_here).unwrap()))
        .with_path("RDMA", &[Transport::Rdma], path.clone());
    let mut client = client();
    let bound = provider.bind(&BindOrder {
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
    // The cut comes by name alone, from a process that did not bind the lease.
    let its = stray_binding_id(RESOURCE, LeaseId(1));
    assert!(path.verify(its, None).is_err(), "it is in use");
    let proof = provider.cut(its, Linger::Brief).unwrap().to_string();
    assert!(proof.contains("restrack"), "{proof}");
    assert_eq!(path.verify(its, None).unwrap().to_string(), proof);
    let refused = client.write(rkey, rdma.remote_addr, b"gone");
    refused.unwrap_err();
    provider.release(its, pages(0, 1), &|| ()).unwrap();
    assert_eq!(&lab.bytes(pages(0, 1))[..4], [0; 4]);
    client.close().unwrap();
    assert_eq!(kernel_objects(), before);
    drop((provider, path));
    serving.join().unwrap().unwrap();
    lab.close();
}
