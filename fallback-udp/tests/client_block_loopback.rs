//! The client of blocks over real sockets, against the model of a server.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "numbers of a test, which ends where they are not as expected"
)]

mod client_block_node;
#[path = "client_node/proxy.rs"]
mod proxy;
#[path = "client_block_world/server.rs"]
#[allow(dead_code, reason = "a disk that takes its time is for the simulation")]
mod server;

use std::{collections::HashMap, os::fd::AsFd, time::Duration};

use client_block_node::Node;
use fabricbios_fallback_udp::{
    BlockClient, ClientError, ClientOptions, Coordinates, transfer::Operation,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proxy::Proxy;
use server::BLOCK;

const BLOCKS: usize = 256;

fn short() -> ClientOptions {
    ClientOptions {
        mtu_max: Some(1500),
        ..ClientOptions::default()
    }
}

fn connect(node: &Node, options: ClientOptions) -> BlockClient {
    BlockClient::connect(node.coordinates(), options, None).unwrap()
}

fn block(number: usize) -> Vec<u8> {
    vec![number as u8; BLOCK]
}

#[test]
fn what_is_written_is_read_and_flushed_in_blocks_whole_or_in_parts() {
    let node = Node::start(BLOCKS);
    for options in [ClientOptions::default(), short()] {
        let mut client = connect(&node, options);
        let geometry = client.geometry();
        assert_eq!((geometry.block_bytes, geometry.blocks), (4096, 256));
        let bytes: Vec<u8> = (0..40).flat_map(block).collect();
        client.write(100, &bytes).unwrap();
        let mut into = vec![0; bytes.len()];
        client.read(100, &mut into).unwrap();
        assert!(into == bytes);
        client.flush().unwrap();
        assert!(node.server().durable[100 * BLOCK..140 * BLOCK] == bytes);
    }
}

#[test]
fn many_at_once_over_a_path_that_loses_repeats_and_reorders() {
    let node = Node::start(BLOCKS);
    let proxy = Proxy::start(node.coordinates().endpoint, 5);
    let endpoint = proxy.endpoint();
    let coordinates = Coordinates {
        endpoint,
        ..node.coordinates()
    };
    let mut client = BlockClient::connect(coordinates, short(), None).unwrap();
    let mut expected = HashMap::new();
    for number in 0..BLOCKS {
        let (block, from) = (number as u64, block(number));
        client.submit(Operation::Write { block, from });
        let into = vec![0xee; BLOCK];
        let id = client.submit(Operation::Read { block, into });
        expected.insert(id, self::block(number));
    }
    while client.unfinished() > 0 {
        wait_as_others_do(&client);
        client.exchange();
        while let Some(completion) = client.next_completion() {
            completion.outcome.unwrap();
            if let Operation::Read { into, .. } = completion.operation {
                assert!(into == expected.remove(&completion.id).unwrap());
            }
        }
    }
    assert!(expected.is_empty());
    assert!(client.statistics().retried > 0);
}

/// Waits with the client's descriptor and time-out, as a program with other work does.
fn wait_as_others_do(client: &BlockClient) {
    let millis = client.next_timeout().unwrap().as_millis() as u16;
    let mut wanted = [PollFd::new(client.as_fd(), PollFlags::POLLIN)];
    poll(&mut wanted, PollTimeout::from(millis)).unwrap();
}

#[test]
fn a_node_that_starts_again_with_another_key_is_followed_in_the_middle() {
    let node = Node::start(BLOCKS);
    let coordinates = node.coordinates();
    let mut client = BlockClient::connect(coordinates, short(), Some(node.asked())).unwrap();
    for number in 0..BLOCKS {
        let (block, from) = (number as u64, block(number));
        client.submit(Operation::Write { block, from });
    }
    let mut completed = 0;
    while let Some(completion) = client.wait() {
        completion.outcome.unwrap();
        completed += 1;
        if completed == BLOCKS / 2 {
            node.server().restart();
        }
    }
    assert_eq!(completed, BLOCKS);
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(block).collect();
    assert!(node.server().disk == bytes);
    assert_eq!(client.statistics().sessions, 2);
}

#[test]
fn every_operation_ends_when_the_lease_does() {
    let node = Node::start(BLOCKS);
    let mut client = connect(&node, short());
    client.write(0, &block(1)).unwrap();
    node.server().over = true;
    for number in 0..20 {
        let (block, from) = (number % 3, block(2));
        client.submit(Operation::Write { block, from });
    }
    client.submit(Operation::Flush);
    let mut ended = 0;
    while let Some(completion) = client.wait() {
        let error = completion.outcome.unwrap_err();
        assert!(matches!(error, ClientError::NoLease { .. }), "{error}");
        ended += 1;
    }
    assert_eq!(ended, 21);
    assert_eq!(node.server().disk[..BLOCK], block(1));
}

#[test]
fn what_a_lease_or_its_storage_does_not_do_is_named() {
    let node = Node::start(BLOCKS);
    let mut client = connect(&node, ClientOptions::default());
    node.server().broken = Some(9);
    let error = client.write(8, &[1; 2 * BLOCK]).unwrap_err();
    assert!(
        matches!(error, ClientError::Storage { offset: 32768, .. }),
        "{error}"
    );
    let outside = client.write(BLOCKS as u64, &block(1)).unwrap_err();
    assert!(
        outside.to_string().contains("4096 bytes at 1048576"),
        "{outside}"
    );
    client.write(0, &block(1)).unwrap();

    node.server().read_only = true;
    let mut client = connect(&node, ClientOptions::default());
    assert!(client.geometry().read_only);
    let error = client.write(0, &block(2)).unwrap_err();
    assert!(matches!(error, ClientError::ReadOnly { .. }), "{error}");
    let mut into = block(0);
    client.read(0, &mut into).unwrap();
    assert_eq!(into, block(1));
}

#[test]
fn nobody_there_is_told_in_time() {
    let coordinates = Node::start(1).coordinates();
    let options = ClientOptions {
        give_up: Duration::from_millis(300),
        ..short()
    };
    let error = BlockClient::connect(coordinates, options, None).unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
}
