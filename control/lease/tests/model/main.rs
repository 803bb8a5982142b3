//! The table against a slow and simple model, over random actions in any order.
//!
//! After every step both must show the same state of every lease and resource, name the same next deadline, and give
//! the same orders and the same answers; the invariants are checked too. `PROPTEST_CASES` is the number of random
//! lives.
#![cfg_attr(
    fuzzing,
    no_main,
    allow(dead_code, reason = "a fuzzer makes its own lives")
)]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod actions;
mod asking;
mod comparing;
#[cfg(not(fuzzing))]
mod found;
#[cfg(fuzzing)]
mod fuzzing;
mod happening;
mod invariants;
mod oracle;
#[cfg(not(fuzzing))]
mod restarts;

use std::{net::Ipv6Addr, sync::Arc};

use actions::{Action, Asker, Outcome, Peer, Step, Terms, Token, Wish};
use asking::peers;
use fabricbios_lease::*;
use fabricbios_wire::*;
use invariants::{
    Journal, Seen, invariant_a_binding_that_fails_takes_nothing, invariant_a_request_has_one_lease,
    invariant_bytes_have_one_holder, invariant_few_lingers, invariant_nobody_is_displaced,
    invariant_nothing_revives, invariant_permanent_means_never, invariant_the_deadline_is_ahead,
};
use oracle::{Keys, Limits, Oracle, Said};
use proptest::prelude::*;

const PAGE: u64 = 4096;
/// The amounts of the vector: pairs of pages, and functions, one for each lease.
const PAIRS: u64 = 3;
const FUNCTIONS: u64 = 2;
/// The amounts of a device: pages, compute slices, and sessions, one for each lease.
const DEVICE_PAGES: u64 = 8;
const SLICES: u16 = 3;
const SESSIONS: u64 = 3;
const BOOT: u64 = 1_000_000_000_000;
const UNIX_MS: u64 = 1_700_000_000_000;
const TENANTS: [&str; 3] = ["alice", "bob", "carol"];
const STRANGER: &str = "mallory";
const OPERATOR: &str = "root";

/// GIDs of ports of clients, and GIDs that belong to no port.
const PORTS: [&str; 3] = ["fe80::1", "2001:db8::1", "::ffff:192.0.2.1"];
const NOBODY: [&str; 8] = [
    "::",
    "::1",
    "ff02::1",
    "::ffff:224.0.0.1",
    "::ffff:239.255.255.255",
    "::ffff:255.255.255.255",
    "::ffff:0.0.0.0",
    "::ffff:127.0.0.1",
];

/// The offers of the node and the limits of its operator.
#[derive(Clone, Debug)]
struct World {
    offers: Vec<Offer>,
    limits: Limits,
}

impl World {
    /// A large arena with a tail shorter than a page; a smaller arena over one transport, whose bytes end with the
    /// process; an arena whose best transport takes no queue pair. A device of blocks; a directory of files; a
    /// read-only device; a device with separate leases that take several things at once. A GPU that leases share, and a
    /// GPU that they do not share.
    fn new(limits: Limits) -> Self {
        let (both, udp, nvme) = (Transport::Both, Transport::Udp, Transport::NvmeTcp);
        let offers = vec![
            lasting(offer(0xa0, 16 * PAGE + 100, &[Transport::Rdma, udp, both])),
            offer(0xb0, 10 * PAGE, &[udp]),
            lasting(offer(0xc0, 6 * PAGE, &[udp, both])),
            blocks(offer(0x1d0, 12 * PAGE, &[nvme, udp, both])),
            Offer {
                allocation_mode: AllocationMode::Amounts,
                ..blocks(offer(0x1e0, 6 * PAGE + 100, &[both, nvme, udp]))
            },
            Offer {
                read_only: true,
                ..blocks(offer(0x1f0, 3 * PAGE, &[nvme, udp]))
            },
            Offer {
                allocation_mode: AllocationMode::Vector(vec![
                    dimension("bytes", PAIRS * 2 * PAGE, Takes::Asked),
                    dimension("pairs", PAIRS, Takes::InProportion),
                    dimension("functions", FUNCTIONS, Takes::Each(1)),
                ]),
                fence_scope: FenceScope::Separate,
                ..blocks(offer(0x200, PAIRS * 2 * PAGE, &[udp, nvme]))
            },
            Offer {
                fence_scope: FenceScope::Whole,
                ..gpu(0x300, ClassState::Enforced, GpuExclusivityClass::Shared)
            },
            gpu(
                0x310,
                ClassState::Forbidden("by the operator".into()),
                GpuExclusivityClass::DeviceExclusive,
            ),
        ];
        Self { offers, limits }
    }

    /// A world with room for so many leases that not all cuts under way may linger.
    fn wide() -> Self {
        Self {
            offers: vec![offer(0xa0, 80 * PAGE, &[Transport::Rdma])],
            limits: Limits::PLENTY,
        }
    }

    fn policy(&self) -> Policy {
        Policy {
            leases_max: self.limits.leases,
            ended_max: self.limits.ended,
            tenant_leases_max: self.limits.tenant_leases,
            tenant_ended_max: self.limits.tenant_ended,
            tenant_binds_max: self.limits.tenant_binds,
            tenant_capacity_max: [(ResourceType::Mem, self.limits.tenant_bytes)].into(),
            attach_at: "192.0.2.10:7471".parse().ok(),
            ..Policy::default()
        }
    }

    fn table(&self) -> LeaseTable {
        let mut table = LeaseTable::new(self.policy());
        for offer in &self.offers {
            table.offer(kind_of(offer.resource_id), offer.clone());
        }
        table
    }

    fn resource(&self, arena: usize) -> ResourceId {
        let offer = self.offers.get(arena);
        offer.map_or(ResourceId(0xd0), |offer| offer.resource_id)
    }
}

fn offer(id: u128, capacity: u64, transports: &[Transport]) -> Offer {
    Offer {
        resource_id: ResourceId(id),
        capacity,
        align: PAGE,
        transports: transports.to_vec(),
        durability: Durability::Nothing,
        fence_scope: FenceScope::Whole,
        cut_within: None,
        allocation_mode: AllocationMode::Stretches,
        read_only: false,
        classes: None,
        rate: None,
        needs_vlan: None,
    }
}

/// The kind by the number: blocks have higher numbers than memory, and GPUs the highest.
fn kind_of(id: ResourceId) -> ResourceType {
    match id.0 {
        0x300.. => ResourceType::Gpu,
        0x100.. => ResourceType::Block,
        _ => ResourceType::Mem,
    }
}

fn gpu(id: u128, shared: ClassState, default: GpuExclusivityClass) -> Offer {
    let class = |class: GpuExclusivityClass, state| OfferedClass {
        class: class as u8,
        state,
    };
    Offer {
        allocation_mode: AllocationMode::Device(vec![
            dimension("vram", DEVICE_PAGES * PAGE, Takes::Asked),
            dimension(COMPUTE_SLICES, SLICES.into(), Takes::InProportion),
            dimension("sessions", SESSIONS, Takes::Each(1)),
        ]),
        classes: Some(ClassOffer {
            default: default as u8,
            classes: vec![
                class(GpuExclusivityClass::Shared, shared),
                class(GpuExclusivityClass::SessionExclusive, ClassState::Enforced),
                class(GpuExclusivityClass::DeviceExclusive, ClassState::Enforced),
            ],
        }),
        ..blocks(offer(id, DEVICE_PAGES * PAGE, &[]))
    }
}

fn blocks(offer: Offer) -> Offer {
    Offer {
        durability: Durability::Machine,
        fence_scope: FenceScope::Part,
        ..offer
    }
}

fn dimension(name: &str, capacity: u64, takes: Takes) -> Dimension {
    Dimension {
        name: name.into(),
        capacity,
        takes,
    }
}

fn lasting(offer: Offer) -> Offer {
    Offer {
        durability: Durability::Process,
        ..offer
    }
}

/// The table and its model, side by side.
struct Pair {
    world: World,
    table: LeaseTable,
    oracle: Oracle,
    seen: Seen,
    now: Now,
    /// Orders without a report yet.
    open: Vec<Order>,
    reported: Vec<Report>,
    /// All leases that were ever requested, with their tenants.
    ids: Vec<(LeaseId, &'static str)>,
    /// All requests for leases, with the numbers of their tenants.
    requests: Vec<(usize, LeaseAllocRequest)>,
    /// All attach codes that were ever asked for.
    codes: Vec<u128>,
    numbers: u32,
    copy: comparing::Follower,
}

impl Pair {
    fn new(world: World) -> Self {
        Self {
            table: world.table(),
            oracle: Oracle::new(BOOT, &world.offers, world.limits),
            world,
            seen: Seen::default(),
            now: Now {
                boot: BootTime(BOOT),
                unix_ms: UNIX_MS,
            },
            open: vec![],
            reported: vec![],
            ids: vec![],
            requests: vec![],
            codes: vec![],
            numbers: 0,
            copy: comparing::Follower::default(),
        }
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Alloc(wish) => self.alloc(wish),
            Action::Repeat(which, tenant) => self.repeat(which, tenant),
            Action::Renew(asker, who, lease_secs) => {
                let ask = |lease_id| Request::LeaseRenew {
                    lease_id,
                    lease_secs,
                };
                self.about(asker, who, ask);
            }
            Action::Free(asker, who) => self.about(asker, who, Request::LeaseFree),
            Action::Bind(asker, who, to) => {
                let peers = peers(to, self.number());
                if !peers.is_empty() {
                    self.about(asker, who, |lease_id| Request::LeaseBind {
                        lease_id,
                        peers,
                    });
                }
            }
            Action::Rotate(asker, who, overlap_ms) => {
                let ask = |lease_id| Request::LeaseRotate {
                    lease_id,
                    overlap_ms,
                };
                self.about(asker, who, ask);
            }
            Action::Join(asker, who, to) => {
                let peers = peers(to, self.number());
                if !peers.is_empty() {
                    let change = PeerChange::Add(peers);
                    self.about(asker, who, |lease_id| Request::LeasePeers {
                        lease_id,
                        change,
                    });
                }
            }
            Action::Leave(asker, who, number) => {
                let change = PeerChange::Remove(vec![number, number + 1]);
                self.about(asker, who, |lease_id| Request::LeasePeers {
                    lease_id,
                    change,
                });
            }
            Action::Attach(asker, who, times) => {
                (0..times).for_each(|_| self.about(asker, who, Request::LeaseAttach));
            }
            Action::Present(which) => self.present(which),
            Action::Revoke(asker, who) => self.about(asker, who, Request::LeaseRevoke),
            Action::ClearFence(asker, arena) => self.clear_fence(asker, arena),
            Action::Drain => self.drain(),
            Action::Paths(at_once) => self.oracle.at_once = at_once,
            Action::Pass(step) => self.pass(step),
            Action::Report(which, outcome) => self.report_open(which, outcome),
            Action::Again(which) => self.report_again(which),
            Action::Stray(which, outcome) => self.report_stray(which, outcome),
            Action::Moves(who) => self.report_progress(who),
            Action::Restart(step, run, left) => self.restart(step, run, left),
        }
    }
}

fn live(actions: &[Action]) {
    live_in(World::new(Limits::PLENTY), actions);
}

fn live_in(world: World, actions: &[Action]) {
    let mut pair = Pair::new(world);
    actions.iter().for_each(|&action| pair.act(action));
    pair.settle();
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_table_does_what_its_model_does(
        limits in actions::limits(),
        actions in prop::collection::vec(actions::action(), 1..120)
    ) {
        live_in(World::new(limits), &actions);
    }
}

proptest! {
    // Fewer cases, because each step looks at every lease.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: ProptestConfig::default().cases / 16,
        ..ProptestConfig::default()
    })]

    /// So many leases end at the same time that not all cuts may linger.
    #[test]
    fn a_crowd_is_cut_as_its_model_says(
        leases in 30..50usize,
        before in prop::collection::vec(actions::action(), 0..12),
        after in prop::collection::vec(actions::action(), 1..40),
    ) {
        let come = (0..leases).flat_map(actions::comes);
        let deadline = Action::Pass(Step::Millis(10_000));
        let life = come.chain(before).chain([deadline]).chain(after);
        live_in(World::wide(), &life.collect::<Vec<_>>());
    }
}
