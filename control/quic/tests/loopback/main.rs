//! The control plane over real QUIC on the loopback interface: good peers, bad peers, noise.

mod callers;
mod common;
mod load;
mod members;
mod sessions;

use std::net::{SocketAddr, UdpSocket};

use common::{Client, Handler, World};
use fabricbios_control::Limits;
use fabricbios_fabric::Principal;
use fabricbios_wire::{HEADER_LEN, LeaseError, LeaseId, Reply, Request, Role, encode_request};

pub(crate) fn free() -> Request {
    Request::LeaseFree(LeaseId(1))
}

#[tokio::test]
async fn a_good_client_is_known_by_its_certificate() {
    let world = World::start(Handler::Refuse).await;
    let client = world.connect(&world.tenant("blue")).await;
    assert_eq!(client.call(&Request::Ping(7)).await, Ok(Reply::Pong(7)));
    assert!(world.seen().is_empty(), "a ping does not bother the table");
    client.call(&free()).await.unwrap_err();
    let seen = world.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].principal,
        Principal {
            tenant: "blue".into(),
            role: Role::Tenant
        }
    );
    assert_eq!(seen[0].local_ip, Some([127, 0, 0, 1].into()));
    assert_eq!(seen[0].request, free());
}

#[tokio::test]
async fn a_node_on_a_wildcard_knows_which_of_its_addresses_was_reached() {
    for wildcard in ["0.0.0.0:0", "[::]:0"] {
        let limits = Limits::default();
        let world = World::start_on(wildcard.parse().unwrap(), Handler::Refuse, limits).await;
        let reached = SocketAddr::from(([127, 0, 0, 2], world.addr().port()));
        let tenant = world.tenant("blue");
        let client = Client::dial(reached, Some(&tenant), &world.ca(), common::ALPN)
            .await
            .unwrap();
        client.call(&free()).await.unwrap_err();
        assert_eq!(world.seen()[0].local_ip, Some(reached.ip()), "{wildcard}");
    }
}

#[tokio::test]
async fn an_operator_is_an_operator() {
    let world = World::start(Handler::Refuse).await;
    let client = world.connect(&world.admin()).await;
    client.call(&Request::FenceList).await.unwrap_err();
    let principal = Principal {
        tenant: "admin".into(),
        role: Role::Operator,
    };
    assert_eq!(world.seen()[0].principal, principal);
}

#[tokio::test]
async fn strangers_get_no_further_than_the_handshake() {
    let world = World::start(Handler::Refuse).await;
    let elsewhere = World::start(Handler::Refuse).await;
    let strangers = [
        ("no certificate", None),
        ("another fabric's", Some(elsewhere.admin())),
        ("expired", Some(world.expired())),
    ];
    for (who, credentials) in strangers {
        let error = world
            .try_call(credentials.as_ref(), &free())
            .await
            .unwrap_err();
        println!("{who}: {error}");
        assert!(world.seen().is_empty(), "{who}");
    }
    let client = world.connect(&world.tenant("blue")).await;
    assert_eq!(client.call(&Request::Ping(1)).await, Ok(Reply::Pong(1)));
}

#[tokio::test]
async fn another_protocol_is_refused() {
    let world = World::start(Handler::Refuse).await;
    let error = Client::dial(
        world.addr(),
        Some(&world.tenant("blue")),
        &world.ca(),
        b"h3",
    )
    .await
    .map(drop)
    .unwrap_err();
    assert!(
        error.contains("120") || error.contains("protocol"),
        "{error}"
    );
}

#[tokio::test]
async fn a_client_notices_a_node_of_another_fabric() {
    let world = World::start(Handler::Refuse).await;
    let elsewhere = World::start(Handler::Refuse).await;
    let error = Client::dial(
        world.addr(),
        Some(&world.admin()),
        &elsewhere.ca(),
        common::ALPN,
    )
    .await
    .map(drop)
    .unwrap_err();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn noise_at_the_port_disturbs_nobody() {
    let world = World::start(Handler::Refuse).await;
    let client = world.connect(&world.tenant("blue")).await;
    let noise = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut datagram = [0_u8; 1_300];
    for round in 0..500_usize {
        datagram.fill(u8::try_from(round % 256).unwrap());
        // The first bits of QUIC's long and short headers, to get past the first check.
        datagram[0] = [0xc3, 0x40, 0x00, 0xff][round % 4];
        noise
            .send_to(&datagram[..1 + round * 2], world.addr())
            .unwrap();
    }
    assert_eq!(client.call(&Request::Ping(2)).await, Ok(Reply::Pong(2)));
    let newcomer = world.connect(&world.tenant("red")).await;
    assert_eq!(newcomer.call(&Request::Ping(3)).await, Ok(Reply::Pong(3)));
    assert!(world.seen().is_empty());
}

#[tokio::test]
async fn bytes_that_are_no_request_are_refused_and_never_reach_the_table() {
    let world = World::start(Handler::Refuse).await;
    let client = world.connect(&world.tenant("blue")).await;
    let good = encode_request(1, 2, &free());
    let mut absurd = good.clone();
    absurd[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut long = good.clone();
    long[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&65_537_u32.to_be_bytes());
    long.resize(HEADER_LEN + 65_537, 0);
    let mut other_version = good.clone();
    other_version[0] = 9;
    let cases = [
        (
            "truncated",
            good[..good.len() - 1].to_vec(),
            LeaseError::Malformed,
        ),
        (
            "header only",
            good[..HEADER_LEN].to_vec(),
            LeaseError::Malformed,
        ),
        ("half a header", good[..7].to_vec(), LeaseError::Malformed),
        ("nothing", Vec::new(), LeaseError::Malformed),
        (
            "trailing",
            [&good[..], b"!"].concat(),
            LeaseError::Malformed,
        ),
        ("absurd length", absurd, LeaseError::Malformed),
        ("over-long", long, LeaseError::Malformed),
        ("another version", other_version, LeaseError::Unsupported),
    ];
    for (what, bytes, expected) in cases {
        let refusal = client.send_raw(&bytes).await.unwrap_err();
        assert_eq!(refusal.error, expected, "{what}: {refusal}");
        assert!(world.seen().is_empty(), "{what}");
    }
    assert_eq!(client.call(&Request::Ping(4)).await, Ok(Reply::Pong(4)));
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let world = World::start(Handler::Refuse).await;
    let error = world.start_second_server().unwrap_err().to_string();
    assert!(error.contains(&world.addr().to_string()), "{error}");
}
