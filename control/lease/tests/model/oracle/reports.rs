//! Reports of the backends.

use super::*;

/// Reports.
impl Oracle {
    pub(crate) fn report(&mut self, report: &Report) {
        match report {
            Report::Bind(binding_id, outcome) => {
                self.returned(*binding_id, OnItsWay::Bind, outcome);
            }
            Report::BindProgress(binding_id) => {
                let now = self.boot;
                let waits = |lease: &&mut Held| {
                    matches!(lease.life, Life::Asked | Life::NewBinding)
                        && lease.on_its_way == OnItsWay::Bind
                };
                if let Some(at) = self.at(*binding_id)
                    && let Some(lease) = Some(&mut self.leases[at]).filter(waits)
                {
                    lease.since = now;
                }
            }
            Report::Extended(binding_id, deadline, outcome) => {
                let awaited = |&at: &usize| {
                    let extending = self.leases[at].extending.as_ref();
                    extending.is_some_and(|(to, _)| *to == deadline.0)
                };
                match (self.at(*binding_id).filter(awaited), outcome) {
                    (Some(at), Ok(())) => self.extended(at),
                    (Some(at), Err(AlreadyCut)) => {
                        let lease = &self.leases[at];
                        let renews = matches!(lease.extending, Some((_, Then::Renew { .. })));
                        match renews && lease.bound.is_none() {
                            true => self.extended(at),
                            false => self.cut(at, LeasePhase::Revoked),
                        }
                    }
                    (None, _) => {}
                }
            }
            Report::Rotate(binding_id, outcome) => {
                self.returned(*binding_id, OnItsWay::Rotate, outcome);
            }
            Report::PeersChanged(binding_id, outcome) => {
                self.returned(*binding_id, OnItsWay::Peers, outcome);
            }
            Report::RetireKey(binding_id, outcome) => self.retired(*binding_id, outcome.is_ok()),
            Report::Cut(binding_id, outcome) => self.was_cut(*binding_id, outcome.is_ok()),
            Report::EndBegan(binding_id) => {
                let now = self.boot;
                if let Some(at) = self.at(*binding_id) {
                    let lease = &mut self.leases[at];
                    match (lease.life, &mut lease.old) {
                        (Life::BeingCut, _) => lease.cut_moved = Some(now),
                        (Life::InUse | Life::NewBinding | Life::NewKey, OldKey::Dying { by }) => {
                            *by = now + CUT_NS;
                        }
                        _ => {}
                    }
                }
            }
            Report::CutMoves(binding_id) => {
                let ends =
                    |&at: &usize| matches!(self.leases[at].life, Life::BeingCut | Life::Fenced);
                if let Some(at) = self.at(*binding_id).filter(ends) {
                    let kind = self.arenas[self.leases[at].arena].kind;
                    self.cut_moved.insert(kind, self.boot);
                }
            }
            Report::ReleaseProgress(binding_id) => {
                let now = self.boot;
                let cleaned = |lease: &&mut Held| lease.life == Life::Scrubbed;
                if let Some(at) = self.at(*binding_id)
                    && let Some(lease) = Some(&mut self.leases[at]).filter(cleaned)
                    && lease.release_ordered
                {
                    lease.since = now;
                    lease.release_moves = true;
                }
            }
            Report::Release(binding_id, outcome) => self.released(*binding_id, outcome.is_ok()),
            Report::Reset(id, outcome) => self.reset_over(*id, outcome.is_ok()),
            Report::Confirmed(..) | Report::Condition(..) => {}
        }
    }

    pub(super) fn at(&self, binding_id: BindingId) -> Option<usize> {
        self.find(binding_id.lease_id)
            .filter(|&at| self.binding_id(at) == binding_id)
    }

    pub(super) fn returned(
        &mut self,
        binding_id: BindingId,
        what: OnItsWay,
        outcome: &Result<Binding, BindError>,
    ) {
        let Some(at) = self
            .at(binding_id)
            .filter(|&at| self.leases[at].on_its_way == what)
        else {
            return;
        };
        self.leases[at].on_its_way = OnItsWay::Nothing;
        let life = self.leases[at].life;
        match (life, outcome) {
            (_, Err(BindError::Stranded(_))) => self.fence(at, false),
            (Life::NewKey, Ok(binding)) if what == OnItsWay::Peers => {
                self.peers_changed(at, binding);
            }
            (Life::Asked | Life::NewBinding | Life::NewKey, Ok(binding)) => self.bound(at, binding),
            (Life::Asked | Life::NewBinding | Life::NewKey, Err(error)) => {
                self.not_bound(at, error);
            }
            (Life::Scrubbed, _) => self.scrub(at),
            _ => {}
        }
    }

    pub(super) fn bound(&mut self, at: usize, binding: &Binding) {
        let (now, unix_ms) = (self.boot, self.unix_ms());
        let lease = &mut self.leases[at];
        if lease.life != Life::NewKey {
            lease.bound_before = false;
            (lease.keys, lease.bound) = (Keys::NONE, None);
            lease.pairs.clear();
            lease.older_is_gone();
            if lease.life == Life::Asked {
                lease.deadline = now + u64::from(lease.term_secs) * SEC;
                lease.expires_ms = unix_ms + u64::from(lease.term_secs) * 1_000;
            }
            let deadline = lease.deadline;
            return self.prolong(at, deadline, tell(binding));
        }
        let before = std::mem::replace(&mut lease.keys, Keys::of(binding));
        match lease.life {
            Life::NewKey if lease.overlap_ms == 0 => {
                // The client is answered when the old key is dead.
                lease.old = OldKey::Dying {
                    by: now + 10 * CUT_NS,
                };
                let binding_id = self.binding_id(at);
                return self.orders.push(Order::RetireKey(binding_id));
            }
            Life::NewKey => {
                let until = (now + u64::from(lease.overlap_ms) * MS).min(lease.deadline);
                assert_ne!(before, Keys::NONE, "only what has a key gets another");
                let rkey = before.rkey;
                lease.old = OldKey::Works { rkey, until };
            }
            _ => {}
        }
        self.in_use(at);
    }

    /// The queue pairs on record are those of the first ones of the binding.
    fn peers_changed(&mut self, at: usize, binding: &Binding) {
        let pairs = pairs_of(binding);
        let lease = &mut self.leases[at];
        let left = |nth: usize| {
            lease
                .pairs
                .get(nth)
                .is_some_and(|pair| !pairs.contains(pair))
        };
        let stay = lease.peers.iter().enumerate();
        let stay = stay.filter(|(nth, _)| !left(*nth)).map(|(_, peer)| *peer);
        lease.peers = stay.collect();
        let deadline = lease.deadline;
        self.prolong(at, deadline, tell(binding));
    }

    /// Gives the paths another deadline. The next step waits until they have acknowledged it.
    pub(super) fn prolong(&mut self, at: usize, to: u64, then: Then) {
        self.orders
            .push(Order::Extend(self.binding_id(at), BootTime(to)));
        let lease = &mut self.leases[at];
        lease.since = self.boot;
        lease.extending = Some((to, then));
        if self.at_once {
            self.extended(at);
        }
    }

    fn extended(&mut self, at: usize) {
        let now = self.boot;
        let lease = &mut self.leases[at];
        let Some((to, then)) = lease.extending.take() else {
            return;
        };
        match then {
            Then::Renew {
                secs,
                expires_ms,
                rotates,
            } => {
                (lease.term_secs, lease.deadline, lease.expires_ms) = (secs, to, expires_ms);
                if let OldKey::Works { until, .. } = &mut lease.old {
                    *until = to.min(*until);
                }
                match rotates {
                    true => {
                        let half_term_ms = secs.saturating_mul(500);
                        self.new_key(at, RENEWAL_OVERLAP_MS.min(half_term_ms));
                    }
                    false => self.in_use(at),
                }
            }
            Then::Bind => {
                lease.since = now;
                lease.on_its_way = OnItsWay::Bind;
                self.order_bind(at);
            }
            Then::Tell(keys, pairs, previous) => {
                if let OldKey::Works { rkey, .. } = &mut lease.old {
                    *rkey = previous;
                }
                lease.keys = keys;
                // A binding that queue pairs join keeps its generation.
                lease.bound.get_or_insert(lease.generation);
                lease.pairs = pairs;
                lease.granted = true;
                self.in_use(at);
            }
        }
    }

    /// The acknowledgement did not come in time: the old deadline counts.
    pub(super) fn not_extended(&mut self, at: usize) {
        let error = || StepError::new("extend", "no answer");
        match self.leases[at].stop_extending() {
            Some(Then::Renew { .. }) => {
                for (ticket, _) in std::mem::take(&mut self.leases[at].waits) {
                    self.refuse(ticket, LeaseError::Unavailable);
                }
            }
            Some(Then::Bind) => self.not_bound(at, &BindError::Failed(error())),
            // The binding in use goes on, with the queue pairs that joined: its holder can send them away.
            Some(Then::Tell(keys, pairs, _)) if self.leases[at].life == Life::NewKey => {
                (self.leases[at].keys, self.leases[at].pairs) = (keys, pairs);
                self.not_bound(at, &BindError::Failed(error()));
            }
            Some(Then::Tell(..)) => self.not_bound(at, &BindError::Lost(error())),
            None => {}
        }
    }

    pub(super) fn in_use(&mut self, at: usize) {
        self.leases[at].life = Life::InUse;
        let said = self.lease_said(at, true);
        for (ticket, _) in std::mem::take(&mut self.leases[at].waits) {
            self.say(ticket, said.clone());
        }
    }

    pub(super) fn not_bound(&mut self, at: usize, error: &BindError) {
        let (now, failed) = (self.boot, matches!(error, BindError::Failed(_)));
        let lost = matches!(error, BindError::Lost(_));
        let error = match error {
            BindError::Refused(_) => LeaseError::InvalidArgs,
            BindError::Cancelled => LeaseError::Unavailable,
            _ => LeaseError::Unavailable,
        };
        let lease = &mut self.leases[at];
        let waits = std::mem::take(&mut lease.waits);
        match lease.life {
            Life::Asked => self.clean(at),
            Life::NewBinding => {
                lease.life = Life::InUse;
                if lost {
                    (lease.keys, lease.bound) = (Keys::NONE, None);
                    lease.pairs.clear();
                    lease.older_is_gone();
                } else if let Some(peers) = lease.peers_before.take() {
                    lease.peers = peers;
                }
                if failed && lease.bound_before {
                    let pause = (SEC << lease.in_vain.min(8)).min(64 * SEC);
                    lease.again_at = Some(now + pause);
                    lease.in_vain += 1;
                }
            }
            _ => lease.life = Life::InUse,
        }
        self.tell_without(at, waits, error);
    }

    /// A renewal without a new key still has the new term.
    pub(super) fn tell_without(
        &mut self,
        at: usize,
        waits: Vec<(Ticket, Waits)>,
        error: LeaseError,
    ) {
        for (ticket, waits) in waits {
            if waits == Waits::Renew {
                let said = self.lease_said(at, true);
                self.say(ticket, said);
            } else {
                self.refuse(ticket, error);
            }
        }
    }

    pub(super) fn retired(&mut self, binding_id: BindingId, fine: bool) {
        let dying = |&at: &usize| {
            let lease = &self.leases[at];
            matches!(lease.old, OldKey::Dying { .. } | OldKey::Gone)
                && matches!(lease.life, Life::InUse | Life::NewBinding | Life::NewKey)
        };
        let Some(at) = self.at(binding_id).filter(dying) else {
            return;
        };
        if fine || self.leases[at].old == OldKey::Gone {
            let lease = &mut self.leases[at];
            lease.old = OldKey::None;
            let waits = lease.on_its_way == OnItsWay::Nothing && lease.extending.is_none();
            if lease.life == Life::NewKey && waits {
                self.in_use(at);
            }
        } else {
            self.cut(at, LeasePhase::Revoked);
        }
    }

    pub(super) fn was_cut(&mut self, binding_id: BindingId, proved: bool) {
        let being_cut = |&at: &usize| self.leases[at].life == Life::BeingCut;
        let Some(at) = self.at(binding_id).filter(being_cut) else {
            return;
        };
        if !proved {
            return self.fence(at, false);
        }
        let lease = &mut self.leases[at];
        lease.old = OldKey::None;
        let grace = lease.deadline + lease.grace_ns > self.boot;
        let keep = lease.ending == LeasePhase::Expired && grace;
        lease.life = if keep { Life::Kept } else { Life::Scrubbed };
        if !keep {
            self.scrub(at);
        }
        self.tell_end(at);
    }

    pub(super) fn tell_end(&mut self, at: usize) {
        let ended = self.lease_said(at, false);
        let over = self.leases[at].over();
        let (granted, kept) = (self.leases[at].granted, self.leases[at].life == Life::Kept);
        for (ticket, waits) in std::mem::take(&mut self.leases[at].waits) {
            match waits {
                Waits::Grant => self.refuse(ticket, LeaseError::Unavailable),
                Waits::Repeat if !granted => self.refuse(ticket, LeaseError::Unavailable),
                Waits::Repeat if kept => self.say(ticket, ended.clone()),
                Waits::Rebind | Waits::Renew | Waits::Repeat => self.refuse(ticket, over),
                Waits::Free => self.say(ticket, ended.clone()),
                Waits::Revoke => self.say(ticket, Said::revoked(RevokeOutcome::TornDown)),
            }
        }
    }

    pub(super) fn released(&mut self, binding_id: BindingId, fine: bool) {
        let Some(at) = self
            .at(binding_id)
            .filter(|&at| self.leases[at].release_ordered)
        else {
            return;
        };
        let lease = &self.leases[at];
        match (lease.life, fine) {
            (Life::Scrubbed, true) => self.clean(at),
            (Life::Scrubbed, false) => self.fence(at, true),
            (Life::Fenced, true) if lease.only_release_failed => {
                let (arena, id) = (lease.arena, lease.id);
                self.clean(at);
                let others = self.leases.iter().filter(|lease| lease.arena == arena);
                let others = others.filter(|lease| lease.life == Life::Fenced);
                let next = others.map(|lease| lease.id).min();
                match (self.arenas[arena].fence, next) {
                    (Some((_, true)), None) => self.unfence(arena),
                    // The fence does not name a clean lease.
                    (Some((told, by_release)), Some(next)) if told == id => {
                        self.arenas[arena].fence = Some((next, by_release));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

fn tell(binding: &Binding) -> Then {
    let previous = binding.rdma().and_then(|rdma| rdma.previous);
    let previous = previous.map(|key| key.rkey);
    Then::Tell(Keys::of(binding), pairs_of(binding), previous)
}

fn pairs_of(binding: &Binding) -> Vec<u32> {
    let Some(rdma) = binding.rdma() else {
        return vec![];
    };
    let all = [rdma.qp_num].into_iter();
    let all = all.chain(rdma.further.iter().map(|pair| pair.qp_num));
    all.filter(|pair| *pair != 0).collect()
}
