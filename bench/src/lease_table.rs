//! The cost of the lease table with many idle leases: bytes per lease, and the time of its operations against a table
//! with few leases. The bench never waits: time is an argument, and the bench itself plays the providers. So it
//! measures the CPU time of its thread, which a busy machine disturbs less.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use fabricbios_lease::{
    AllocationMode, Asked, BindingId, BootTime, Durability, Effect, FenceScope, LeaseTable, Now,
    Offer, Order, Policy, Proof, Report, Ticket,
};
use fabricbios_wire::{
    Binding, KindBinding, LeaseAllocRequest, LeaseId, LeaseTerms, MemTerms, RdmaBinding, RdmaPeer,
    RdmaStrategy, Request, ResourceId, ResourceType, Role, Transport,
};
use nix::time::{ClockId, clock_gettime};

use crate::figure::{Better, Of, record};
use crate::heap::live_bytes;
use crate::pairs::{Pairs, interleaved_pairs};
use crate::report::Spread;

const PAGE: u64 = 4096;

/// Bytes that the design allows per lease.
const LEASE_BYTES_MAX: f64 = 1024.0;

/// Term of idle leases, seconds: longer than every round.
const IDLE_SECS: u32 = 30 * 24 * 3600;

pub(crate) const SHORT_SECS: u32 = 10;

/// How long ended leases are kept: a short time, so that each round begins with the same table.
const KEEP_ENDED: Duration = Duration::from_secs(1);

const TENANTS: usize = 100;

const IDLE_TICKS: u32 = 10_000;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Idle leases in the large table
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    leases: u32,
    /// Idle leases in the small table
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    few: u32,
    /// Leases that are granted, renewed and expire in each round
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    due: u32,
    /// Pairs of rounds
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let before = live_bytes();
    let mut large = Subject::with_idle(options.leases, options.due);
    let each = (live_bytes() - before) as f64 / f64::from(options.leases);
    let verdict = if each <= LEASE_BYTES_MAX {
        "within"
    } else {
        "over"
    };
    println!("bytes per idle lease: {each:.0}, {verdict} the design's {LEASE_BYTES_MAX}");
    let of = Of {
        name: "lease-table/bytes",
        what: &format!(
            "memory of an idle lease in the table, {} of them",
            options.leases
        ),
        unit: "bytes",
        better: Better::Lower,
    };
    record(of.alone(each))?;
    let mut few = Subject::with_idle(options.few, options.due);
    let mut costs = (vec![], vec![]);
    let round = |subject: &mut Subject, costs: &mut Vec<Round>| {
        let start = cpu_time()?;
        costs.push(subject.round(options.due)?);
        Ok(cpu_time()? - start)
    };
    interleaved_pairs(
        options.rounds.into(),
        || round(&mut large, &mut costs.0),
        || round(&mut few, &mut costs.1),
    )?;
    for operation in Operation::ALL {
        let of = |costs: &[Round]| costs.iter().map(|round| round.of(operation)).collect();
        let pairs = Pairs {
            a: of(&costs.0),
            b: of(&costs.1),
        };
        let times = match operation {
            Operation::IdleTick => IDLE_TICKS,
            _ => options.due,
        };
        print_operation(operation, &pairs, times, options);
        let nanos = |rounds: &[Duration]| -> Vec<f64> {
            let each = |it: &Duration| it.as_secs_f64() * 1e9 / f64::from(times);
            rounds.iter().map(each).collect()
        };
        let of = Of {
            name: &format!("lease-table/{}", operation.figure()),
            what: &format!("the table with {} leases: {operation}", options.leases),
            unit: "ns",
            better: Better::Lower,
        };
        let peer = format!("with {} leases", options.few);
        record(of.compared(&nanos(&pairs.a), &peer, &nanos(&pairs.b)))?;
    }
    Ok(())
}

fn print_operation(operation: Operation, pairs: &Pairs, times: u32, options: &Options) {
    println!("{operation}");
    for (leases, rounds) in [(options.leases, &pairs.a), (options.few, &pairs.b)] {
        let nanos = |round: &Duration| round.as_secs_f64() * 1e9 / f64::from(times);
        if let Some(spread) = Spread::of(rounds.iter().map(nanos)) {
            println!("    with {leases} leases: ns {spread}");
        }
    }
    if let Some(ratio) = pairs.ratio() {
        println!("    ratio: {ratio}");
    }
}

#[derive(Clone, Copy)]
enum Operation {
    Grant,
    Renew,
    DueTick,
    End,
    IdleTick,
}

impl Operation {
    const ALL: [Self; 5] = [
        Self::Grant,
        Self::Renew,
        Self::DueTick,
        Self::End,
        Self::IdleTick,
    ];

    fn figure(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::Renew => "renew",
            Self::DueTick => "due-tick",
            Self::End => "end",
            Self::IdleTick => "idle-tick",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grant => "grant: the request and the report of its bind",
            Self::Renew => "renewal",
            Self::DueTick => "tick in which leases fall due, for each of them",
            Self::End => "end: the reports of the cut and of the release",
            Self::IdleTick => "tick with nothing due",
        })
    }
}

/// The total time of each operation in a round.
#[derive(Default)]
struct Round {
    times: [Duration; Operation::ALL.len()],
}

impl Round {
    fn of(&self, operation: Operation) -> Duration {
        self.times[operation as usize]
    }

    fn time<T>(&mut self, operation: Operation, work: impl FnOnce() -> T) -> anyhow::Result<T> {
        let start = cpu_time()?;
        let result = work();
        self.times[operation as usize] = cpu_time()? - start;
        Ok(result)
    }
}

/// CPU time of this thread.
fn cpu_time() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

pub(crate) struct Subject {
    pub(crate) table: LeaseTable,
    pub(crate) now: Now,
    tenants: Vec<Arc<str>>,
    numbers: u64,
}

impl Subject {
    /// A table with `leases` leases that stay in use.
    pub(crate) fn with_idle(leases: u32, due: u32) -> Self {
        let policy = Policy {
            lease_secs_max: IDLE_SECS,
            keep_ended: KEEP_ENDED,
            leases_max: leases as usize + due as usize,
            tenant_leases_max: usize::MAX,
            ..Policy::default()
        };
        let mut table = LeaseTable::new(policy);
        table.offer(ResourceType::Mem, arena(u64::from(leases) + u64::from(due)));
        let mut subject = Self {
            table,
            now: Now {
                boot: BootTime(1),
                unix_ms: 1_700_000_000_000,
            },
            tenants: (0..TENANTS).map(tenant).collect(),
            numbers: 0,
        };
        for _ in 0..leases {
            subject.pass(Duration::from_micros(1));
            subject.grant(IDLE_SECS);
        }
        subject
    }

    /// Takes some leases through their whole life, from the grant to the removal of their record.
    fn round(&mut self, due: u32) -> anyhow::Result<Round> {
        let mut round = Round::default();
        let binding_ids: Vec<BindingId> = round.time(Operation::Grant, || {
            (0..due).map(|_| self.grant(SHORT_SECS)).collect()
        })?;
        self.pass(Duration::from_millis(8_500));
        round.time(Operation::Renew, || {
            binding_ids
                .iter()
                .for_each(|binding_id| self.renew(*binding_id));
        })?;
        self.now.boot = self.now.boot + Duration::from_secs(SHORT_SECS.into());
        round.time(Operation::DueTick, || self.table.on_tick(self.now))?;
        assert_eq!(self.orders().len(), binding_ids.len(), "all fell due");
        round.time(Operation::End, || {
            binding_ids
                .iter()
                .for_each(|binding_id| self.end(*binding_id));
        })?;
        self.pass(KEEP_ENDED);
        let nothing_due = || (0..IDLE_TICKS).for_each(|_| self.pass(Duration::from_nanos(1)));
        round.time(Operation::IdleTick, nothing_due)?;
        Ok(round)
    }

    fn pass(&mut self, span: Duration) {
        self.now.boot = self.now.boot + span;
        self.table.on_tick(self.now);
        self.drop_effects();
    }

    pub(crate) fn orders(&mut self) -> Vec<Order> {
        let mut orders = vec![];
        while let Some(effect) = self.table.poll_effect() {
            if let Effect::Order { order, .. } = effect {
                orders.push(self.heard(order));
            }
        }
        orders
    }

    fn drop_effects(&mut self) {
        while let Some(effect) = self.table.poll_effect() {
            if let Effect::Order { order, .. } = effect {
                self.heard(order);
            }
        }
    }

    /// Acknowledges a deadline at once, as paths in the node's process do.
    pub(crate) fn heard(&mut self, order: Order) -> Order {
        if let Order::Extend(binding_id, deadline) = order {
            let agreed = Report::Extended(binding_id, deadline, Ok(()));
            self.table.on_report(self.now, self.now.boot, agreed);
        }
        order
    }

    pub(crate) fn ask(&mut self, tenant: usize, fresh_id: LeaseId, request: Request) {
        let asked = Asked {
            ticket: Ticket(self.numbers),
            tenant: self.tenants[tenant % TENANTS].clone(),
            role: Role::Tenant,
            fresh_id,
            request,
        };
        self.table.on_request(self.now, &asked);
    }

    pub(crate) fn grant(&mut self, secs: u32) -> BindingId {
        self.numbers += 1;
        let id = scattered(self.numbers);
        self.ask(owner(id), id, Request::LeaseAlloc(wanted(secs)));
        let binding_id = { self.orders().into_iter() }.find_map(|order| match order {
            Order::Bind(order) => Some(order.binding_id),
            _ => None,
        });
        let binding_id = binding_id.expect("the arena has room for all of them");
        let report = Report::Bind(binding_id, Ok(binding()));
        self.table.on_report(self.now, self.now.boot, report);
        self.drop_effects();
        binding_id
    }

    fn renew(&mut self, binding_id: BindingId) {
        let lease_id = binding_id.lease_id;
        let lease_secs = SHORT_SECS;
        let request = Request::LeaseRenew {
            lease_id,
            lease_secs,
        };
        self.ask(owner(lease_id), LeaseId(0), request);
        self.drop_effects();
    }

    pub(crate) fn end(&mut self, binding_id: BindingId) {
        let mut proof = Proof::default();
        proof.add("restrack", Duration::from_micros(100), "gone");
        self.table
            .on_report(self.now, self.now.boot, Report::Cut(binding_id, Ok(proof)));
        self.drop_effects();
        self.table.on_report(
            self.now,
            self.now.boot,
            Report::Release(binding_id, Ok(Proof::default())),
        );
        self.drop_effects();
    }
}

fn tenant(number: usize) -> Arc<str> {
    Arc::from(format!("tenant-{number}"))
}

/// Lease ids are random, so each has another place in the table (splitmix64's finish, twice).
fn scattered(number: u64) -> LeaseId {
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    };
    let high = mix(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    LeaseId(u128::from(high) << 64 | u128::from(mix(high ^ number)))
}

pub(crate) fn owner(id: LeaseId) -> usize {
    usize::try_from(id.0 % TENANTS as u128).unwrap_or(0)
}

fn arena(pages: u64) -> Offer {
    Offer {
        resource_id: ResourceId(0xa),
        capacity: pages * PAGE,
        align: PAGE,
        transports: vec![Transport::Rdma],
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

pub(crate) fn wanted(lease_secs: u32) -> LeaseAllocRequest {
    LeaseAllocRequest {
        terms: LeaseTerms::Mem(MemTerms {
            rdma_peers: vec![RdmaPeer {
                qpn: 17,
                psn: 3,
                gid: [1; 16],
                path_mtu: 0,
            }],
        }),
        ..LeaseAllocRequest::new(ResourceType::Mem, PAGE, lease_secs)
    }
}

pub(crate) fn binding() -> Binding {
    Binding {
        kind: KindBinding::Mem(Some(RdmaBinding {
            rkey: Some(7),
            remote_addr: 0x1000,
            qp_num: 18,
            gid: [2; 16],
            port: 1,
            psn: 4,
            path_mtu: 1024,
            strategy: RdmaStrategy::Window,
            previous: None,
            max_rd_atomic: 16,
            atomics: true,
            further: Vec::new(),
            prepared_rkey: None,
            attach: None,
        })),
        ..Binding::plain(ResourceType::Mem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the bench does not measure refusals.
    #[test]
    fn each_round_grants_renews_ends_and_forgets() {
        let mut subject = Subject::with_idle(50, 10);
        for _ in 0..3 {
            let before = subject.numbers;
            subject.round(10).unwrap();
            assert_eq!(subject.numbers, before + 10);
            assert_eq!(subject.table.records(), 50);
        }
    }
}
