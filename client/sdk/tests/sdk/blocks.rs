//! Leases of blocks: their requests, the properties without which they fail, and their blocks over UDP.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use fabricbios_client::{BlockBuilder, BlockLease, Error, MemLease, Node, Transfers};
use fabricbios_contract::{DataPath as _, Volume};
use fabricbios_fallback_udp::{FbbuConfig, FbbuPath};
use fabricbios_lease::{BindingId, BootTime, Linger};
use fabricbios_wire::{
    Binding, Effective, Generation, LeaseInfo, LeasePhase, LeaseStatus, Reply, Request,
    ResourceType, Transport,
};
use tempfile::TempDir;

use crate::{
    admin,
    common::{FakeNode, LEASE, RESOURCE, honest, lease},
};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;

/// The blocks of one lease, served over UDP.
struct Disk {
    backend: Mutex<FbbuPath>,
    directory: TempDir,
    told: Mutex<LeaseInfo>,
}

impl Disk {
    fn start() -> Arc<Self> {
        let disk = Self {
            backend: Mutex::new(serving(1)),
            directory: tempfile::tempdir().unwrap(),
            told: Mutex::new(blocks(Effective::default())),
        };
        fs::write(disk.path(), vec![0; BLOCKS * BLOCK]).unwrap();
        disk.bind(1);
        Arc::new(disk)
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("blocks")
    }

    /// Binds the lease with another key, as a node does when it starts again.
    fn bind(&self, generation: u32) {
        let file = Volume {
            path: self.path(),
            bytes: (BLOCKS * BLOCK) as u64,
            block_bytes: 4096,
            read_only: false,
        };
        let backend = self.backend.lock().unwrap();
        let binding = backend.serve(binding_id(generation), "ann", &file).unwrap();
        backend
            .extend(binding_id(generation), BootTime(u64::MAX))
            .unwrap();
        let mut told = self.told.lock().unwrap();
        told.generation = Generation(generation);
        told.binding = binding;
    }

    /// Restarts the machine as after a power cut that lost no write; the client cannot know that none was lost.
    fn reboot(&self) {
        *self.backend.lock().unwrap() = serving(2);
        self.bind(2);
    }

    fn end(&self) {
        self.backend
            .lock()
            .unwrap()
            .revoke(binding_id(1), Linger::None)
            .unwrap();
        let mut told = self.told.lock().unwrap();
        told.phase = LeasePhase::Revoked;
        told.status = LeaseStatus::Revoked;
        told.binding = Binding::plain(ResourceType::Block);
    }

    /// A node that answers every request with this lease.
    fn node(self: &Arc<Self>) -> FakeNode {
        let disk = Arc::clone(self);
        FakeNode::start(move |_: &Request| Ok(Reply::Lease(disk.told.lock().unwrap().clone())))
    }
}

fn serving(write_verifier: u64) -> FbbuPath {
    let config = FbbuConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        workers: Some(1),
        ops_per_second: 1_000_000,
        half_sent_max: FbbuConfig::HALF_SENT_MAX,
        write_verifier,
    };
    FbbuPath::open(&config).unwrap()
}

fn binding_id(generation: u32) -> BindingId {
    BindingId {
        lease_id: LEASE,
        generation: Generation(generation),
        resource_id: RESOURCE,
    }
}

fn blocks(effective: Effective) -> LeaseInfo {
    LeaseInfo {
        binding: Binding::plain(ResourceType::Block),
        effective,
        ..lease(60_000)
    }
}

fn builder(node: &FakeNode) -> BlockBuilder {
    BlockBuilder::new()
        .bytes((BLOCKS * BLOCK) as u64)
        .node(node.addr())
        .identity(&admin(node))
        .auto_renew(false)
}

fn open(node: &FakeNode) -> BlockLease {
    let node = Node::connect(&node.addr(), &admin(node)).unwrap();
    BlockLease::open(&node, LEASE).unwrap()
}

#[test]
fn what_a_lease_of_blocks_asks_for() {
    let node = FakeNode::start(|request: &Request| match request {
        Request::LeaseAlloc(request) => Ok(Reply::Lease(blocks(honest(request)))),
        _ => Ok(Reply::Lease(blocks(Effective::default()))),
    });
    let host: fabricbios_wire::Nqn = "nqn.2024-01.org.example:host".parse().unwrap();
    let asked = builder(&node)
        .transport(Transport::NvmeTcp)
        .read_only()
        .mutual_auth()
        .host(host.clone(), None);
    asked.acquire().unwrap().free().unwrap();
    let Request::LeaseAlloc(request) = node.asked().remove(0) else {
        panic!()
    };
    assert_eq!(request.resource_type(), ResourceType::Block);
    assert_eq!(request.transport, Transport::NvmeTcp);
    let block = request.terms.block().unwrap();
    assert!(block.read_only && block.mutual_auth);
    assert_eq!(block.host_nqn, Some(host));
}

#[test]
fn what_is_not_echoed_is_given_back() {
    let node = FakeNode::start(|_: &Request| Ok(Reply::Lease(blocks(Effective::default()))));
    let wants: [fn(BlockBuilder) -> BlockBuilder; 3] =
        [BlockBuilder::read_only, BlockBuilder::mutual_auth, |b| {
            b.transport(Transport::Udp)
        }];
    for want in wants {
        let error = want(builder(&node)).acquire().unwrap_err();
        assert!(
            matches!(error, Error::FailedClosed { freed: true, .. }),
            "{error}"
        );
        assert_eq!(node.asked().last(), Some(&Request::LeaseFree(LEASE)));
    }
}

#[test]
fn blocks_are_written_flushed_and_read_also_after_a_restart() {
    let disk = Disk::start();
    let node = disk.node();
    let lease = open(&node);
    let geometry = lease.geometry().unwrap();
    assert_eq!((geometry.block_bytes, geometry.blocks), (4096, 64));
    lease.write_blocks(3, &[7; 2 * BLOCK]).unwrap();
    lease.flush().unwrap();
    disk.bind(2);
    let mut into = [0; 3 * BLOCK];
    lease.read_blocks(2, &mut into).unwrap();
    assert_eq!(into[..BLOCK], [0; BLOCK]);
    assert_eq!(into[BLOCK..], [7; 2 * BLOCK]);
    let outside = lease.write_blocks(BLOCKS as u64, &[7; BLOCK]).unwrap_err();
    assert!(matches!(outside, Error::Usage(_)), "{outside}");
}

#[test]
fn what_a_power_cut_may_have_taken_is_told_also_when_transfers_are_to_be_others() {
    let disk = Disk::start();
    let node = disk.node();
    let lease = open(&node);
    lease.write_blocks(0, &[1; BLOCK]).unwrap();
    disk.reboot();
    lease.set_transfers(Transfers::default().payload_mac(true));
    let error = lease.flush().unwrap_err();
    assert!(matches!(error, Error::WritesLost(_)), "{error}");
    lease.write_blocks(0, &[1; BLOCK]).unwrap();
    lease.flush().unwrap();
}

#[test]
fn the_end_of_the_lease_is_told_as_the_node_tells_it() {
    let disk = Disk::start();
    let node = disk.node();
    let lease = open(&node);
    lease.write_blocks(0, &[1; BLOCK]).unwrap();
    disk.end();
    let error = lease.write_blocks(0, &[2; BLOCK]).unwrap_err();
    assert!(error.to_string().contains("revoked"), "{error}");
    assert_eq!(fs::read(disk.path()).unwrap()[..BLOCK], [1; BLOCK]);
}

#[test]
fn a_lease_of_something_else_is_not_opened() {
    let disk = Disk::start();
    let node = disk.node();
    let node = Node::connect(&node.addr(), &admin(&node)).unwrap();
    let error = MemLease::open(&node, LEASE).unwrap_err();
    assert!(error.to_string().contains("block"), "{error}");
}
