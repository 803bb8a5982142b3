//! The client's protocol for blocks against a model of a server, over a simulated network that loses, delays, reorders,
//! repeats and damages datagrams: blocks are whole and correct, and every operation ends.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "numbers of a test, which ends where they are not as expected"
)]

#[path = "client_world/air.rs"]
mod air;
mod client_block_world;
#[path = "client_world/random.rs"]
mod random;

use std::{collections::HashMap, time::Duration};

use air::Network;
use client_block_world::{BLOCK, World, bytes};
use fabricbios_fallback_udp::transfer::{Driven, Failure, Finished, Operation};
use fabricbios_wire::DataStatus;
use random::Random;

const SEEDS: u64 = 24;
const BLOCKS: u64 = 48;

/// At this MTU a block goes in four parts.
const SHORT: Network = Network {
    mtu: 1500,
    ..Network::GOOD
};

/// By this time a client knows that only short packets pass, if no HELLO is lost. Before, it sends no request.
const START: Duration = Duration::from_millis(750);

const BAD: Network = Network {
    loss: 0.05,
    copies: 0.05,
    damage: 0.02,
    late: 0.10,
    ..SHORT
};

/// Operations at random places, up to `at_once` of them unanswered; a model has the bytes that reads must return.
struct Work {
    model: Vec<u8>,
    expected: HashMap<u64, Vec<u8>>,
    at_once: usize,
}

impl Work {
    fn run(world: &mut World, operations: usize, at_once: usize) {
        let mut work = Self {
            model: world.server.disk.clone(),
            expected: HashMap::new(),
            at_once,
        };
        for _ in 0..operations {
            work.submit(world);
        }
        work.wait(world, 0);
        assert_eq!(world.server.disk, work.model);
        world.let_everything_arrive();
        assert!(
            world.server.disk == work.model,
            "what was late changed something"
        );
    }

    fn submit(&mut self, world: &mut World) {
        let random = &mut world.air.random;
        let block = random.below(BLOCKS);
        let blocks = 1 + random.below((BLOCKS - block).min(9));
        let range = block as usize * BLOCK..(block + blocks) as usize * BLOCK;
        match random.below(10) {
            0 => drop(world.submit(Operation::Flush)),
            1..6 => {
                let from: Vec<u8> = range.clone().map(|_| random.next() as u8).collect();
                self.model[range].copy_from_slice(&from);
                world.submit(Operation::Write { block, from });
            }
            _ => {
                let into = vec![0xee; range.len()];
                let id = world.submit(Operation::Read { block, into });
                self.expected.insert(id, self.model[range].to_vec());
            }
        }
        self.wait(world, self.at_once - 1);
    }

    fn wait(&mut self, world: &mut World, most: usize) {
        while world.blocks.unfinished() > most {
            world
                .wait_for_some()
                .into_iter()
                .for_each(|it| self.check(it));
        }
        world.over().into_iter().for_each(|it| self.check(it));
    }

    fn check(&mut self, finished: Finished) {
        assert_eq!(finished.outcome, Ok(()), "{finished:?}");
        if let Some(expected) = self.expected.remove(&finished.id) {
            assert!(bytes(finished.operation) == expected, "{}", finished.id);
        }
    }
}

fn io(status: DataStatus) -> Result<(), Failure> {
    let status = status as u8;
    Err(Failure::Refused { status })
}

#[test]
fn a_good_network_needs_no_retry() {
    for network in [SHORT, Network::GOOD] {
        let mut world = World::new(1, BLOCKS as usize, network);
        Work::run(&mut world, 200, 32);
        let statistics = world.blocks.requester().statistics();
        assert_eq!((statistics.retried, statistics.sessions), (0, 1));
    }
}

#[test]
fn blocks_are_right_over_a_bad_network_and_retries_are_few() {
    for seed in 0..SEEDS {
        for network in [BAD, Network { mtu: 9000, ..BAD }] {
            let mut world = World::new(seed, BLOCKS as usize, network);
            Work::run(&mut world, 120, 24);
            let statistics = world.blocks.requester().statistics();
            assert!(statistics.sent < 2 * statistics.answered, "{statistics:?}");
        }
    }
}

#[test]
fn blocks_are_right_where_a_third_is_lost_and_copies_come_seconds_later() {
    let network = Network {
        loss: 0.3,
        copies: 0.3,
        late: 0.3,
        latest: Duration::from_secs(5),
        ..BAD
    };
    for seed in 0..SEEDS / 3 {
        Work::run(&mut World::new(seed, BLOCKS as usize, network), 60, 16);
    }
}

#[test]
fn blocks_are_right_when_the_server_starts_again_with_another_key() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, BLOCKS as usize, BAD);
        world.restarts = vec![
            START + Duration::from_millis(world.air.random.below(60)),
            START + Duration::from_millis(60 + world.air.random.below(200)),
        ];
        Work::run(&mut world, 150, 16);
        assert!(world.restarts.is_empty(), "{:?}", world.air.now);
    }
}

#[test]
fn blocks_are_right_with_a_partition_in_the_middle() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, BLOCKS as usize, BAD);
        let begin = START + Duration::from_millis(world.air.random.below(100));
        let length = Duration::from_millis(100 + world.air.random.below(20_000));
        world.air.partition = begin..begin + length;
        Work::run(&mut world, 60, 16);
    }
}

#[test]
fn a_disk_that_takes_seconds_is_waited_for_in_the_same_session() {
    let mut world = World::new(3, BLOCKS as usize, SHORT);
    world.storage = Duration::from_secs(4);
    Work::run(&mut world, 40, 8);
    assert_eq!(world.blocks.requester().statistics().sessions, 1);
}

#[test]
fn a_path_that_becomes_shorter_turns_blocks_into_parts() {
    let mut world = World::new(0, BLOCKS as usize, Network { mtu: 9000, ..BAD });
    Work::run(&mut world, 30, 8);
    assert_eq!(world.blocks.requester().path_mtu(), Some(9000));
    world.air.network.mtu = 1500;
    Work::run(&mut world, 30, 8);
    assert_eq!(world.blocks.requester().path_mtu(), Some(1500));
}

#[test]
fn parts_that_are_lost_again_and_again_keep_their_block() {
    let mut world = World::new(0, 512, SHORT);
    // The second part of a block is lost until then; once the path is known, all other parts would be answered
    // meanwhile.
    world.air.swallowed = Some((42, Duration::from_secs(2)));
    let mut ids = Vec::new();
    for block in 0..512 {
        let from = vec![0x55; BLOCK];
        ids.push(world.submit(Operation::Write { block, from }));
        // With a FLUSH after each block, not every fourth counter begins a block.
        ids.push(world.submit(Operation::Flush));
    }
    for id in ids {
        world.wait(id).outcome.unwrap();
    }
    assert!(world.server.disk == vec![0x55; 512 * BLOCK]);
    let statistics = world.blocks.requester().statistics();
    assert_eq!((statistics.answered, statistics.sessions), (2561, 1));
    assert_eq!(world.server.written, 512);
}

#[test]
fn what_overlaps_is_done_in_the_order_in_which_it_came() {
    let mut world = World::new(5, BLOCKS as usize, BAD);
    let ids: Vec<_> = (1..=20)
        .map(|byte| {
            let (block, from) = (u64::from(byte % 3), vec![byte; 4 * BLOCK]);
            world.submit(Operation::Write { block, from })
        })
        .collect();
    let read = world.submit(Operation::Read {
        block: 2,
        into: vec![0; BLOCK],
    });
    assert_eq!(bytes(world.wait(read).operation), vec![20; BLOCK]);
    for id in ids {
        world.wait(id).outcome.unwrap();
    }
    assert_eq!(world.server.disk[..BLOCK], vec![18; BLOCK]);
    assert_eq!(world.server.disk[5 * BLOCK..6 * BLOCK], vec![20; BLOCK]);
}

#[test]
fn what_was_finished_before_a_flush_survives_a_power_cut() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, BLOCKS as usize, BAD);
        world.write(3, vec![1; 5 * BLOCK]).unwrap();
        let flush = world.submit(Operation::Flush);
        world.wait(flush).outcome.unwrap();
        world.write(20, vec![2; BLOCK]).unwrap();
        assert_eq!(
            world.server.durable[3 * BLOCK..8 * BLOCK],
            vec![1; 5 * BLOCK]
        );
        assert_eq!(world.server.durable[20 * BLOCK..21 * BLOCK], vec![0; BLOCK]);
    }
}

/// Writes and flushes, and repeats the writes that a flush reports as lost.
fn write_until_durable(world: &mut World, block: u64, from: &[u8]) -> u32 {
    let mut lost = 0;
    loop {
        world.write(block, from.to_vec()).unwrap();
        let flush = world.submit(Operation::Flush);
        match world.wait(flush).outcome {
            Ok(()) => return lost,
            Err(failure) => assert_eq!(failure, Failure::WritesLost),
        }
        lost += 1;
    }
}

#[test]
fn who_writes_again_what_a_flush_says_is_lost_has_everything_after_any_power_cut() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed, BLOCKS as usize, BAD);
        let cuts = (0..6).map(|_| START + Duration::from_millis(world.air.random.below(4000)));
        world.power_cuts = cuts.collect();
        let mut all = Vec::new();
        for block in 0..BLOCKS {
            let from = vec![1 + block as u8; BLOCK];
            lost += write_until_durable(&mut world, block, &from);
            all.extend(from);
        }
        world.server.cut_power();
        assert!(world.server.disk == all, "seed {seed}");
    }
    assert!(lost > 0, "no power cut hit anything");
}

#[test]
fn every_flush_that_waits_when_the_power_is_cut_tells_of_the_loss_and_later_ones_do_not() {
    let mut world = World::new(7, BLOCKS as usize, SHORT);
    world.write(0, vec![1; BLOCK]).unwrap();
    world.server.cut_power();
    let flushes = [(); 3].map(|()| world.submit(Operation::Flush));
    for flush in flushes {
        assert_eq!(world.wait(flush).outcome, Err(Failure::WritesLost));
    }
    assert_eq!(write_until_durable(&mut world, 0, &[1; BLOCK]), 0);
}

#[test]
fn nothing_is_lost_by_a_power_cut_after_a_flush_nor_by_the_end_of_the_daemon_alone() {
    let mut world = World::new(7, BLOCKS as usize, SHORT);
    assert_eq!(write_until_durable(&mut world, 0, &[1; BLOCK]), 0);
    world.server.cut_power();
    assert_eq!(world.read(0, 1), Ok(vec![1; BLOCK]));
    world.write(1, vec![2; BLOCK]).unwrap();
    world.server.restart();
    let flush = world.submit(Operation::Flush);
    assert_eq!(world.wait(flush).outcome, Ok(()));
}

#[test]
fn a_block_that_fails_costs_its_own_operation_only() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, BLOCKS as usize, BAD);
        world.server.broken = Some(7);
        let failing = world.submit(Operation::Write {
            block: 4,
            from: vec![1; 8 * BLOCK],
        });
        let after = world.submit(Operation::Write {
            block: 8,
            from: vec![2; 8 * BLOCK],
        });
        world.restarts = vec![START + Duration::from_millis(world.air.random.below(20))];
        assert_eq!(world.wait(failing).outcome, io(DataStatus::Io));
        assert_eq!(world.wait(after).outcome, Ok(()));
        assert_eq!(world.server.disk[8 * BLOCK..16 * BLOCK], vec![2; 8 * BLOCK]);
        world.server.broken = None;
        world.write(4, vec![3; 8 * BLOCK]).unwrap();
        assert_eq!(world.read(4, 8).unwrap(), vec![3; 8 * BLOCK]);
    }
}

#[test]
fn a_write_that_was_given_up_is_never_done_after_a_later_one() {
    for seed in 0..SEEDS {
        let held = Network {
            latest: Duration::from_secs(50),
            late: 0.5,
            loss: 0.7,
            ..BAD
        };
        let mut world = World::new(seed, BLOCKS as usize, held);
        world.submit(Operation::Write {
            block: 0,
            from: vec![0xaa; 10 * BLOCK],
        });
        let begin = START + Duration::from_millis(world.air.random.below(60));
        world.air.partition = begin..begin + Duration::from_secs(31);
        drop(world.wait_for_some());
        world.air.network = BAD;
        world.air.partition = Duration::ZERO..Duration::ZERO;
        world.write(0, vec![0x55; 10 * BLOCK]).unwrap();
        world.let_everything_arrive();
        assert_eq!(world.server.disk[..10 * BLOCK], vec![0x55; 10 * BLOCK]);
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_done() {
    let mut world = World::new(7, BLOCKS as usize, BAD);
    let resource_len = BLOCKS;
    let outside = Err(Failure::OutOfRange { resource_len });
    assert_eq!(world.write(BLOCKS - 1, vec![1; 2 * BLOCK]), outside);
    assert_eq!(world.write(u64::MAX, vec![1; BLOCK]), outside);
    assert_eq!(world.write(0, vec![1; 100]), io(DataStatus::Invalid));
    assert_eq!(world.server.disk, vec![0; BLOCKS as usize * BLOCK]);
    assert_eq!(world.write(5, Vec::new()), Ok(()));
}

#[test]
fn a_read_only_lease_is_read_and_not_written() {
    let mut world = World::new(7, BLOCKS as usize, BAD);
    world.server.read_only = true;
    assert_eq!(world.write(0, vec![1; BLOCK]), io(DataStatus::ReadOnly));
    assert_eq!(world.read(0, 1), Ok(vec![0; BLOCK]));
}

#[test]
fn everything_ends_at_once_when_the_lease_is_over() {
    let mut world = World::new(7, BLOCKS as usize, SHORT);
    world.write(0, vec![1; BLOCK]).unwrap();
    world.server.over = true;
    let ids = [0, 0, 9].map(|block| {
        let from = vec![2; BLOCK];
        world.submit(Operation::Write { block, from })
    });
    for id in ids {
        assert_eq!(world.wait(id).outcome, Err(Failure::NoLease));
    }
    assert!(world.air.now < Duration::from_secs(1));
}

#[test]
fn everything_ends_when_nothing_answers() {
    let mut world = World::new(7, BLOCKS as usize, Network { loss: 1.0, ..BAD });
    let silent = Err(Failure::Silent { doubtful: false });
    assert_eq!(world.write(0, vec![1; BLOCK]), silent);
    assert!(world.air.now <= Duration::from_secs(31));
    world.air.network = BAD;
    assert_eq!(world.write(0, vec![1; BLOCK]), Ok(()));
}
