//! A WRITE that the network held back must not overwrite bytes that were written after it.

use std::{sync::Arc, time::Duration};

use fabricbios_client::{DataTransport, Error, MemLease, Transfers};
use fabricbios_wire::{KindBinding, Transport};

use crate::{
    builder,
    common::{FakeNode, memory::Memory, path::Path, rdma},
};

const FIRST: &[u8] = b"the first write";
const SECOND: &[u8] = b"and the second.";

struct World {
    memory: Arc<Memory>,
    path: Path,
    lease: MemLease,
    node: FakeNode,
}

/// Long enough for an answer on a busy machine.
fn impatient() -> Transfers {
    Transfers::default()
        .transport(DataTransport::Udp)
        .give_up(Duration::from_secs(1))
}

/// A lease whose first write failed and is still on its way.
fn delayed() -> World {
    let world = within_reach();
    world.path.break_off();
    silent(world.lease.write(0, FIRST));
    world
}

fn within_reach() -> World {
    let memory = Memory::start();
    let path = {
        let mut told = memory.told.lock().unwrap();
        let server = told.binding.udp_endpoint.unwrap().into();
        let path = Path::to(server);
        told.binding.udp_endpoint = Some(path.address().into());
        told.effective.transport = Some(Transport::Both);
        told.binding.kind = KindBinding::Mem(Some(rdma()));
        path
    };
    let node = memory.node();
    let lease = builder(&node).transfers(impatient()).acquire().unwrap();
    lease.read(0, &mut [0]).unwrap();
    World {
        memory,
        path,
        lease,
        node,
    }
}

fn silent(outcome: Result<(), Error>) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

/// Meanwhile the client asks the node about the lease.
#[test]
fn a_node_that_answers_neither_data_nor_requests_is_given_up() {
    let world = within_reach();
    // The client asks the node after two seconds of silence.
    let patience = Duration::from_secs(5);
    world.lease.set_transfers(impatient().give_up(patience));
    world.path.break_off();
    let asked = world.node.ignore_next();
    let error = world.lease.write(0, SECOND).unwrap_err();
    asked.try_recv().unwrap();
    assert!(
        error.to_string().contains("does not answer in 5 s"),
        "{error}"
    );
}

impl World {
    /// The bytes of the lease after the delayed datagrams have arrived.
    fn in_the_end(&self) -> Vec<u8> {
        assert!(self.path.deliver() > 0, "nothing was held back");
        let mut bytes = vec![0; SECOND.len()];
        self.lease.set_transfers(impatient());
        self.lease.read(0, &mut bytes).unwrap();
        assert_eq!(self.memory.bytes(0, bytes.len()), bytes);
        bytes
    }
}

#[test]
fn a_delayed_write_does_not_undo_a_later_one() {
    let world = delayed();
    world.path.heal();
    world.lease.write(0, SECOND).unwrap();
    assert_eq!(world.in_the_end(), SECOND);
}

#[test]
fn nor_after_more_calls_that_failed() {
    let world = delayed();
    silent(world.lease.read(0, &mut [0]));
    silent(world.lease.write(0, FIRST));
    silent(world.lease.read(0, &mut [0]));
    world.path.heal();
    world.lease.write(0, SECOND).unwrap();
    assert_eq!(world.in_the_end(), SECOND);
}

#[test]
fn nor_does_it_when_the_options_change_in_between() {
    let world = delayed();
    world.lease.set_transfers(impatient().payload_mac(true));
    silent(world.lease.write(0, SECOND));
    world.path.heal();
    world.lease.write(0, SECOND).unwrap();
    assert_eq!(world.in_the_end(), SECOND);
}

#[test]
fn the_transport_is_not_changed_while_a_write_may_still_arrive() {
    let world = delayed();
    world
        .lease
        .set_transfers(Transfers::default().transport(DataTransport::Rdma));
    silent(world.lease.write(0, SECOND));
    assert_eq!(world.lease.transport(), Some(DataTransport::Udp));
    world.path.heal();
    // Now the transfer tries RDMA; no queue pair exists at the node's end.
    world.lease.write(0, SECOND).unwrap_err();
    assert_eq!(
        world.in_the_end(),
        [0; SECOND.len()],
        "the first never arrives"
    );
}
