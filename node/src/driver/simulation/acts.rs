//! What clients and operators do, what happens to the machine, and the end of a run. Each act has a generator of its own, so that a run
//! without some acts still has the others.

use fabricbios_wire::{LeaseAllocRequest, LeaseId, Request, RequestToken, ResourceId, Role};

use super::{
    MILLISECOND, Run, TENANTS,
    invariants::{Invariant, Mistake},
    kinds::{self, Kind},
    machine::Event,
    runner::Plan,
};
use crate::driver::Input;

const ACTS: usize = 60;

impl Run {
    /// Goes through the acts of the plan.
    pub(super) fn acts(&mut self, plan: &Plan) {
        for act in 0..ACTS {
            let mut random = fastrand::Rng::with_seed(plan.seed ^ (act as u64 + 1) << 40);
            self.go_on_for(random.u64(..400) * MILLISECOND);
            match plan.has(act) {
                Some(true) => self.act(act, &mut random),
                Some(false) => continue,
                None => break,
            }
        }
    }

    fn act(&mut self, act: usize, random: &mut fastrand::Rng) {
        self.log.act(act);
        self.world.lock().say(|| format!("act {act}"));
        self.clients_write();
        match random.u32(..100) {
            0..84 => self.client_acts(random),
            84..88 => {
                let resources: Vec<ResourceId> = self.world.lock().offers.keys().copied().collect();
                let clear = Request::FenceClear(resources[random.usize(..resources.len())]);
                self.ask("root", Role::Operator, None, clear);
            }
            88..91 => self.dies(None, false),
            91..93 => self.dies(Some(random.u64(..20_000)), false),
            93..95 => self.stops(random.u64(..30_000) * MILLISECOND),
            95..97 => self.stalls(random.u64(..2_000) * MILLISECOND),
            97..99 => self.clock_jumps(random.i64(-100_000..100_000)),
            _ => self.drains(),
        }
    }

    fn client_acts(&mut self, random: &mut fastrand::Rng) {
        let tenant = TENANTS[random.usize(..3)];
        let (kinds, lease) = {
            let machine = self.world.lock();
            let kinds: Vec<&Kind> = machine.offers.values().map(|(kind, _)| *kind).collect();
            let known = machine.granted.iter();
            let known = known.filter(|(id, _)| !machine.over.contains(id));
            let known: Vec<(LeaseId, &'static str)> = known.map(|(id, it)| (*id, *it)).collect();
            (kinds, random.choice(known))
        };
        match (random.u8(..10), lease) {
            (0..5, _) | (_, None) => {
                let recent = self.requests.iter().rev().take(8).cloned();
                let recent = random.choice(recent.collect::<Vec<_>>());
                match recent.filter(|_| random.u8(..4) == 0) {
                    Some((tenant, request)) => self.ask_for_a_lease(tenant, request),
                    None => {
                        let mut request = kinds[random.usize(..kinds.len())].request(random);
                        request.request_token = Some(RequestToken(random.u128(1..)));
                        self.requests.push((tenant, request.clone()));
                        self.ask_for_a_lease(tenant, request);
                    }
                }
            }
            (5, Some((id, holder))) => {
                self.ask(holder, Role::Tenant, Some(id), Request::LeaseFree(id));
            }
            (6, Some((id, _))) => {
                self.ask("root", Role::Operator, Some(id), Request::LeaseRevoke(id));
            }
            (7, Some((lease_id, holder))) => {
                let request = Request::LeaseRotate {
                    lease_id,
                    overlap_ms: random.u32(..1_000),
                };
                self.ask(holder, Role::Tenant, None, request);
            }
            (_, Some((lease_id, holder))) => {
                self.go_on_for(self.until_renewable(lease_id));
                let request = Request::LeaseRenew {
                    lease_id,
                    lease_secs: 0,
                };
                self.ask(holder, Role::Tenant, None, request);
            }
        }
    }

    fn ask_for_a_lease(&mut self, tenant: &'static str, request: LeaseAllocRequest) {
        self.ask(tenant, Role::Tenant, None, Request::LeaseAlloc(request));
    }

    /// The time until shortly before the deadline, if that is soon.
    fn until_renewable(&self, lease: LeaseId) -> u64 {
        let machine = self.world.lock();
        let mut objects = machine.objects.iter();
        let object = objects.find(|((_, it), _)| *it == lease);
        let until = object.map_or(0, |(_, it)| it.until.0);
        let left = until.saturating_sub(machine.now + 50 * MILLISECOND);
        if left < 2_000 * MILLISECOND { left } else { 0 }
    }

    /// The process ends at whatever it does; with `off_ms`, the machine is off for so long. Clients that have no reply to a
    /// request for a lease repeat it.
    fn dies(&mut self, off_ms: Option<u64>, is_in_order: bool) {
        let lost = self.waiting.iter();
        let lost = lost.filter_map(|it| Some((it.who, it.alloc.clone()?)));
        let lost: Vec<_> = lost.collect();
        self.process_ends(is_in_order);
        if let Some(off_ms) = off_ms {
            self.world.lock().reboots(off_ms);
        }
        self.starts();
        lost.into_iter()
            .for_each(|(who, request)| self.ask_for_a_lease(who, request));
    }

    /// The whole process is stopped: time passes, and nothing goes on.
    fn stops(&mut self, span: u64) {
        let mut machine = self.world.lock();
        machine.say(|| "the process is stopped".to_owned());
        machine.now += span;
        machine.holds_up(0);
        if machine.has(Mistake::ClockStandsStill) {
            machine.behind += span;
        }
        machine.say(|| "and goes on".to_owned());
        self.went_on_at = machine.now;
        drop(machine);
        self.turns();
    }

    /// The driver's thread does not run.
    fn stalls(&mut self, span: u64) {
        self.stalls_until = self.world.lock().now + span;
        self.go_on_for(span);
        self.went_on_at = self.world.lock().now;
        self.turns();
    }

    fn clock_jumps(&mut self, by_ms: i64) {
        let mut machine = self.world.lock();
        machine.say(|| format!("the wall clock jumps by {by_ms} ms"));
        machine.booted_unix_ms = machine.booted_unix_ms.saturating_add_signed(by_ms);
    }

    /// The daemon is told to end its leases and to stop.
    fn drains(&mut self) {
        let driver = self.world.lock().driver.clone();
        driver.map(|it| it.notify(Input::Drain));
        self.turns();
        while !self.driver().is_done() {
            self.go_on_for(100 * MILLISECOND);
        }
        self.dies(None, true);
    }

    /// Removes all faults and checks that everything becomes free, and can be leased again.
    pub(super) fn ends(mut self) {
        {
            let mut machine = self.world.lock();
            machine.say(|| "no more faults".to_owned());
            machine.has_no_faults();
            let now = machine.now;
            let stuck = std::mem::take(&mut self.stuck);
            stuck
                .into_iter()
                .for_each(|it| machine.at(now, Event::GoOn(it)));
        }
        let offers = self.world.lock().offers.clone();
        for _ in 0..2 {
            self.go_on_for(120_000 * MILLISECOND);
            for id in offers.keys() {
                self.ask("root", Role::Operator, None, Request::FenceClear(*id));
            }
        }
        self.go_on_for(120_000 * MILLISECOND);
        let granted = self.world.lock().granted.len();
        for (kind, offer) in offers.values() {
            let mut request = LeaseAllocRequest::new(kind.resource_type, kinds::most(offer), 1);
            request.resource_id = Some(offer.resource_id);
            self.ask("alice", Role::Tenant, None, Request::LeaseAlloc(request));
        }
        self.go_on_for(120_000 * MILLISECOND);
        let census = self.driver().table.census();
        let mut free = self.driver().table.availability();
        let all_is_free = free.all(|it| it.available == kinds::most(&offers[&it.resource_id].1));
        drop(free);
        let unanswered = self.waiting.len();
        let mut machine = self.world.lock();
        if unanswered > 0 {
            machine.breaks(
                Invariant::EveryRequestAnswered,
                format_args!("{unanswered}"),
            );
        }
        let is_empty = machine.objects.is_empty() && machine.parts.is_empty();
        let leased = machine.granted.len() - granted == offers.len();
        if !(all_is_free && is_empty && leased) {
            let (parts, objects) = (&machine.parts, &machine.objects);
            let why = format!("leased: {leased}, {census:?}, {parts:?}, {objects:?}");
            machine.breaks(Invariant::Liveness, why);
        }
        drop(machine);
        self.check();
    }
}
