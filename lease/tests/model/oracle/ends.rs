//! Time passing, and how leases end.

use super::*;

/// Time.
impl Oracle {
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let leases = self.leases.iter().filter_map(Held::alarm);
        let resets = self.arenas.iter().filter_map(|arena| arena.resetting);
        leases.chain(resets.map(|(_, by)| by)).min()
    }

    pub(crate) fn pass_to(&mut self, boot: u64) {
        self.boot = boot;
        while let Some((_, _, id)) = self.first_due() {
            match self.find(LeaseId(id)) {
                Some(at) => self.lease_due(at),
                None => self.reset_over(ResourceId(id), false),
            }
        }
    }

    /// What fell due longest ago; leases before resources, then by id.
    pub(super) fn first_due(&self) -> Option<(u64, bool, u128)> {
        let alarm = |lease: &Held| Some((lease.alarm()?, false, lease.id.0));
        let leases = self.leases.iter().filter_map(alarm);
        let reset = |arena: &Arena| Some((arena.resetting?.1, true, arena.id.0));
        let resets = self.arenas.iter().filter_map(reset);
        leases.chain(resets).filter(|due| due.0 <= self.boot).min()
    }

    pub(super) fn lease_due(&mut self, at: usize) {
        let now = self.boot;
        let lease = &mut self.leases[at];
        match lease.life {
            Life::Asked => self.cut(at, LeasePhase::Revoked),
            Life::InUse | Life::NewBinding | Life::NewKey if lease.deadline <= now => {
                self.cut(at, LeasePhase::Expired);
            }
            Life::InUse if lease.again_at.is_some_and(|at| at <= now) => self.bind_again(at),
            Life::InUse | Life::NewBinding | Life::NewKey => match lease.old {
                OldKey::Works { until, .. } if until <= now => {
                    lease.old = OldKey::Dying { by: now + CUT_NS };
                    let tag = self.tag(at);
                    self.orders.push(Order::RetireKey(tag));
                }
                OldKey::Dying { by } if by <= now => self.cut(at, LeasePhase::Revoked),
                _ => self.lose_patience(at),
            },
            Life::BeingCut => {
                let kind = self.arenas[lease.arena].kind;
                let moved = self.cut_moved.get(&kind).copied().unwrap_or(0);
                lease.cut_by = (moved + CUT_NS).min(lease.since + 10 * CUT_NS);
                if lease.cut_by <= now {
                    self.fence(at, false);
                }
            }
            Life::Kept => self.scrub(at),
            Life::Scrubbed => self.fence(at, true),
            Life::Clean => drop(self.leases.remove(at)),
            Life::Fenced => unreachable!("a fence has no alarm"),
        }
    }

    /// Nobody waits for the binding or key any more; otherwise all is as it was.
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
    /// Whatever it was doing, it is to end as `phase`.
    pub(super) fn end(&mut self, at: usize, phase: LeasePhase) {
        let lease = &mut self.leases[at];
        match lease.life {
            Life::Asked | Life::InUse | Life::NewBinding | Life::NewKey => self.cut(at, phase),
            // Somebody wants it gone: nothing is kept for a renewal.
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
        let under_way = { self.leases.iter() }
            .filter(|lease| lease.life == Life::BeingCut)
            .count();
        let expected = phase == LeasePhase::Freed;
        let hurried = self.draining || under_way >= FAREWELLS_AT_ONCE;
        let lease = &mut self.leases[at];
        lease.life = Life::BeingCut;
        lease.ending = phase;
        lease.since = self.boot;
        let tag = self.tag(at);
        let farewell = match expected || hurried {
            true => Farewell::None,
            false => Farewell::Brief,
        };
        self.orders.push(Order::Cut(tag, farewell));
    }

    pub(super) fn scrub(&mut self, at: usize) {
        self.leases[at].life = Life::Scrubbed;
        self.leases[at].since = self.boot;
        self.order_release(at);
    }

    pub(super) fn order_release(&mut self, at: usize) {
        let tag = self.tag(at);
        let lease = &mut self.leases[at];
        if lease.on_its_way == OnItsWay::Nothing {
            lease.release_ordered = true;
            self.orders.push(Order::Release(tag, lease.extent));
        }
    }

    pub(super) fn fence(&mut self, at: usize, only_release: bool) {
        let tag = self.tag(at);
        let lease = &mut self.leases[at];
        let works = matches!(
            lease.life,
            Life::Asked | Life::InUse | Life::NewBinding | Life::NewKey
        );
        if works {
            self.orders.push(Order::Cut(tag, Farewell::None));
        }
        self.orders.push(Order::Fenced(tag));
        lease.life = Life::Fenced;
        lease.ending = LeasePhase::Fenced;
        lease.only_release_failed = only_release;
        let waits = std::mem::take(&mut lease.waits);
        let arena = &mut self.arenas[lease.arena];
        // The first stands, except that a failed release makes way for what is graver.
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

    /// The bytes are anybody's; what nobody was told of leaves no record.
    pub(super) fn clean(&mut self, at: usize) {
        let lease = &mut self.leases[at];
        lease.life = Life::Clean;
        lease.since = self.boot;
        let lease = lease.clone();
        self.give_back(&lease);
        if !lease.granted {
            self.leases.remove(at);
        }
    }

    pub(super) fn give_back(&mut self, lease: &Held) {
        let owner = &mut self.arenas[lease.arena].owner;
        let mine = owner.iter_mut().filter(|page| **page == Some(lease.id));
        mine.for_each(|page| *page = None);
    }

    pub(super) fn unfence(&mut self, arena: usize) {
        self.arenas[arena].fence = None;
        let fenced = |lease: &Held| lease.arena == arena && lease.life == Life::Fenced;
        while let Some(at) = self.leases.iter().position(fenced) {
            self.clean(at);
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
