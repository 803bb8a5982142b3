//! The table against a slow and simple model of it, over whatever can happen in whatever order.
//!
//! After every step both must tell the same of every lease and resource, name the same next
//! deadline, give the same orders and the same answers; the invariants are checked besides.
//! `PROPTEST_CASES` says how many lives of a node are tried.
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

mod actions;
mod found;
mod invariants;
mod oracle;

use std::{net::Ipv6Addr, sync::Arc};

use actions::{Action, Asker, Outcome, Peer, Step, Wish};
use fabricbios_lease::*;
use fabricbios_wire::*;
use invariants::{
    Journal, Seen, invariant_bytes_have_one_holder, invariant_few_farewells,
    invariant_nothing_revives, invariant_permanent_means_never, invariant_the_deadline_is_ahead,
};
use oracle::{Keys, Limits, Oracle, Said};
use proptest::prelude::*;

const PAGE: u64 = 4096;
const BOOT: u64 = 1_000_000_000_000;
const UNIX_MS: u64 = 1_700_000_000_000;
const TENANTS: [&str; 3] = ["alice", "bob", "carol"];
const STRANGER: &str = "mallory";
const OPERATOR: &str = "root";

/// What a client's port is called, and what no port is.
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

/// Who can have what.
#[derive(Clone, Debug)]
struct World {
    offers: Vec<Offer>,
    limits: Limits,
}

impl World {
    /// A large arena with a tail that is no page, a smaller one over one road only whose bytes die with
    /// the process, and one whose best road takes no queue pair.
    fn new(limits: Limits) -> Self {
        let (both, udp) = (Transport::Both, Transport::Udp);
        let offers = vec![
            lasting(offer(0xa0, 16 * PAGE + 100, &[Transport::Rdma, udp, both])),
            offer(0xb0, 10 * PAGE, &[udp]),
            lasting(offer(0xc0, 6 * PAGE, &[udp, both])),
        ];
        Self { offers, limits }
    }

    /// Room for so many that not all can be told goodbye at once.
    fn wide() -> Self {
        Self {
            offers: vec![offer(0xa0, 80 * PAGE, &[Transport::Rdma])],
            limits: Limits::PLENTY,
        }
    }

    fn policy(&self) -> Policy {
        Policy {
            records_max: self.limits.records,
            tenant_records_max: self.limits.tenant_records,
            tenant_binds_max: self.limits.tenant_binds,
            ..Policy::default()
        }
    }

    fn table(&self) -> LeaseTable {
        let mut table = LeaseTable::new(self.policy());
        for offer in &self.offers {
            table.offer(ResourceType::Mem, offer.clone());
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
        outlives_process: false,
    }
}

fn lasting(offer: Offer) -> Offer {
    Offer {
        outlives_process: true,
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
    /// Ordered and not reported yet.
    open: Vec<Order>,
    reported: Vec<Report>,
    /// All leases that ever were asked for, with their tenants.
    ids: Vec<(LeaseId, &'static str)>,
    numbers: u32,
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
            numbers: 0,
        }
    }

    fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Alloc(wish) => self.alloc(wish),
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
            Action::Revoke(asker, who) => self.about(asker, who, Request::LeaseRevoke),
            Action::ClearFence(asker, arena) => self.clear_fence(asker, arena),
            Action::Drain => self.drain(),
            Action::Pass(step) => self.pass(step),
            Action::Report(which, outcome) => self.report_open(which, outcome),
            Action::Again(which) => self.report_again(which),
            Action::Stray(which, outcome) => self.report_stray(which, outcome),
            Action::Moves(who) => self.report_progress(who),
            Action::Restart(step, same_boot, left) => self.restart(step, same_boot, left),
        }
    }
}

/// Requests.
impl Pair {
    fn ask(&mut self, tenant: &str, asker: Asker, fresh_id: LeaseId, request: Request) -> Ticket {
        let ticket = Ticket(self.number().into());
        self.seen.asked.insert(ticket, about(&request));
        let role = match asker {
            Asker::Operator => Role::Operator,
            _ => Role::Tenant,
        };
        let asked = Asked {
            ticket,
            tenant: Arc::from(tenant),
            role,
            fresh_id,
            request,
        };
        self.table.on_request(self.now, &asked);
        ticket
    }

    fn alloc(&mut self, wish: Wish) {
        let tenant = TENANTS[wish.tenant];
        // Ids are random: their order is not the order of time.
        let id = LeaseId(u128::from(self.number().reverse_bits()));
        let named = wish.arena.map(|arena| self.world.resource(arena));
        let wanted = wanted(wish, named, self.numbers);
        let request = Request::LeaseAlloc(wanted.clone());
        self.ids.push((id, tenant));
        let ticket = self.ask(tenant, Asker::Holder, id, request);
        let effects = self.effects();
        let extent = effects.iter().find_map(|effect| match effect {
            Effect::Order(Order::Bind(order)) if order.tag.lease_id == id => Some(order.extent),
            _ => None,
        });
        for effect in &effects {
            if let Effect::Answer { answer, .. } = effect {
                invariant_permanent_means_never(answer, &wanted, &self.world.offers);
            }
        }
        self.oracle.alloc(ticket, tenant, id, &wanted, extent);
        self.compare(effects);
    }

    fn about(&mut self, asker: Asker, who: usize, request: impl FnOnce(LeaseId) -> Request) {
        // Mostly about what is on record, so that most requests have something to do.
        let known: Vec<_> = { self.oracle.leases.iter() }
            .map(|lease| (lease.id, lease.tenant.clone()))
            .collect();
        let ids = self.ids.iter().map(|&(id, tenant)| (id, tenant.to_owned()));
        let all: Vec<_> = known.into_iter().chain(ids).collect();
        let Some((id, holder)) = all.get(who % all.len().max(1)) else {
            return;
        };
        let tenant = match asker {
            Asker::Holder => holder,
            Asker::Stranger => STRANGER,
            Asker::Operator => OPERATOR,
        };
        let request = request(*id);
        let ticket = self.ask(tenant, asker, LeaseId(0), request.clone());
        let effects = self.effects();
        let oracle = &mut self.oracle;
        match request {
            Request::LeaseRenew { lease_secs, .. } => oracle.renew(ticket, asker, *id, lease_secs),
            Request::LeaseFree(_) => oracle.free(ticket, asker, *id),
            Request::LeaseBind { peers, .. } => oracle.bind(ticket, asker, *id, &peers),
            Request::LeaseRotate { overlap_ms, .. } => {
                oracle.rotate(ticket, asker, *id, overlap_ms);
            }
            _ => oracle.revoke(ticket, asker, *id),
        }
        self.compare(effects);
    }

    fn clear_fence(&mut self, asker: Asker, arena: usize) {
        let id = self.world.resource(arena);
        let request = Request::FenceClear(id);
        let ticket = self.ask(OPERATOR, asker, LeaseId(0), request);
        let effects = self.effects();
        self.oracle.clear_fence(ticket, asker, id);
        self.compare(effects);
    }
}

/// Time and reports.
impl Pair {
    fn drain(&mut self) {
        self.table.on_drain(self.now);
        let effects = self.effects();
        self.oracle.drain();
        self.compare(effects);
    }

    fn pass(&mut self, step: Step) {
        self.set_clock(self.after(step));
        self.table.on_tick(self.now);
        let effects = self.effects();
        self.oracle.pass_to(self.now.boot.0);
        self.compare(effects);
    }

    fn after(&self, step: Step) -> u64 {
        let now = self.now.boot.0;
        let due = self.table.next_deadline().map_or(now, |at| at.0);
        match step {
            Step::Nanos(ns) => now + ns,
            Step::Millis(ms) => now + ms * 1_000_000,
            Step::Due => due,
            Step::AlmostDue => (due - 1).max(now),
            Step::Renewable(who, before) => self
                .renewable(who)
                .map_or(now, |at| if before { at - 1 } else { at }),
        }
    }

    fn renewable(&self, who: usize) -> Option<u64> {
        let at = self.oracle.leases.iter().map(oracle::Held::renewable_at);
        let ahead: Vec<u64> = at.filter(|&at| at > self.now.boot.0).collect();
        ahead.get(who % ahead.len().max(1)).copied()
    }

    fn set_clock(&mut self, boot: u64) {
        self.now = Now {
            boot: BootTime(boot),
            unix_ms: UNIX_MS + (boot - BOOT) / 1_000_000,
        };
    }

    fn report(&mut self, report: Report) {
        self.table.on_report(self.now, report.clone());
        let effects = self.effects();
        self.seen.report(&report);
        self.oracle.report(&report);
        self.compare(effects);
    }

    fn report_open(&mut self, which: usize, outcome: Outcome) {
        if self.open.is_empty() {
            return;
        }
        let which = which % self.open.len();
        let number = self.number();
        let report = outcome_of(&self.open[which], outcome, number, &self.oracle);
        if !matches!(report, Report::ReleaseProgress(_)) {
            self.open.remove(which);
            self.reported.push(report.clone());
        }
        self.report(report);
    }

    /// A report that comes twice changes nothing; unless it can be taken for that of an order that
    /// has not been reported yet, which nobody could tell.
    fn report_again(&mut self, which: usize) {
        let Some(report) = self
            .reported
            .get(which % self.reported.len().max(1))
            .cloned()
        else {
            return;
        };
        if !self.open.iter().any(|order| answers(&report, order)) {
            self.table.on_report(self.now, report);
            let effects = self.effects();
            self.compare(effects);
        }
    }

    fn report_stray(&mut self, which: usize, outcome: Outcome) {
        let Some(order) = self.open.get(which % self.open.len().max(1)) else {
            return;
        };
        let mut report = outcome_of(order, outcome, 0, &self.oracle);
        match &mut report {
            Report::Bind(tag, _)
            | Report::Rotate(tag, _)
            | Report::RetireKey(tag, _)
            | Report::Cut(tag, _)
            | Report::ReleaseProgress(tag)
            | Report::Release(tag, _) => {
                let Generation(right) = tag.generation;
                tag.generation = Generation(if which < 32 { right - 1 } else { right + 1 });
            }
            Report::Reset(id, _) => id.0 += 7,
        }
        self.table.on_report(self.now, report);
        let effects = self.effects();
        self.compare(effects);
    }

    fn report_progress(&mut self, who: usize) {
        let leases = &self.oracle.leases;
        let Some(lease) = leases.get(who % leases.len().max(1)) else {
            return;
        };
        let tag = Tag {
            lease_id: lease.id,
            generation: lease.generation(),
            resource_id: self.oracle.arenas[lease.arena].id,
        };
        self.report(Report::ReleaseProgress(tag));
    }

    /// Everything is reported, every fence is cleared, all time passes.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            if !self.open.is_empty() {
                self.report_open(0, Outcome::Fine);
            } else if !self.table.fences().is_empty() {
                let fenced = |arena: &usize| self.oracle.arenas[*arena].fenced();
                self.clear_fence(Asker::Operator, (0..3).find(fenced).unwrap());
            } else if self.table.next_deadline().is_some() {
                self.pass(Step::Due);
            } else {
                return self.nothing_is_left();
            }
        }
        panic!("it never settles: {:#?}", self.oracle);
    }

    fn nothing_is_left(&mut self) {
        self.seen.invariant_every_ticket_was_answered();
        assert_eq!((self.table.records(), self.oracle.leases.len()), (0, 0));
        for (arena, offer) in self.table.availability().zip(&self.world.offers) {
            assert_eq!(arena.available, offer.capacity / PAGE * PAGE);
        }
    }
}

/// The daemon dies and comes back.
impl Pair {
    fn restart(&mut self, step: Step, same_boot: bool, left: usize) {
        let before = self.list(OPERATOR, Asker::Operator, true);
        let then = self.now.boot.0;
        self.set_clock(self.after(step));
        self.restart_after_a_worse_crash(same_boot, left);
        self.seen.restart();
        self.open.clear();
        self.reported.clear();
        self.table = restored(&self.world, &self.seen.journal, self.now, same_boot);
        let effects = self.effects();
        self.oracle.restart(self.now.boot.0, same_boot);
        self.compare(effects);
        let after = self.list(OPERATOR, Asker::Operator, true);
        let pause_ms = (self.now.boot.0 - then) / 1_000_000;
        invariant_nothing_revives(&before, &after, pause_ms, same_boot);
        invariant_bytes_have_one_holder(&self.table, &self.world.offers);
    }

    /// The disk had only some of the changes.
    fn restart_after_a_worse_crash(&self, same_boot: bool, left: usize) {
        let changes = &self.seen.changes;
        let left = left % (changes.len() + 1);
        let mut journal = Journal::default();
        changes[..left]
            .iter()
            .for_each(|change| journal.apply(change));
        let table = restored(&self.world, &journal, self.now, same_boot);
        invariant_bytes_have_one_holder(&table, &self.world.offers);
    }
}

fn restored(world: &World, journal: &Journal, now: Now, same_boot: bool) -> LeaseTable {
    let mut table = world.table();
    for record in journal.leases.values() {
        table.restore_lease(now, record.clone(), same_boot);
    }
    for fence in journal.fences.values() {
        table.restore_fence(now, fence.clone(), !same_boot);
    }
    table
}

/// Comparison.
impl Pair {
    fn effects(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.table.poll_effect()).collect()
    }

    fn compare(&mut self, effects: Vec<Effect>) {
        self.compare_effects(effects);
        let next = self.table.next_deadline();
        assert_eq!(next.map(|at| at.0), self.oracle.next_deadline(), "deadline");
        invariant_the_deadline_is_ahead(next, self.now.boot);
        let told = self.list(OPERATOR, Asker::Operator, true);
        let live = self.list(OPERATOR, Asker::Operator, false);
        self.compare_tenants(&told, &live);
        self.compare_leases(&told, &live);
        self.compare_arenas();
        self.compare_fences();
        self.seen
            .invariant_extents_are_disjoint(&live, &self.world.offers);
        invariant_few_farewells(&self.open, &live);
        let fences = self.table.fences();
        self.seen.invariant_the_journal_replays(&told, &fences);
        let told = told.iter();
        told.for_each(|info| self.seen.invariant_ended_is_told_after_the_proof(info));
    }

    fn compare_effects(&mut self, effects: Vec<Effect>) {
        let fences = self.table.fences();
        let (mut orders, mut answers) = (vec![], vec![]);
        for effect in effects {
            match effect {
                Effect::Order(order) => {
                    self.seen.order(&order, &self.open, &fences);
                    // Nobody reports on what is only said.
                    if !matches!(order, Order::Extend(..) | Order::Fenced(_)) {
                        self.open.push(order.clone());
                    }
                    orders.push(order);
                }
                Effect::Journal(change) => self.seen.write(change),
                Effect::Answer { ticket, answer, .. } => {
                    self.seen.answer(ticket, &answer, self.now.boot);
                    answers.push((ticket, Said::of(&answer)));
                }
                Effect::Note(_) => {}
            }
        }
        let mut expected = std::mem::take(&mut self.oracle.answers);
        answers.sort();
        expected.sort();
        assert_eq!(answers, expected, "answers");
        let sorted = |mut orders: Vec<Order>| {
            for order in &mut orders {
                if let Order::Reset(_, leases) = order {
                    leases.sort_by_key(|(tag, _)| tag.lease_id);
                }
            }
            let mut orders: Vec<_> = orders.iter().map(|order| format!("{order:?}")).collect();
            orders.sort();
            orders
        };
        let expected = std::mem::take(&mut self.oracle.orders);
        assert_eq!(sorted(orders), sorted(expected), "orders");
    }

    fn look(&mut self, tenant: &str, asker: Asker, request: Request) -> Answer {
        let ticket = self.ask(tenant, asker, LeaseId(0), request);
        self.seen.asked.remove(&ticket);
        let mut effects = self.effects();
        effects.retain(|effect| !matches!(effect, Effect::Note(_)));
        assert_eq!(effects.len(), 1, "looking changes nothing: {effects:?}");
        match effects.pop() {
            Some(Effect::Answer { answer, .. }) => answer,
            other => panic!("an answer, not {other:?}"),
        }
    }

    fn list(&mut self, tenant: &str, asker: Asker, ended: bool) -> Vec<LeaseInfo> {
        let mut leases = vec![];
        let mut after = Some(LeaseId(0));
        while let Some(last) = after {
            let request = Request::LeaseList { after: last, ended };
            match self.look(tenant, asker, request) {
                Ok(Reply::Leases(page)) => {
                    leases.extend(page.leases);
                    after = page.next;
                }
                other => panic!("a list, not {other:?}"),
            }
        }
        leases
    }

    fn compare_leases(&mut self, told: &[LeaseInfo], live: &[LeaseInfo]) {
        let now = self.now.boot.0;
        let mut expected = self.oracle.leases.clone();
        expected.sort_by_key(|lease| lease.id);
        let ids = |leases: &[LeaseInfo]| leases.iter().map(|l| l.lease_id).collect::<Vec<_>>();
        let alive = expected.iter().filter(|lease| lease.alive());
        assert_eq!(ids(live), alive.map(|lease| lease.id).collect::<Vec<_>>());
        let all = expected.iter().map(|lease| lease.id);
        assert_eq!(ids(told), all.collect::<Vec<_>>());
        for (info, lease) in told.iter().zip(&expected) {
            assert_eq!((info.phase, info.status), (lease.phase(), lease.status()));
            assert_eq!(info.remaining_ms, lease.remaining_ms(now), "{lease:?}");
            assert_eq!(info.generation, lease.generation());
            assert_eq!(info.capacity, lease.extent.length);
            assert_eq!(info.resource_id, self.oracle.arenas[lease.arena].id);
            assert_eq!(info.granted_at_unix_ms != 0, lease.granted);
            assert_eq!(info.binding, Binding::default(), "an operator gets no key");
            let query = Request::LeaseQuery(lease.id);
            let holders = self.look(&lease.tenant, Asker::Holder, query);
            let Ok(Reply::Lease(holders)) = holders else {
                panic!("{holders:?}");
            };
            let rdma = holders.binding.rdma.clone();
            let previous = rdma.as_ref().and_then(|rdma| rdma.previous);
            let (keys, old) = lease.told();
            let old = old.map(|(rkey, until)| (rkey, (until - now) / 1_000_000));
            assert_eq!(Keys::of(&holders.binding), keys, "{lease:?}");
            let previous = previous.map(|key| (key.rkey, u64::from(key.remaining_ms)));
            assert_eq!(previous, old, "{lease:?}");
            let holders = LeaseInfo {
                binding: Binding::default(),
                ..holders
            };
            assert_eq!(&holders, info);
        }
    }

    /// Each is told of its own leases and of no others.
    fn compare_tenants(&mut self, told: &[LeaseInfo], live: &[LeaseInfo]) {
        for tenant in TENANTS.into_iter().chain([STRANGER]) {
            let leases = self.oracle.leases.iter();
            let its = leases.filter(|lease| lease.tenant == tenant);
            let its: Vec<LeaseId> = its.map(|lease| lease.id).collect();
            let of_it = |all: &[LeaseInfo]| -> Vec<LeaseInfo> {
                let of_it = all.iter().filter(|info| its.contains(&info.lease_id));
                of_it.cloned().collect()
            };
            assert_eq!(self.list(tenant, Asker::Holder, true), of_it(told));
            assert_eq!(self.list(tenant, Asker::Holder, false), of_it(live));
        }
    }

    /// Only operators see fences.
    fn compare_fences(&mut self) {
        let told = self.look(OPERATOR, Asker::Operator, Request::FenceList);
        assert_eq!(told, Ok(Reply::Fences(self.table.fences())));
        let told = self.look(TENANTS[0], Asker::Holder, Request::FenceList);
        assert_eq!(told.unwrap_err().error, LeaseError::NotPermitted);
    }

    fn compare_arenas(&self) {
        for (told, arena) in self.table.availability().zip(&self.oracle.arenas) {
            let expected = (arena.id, arena.available(), arena.fenced());
            assert_eq!((told.resource_id, told.available, told.fenced), expected);
        }
        for arena in &self.oracle.arenas {
            let mut held: Vec<Extent> = self.table.held(arena.id).collect();
            held.sort();
            assert_eq!(
                held,
                self.oracle.held(arena.id),
                "bytes that are somebody's"
            );
        }
        let fences = self.table.fences();
        let told = fences.iter().map(|f| (f.resource_id, f.lease_id));
        let arenas = self.oracle.arenas.iter();
        let expected = arenas.filter_map(|arena| Some((arena.id, arena.culprit()?)));
        assert_eq!(told.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

fn about(request: &Request) -> Option<LeaseId> {
    match request {
        Request::LeaseRenew { lease_id, .. }
        | Request::LeaseBind { lease_id, .. }
        | Request::LeaseRotate { lease_id, .. }
        | Request::LeaseFree(lease_id)
        | Request::LeaseRevoke(lease_id) => Some(*lease_id),
        _ => None,
    }
}

fn peers(to: Peer, number: u32) -> Vec<RdmaPeer> {
    let port = |which: usize| PORTS[which % PORTS.len()];
    let nobody = |which: usize| NOBODY[which % NOBODY.len()];
    let gids = match to {
        Peer::None => vec![],
        Peer::Port(which) => vec![port(which)],
        Peer::Several(which) => (0..which % 4 + 2).map(port).collect(),
        Peer::Nobody(which) => vec![nobody(which)],
        Peer::Mixed(which) => vec![port(which), nobody(which)],
    };
    let peer = |gid: &str| RdmaPeer {
        qpn: number,
        psn: 3,
        gid: gid.parse::<Ipv6Addr>().unwrap().octets(),
        path_mtu: 0,
    };
    gids.into_iter().map(peer).collect()
}

fn wanted(wish: Wish, resource_id: Option<ResourceId>, number: u32) -> LeaseAllocRequest {
    LeaseAllocRequest {
        resource_type: ResourceType::Mem,
        resource_id,
        capacity: wish.bytes,
        lease_secs: wish.secs,
        grace_secs: wish.grace,
        kv_cache_intent: None,
        cpu_isolation: None,
        gpu_exclusivity: None,
        affinities: Vec::new(),
        transport: wish.road,
        rotate_on_renew: wish.rotate_on_renew,
        rdma_peers: peers(wish.peer, number),
    }
}

/// Whether this is a report of such an order.
fn answers(report: &Report, order: &Order) -> bool {
    match (report, order) {
        (Report::Bind(tag, _), Order::Bind(order)) => *tag == order.tag,
        (Report::Rotate(tag, _), Order::Rotate(of))
        | (Report::RetireKey(tag, _), Order::RetireKey(of))
        | (Report::Cut(tag, _), Order::Cut(of, _))
        | (Report::Release(tag, _) | Report::ReleaseProgress(tag), Order::Release(of, _)) => {
            tag == of
        }
        (Report::Reset(id, _), Order::Reset(of, _)) => id == of,
        _ => false,
    }
}

/// A backend names the keys that there are: new ones, and the one before a rotation.
fn outcome_of(order: &Order, outcome: Outcome, number: u32, oracle: &Oracle) -> Report {
    let fine = matches!(outcome, Outcome::Fine);
    let error = || StepError::new("step", "on purpose");
    let done = || if fine { Ok(()) } else { Err(error()) };
    let bound = |binding: Binding| match outcome {
        Outcome::Fine | Outcome::Moving => Ok(binding),
        Outcome::Failed => Err(BindError::Failed(error())),
        Outcome::Refused => Err(BindError::Refused(error())),
        Outcome::Cancelled => Err(BindError::Cancelled),
        Outcome::Stranded => Err(BindError::Stranded(error())),
    };
    match order {
        Order::Bind(order) => {
            let rkey = (!order.peers.is_empty()).then_some(number);
            Report::Bind(order.tag, bound(binding(order.transport, rkey, number)))
        }
        Order::Rotate(tag) => Report::Rotate(*tag, bound(rotated(*tag, number, oracle))),
        Order::RetireKey(tag) => Report::RetireKey(*tag, done().map(|()| retired(*tag, oracle))),
        // Nobody reports on these.
        Order::Extend(..) | Order::Fenced(_) => unreachable!("{order:?} is not open"),
        Order::Cut(tag, _) => Report::Cut(*tag, done().map(|()| String::from("proof"))),
        Order::Release(tag, _) if matches!(outcome, Outcome::Moving) => {
            Report::ReleaseProgress(*tag)
        }
        Order::Release(tag, _) => Report::Release(*tag, done()),
        Order::Reset(id, _) => Report::Reset(*id, done()),
    }
}

fn rotated(tag: Tag, number: u32, oracle: &Oracle) -> Binding {
    let (road, before) = oracle.keys(tag.lease_id);
    let mut binding = binding(road, before.rkey.map(|_| number), number);
    if let Some(rdma) = &mut binding.rdma {
        rdma.previous = before.rkey.map(|rkey| PreviousKey {
            rkey,
            remaining_ms: 0,
        });
    }
    binding
}

fn retired(tag: Tag, oracle: &Oracle) -> Binding {
    let (road, keys) = oracle.keys(tag.lease_id);
    binding(road, keys.rkey, keys.dp_key.unwrap_or_default())
}

/// `number`: that of the key of datagrams, on roads that have one.
fn binding(road: Transport, rkey: Option<u32>, number: u32) -> Binding {
    let rdma = matches!(road, Transport::Rdma | Transport::Both).then_some(RdmaBinding {
        rkey,
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
    });
    let by_datagrams = matches!(road, Transport::Udp | Transport::Both);
    Binding {
        dp_key: by_datagrams.then(|| oracle::dp_key(number)),
        rdma,
        ..Binding::default()
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
    // Each step looks at every lease.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: ProptestConfig::default().cases / 16,
        ..ProptestConfig::default()
    })]

    /// So many whose terms end together that there is not time for every goodbye.
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
