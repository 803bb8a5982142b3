//! A client of blocks, a server and the network between them; all but the client is simulated.

mod server;

use std::{collections::HashMap, time::Duration};

use fabricbios_fallback_udp::transfer::{Blocks, Driven, Failure, Finished, Operation, Setup};
use fabricbios_wire::LeaseId;

use crate::air::{Air, Network};
use server::{Server, key};

pub(crate) use server::BLOCK;

pub(crate) struct World {
    pub(crate) air: Air,
    pub(crate) server: Server,
    pub(crate) blocks: Blocks,
    /// Times at which the server restarts.
    pub(crate) restarts: Vec<Duration>,
    /// Times at which the server's machine restarts and unflushed writes are lost.
    pub(crate) power_cuts: Vec<Duration>,
    /// Longest time that the storage takes.
    pub(crate) storage: Duration,
    known: u8,
    asked_at: Duration,
    finished: HashMap<u64, Finished>,
}

impl World {
    pub(crate) fn new(seed: u64, blocks: usize, network: Network) -> Self {
        Self {
            air: Air::new(seed, network),
            server: Server::new(blocks),
            blocks: client(seed),
            restarts: Vec::new(),
            power_cuts: Vec::new(),
            storage: Duration::from_millis(2),
            known: 0,
            asked_at: Duration::ZERO,
            finished: HashMap::new(),
        }
    }

    pub(crate) fn submit(&mut self, operation: Operation) -> u64 {
        self.blocks.submit(operation, self.air.now)
    }

    pub(crate) fn write(&mut self, block: u64, from: Vec<u8>) -> Result<(), Failure> {
        let id = self.submit(Operation::Write { block, from });
        self.wait(id).outcome
    }

    pub(crate) fn read(&mut self, block: u64, blocks: usize) -> Result<Vec<u8>, Failure> {
        let into = vec![0xee; blocks * BLOCK];
        let id = self.submit(Operation::Read { block, into });
        let finished = self.wait(id);
        finished.outcome.map(|()| bytes(finished.operation))
    }

    /// Waits until this operation has finished.
    pub(crate) fn wait(&mut self, id: u64) -> Finished {
        loop {
            if let Some(finished) = self.finished.remove(&id) {
                return finished;
            }
            self.turn();
        }
    }

    /// Waits until an operation has finished, and returns all finished ones; nothing if there is none to wait for.
    pub(crate) fn wait_for_some(&mut self) -> Vec<Finished> {
        while self.finished.is_empty() && self.blocks.unfinished() > 0 {
            self.turn();
        }
        self.over()
    }

    /// All finished operations.
    pub(crate) fn over(&mut self) -> Vec<Finished> {
        self.finished
            .drain()
            .map(|(_, finished)| finished)
            .collect()
    }

    /// Sends, receives, and goes on to the time of the next event.
    fn turn(&mut self) {
        let air = &mut self.air;
        while let Some(outgoing) = self.blocks.poll_transmit(air.now) {
            let datagram = self.blocks.transmit(&outgoing);
            air.send(true, [&datagram.prefix[..], datagram.payload].concat());
        }
        while let Some(finished) = self.blocks.next_finished() {
            self.finished.insert(finished.id, finished);
        }
        if let Some(wake) = self.blocks.next_timeout() {
            self.step(wake.min(self.blocks.requester().doubtful_at().max(self.asked_at)));
        }
    }

    fn step(&mut self, wake: Duration) {
        let ready = self.server.next_ready();
        let next = [self.air.next_arrival(), ready, Some(wake)];
        let next = next.into_iter().flatten().min().unwrap();
        self.air.now = self.air.now.max(next);
        self.happen();
        if self.air.next_arrival().is_some_and(|at| at <= next) {
            self.arrive();
        }
        self.refresh();
    }

    fn happen(&mut self) {
        let now = self.air.now;
        for _ in self.restarts.extract_if(.., |at| *at <= now) {
            self.server.restart();
        }
        for _ in self.power_cuts.extract_if(.., |at| *at <= now) {
            self.server.cut_power();
        }
        for reply in self.server.ready(now) {
            self.air.send(false, reply);
        }
    }

    fn arrive(&mut self) {
        let Some((to_server, bytes)) = self.air.land() else {
            return;
        };
        if !to_server {
            self.blocks.on_datagram(&bytes, self.air.now);
            return;
        }
        let most = self.storage.as_micros() as u64;
        let later = Duration::from_micros(self.air.random.below(most + 1));
        if let Some(reply) = self.server.take(&bytes, self.air.now, later) {
            self.air.send(false, reply);
        }
    }

    fn refresh(&mut self) {
        let now = self.air.now;
        if now >= self.blocks.requester().doubtful_at().max(self.asked_at) {
            self.asked_at = now + Duration::from_secs(1);
            if self.known != self.server.number() {
                self.known = self.server.number();
                self.blocks.requester_mut().set_key(key(self.known), now);
            }
        }
    }

    /// Delivers everything that is still on its way, even if nobody waits for it.
    pub(crate) fn let_everything_arrive(&mut self) {
        while let Some(at) = self.air.next_arrival().or(self.server.next_ready()) {
            self.step(at);
        }
    }
}

/// The bytes that an operation has written or read.
pub(crate) fn bytes(operation: Operation) -> Vec<u8> {
    match operation {
        Operation::Read { into: bytes, .. } | Operation::Write { from: bytes, .. } => bytes,
        _ => Vec::new(),
    }
}

fn client(seed: u64) -> Blocks {
    Blocks::new(Setup {
        lease_id: LeaseId(0x1ea5e),
        key: key(0),
        payload_mac: seed % 2 == 1,
        give_up: Duration::from_secs(30),
        seed,
        route_mtu: 9000,
        ip_header: 20,
    })
}
