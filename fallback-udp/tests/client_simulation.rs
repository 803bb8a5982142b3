//! The client's protocol against the real engine, over a simulated network that loses, delays, reorders, repeats and
//! damages datagrams, and against nodes that restart: bytes are never wrong, and every transfer ends.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "numbers of a test, which ends where they are not as expected"
)]

mod client_world;
mod served;

use std::time::Duration;

use client_world::{Network, World};
use fabricbios_fallback_udp::transfer::{Failure, Work};

const SEEDS: u64 = 24;
const LEASE: usize = 96 * 1024;

const BAD: Network = Network {
    loss: 0.05,
    copies: 0.05,
    damage: 0.02,
    late: 0.10,
    ..Network::GOOD
};

/// Writes and reads at random places; a model has the bytes that must be there.
fn random_work(world: &mut World, rounds: usize) {
    let mut model = world.memory();
    for round in 0..rounds {
        let start = world.random.below(LEASE as u64) as usize;
        let most = (LEASE - start).min(40_000);
        let range = start..start + world.random.below(most as u64 + 1) as usize;
        if world.random.chance(0.6) {
            let bytes: Vec<u8> = range.clone().map(|_| world.random.next() as u8).collect();
            world.write(range.start, &bytes).unwrap();
            model[range.clone()].copy_from_slice(&bytes);
            assert_eq!(world.memory(), model, "round {round}, {range:?}");
        } else {
            assert_eq!(
                world.read(range.clone()).unwrap(),
                model[range],
                "round {round}"
            );
        }
    }
    world.let_everything_arrive();
    assert_eq!(world.memory(), model, "what was late changed something");
}

#[test]
fn a_good_network_needs_no_retry() {
    let mut world = World::new(1, LEASE, Network::GOOD);
    random_work(&mut world, 40);
    let statistics = world.requester.statistics();
    assert_eq!((statistics.retried, statistics.sessions), (0, 1));
}

#[test]
fn bytes_are_right_over_a_bad_network() {
    for seed in 0..SEEDS {
        random_work(&mut World::new(seed, LEASE, BAD), 30);
    }
}

#[test]
fn bytes_are_right_where_a_third_is_lost_and_copies_come_seconds_later() {
    let network = Network {
        loss: 0.3,
        copies: 0.3,
        late: 0.3,
        latest: Duration::from_secs(5),
        ..BAD
    };
    for seed in 0..SEEDS / 3 {
        random_work(&mut World::new(seed, LEASE, network), 12);
    }
}

#[test]
fn bytes_are_right_when_the_server_starts_again_with_another_key() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, LEASE, BAD);
        world.restarts = vec![
            Duration::from_millis(world.random.below(200)),
            Duration::from_millis(300 + world.random.below(3000)),
        ];
        random_work(&mut world, 20);
        world.network = Network::GOOD;
        random_work_continues(&mut world);
        assert!(world.restarts.is_empty());
    }
}

fn random_work_continues(world: &mut World) {
    while !world.restarts.is_empty() {
        let bytes = [world.random.next() as u8; 3000];
        world.write(100, &bytes).unwrap();
        assert_eq!(world.read(100..3100).unwrap(), bytes);
    }
}

#[test]
fn bytes_are_right_across_rotations_announced_and_not() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, LEASE, BAD);
        world.rotations = (1..8).map(|n| Duration::from_millis(n * 150)).collect();
        random_work(&mut world, 20);
    }
}

#[test]
fn bytes_are_right_with_partitions_in_the_middle() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, LEASE, BAD);
        let begin = Duration::from_millis(world.random.below(300));
        let length = Duration::from_millis(100 + world.random.below(20_000));
        world.partition = begin..begin + length;
        random_work(&mut world, 15);
    }
}

#[test]
fn a_shorter_path_is_found_out_and_followed() {
    for seed in 0..SEEDS / 3 {
        let mut world = World::new(seed, LEASE, BAD);
        random_work(&mut world, 3);
        assert_eq!(world.requester.path_mtu(), Some(9000));
        world.network.mtu = 1500;
        random_work(&mut world, 3);
        assert_eq!(world.requester.path_mtu(), Some(1500));
    }
}

#[test]
fn what_is_lost_again_and_again_does_not_fall_out_of_the_servers_window() {
    let mut world = World::new(0, 4 << 20, Network::GOOD);
    // In this time several hundred other requests are answered.
    world.swallowed = Some((40, Duration::from_millis(15)));
    let bytes = vec![0x55; 4 << 20];
    world.write(0, &bytes).unwrap();
    assert_eq!(world.memory(), bytes);
    let statistics = world.requester.statistics();
    assert_eq!((statistics.answered, statistics.sessions), (474, 1));
}

#[test]
fn a_write_that_was_given_up_is_never_done_after_a_later_one() {
    for seed in 0..SEEDS {
        let held = Network {
            latest: Duration::from_secs(50),
            late: 0.5,
            loss: 0.3,
            ..BAD
        };
        let mut world = World::new(seed, LEASE, held);
        let old = vec![0xaa; 50_000];
        let time = Duration::from_millis(world.random.below(60));
        world.give_up_within(time, &old);
        world.network = BAD;
        let new = vec![0x55; 50_000];
        world.write(0, &new).unwrap();
        world.let_everything_arrive();
        assert_eq!(world.memory()[..50_000], new, "seed {seed}");
    }
}

#[test]
fn two_clients_of_one_lease_leave_each_other_alone() {
    for seed in 0..SEEDS / 3 {
        let mut world = World::new(seed, LEASE, BAD);
        let mut other = world.another_client();
        for round in 0..10 {
            let mine = vec![round; 20_000];
            let theirs = vec![0x80 | round; 20_000];
            world.write(0, &mine).unwrap();
            world.swap_client(&mut other);
            world.write(20_000, &theirs).unwrap();
            world.swap_client(&mut other);
            if round == 5 {
                world.restart();
            }
            assert_eq!(world.memory()[..20_000], mine);
            assert_eq!(world.memory()[20_000..40_000], theirs);
        }
    }
}

#[test]
fn it_ends_when_nothing_answers() {
    let mut world = World::new(7, LEASE, Network { loss: 1.0, ..BAD });
    let failure = world.write(0, &[1; 5000]).unwrap_err();
    assert_eq!(failure, Failure::Silent { doubtful: false });
    assert!(world.now <= Duration::from_secs(31));
}

#[test]
fn it_ends_when_the_key_is_wrong_and_nobody_knows_a_better_one() {
    let mut world = World::new(7, LEASE, Network::GOOD);
    world.refreshes = false;
    world.restart();
    let failure = world.write(0, &[1; 5000]).unwrap_err();
    assert_eq!(failure, Failure::Silent { doubtful: true });
    assert_eq!(world.memory(), vec![0; LEASE]);
}

#[test]
fn it_ends_at_once_when_the_lease_is_over() {
    let mut world = World::new(7, LEASE, Network::GOOD);
    world.write(0, &[1; 5000]).unwrap();
    world.end_lease();
    assert_eq!(world.write(0, &[2; 5000]), Err(Failure::NoLease));
    assert_eq!(world.read(0..1), Err(Failure::NoLease));
    assert!(world.now < Duration::from_secs(1));
}

#[test]
fn what_is_outside_of_the_lease_is_refused_whole() {
    let mut world = World::new(7, LEASE, BAD);
    let resource_len = LEASE as u64;
    let outside = Err(Failure::OutOfRange { resource_len });
    assert_eq!(world.write(LEASE - 10_000, &[1; 10_001]), outside);
    assert_eq!(world.memory(), vec![0; LEASE]);
    assert_eq!(
        world.run(|| Work::Write {
            offset: u64::MAX,
            from: &[1]
        }),
        outside
    );
}

#[test]
fn ping_needs_no_session() {
    let mut world = World::new(7, LEASE, BAD);
    world.run(|| Work::Ping).unwrap();
    assert_eq!(world.requester.statistics().sessions, 0);
}

#[test]
fn somebody_without_the_key_ends_nothing() {
    let mut world = World::new(7, LEASE, Network::GOOD);
    world.forger = true;
    random_work(&mut world, 20);
}

#[test]
fn a_server_that_is_busy_slows_a_client_down_and_loses_nothing() {
    let mut world = World::new(7, LEASE, Network::GOOD);
    world.limit_rate(200, 8);
    random_work(&mut world, 10);
    assert!(world.requester.statistics().retried > 0);
}
