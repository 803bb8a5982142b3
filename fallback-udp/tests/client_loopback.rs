//! The blocking client against the real server, over real sockets.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "numbers of a test, which ends where they are not as expected"
)]

mod client_node;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use client_node::{Node, Proxy};
use fabricbios_fallback_udp::{
    ClientError, ClientOptions, Coordinates, MemoryClient, Refresh, RefreshError,
};

const MIB: usize = 1 << 20;

fn connect(coordinates: Coordinates) -> MemoryClient {
    MemoryClient::connect(coordinates, ClientOptions::default(), None).unwrap()
}

/// Bytes in which no two stretches are equal.
fn pattern(length: usize) -> Vec<u8> {
    let words = (0..length as u64 / 8).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// A node as a source of the current coordinates.
struct Asked(Arc<Mutex<Node>>);

impl Refresh for Asked {
    fn refresh(&mut self) -> Result<Coordinates, RefreshError> {
        Ok(self.0.lock().unwrap().coordinates())
    }
}

#[test]
fn what_is_written_is_read_in_any_piece() {
    let node = Node::start(MIB as u64);
    let mut client = connect(node.coordinates());
    assert_eq!(client.resource_len(), MIB as u64);
    let bytes = pattern(MIB);
    let mut steps = Vec::new();
    client
        .write(0, &bytes, &mut |done| steps.push(done))
        .unwrap();
    assert_eq!(steps.last(), Some(&(MIB as u64)));
    assert!(steps.is_sorted());
    for (offset, length) in [(0, MIB), (1, 1), (9_127, 9_130), (MIB - 3, 3), (5, 0)] {
        let mut into = vec![0xee; length];
        client.read(offset as u64, &mut into, &mut |_| ()).unwrap();
        assert!(
            into == bytes[offset..offset + length],
            "{length} at {offset}"
        );
    }
    assert!(client.ping().unwrap() < Duration::from_secs(1));
}

#[test]
fn sixty_four_mebibytes_each_way_over_a_path_that_loses_repeats_and_reorders() {
    let node = Node::start(64 << 20);
    let proxy = Proxy::start(node.coordinates().endpoint, 5);
    let coordinates = Coordinates {
        endpoint: proxy.endpoint(),
        ..node.coordinates()
    };
    let mut client = connect(coordinates);
    let bytes = pattern(64 * MIB);
    client.write(0, &bytes, &mut |_| ()).unwrap();
    assert!(node.memory(64 * MIB) == bytes);
    let mut into = vec![0; 64 * MIB];
    client.read(0, &mut into, &mut |_| ()).unwrap();
    assert!(into == bytes);
    assert!(client.statistics().retried > 0);
}

#[test]
fn a_node_that_starts_again_with_another_key_is_followed() {
    let node = Arc::new(Mutex::new(Node::start(8 << 20)));
    let coordinates = node.lock().unwrap().coordinates();
    let asked = Box::new(Asked(Arc::clone(&node)));
    let mut client =
        MemoryClient::connect(coordinates, ClientOptions::default(), Some(asked)).unwrap();
    let bytes = pattern(8 * MIB);
    let mut restarted = false;
    let mut half_way = |done| {
        if done > 4 << 20 && !restarted {
            restarted = true;
            node.lock().unwrap().restart();
        }
    };
    client.write(0, &bytes, &mut half_way).unwrap();
    assert!(restarted);
    assert!(node.lock().unwrap().memory(8 * MIB) == bytes);
    let mut into = vec![0; 8 * MIB];
    client.read(0, &mut into, &mut |_| ()).unwrap();
    assert!(into == bytes);
    assert_eq!(client.statistics().sessions, 2);
}

#[test]
fn a_rotation_is_followed_when_it_is_told() {
    let node = Node::start(MIB as u64);
    let mut client = connect(node.coordinates());
    client.write(0, b"before", &mut |_| ()).unwrap();
    client.set_coordinates(node.rotate());
    node.retire();
    let mut into = [0; 6];
    client.read(0, &mut into, &mut |_| ()).unwrap();
    assert_eq!(&into, b"before");
}

#[test]
fn the_end_of_the_lease_is_told_with_what_was_done() {
    let node = Node::start(8 << 20);
    let mut client = connect(node.coordinates());
    let mut cut = false;
    let mut half_way = |done| {
        if done > 4 << 20 && !cut {
            cut = true;
            node.cut();
        }
    };
    let error = client
        .write(0, &pattern(8 * MIB), &mut half_way)
        .unwrap_err();
    assert!(matches!(error, ClientError::NoLease { .. }), "{error}");
    assert!(
        (4 << 20..8 << 20).contains(&error.call().confirmed),
        "{error}"
    );
    assert!(error.to_string().contains("LEASE_QUERY"), "{error}");
}

#[test]
fn clients_that_come_and_go_leave_room_for_the_next() {
    let node = Node::start(MIB as u64);
    // Shorter than the time for which a silent session holds its place.
    let options = ClientOptions {
        give_up: Duration::from_secs(5),
        ..ClientOptions::default()
    };
    for number in 0..40 {
        let mut client = MemoryClient::connect(node.coordinates(), options, None).unwrap();
        client.write(number, &[1], &mut |_| ()).unwrap();
    }
    assert_eq!(node.memory(41), [vec![1; 40], vec![0]].concat());
}

#[test]
fn nobody_there_is_told_in_time_and_without_the_key() {
    let mut node = Node::start(MIB as u64);
    let coordinates = node.coordinates();
    node.stop();
    let options = ClientOptions {
        give_up: Duration::from_millis(300),
        ..ClientOptions::default()
    };
    let error = MemoryClient::connect(coordinates.clone(), options, None).unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains(&coordinates.endpoint.to_string()),
        "{error}"
    );
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(format!("{coordinates:?}").contains("DpKey(..)"));
}

#[test]
fn a_closed_port_ends_a_call_as_soon_as_its_caller_does_not_wait_for_it() {
    let mut node = Node::start(MIB as u64);
    let coordinates = node.coordinates();
    let options = |closed| ClientOptions {
        give_up: Duration::from_secs(86_400),
        give_up_closed: closed,
        ..ClientOptions::default()
    };
    let mut client =
        MemoryClient::connect(coordinates.clone(), options(Duration::ZERO), None).unwrap();
    node.stop();
    let error = client.write(0, &[1], &mut |_| ()).unwrap_err();
    assert!(matches!(error, ClientError::PortClosed { .. }), "{error}");
    for closed in [Duration::ZERO, Duration::from_millis(50)] {
        let error = MemoryClient::connect(coordinates.clone(), options(closed), None).unwrap_err();
        assert!(matches!(error, ClientError::PortClosed { .. }), "{error}");
    }
    // A node that has moved is found, even without waiting.
    let moved = Arc::new(Mutex::new(Node::start(MIB as u64)));
    let refresh = Box::new(Asked(Arc::clone(&moved)));
    MemoryClient::connect(coordinates, options(Duration::ZERO), Some(refresh)).unwrap();
}

#[test]
fn the_longest_packet_can_be_set_and_payloads_covered() {
    let node = Node::start(MIB as u64);
    let options = ClientOptions {
        mtu_max: Some(1500),
        payload_mac: true,
        ..ClientOptions::default()
    };
    let mut client = MemoryClient::connect(node.coordinates(), options, None).unwrap();
    assert_eq!(client.path_mtu(), Some(1500));
    let bytes = pattern(MIB);
    client.write(0, &bytes, &mut |_| ()).unwrap();
    assert!(node.memory(MIB) == bytes);
    // 1,384 payload bytes per datagram, by the specification.
    assert!(client.statistics().answered >= (MIB as u64).div_ceil(1384));
}
