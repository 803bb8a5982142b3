//! The memory of the bare-metal profile: a static arena in slots, and a short replay window.

use std::net::UdpSocket;

use fabricbios_fallback_udp::DataKey;
use fabricbios_node::kinds::settings::Profile;
use fabricbios_wire::*;

use crate::world::*;

const SLOT: u64 = 8_192;

async fn bare_metal(directory: &std::path::Path) -> World {
    let mut settings = settings(directory);
    settings.kinds.memory.mem_bytes = None;
    settings.kinds.memory.rdma_device = None;
    settings.kinds.shared.profile = Some(Profile::BareMetal);
    World::start(settings).await
}

fn slot() -> LeaseAllocRequest {
    LeaseAllocRequest::new(ResourceType::Mem, SLOT, 60)
}

#[tokio::test]
async fn a_lease_is_one_slot_and_a_ninth_lease_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = bare_metal(directory.path()).await;
    let listed = world.flat_inventory().await;
    let of = |entry: &FlatEntry| (entry.resource_type, entry.capacity, entry.available);
    assert_eq!(
        listed.iter().map(of).collect::<Vec<_>>(),
        [(ResourceType::Mem, 8 * SLOT, SLOT)]
    );
    let larger = LeaseAllocRequest {
        capacity: SLOT + 1,
        ..slot()
    };
    let two_slots = refusal(world.operator.alloc_async(larger).await);
    assert_eq!(
        (two_slots.error, two_slots.class),
        (LeaseError::CapacityExceeded, RefusalClass::Permanent)
    );
    assert!(two_slots.message.contains("8192"), "{two_slots}");
    let mut leases = Vec::new();
    for _ in 0..8 {
        let small = LeaseAllocRequest {
            capacity: 1,
            ..slot()
        };
        let info = world.grant(small).await;
        assert_eq!(info.capacity, SLOT);
        write(&info, SLOT - 5, b"mine!").await.expect("written");
        leases.push(info);
    }
    let ninth = refusal(world.operator.alloc_async(slot()).await);
    assert_eq!(
        (ninth.error, ninth.class),
        (LeaseError::CapacityExceeded, RefusalClass::Transient)
    );
    world.lease(Request::LeaseFree(leases[3].lease_id)).await;
    world.stop().await;
}

/// One request, without retries.
struct Raw {
    socket: UdpSocket,
    key: DataKey,
    lease: LeaseId,
}

impl Raw {
    fn of(info: &LeaseInfo) -> Self {
        let at = info.binding.udp_endpoint.expect("an endpoint");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket
            .connect(std::net::SocketAddr::from(at))
            .expect("an address");
        Self {
            socket,
            key: DataKey::new(info.binding.dp_key.as_ref().expect("a key")),
            lease: info.lease_id,
        }
    }

    fn send(&self, op: DataOp, nonce: u64, length: u32, payload: &[u8]) -> (u8, Vec<u8>) {
        let header = DataHeader {
            nonce,
            length,
            ..DataHeader::request(DataService::Memory, op, self.lease)
        };
        let frame = [&self.key.seal(header, payload)[..], payload].concat();
        self.socket.send(&frame).expect("sent");
        let mut reply = [0; 10_000];
        let length = self.socket.recv(&mut reply).expect("a reply");
        let frame = DataFrame::parse(&reply[..length]).expect("a frame");
        (frame.header.status, frame.payload.to_vec())
    }
}

#[tokio::test]
async fn a_session_remembers_64_requests() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = bare_metal(directory.path()).await;
    let info = world.grant(slot()).await;
    let client = Raw::of(&info);
    let (_, hello) = client.send(DataOp::Hello, 7, 0, &[0; HELLO_LEN]);
    let hello = HelloReply::read(&hello).expect("an answer to HELLO");
    assert_eq!((hello.resource_len, hello.window), (SLOT, 64));
    let read = |counter: u32| {
        let nonce = u64::from(hello.session) << 32 | u64::from(counter);
        DataStatus::from_byte(client.send(DataOp::Read, nonce, 1, &[]).0)
    };
    assert_eq!(read(100), Some(DataStatus::Ok));
    assert_eq!(read(37), Some(DataStatus::Ok), "63 behind");
    for counter in [36, 35] {
        assert_eq!(read(counter), Some(DataStatus::TooOld), "{counter}");
    }
    world.stop().await;
}
