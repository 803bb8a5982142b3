//! The daemon dies and comes back.

use super::*;

/// The daemon dies and comes back.
impl Oracle {
    pub(crate) fn restart(&mut self, boot: u64, run: EarlierRun) {
        self.boot = boot;
        self.draining = false;
        self.cut_moved.clear();
        self.codes.clear();
        // A lease that was not granted is forgotten, unless one of its objects may remain.
        let known = |lease: &Held| lease.granted || lease.life == Life::Fenced;
        let (known, unknown) = self.leases.drain(..).partition(known);
        self.leases = known;
        for lease in unknown {
            self.give_back(&lease);
        }
        let mut on_record = std::mem::take(&mut self.leases);
        on_record.sort_by_key(|lease| lease.id);
        for lease in on_record {
            self.leases.push(lease);
            let at = self.leases.len() - 1;
            self.leases[at].waits.clear();
            self.leases[at].unbind();
            self.leases[at].on_its_way = OnItsWay::Nothing;
            self.leases[at].release_ordered = false;
            self.leases[at].release_moves = false;
            self.leases[at].bound_before = self.machine(at);
            self.leases[at].cut_moved = None;
            (self.leases[at].again_at, self.leases[at].in_vain) = (None, 0);
            self.restart_one(at, run);
        }
        for at in 0..self.arenas.len() {
            self.arenas[at].resetting = None;
            // On another boot only bytes can remain.
            if self.arenas[at].fence.is_some() && !run.same_boot {
                self.reset(self.arenas[at].id, None);
            }
        }
    }

    pub(super) fn restart_one(&mut self, at: usize, run: EarlierRun) {
        let (machine, left) = (self.machine(at), self.left(at, run));
        let (now, unix_ms) = (self.boot, self.unix_ms());
        let lease = &mut self.leases[at];
        match (lease.life, left) {
            (Life::Fenced, _) => {}
            (Life::Scrubbed | Life::BeingCut, _) if machine && lease.is_over() => {
                lease.told_over = true;
                self.cut_once_more(at, None, now);
            }
            (Life::Scrubbed | Life::Clean, _) => {
                let over_ms = unix_ms.saturating_sub(lease.ended_ms);
                self.clean_since(at, over_ms);
            }
            (_, Some(left)) if left > 0 => {
                lease.deadline = now + u64::try_from(left).unwrap();
                lease.ending = LeasePhase::Revoked;
                lease.peers.clear();
                self.bind_again(at);
            }
            (_, Some(left)) if left + i128::from(lease.grace_ns) > 0 => {
                lease.deadline = now - u64::try_from(-left).unwrap();
                lease.life = Life::Kept;
                lease.ending = LeasePhase::Expired;
                lease.peers.clear();
                if machine {
                    self.being_cut(at);
                }
            }
            (_, Some(left)) if machine => {
                let ended = now.saturating_sub(u64::try_from(-left).unwrap());
                self.cut_once_more(at, Some(LeasePhase::Expired), ended);
            }
            (_, None) if machine => self.cut_once_more(at, Some(LeasePhase::Revoked), now),
            (_, Some(_)) => self.end_with_the_process(at, LeasePhase::Expired),
            (_, None) => self.end_with_the_process(at, LeasePhase::Revoked),
        }
    }

    /// Nanoseconds left of its term, if a trusted clock allows the lease to go on.
    fn left(&self, at: usize, run: EarlierRun) -> Option<i128> {
        let (lease, machine) = (&self.leases[at], self.machine(at));
        let by_datagrams = matches!(lease.transport, Transport::Udp | Transport::Both);
        let lasts = self.arenas[lease.arena].durability != Durability::Nothing;
        let span = |from: u64, to: u64| i128::from(to) - i128::from(from);
        if lease.revoked_at_a_restart {
            return None;
        }
        if machine && !run.same_boot {
            let left_ms = span(self.unix_ms(), lease.expires_ms);
            return run.wall_clock_trusted.then_some(left_ms * i128::from(MS));
        }
        let adopted = run.same_boot && lasts && (by_datagrams || machine);
        adopted.then_some(span(self.boot, lease.deadline))
    }

    /// Marks the lease as over since `ended`. `phase`: its end, if that was not reported before.
    fn cut_once_more(&mut self, at: usize, phase: Option<LeasePhase>, ended: u64) {
        let lease = &mut self.leases[at];
        lease.ending = phase.unwrap_or(lease.ending);
        (lease.deadline, lease.grace_ns) = (ended, 0);
        if lease.ending == LeasePhase::Revoked {
            lease.revoked_at_a_restart = true;
        }
        self.being_cut(at);
    }

    fn being_cut(&mut self, at: usize) {
        let binding_id = self.binding_id(at);
        let lease = &mut self.leases[at];
        lease.life = Life::BeingCut;
        lease.since = self.boot;
        self.orders.push(Order::Cut(binding_id, Linger::None));
    }

    pub(super) fn end_with_the_process(&mut self, at: usize, phase: LeasePhase) {
        self.leases[at].ending = phase;
        self.leases[at].ended_ms = self.unix_ms();
        self.clean(at);
    }
}
