//! Addresses and ports.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use fabricbios_fallback_udp::FbmuPath;
use fabricbios_wire::LeaseId;

use crate::{
    client::{Client, OK},
    fixture::{Fixture, config},
};

fn listening(address: impl Into<IpAddr>) -> Fixture {
    let mut config = config(Fixture::new().arena);
    config.listen = (address.into(), 0).into();
    Fixture::with(config)
}

/// The socket of a client is connected: a reply from another address would not arrive.
fn reaches(fixture: &Fixture, number: u128, address: impl Into<IpAddr>) {
    let port = fixture.udp.local_addr().port();
    let server = SocketAddr::new(address.into(), port);
    let mut client = Client::new(server, LeaseId(number), &fixture.lease(number));
    client.hello();
    assert_eq!(client.write(0, b"there"), OK);
    assert_eq!(client.read(0, 5), (OK, b"there".to_vec()));
}

#[test]
fn a_wildcard_answers_from_the_address_that_was_asked() {
    let fixture = listening(Ipv6Addr::UNSPECIFIED);
    reaches(&fixture, 1, Ipv4Addr::LOCALHOST);
    reaches(&fixture, 2, Ipv4Addr::new(127, 9, 8, 7));
    reaches(&fixture, 3, Ipv6Addr::LOCALHOST);
}

#[test]
fn the_wildcard_of_ipv4_too() {
    let fixture = listening(Ipv4Addr::UNSPECIFIED);
    reaches(&fixture, 1, Ipv4Addr::LOCALHOST);
    reaches(&fixture, 2, Ipv4Addr::new(127, 9, 8, 7));
}

#[test]
fn one_address_of_ipv6() {
    reaches(&listening(Ipv6Addr::LOCALHOST), 1, Ipv6Addr::LOCALHOST);
}

#[test]
fn a_port_in_use_is_an_error_that_says_so() {
    let first = Fixture::new();
    let mut second = config(Arc::clone(&first.arena));
    second.listen = first.udp.local_addr();
    let error = FbmuPath::open(second.clone()).unwrap_err().to_string();
    assert!(error.contains(&second.listen.to_string()), "{error}");
    assert!(error.contains("another program has the port"), "{error}");
    first.close();
    FbmuPath::open(second).expect("the port is free again");
}
