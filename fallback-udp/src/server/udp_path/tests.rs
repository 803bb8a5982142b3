//! Bindings with a failed invariant.

use std::{net::Ipv4Addr, time::Duration};

use fabricbios_arena::{Arena, Source};
use fabricbios_lease::Extent;
use fabricbios_wire::{DataStatus, Generation, ResourceId, Transport};

use super::{
    super::{bytes::Bytes, clock, memory_server::MemoryServer, proof::Answered},
    *,
};
use crate::{Broken, Invariant, ServedLease};

const PAGE: u64 = 4096;

fn path() -> UdpPath<Bytes> {
    let arena = Arc::new(Arena::open(&Source::default(), PAGE).unwrap());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 5702));
    let parts = (Arc::default(), Arc::default());
    let workers = Workers::start("test", Vec::new(), || MemoryServer::new(&parts.0, &parts.1));
    let arenas = [(ResourceId(1), arena)].into();
    UdpPath::new(address, 1000, arenas, parts.clone(), workers.unwrap())
}

fn binding_id(lease: u128, generation: u32) -> BindingId {
    BindingId {
        lease_id: LeaseId(lease),
        generation: Generation(generation),
        resource_id: ResourceId(1),
    }
}

fn bind(path: &UdpPath<Bytes>, binding_id: BindingId) -> Result<DataKey, BindError> {
    let extent = Extent {
        offset: 0,
        length: PAGE,
    };
    let order = BindOrder::new(binding_id, extent, Transport::Udp);
    let binding = path.bind(&order, &Part::at(extent))?;
    path.extend(binding_id, in_a_minute()).unwrap();
    Ok(DataKey::new(&binding.dp_key.unwrap()))
}

fn in_a_minute() -> BootTime {
    let until = clock::now() + Duration::from_secs(60);
    BootTime(u64::try_from(until.as_nanos()).unwrap())
}

#[test]
fn a_broken_binding_is_fenced_and_no_other() {
    let path = path();
    let (broken, other) = (binding_id(1, 1), binding_id(2, 1));
    let keys = [broken, other].map(|it| (it.lease_id, bind(&path, it).unwrap()));
    let statuses = || {
        keys.each_ref()
            .map(|(lease, key)| path.ask_as_client(*lease, key))
    };
    let of = |statuses: [DataStatus; 2]| statuses.map(Answered::Status);
    assert_eq!(statuses(), of([DataStatus::Ok, DataStatus::Ok]));
    path.leases.of(broken).unwrap().broken(Broken {
        invariant: Invariant::Once,
        detail: "planted",
    });
    assert_eq!(statuses(), of([DataStatus::Fenced, DataStatus::Ok]));
    assert_eq!(path.extend(broken, in_a_minute()), Err(AlreadyCut));
    assert_eq!(path.extend(other, in_a_minute()), Ok(()));
    let error = path.revoke(broken, Linger::None).unwrap_err().to_string();
    assert!(
        error.contains("once: planted; this is a mistake in the node's program"),
        "{error}"
    );
    assert!(path.give_back(broken, &|| ()).is_err(), "not proved");
    path.revoke(broken, Linger::None).unwrap();
    assert_eq!(statuses(), of([DataStatus::NoLease, DataStatus::Ok]));
    path.give_back(broken, &|| ()).unwrap();
}

#[test]
fn a_binding_whose_predecessor_lives_on_is_not_served() {
    let path = path();
    let (first, second) = (binding_id(1, 1), binding_id(1, 2));
    let key = bind(&path, first).unwrap();
    let cell = path.cell(first).unwrap();
    let mut state = cell.lock();
    state.gate.ended(first.generation);
    state.phase = Phase::Empty;
    drop(state);
    let Err(BindError::Stranded(error)) = bind(&path, second) else {
        panic!("served");
    };
    assert!(error.to_string().contains("generations: "), "{error}");
    let status = path.ask_as_client(first.lease_id, &key);
    assert_eq!(status, Answered::Status(DataStatus::Fenced));
}
