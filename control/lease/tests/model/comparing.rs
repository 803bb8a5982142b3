//! Compares the table and the model after every step.

use std::{collections::BTreeMap, sync::Arc};

use super::*;

/// The operator's view of a lease, without the fields for operators only.
fn to_its_tenant(info: &LeaseInfo) -> LeaseInfo {
    let mut info = info.clone();
    info.tenant = None;
    if let Some(end) = info.end.as_mut().map(Arc::make_mut) {
        end.by = None;
    }
    info
}

/// Comparison.
impl Pair {
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        let mut effects = vec![];
        while let Some(effect) = self.table.poll_effect() {
            if let Effect::Order {
                order: Order::Extend(binding_id, deadline),
                ..
            } = effect
                && self.oracle.at_once
            {
                let agreed = Report::Extended(binding_id, deadline, Ok(()));
                self.table.on_report(self.now, self.now.boot, agreed);
            }
            effects.push(effect);
        }
        effects
    }

    pub(super) fn compare(&mut self, effects: Vec<Effect>) {
        self.compare_effects(effects);
        assert_eq!(self.table.check(), [], "invariants");
        self.copy.follow(&self.table);
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
        invariant_few_lingers(&self.open, &live);
        invariant_a_request_has_one_lease(&told);
        let fences = self.table.fences();
        self.seen.invariant_the_journal_replays(&told, &fences);
        self.seen
            .invariant_what_outlives_the_machine_is_on_record(&live, &self.world.offers);
        let told = told.iter();
        told.for_each(|info| self.seen.invariant_ended_is_told_after_the_proof(info));
    }

    pub(super) fn compare_effects(&mut self, effects: Vec<Effect>) {
        let offered = self.table.availability();
        let fenced: Vec<_> = { offered.filter(|arena| arena.fenced) }
            .map(|arena| arena.resource_id)
            .collect();
        let (mut orders, mut answers) = (vec![], vec![]);
        for effect in effects {
            match effect {
                Effect::Order { order, .. } => {
                    self.seen.order(&order, &self.open, &fenced);
                    match order {
                        // An order that gets no report.
                        Order::Fenced(_) => {}
                        Order::Extend(binding_id, deadline) if self.oracle.at_once => {
                            let agreed = Report::Extended(binding_id, deadline, Ok(()));
                            self.seen.report(&agreed);
                        }
                        _ => self.open.push(order.clone()),
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
                    leases.sort_by_key(|(binding_id, _)| binding_id.lease_id);
                }
            }
            let mut orders: Vec<_> = orders.iter().map(|order| format!("{order:?}")).collect();
            orders.sort();
            orders
        };
        let expected = std::mem::take(&mut self.oracle.orders);
        assert_eq!(sorted(orders), sorted(expected), "orders");
    }

    pub(super) fn look(&mut self, tenant: &str, asker: Asker, request: Request) -> Answer {
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

    pub(super) fn list(&mut self, tenant: &str, asker: Asker, ended: bool) -> Vec<LeaseInfo> {
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

    pub(super) fn compare_leases(&mut self, told: &[LeaseInfo], live: &[LeaseInfo]) {
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
            assert_eq!(info.generation, lease.told_generation(), "{lease:?}");
            assert_eq!(info.effective, lease.effective(), "{lease:?}");
            assert_eq!(info.expires_at_unix_ms, lease.expires_ms, "{lease:?}");
            assert_eq!(info.capacity, lease.extent.length);
            let token = lease.request.as_ref().and_then(|it| it.request_token);
            assert_eq!(info.request_token, token, "{lease:?}");
            assert_eq!(info.resource_id, self.oracle.arenas[lease.arena].id);
            assert_eq!(info.granted_at_unix_ms != 0, lease.granted);
            assert!(info.binding.is_plain(), "an operator gets no key");
            let query = Request::LeaseQuery(lease.id);
            let holders = self.look(&lease.tenant, Asker::Holder, query);
            let Ok(Reply::Lease(holders)) = holders else {
                panic!("{holders:?}");
            };
            self.seen.invariant_what_is_told_works(&holders);
            let rdma = holders.binding.rdma().cloned();
            let previous = rdma.as_ref().and_then(|rdma| rdma.previous);
            let pairs = rdma
                .as_ref()
                .map_or(0, |it| it.further.len() + usize::from(it.qp_num != 0));
            assert_eq!(pairs, lease.pairs.len(), "{lease:?}");
            assert_eq!(oracle::code_of(&holders.binding), None, "{lease:?}");
            let (keys, old) = lease.told();
            let old = old.map(|(rkey, until)| (rkey, (until - now) / 1_000_000));
            assert_eq!(Keys::of(&holders.binding), keys, "{lease:?}");
            let previous = previous.map(|key| (key.rkey, u64::from(key.remaining_ms)));
            assert_eq!(previous, old, "{lease:?}");
            let ended_ms = info.end.as_ref().map_or(0, |end| end.at_unix_ms);
            assert_eq!(ended_ms, lease.ended_ms, "{lease:?}");
            assert_eq!(info.tenant.as_deref(), Some(&*lease.tenant));
            let holders = LeaseInfo {
                binding: Binding::plain(holders.resource_type()),
                ..holders
            };
            assert_eq!(holders, to_its_tenant(info));
        }
    }

    /// Checks that each tenant sees only its own leases.
    pub(super) fn compare_tenants(&mut self, told: &[LeaseInfo], live: &[LeaseInfo]) {
        for tenant in TENANTS.into_iter().chain([STRANGER]) {
            let leases = self.oracle.leases.iter();
            let its = leases.filter(|lease| lease.tenant == tenant);
            let its: Vec<LeaseId> = its.map(|lease| lease.id).collect();
            let of_it = |all: &[LeaseInfo]| -> Vec<LeaseInfo> {
                let of_it = all.iter().filter(|info| its.contains(&info.lease_id));
                of_it.map(to_its_tenant).collect()
            };
            assert_eq!(self.list(tenant, Asker::Holder, true), of_it(told));
            assert_eq!(self.list(tenant, Asker::Holder, false), of_it(live));
        }
    }

    /// Checks that only operators see fences.
    pub(super) fn compare_fences(&mut self) {
        let told = self.look(OPERATOR, Asker::Operator, Request::FenceList);
        assert_eq!(told, Ok(Reply::Fences(self.table.fences())));
        let told = self.look(TENANTS[0], Asker::Holder, Request::FenceList);
        assert_eq!(told.unwrap_err().error, LeaseError::NotPermitted);
    }

    pub(super) fn compare_arenas(&self) {
        for (told, arena) in self.table.availability().zip(&self.oracle.arenas) {
            let expected = (arena.id, arena.available());
            assert_eq!((told.resource_id, told.available), expected);
            let expected = (arena.fenced(), arena.partly_fenced());
            assert_eq!(
                (told.fenced, told.trouble.is_some() && !told.fenced),
                expected,
                "{arena:?}"
            );
        }
        for arena in &self.oracle.arenas {
            let holders = self.table.holders(arena.id);
            let mut held: Vec<Extent> = holders.map(|(_, part)| part.extent()).collect();
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

/// The list of leases as a scheduler keeps it: by the changes that the table tells.
#[derive(Debug, Default)]
pub(super) struct Follower {
    leases: BTreeMap<LeaseId, LeaseSummary>,
    at: LogPosition,
}

impl Follower {
    /// Reads what has changed, a few changes at a time, and compares the whole list.
    fn follow(&mut self, table: &LeaseTable) {
        loop {
            let changes = table.changes_since(self.at, 3).unwrap();
            self.at = changes.next;
            for lease in changes.leases {
                self.leases.insert(lease.lease_id, lease);
            }
            for id in changes.gone {
                self.leases.remove(&id);
            }
            if !changes.more {
                break;
            }
        }
        let copied: Vec<LeaseSummary> = self.leases.values().cloned().collect();
        assert_eq!(copied, table.summaries(LeaseId(0), usize::MAX));
    }
}
