//! Time passing, and how leases end.

use super::*;

/// Time.
impl Oracle {
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let sorts = [Sort::Time, Sort::Patience, Sort::Memory];
        let due = sorts.into_iter().flat_map(|sort| self.alarms(sort));
        due.map(|(at, ..)| at).min()
    }

    /// The timers of this sort: time, subject and owner. They sort by time, leases before resources, then by id.
    fn alarms(&self, sort: Sort) -> Vec<(u64, bool, u128, Option<String>)> {
        let alarm = |lease: &Held| {
            let owner = Some(lease.tenant.clone());
            Some((lease.alarm(sort)?, false, lease.id.0, owner))
        };
        let reset = |arena: &Arena| Some((arena.resetting?.1?, true, arena.id.0, None));
        let resets = self.arenas.iter().filter_map(reset);
        let resets = resets.filter(|_| sort == Sort::Patience);
        let leases = self.leases.iter().filter_map(alarm);
        leases.chain(resets).collect()
    }

    /// Handles all due timers: deadlines first, then time limits of backends, then records.
    pub(crate) fn pass_to(&mut self, boot: u64) {
        self.boot = boot;
        let mut turns = [vec![], vec![]];
        loop {
            let [times, patience] = &mut turns;
            if let Some(id) = self.next_due(Sort::Time, times) {
                let at = self.find(LeaseId(id)).unwrap();
                self.time_over(at);
            } else if let Some(id) = self.next_due(Sort::Patience, patience) {
                match self.find(LeaseId(id)) {
                    Some(at) => self.patience_over(at),
                    None => self.reset_takes_long(ResourceId(id)),
                }
            } else if let Some(id) = self.next_due(Sort::Memory, &mut vec![]) {
                self.leases.retain(|lease| lease.id.0 != id);
            } else {
                return;
            }
        }
    }

    /// Tenants take turns, in the order of their first due timer; each turn handles the earliest timer.
    fn next_due(&self, sort: Sort, turns: &mut Vec<Option<String>>) -> Option<u128> {
        let mut due = self.alarms(sort);
        due.retain(|alarm| alarm.0 <= self.boot);
        due.sort();
        let mut first: Vec<_> = due
            .iter()
            .map(|(at, .., owner)| (*at, owner.clone()))
            .collect();
        first.sort();
        for (_, owner) in first {
            if !turns.contains(&owner) {
                turns.push(owner);
            }
        }
        while !turns.is_empty() {
            let owner = turns.remove(0);
            let mut its = due.iter().filter(|(.., of)| *of == owner);
            if let Some((_, _, id, _)) = its.next() {
                if its.next().is_some() {
                    turns.push(owner);
                }
                return Some(*id);
            }
        }
        None
    }

    fn time_over(&mut self, at: usize) {
        let now = self.boot;
        let lease = &mut self.leases[at];
        match lease.life {
            Life::Kept => self.scrub(at),
            Life::Asked => self.cut(at, LeasePhase::Revoked),
            _ if lease.deadline <= now => self.cut(at, LeasePhase::Expired),
            Life::InUse
                if lease.extending.is_none() && lease.again_at.is_some_and(|at| at <= now) =>
            {
                self.bind_again(at);
            }
            _ => {
                lease.old = OldKey::Dying {
                    by: now + 10 * CUT_NS,
                };
                let binding_id = self.binding_id(at);
                self.orders.push(Order::RetireKey(binding_id));
            }
        }
    }

    fn patience_over(&mut self, at: usize) {
        let now = self.boot;
        let lease = &mut self.leases[at];
        match lease.life {
            Life::Asked => self.cut(at, LeasePhase::Revoked),
            Life::InUse | Life::NewBinding | Life::NewKey => match lease.old {
                OldKey::Dying { by } if by <= now => self.cut(at, LeasePhase::Revoked),
                _ if lease.extending.is_some() => self.not_extended(at),
                _ => self.lose_patience(at),
            },
            Life::BeingCut => {
                let kind = self.arenas[lease.arena].kind;
                let moved = self.cut_moved.get(&kind).copied();
                if lease.cut_moved.is_some() && moved > lease.cut_moved {
                    lease.cut_moved = moved;
                } else {
                    self.fence(at, false);
                }
            }
            Life::Scrubbed => self.fence(at, true),
            Life::Kept | Life::Clean | Life::Fenced => unreachable!("it waits for nobody"),
        }
    }

    /// Answers the waiting requests; the lease is unchanged.
    pub(super) fn lose_patience(&mut self, at: usize) {
        self.leases[at].patience_over = true;
        let waits = std::mem::take(&mut self.leases[at].waits);
        self.tell_without(at, waits, LeaseError::Unavailable);
    }

    pub(crate) fn drain(&mut self) {
        self.draining = true;
        for at in 0..self.leases.len() {
            self.end(at, LeasePhase::Revoked);
        }
    }
}

/// Ends.
impl Oracle {
    /// Ends the lease as `phase`, from any state.
    pub(super) fn end(&mut self, at: usize, phase: LeasePhase) {
        let lease = &mut self.leases[at];
        match lease.life {
            Life::Asked | Life::InUse | Life::NewBinding | Life::NewKey => self.cut(at, phase),
            // The lease is freed or revoked: no grace time follows.
            Life::BeingCut if lease.ending == LeasePhase::Expired && !lease.told_over => {
                lease.ending = phase;
            }
            Life::Kept => {
                lease.ending = phase;
                self.scrub(at);
            }
            Life::BeingCut | Life::Scrubbed | Life::Clean | Life::Fenced => {}
        }
    }

    pub(super) fn cut(&mut self, at: usize, phase: LeasePhase) {
        self.drop_codes(at);
        let under_way = { self.leases.iter() }
            .filter(|lease| lease.life == Life::BeingCut)
            .count();
        let expected = phase == LeasePhase::Freed;
        let hurried = self.draining || under_way >= LINGERS_AT_ONCE;
        let lease = &mut self.leases[at];
        lease.life = Life::BeingCut;
        lease.unbind();
        lease.ending = phase;
        lease.since = self.boot;
        lease.cut_moved = None;
        let binding_id = self.binding_id(at);
        let linger = match expected || hurried {
            true => Linger::None,
            false => Linger::Brief,
        };
        self.orders.push(Order::Cut(binding_id, linger));
    }

    pub(super) fn scrub(&mut self, at: usize) {
        let unix_ms = self.unix_ms();
        let lease = &mut self.leases[at];
        lease.life = Life::Scrubbed;
        lease.since = self.boot;
        if lease.ended_ms == 0 {
            lease.ended_ms = unix_ms;
        }
        self.order_release(at);
    }

    pub(super) fn order_release(&mut self, at: usize) {
        let binding_id = self.binding_id(at);
        let lease = &mut self.leases[at];
        if lease.on_its_way == OnItsWay::Nothing {
            lease.release_ordered = true;
            let placement = self.placement(at);
            self.orders.push(Order::Release(binding_id, placement));
        }
    }

    pub(super) fn fence(&mut self, at: usize, only_release: bool) {
        self.drop_codes(at);
        let (binding_id, unix_ms) = (self.binding_id(at), self.unix_ms());
        let lease = &mut self.leases[at];
        let works = matches!(
            lease.life,
            Life::Asked | Life::InUse | Life::NewBinding | Life::NewKey
        );
        if works {
            self.orders.push(Order::Cut(binding_id, Linger::None));
        }
        self.orders.push(Order::Fenced(binding_id));
        lease.life = Life::Fenced;
        lease.unbind();
        if lease.ended_ms == 0 {
            lease.ended_ms = unix_ms;
        }
        lease.ending = LeasePhase::Fenced;
        lease.only_release_failed = only_release;
        let waits = std::mem::take(&mut lease.waits);
        let arena = &mut self.arenas[lease.arena];
        // The first fence stands, except that a failed cut replaces a failed release.
        arena.fence = match arena.fence {
            Some(before @ (_, by_release)) if only_release || !by_release => Some(before),
            _ => Some((lease.id, only_release)),
        };
        arena.overtaken = arena.resetting.is_some();
        for (ticket, waits) in waits {
            match waits {
                Waits::Revoke => self.say(ticket, Said::revoked(RevokeOutcome::Fenced)),
                _ => self.refuse(ticket, LeaseError::Fenced),
            }
        }
    }

    /// Marks the lease as clean: its bytes are free. A lease that was not granted leaves no record.
    pub(super) fn clean(&mut self, at: usize) {
        self.clean_since(at, 0);
    }

    pub(super) fn clean_since(&mut self, at: usize, over_ms: u64) {
        let lease = &mut self.leases[at];
        lease.life = Life::Clean;
        lease.forget_at = self.boot + (KEEP_NS / MS).saturating_sub(over_ms).max(1) * MS;
        let lease = lease.clone();
        self.give_back(&lease);
        if !lease.granted {
            self.leases.remove(at);
            return;
        }
        let clean = self.leases.iter().filter(|it| it.life == Life::Clean);
        let mut histories: BTreeMap<&str, Vec<(u64, LeaseId)>> = BTreeMap::new();
        for it in clean {
            let history = histories.entry(&it.tenant).or_default();
            history.push((it.forget_at, it.id));
        }
        let all: usize = histories.values().map(Vec::len).sum();
        let longest = histories
            .iter()
            .map(|(tenant, its)| (its.len(), *tenant))
            .max();
        let gives_way = match longest {
            _ if histories[&*lease.tenant].len() > self.limits.tenant_ended => Some(&*lease.tenant),
            Some((_, tenant)) if all > self.limits.ended => Some(tenant),
            _ => None,
        };
        let oldest = gives_way.and_then(|tenant| histories[tenant].iter().min().copied());
        self.leases
            .retain(|it| oldest.is_none_or(|(_, id)| it.id != id));
    }

    pub(super) fn give_back(&mut self, lease: &Held) {
        self.arenas[lease.arena].give_back(lease.id);
    }

    pub(super) fn unfence(&mut self, arena: usize) {
        self.arenas[arena].fence = None;
        let fenced = |lease: &Held| lease.arena == arena && lease.life == Life::Fenced;
        while let Some(at) = self.leases.iter().position(fenced) {
            self.clean(at);
        }
    }

    /// The remediation goes on, and nobody waits for it.
    fn reset_takes_long(&mut self, id: ResourceId) {
        let arena = self.arenas.iter_mut().find(|arena| arena.id == id).unwrap();
        if let Some((Some(ticket), _)) = arena.resetting.replace((None, None)) {
            self.refuse(ticket, LeaseError::Fenced);
        }
    }

    pub(super) fn reset_over(&mut self, id: ResourceId, clean: bool) {
        let arena = self.arenas.iter().position(|arena| arena.id == id).unwrap();
        let Some((ticket, _)) = self.arenas[arena].resetting.take() else {
            return;
        };
        let overtaken = std::mem::take(&mut self.arenas[arena].overtaken);
        let cleared = clean && !overtaken;
        if cleared {
            self.unfence(arena);
        }
        match (ticket, cleared) {
            (Some(ticket), true) => self.say(ticket, Said::Cleared),
            (Some(ticket), false) => self.refuse(ticket, LeaseError::Fenced),
            (None, _) => {}
        }
    }
}
