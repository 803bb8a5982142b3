//! The client half for blocks against a server that holds the key and may send any reply at any time: the client
//! never panics, every operation completes exactly once, with its own bytes, and the client ends.
#![no_main]

mod script;
mod server;

use std::{collections::HashMap, time::Duration};

use fabricbios_fallback_udp::transfer::{Blocks, Driven, Operation};
use fabricbios_wire::{DATA_PAYLOAD_MAX, DATAGRAM_MAX, HelloReply};
use libfuzzer_sys::fuzz_target;
use script::Script;
use server::{GIVE_UP, key, reply, setup};

/// Operations of one run; each has a few blocks.
const OPERATIONS_MAX: usize = 64;

struct World {
    blocks: Blocks,
    /// A valid HELLO reply.
    lease: HelloReply,
    now: Duration,
    asked: Vec<Vec<u8>>,
    /// Bytes of the pending operations, by id.
    submitted: HashMap<u64, usize>,
}

fuzz_target!(|bytes: &[u8]| {
    let mut script = Script(bytes);
    let mut world = World::new(&mut script);
    while let Some(step) = script.byte() {
        world.take(step, &mut script);
        world.exchange();
    }
    world.wait_in_silence();
});

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let blocks = Blocks::new(setup(script));
        Self {
            blocks,
            lease: lease(512 << (script.byte().unwrap_or(0) % 4)),
            now: Duration::from_secs(1),
            asked: Vec::new(),
            submitted: HashMap::new(),
        }
    }

    fn take(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 16 {
            0..4 => self.submit(step, script),
            4 => self.blocks.requester_mut().set_key(key(), self.now),
            5 => {
                let mtu = script.small() as usize;
                self.blocks.requester_mut().set_route(mtu, 20, self.now);
            }
            6 => drop(self.blocks.requester_mut().close_session(self.now)),
            7 => self.now += Duration::from_millis(script.small().into()),
            _ => {
                let step = script.byte().unwrap_or(0);
                let reply = reply(step, &self.asked, Some(&self.lease), script);
                self.blocks.on_datagram(&reply, self.now);
            }
        }
    }

    fn submit(&mut self, step: u8, script: &mut Script<'_>) {
        if self.submitted.len() >= OPERATIONS_MAX {
            return;
        }
        let block = script.number();
        let bytes = script.small() as usize % 9 * self.lease.unit as usize;
        let operation = match step % 4 {
            0 => Operation::Flush,
            1 => Operation::Read {
                block,
                into: vec![0; bytes],
            },
            2 => Operation::Write {
                block,
                from: vec![1; bytes],
            },
            _ => Operation::Open,
        };
        let bytes = bytes_of(&operation);
        let id = self.blocks.submit(operation, self.now);
        assert_eq!(self.submitted.insert(id, bytes), None);
    }

    fn exchange(&mut self) {
        while let Some(outgoing) = self.blocks.poll_transmit(self.now) {
            let datagram = self.blocks.transmit(&outgoing);
            let datagram = [&datagram.prefix[..], datagram.payload].concat();
            assert!(datagram.len() <= DATAGRAM_MAX);
            self.asked.push(datagram);
        }
        while let Some(finished) = self.blocks.next_finished() {
            let bytes = self.submitted.remove(&finished.id);
            assert_eq!(bytes, Some(bytes_of(&finished.operation)), "once");
            assert!(finished.done <= bytes.unwrap_or(0) as u64);
        }
        assert_eq!(self.submitted.len(), self.blocks.unfinished());
    }

    /// No more datagrams arrive.
    fn wait_in_silence(&mut self) {
        self.exchange();
        let end = self.now + GIVE_UP * 2;
        while let Some(next) = self.blocks.next_timeout() {
            self.now = self.now.max(next);
            assert!(self.now < end, "it does not end");
            self.exchange();
        }
        assert!(self.submitted.is_empty());
    }
}

fn lease(unit: u32) -> HelloReply {
    HelloReply {
        resource_len: 256,
        unit,
        max_read: DATA_PAYLOAD_MAX as u32,
        max_write: DATA_PAYLOAD_MAX as u32,
        session: 1,
        window: 128,
        read_only: false,
        remaining_ms: 60_000,
        datagram_max: DATAGRAM_MAX as u32,
        write_verifier: 1,
    }
}

fn bytes_of(operation: &Operation) -> usize {
    match operation {
        Operation::Read { into: bytes, .. } | Operation::Write { from: bytes, .. } => bytes.len(),
        Operation::Open | Operation::Flush => 0,
    }
}
