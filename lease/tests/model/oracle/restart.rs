//! The daemon dies and comes back.

use super::*;

/// The daemon dies and comes back.
impl Oracle {
    pub(crate) fn restart(&mut self, boot: u64, same_boot: bool) {
        self.boot = boot;
        self.draining = false;
        // What nobody was told of is forgotten, unless something of it may be left.
        let known = |lease: &Held| lease.granted || lease.life == Life::Fenced;
        let (known, unknown) = self.leases.drain(..).partition(known);
        self.leases = known;
        for lease in unknown {
            self.give_back(&lease);
        }
        for at in 0..self.leases.len() {
            self.leases[at].waits.clear();
            self.leases[at].on_its_way = OnItsWay::Nothing;
            self.leases[at].release_ordered = false;
            self.restart_one(at, same_boot);
        }
        for at in 0..self.arenas.len() {
            self.arenas[at].resetting = None;
            // Another boot: nothing but the bytes can be left.
            if self.arenas[at].fenced() && !same_boot {
                self.reset(self.arenas[at].id, None);
            }
        }
    }

    pub(super) fn restart_one(&mut self, at: usize, same_boot: bool) {
        let lease = &self.leases[at];
        let by_datagrams = matches!(lease.road, Transport::Udp | Transport::Both);
        let adopted = same_boot && by_datagrams && self.arenas[lease.arena].lasts;
        let grace_ends = lease.deadline + lease.grace_ns;
        match lease.life {
            Life::Fenced => self.leases[at].only_release_failed = false,
            Life::Scrubbed | Life::Clean => self.clean(at),
            _ if !adopted => self.end_with_the_process(at, LeasePhase::Revoked),
            _ if self.boot < lease.deadline => {
                self.leases[at].ending = LeasePhase::Revoked;
                self.leases[at].peers.clear();
                self.bind_again(at);
            }
            _ if self.boot < grace_ends => {
                let lease = &mut self.leases[at];
                lease.life = Life::Kept;
                lease.ending = LeasePhase::Expired;
                lease.peers.clear();
                lease.keys = Keys::NONE;
                lease.old = OldKey::None;
            }
            _ => self.end_with_the_process(at, LeasePhase::Expired),
        }
    }

    pub(super) fn end_with_the_process(&mut self, at: usize, phase: LeasePhase) {
        self.leases[at].ending = phase;
        self.clean(at);
    }
}
