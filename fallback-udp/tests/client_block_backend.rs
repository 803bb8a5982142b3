//! The client of blocks against the real server, over real sockets and a file.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "numbers of a test, which ends where they are not as expected"
)]

#[path = "client_node/proxy.rs"]
mod proxy;

use std::{
    collections::HashMap,
    fs::{self, File},
    net::SocketAddr,
    os::fd::AsFd,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use fabricbios_contract::{DataPath as _, Volume};
use fabricbios_fallback_udp::{
    BlockClient, ClientError, ClientOptions, Completion, Coordinates, FbbuConfig, FbbuPath,
    Refresh, RefreshError, transfer::Operation,
};
use fabricbios_lease::{BindingId, BootTime, Linger};
use fabricbios_wire::{Binding, DataStatus, Generation, LeaseId, ResourceId, ResourceType};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proxy::Proxy;
use tempfile::TempDir;

const BLOCK: usize = 4096;
const BLOCKS: usize = 512;

/// One lease of a file.
struct Node {
    directory: TempDir,
    backend: Option<FbbuPath>,
    address: SocketAddr,
    binding: Binding,
    generation: Generation,
    write_verifier: u64,
    half_sent_max: usize,
    read_only: bool,
}

impl Node {
    fn start() -> Self {
        Self::with_room(FbbuConfig::HALF_SENT_MAX)
    }

    fn with_room(half_sent_max: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("blocks"), vec![0; BLOCKS * BLOCK]).unwrap();
        let mut node = Self {
            directory,
            backend: None,
            address: "127.0.0.1:0".parse().unwrap(),
            binding: Binding::plain(ResourceType::Block),
            generation: Generation(1),
            write_verifier: 1,
            half_sent_max,
            read_only: false,
        };
        node.serve();
        node
    }

    fn serve(&mut self) {
        let config = FbbuConfig {
            listen: self.address,
            workers: Some(1),
            ops_per_second: 1_000_000,
            half_sent_max: self.half_sent_max,
            write_verifier: self.write_verifier,
        };
        let backend = FbbuPath::open(&config).unwrap();
        let file = Volume {
            path: self.path(),
            bytes: (BLOCKS * BLOCK) as u64,
            block_bytes: BLOCK as u32,
            read_only: self.read_only,
        };
        self.address = backend.local_addr();
        self.binding = backend.serve(self.binding_id(), "ann", &file).unwrap();
        backend
            .extend(self.binding_id(), BootTime(u64::MAX))
            .unwrap();
        self.backend = Some(backend);
    }

    fn binding_id(&self) -> BindingId {
        BindingId {
            lease_id: LeaseId(0x1ea5e),
            generation: self.generation,
            resource_id: ResourceId(7),
        }
    }

    fn stop(&mut self) {
        self.backend.take().unwrap().close();
    }

    fn restart(&mut self) {
        self.stop();
        self.generation = self.generation.next();
        self.serve();
    }

    /// Restarts the machine as after a power cut that lost no write; the client cannot know that none was lost.
    fn reboot(&mut self) {
        self.write_verifier += 1;
        self.restart();
    }

    fn cut(&self) {
        self.backend
            .as_ref()
            .unwrap()
            .revoke(self.binding_id(), Linger::None)
            .unwrap();
    }

    fn coordinates(&self) -> Coordinates {
        Coordinates {
            lease_id: LeaseId(0x1ea5e),
            dp_key: self.binding.dp_key.clone().unwrap(),
            endpoint: self.address,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("blocks")
    }

    fn disk(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }
}

struct Asked(Arc<Mutex<Node>>);

impl Refresh for Asked {
    fn refresh(&mut self) -> Result<Coordinates, RefreshError> {
        Ok(self.0.lock().unwrap().coordinates())
    }
}

/// A node, and a client that asks the node for the valid coordinates.
fn followed() -> (Arc<Mutex<Node>>, BlockClient) {
    let node = Arc::new(Mutex::new(Node::start()));
    let coordinates = node.lock().unwrap().coordinates();
    let asked = Box::new(Asked(Arc::clone(&node)));
    let client = BlockClient::connect(coordinates, short(), Some(asked)).unwrap();
    (node, client)
}

/// A client behind a path that loses, repeats and reorders datagrams.
fn far(node: &Node) -> (Proxy, BlockClient) {
    let proxy = Proxy::start(node.address, 5);
    let coordinates = Coordinates {
        endpoint: proxy.endpoint(),
        ..node.coordinates()
    };
    let client = BlockClient::connect(coordinates, short(), None).unwrap();
    (proxy, client)
}

fn short() -> ClientOptions {
    ClientOptions {
        mtu_max: Some(1500),
        ..ClientOptions::default()
    }
}

/// Waits with the client's descriptor and time-out, as a program with other work does.
fn wait_as_others_do(client: &mut BlockClient) -> Option<Completion> {
    loop {
        if let Some(completion) = client.next_completion() {
            return Some(completion);
        }
        let millis = client.next_timeout()?.as_millis() as u16;
        let mut wanted = [PollFd::new(client.as_fd(), PollFlags::POLLIN)];
        poll(&mut wanted, PollTimeout::from(millis)).unwrap();
        client.exchange();
    }
}

/// Writes every block and reads it back, all at once; calls `after` with the number of operations done.
fn write_and_read_all(client: &mut BlockClient, after: impl FnMut(usize)) {
    write_and_read_with(client, BlockClient::wait, after);
}

fn write_and_read_with(
    client: &mut BlockClient,
    wait: fn(&mut BlockClient) -> Option<Completion>,
    mut after: impl FnMut(usize),
) {
    let content = |number: usize| vec![number as u8; BLOCK];
    let mut reads = HashMap::new();
    for number in 0..BLOCKS {
        let (block, from) = (number as u64, content(number));
        client.submit(Operation::Write { block, from });
        let into = vec![0xee; BLOCK];
        reads.insert(client.submit(Operation::Read { block, into }), number);
    }
    let mut done = 0;
    while let Some(completion) = wait(client) {
        completion.outcome.unwrap();
        if let Operation::Read { into, .. } = completion.operation {
            assert!(into == content(reads[&completion.id]), "{}", completion.id);
        }
        done += 1;
        after(done);
    }
    client.flush().unwrap();
}

fn all_blocks() -> Vec<u8> {
    let numbers = (0..BLOCKS).flat_map(|number| [number as u8; BLOCK]);
    numbers.collect()
}

#[test]
fn whole_blocks_and_blocks_in_parts_reach_the_file() {
    for options in [ClientOptions::default(), short()] {
        let node = Node::start();
        let mut client = BlockClient::connect(node.coordinates(), options, None).unwrap();
        write_and_read_all(&mut client, |_| ());
        assert!(node.disk() == all_blocks());
        assert_eq!(client.statistics().sessions, 1);
    }
}

#[test]
fn everything_is_right_over_a_path_that_loses_repeats_and_reorders() {
    let node = Node::start();
    let (_proxy, mut client) = far(&node);
    write_and_read_with(&mut client, wait_as_others_do, |_| ());
    assert!(node.disk() == all_blocks());
    let statistics = client.statistics();
    assert!(statistics.retried > 0);
    assert!(statistics.sent < 2 * statistics.answered, "{statistics:?}");
}

#[test]
fn a_client_with_room_for_two_half_sent_blocks_waits_for_its_turn() {
    let node = Node::with_room(2 * 128 * BLOCK);
    let (_proxy, mut client) = far(&node);
    write_and_read_all(&mut client, |_| ());
    assert!(node.disk() == all_blocks());
    let answered = node.backend.as_ref().unwrap().counters().tally().answered;
    assert!(answered[DataStatus::Busy as usize] > 0);
}

#[test]
fn a_node_that_starts_again_is_followed_in_the_middle() {
    let (node, mut client) = followed();
    write_and_read_all(&mut client, |done| {
        if done == BLOCKS {
            node.lock().unwrap().restart();
        }
    });
    assert!(node.lock().unwrap().disk() == all_blocks());
    assert_eq!(client.statistics().sessions, 2);
}

#[test]
fn a_flush_fails_once_when_the_machine_was_started_anew_with_writes_unflushed() {
    let (node, mut client) = followed();
    client.write(0, &[1; BLOCK]).unwrap();
    node.lock().unwrap().reboot();
    let error = client.flush().unwrap_err();
    assert!(matches!(error, ClientError::WritesLost { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("may be lost") && text.contains("write again"),
        "{text}"
    );
    client.write(0, &[1; BLOCK]).unwrap();
    client.flush().unwrap();
}

#[test]
fn a_flush_does_not_fail_for_a_daemon_that_was_started_anew_nor_for_what_was_flushed() {
    let (node, mut client) = followed();
    client.write(0, &[1; BLOCK]).unwrap();
    node.lock().unwrap().restart();
    client.flush().unwrap();
    assert!(client.is_flushed());
    node.lock().unwrap().reboot();
    client.write(1, &[2; BLOCK]).unwrap();
    client.flush().unwrap();
}

#[test]
fn every_operation_ends_with_the_cut() {
    let node = Node::start();
    let mut client = BlockClient::connect(node.coordinates(), short(), None).unwrap();
    for number in 0..BLOCKS {
        let (block, from) = (number as u64, vec![1; BLOCK]);
        client.submit(Operation::Write { block, from });
    }
    let (mut done, mut ended) = (0, 0);
    while let Some(completion) = client.wait() {
        match completion.outcome {
            Ok(()) => done += 1,
            Err(ClientError::NoLease { .. }) => ended += 1,
            Err(error) => panic!("{error}"),
        }
        if done == 100 && ended == 0 {
            node.cut();
        }
    }
    assert_eq!(done + ended, BLOCKS);
    assert!(ended > 0);
}

#[test]
fn what_a_lease_or_its_storage_does_not_do_is_named() {
    let mut node = Node::start();
    let connect =
        |node: &Node| BlockClient::connect(node.coordinates(), ClientOptions::default(), None);
    let mut client = connect(&node).unwrap();
    let geometry = client.geometry();
    let size = (geometry.block_bytes as usize, geometry.blocks as usize);
    assert_eq!((size, geometry.read_only), ((BLOCK, BLOCKS), false));
    let outside = client.write(BLOCKS as u64, &[1; BLOCK]).unwrap_err();
    let named = "4096 bytes at 2097152";
    assert!(outside.to_string().contains(named), "{outside}");
    let file = File::options().write(true).open(node.path()).unwrap();
    file.set_len(9 * BLOCK as u64).unwrap();
    let error = client.read(8, &mut [0; 2 * BLOCK]).unwrap_err();
    let is_named = matches!(error, ClientError::Storage { offset: 32768, .. });
    assert!(is_named, "{error}");
    file.set_len((BLOCKS * BLOCK) as u64).unwrap();

    node.read_only = true;
    node.restart();
    let mut client = connect(&node).unwrap();
    assert!(client.geometry().read_only);
    let error = client.write(0, &[2; BLOCK]).unwrap_err();
    assert!(matches!(error, ClientError::ReadOnly { .. }), "{error}");
    client.read(0, &mut [0; BLOCK]).unwrap();
}

#[test]
fn nobody_there_is_told_in_time() {
    let mut node = Node::start();
    node.stop();
    let options = ClientOptions {
        give_up: Duration::from_millis(300),
        ..short()
    };
    let error = BlockClient::connect(node.coordinates(), options, None).unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
}
