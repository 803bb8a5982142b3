//! Attach codes.

use super::*;

const CODES_MAX: usize = 8;

/// Attach codes.
impl Oracle {
    /// `code`: the code that the lease gets.
    pub(crate) fn attach(&mut self, ticket: Ticket, asker: Asker, id: LeaseId, code: u128) {
        let fits = |at: usize| {
            let lease = &self.leases[at];
            let kind = self.arenas[lease.arena].kind;
            if !lease.alive() {
                return Err(lease.unfit());
            }
            if !requests::takes_peers(kind, lease.transport) {
                return Err(LeaseError::InvalidArgs);
            }
            let in_use = matches!(lease.life, Life::InUse | Life::NewBinding | Life::NewKey);
            if !in_use || lease.bound.is_none() {
                return Err(lease.unfit());
            }
            let unspent = self.codes.iter().filter(|(of, _)| *of == id);
            match unspent.count() < CODES_MAX {
                true => Ok(at),
                false => Err(LeaseError::ResourceBusy),
            }
        };
        match self.mine(asker, id).and_then(fits) {
            Err(error) => self.refuse(ticket, error),
            Ok(at) => {
                self.codes.push((id, code));
                let told = self.lease_said(at, true);
                self.say(ticket, told.with_code(code));
            }
        }
    }

    /// The lease that the code opens, and its tenant; the code is gone.
    pub(crate) fn spend(&mut self, code: u128) -> Option<(LeaseId, String)> {
        let nth = self.codes.iter().position(|(_, it)| *it == code)?;
        let (id, _) = self.codes.remove(nth);
        let at = self.find(id).expect("only leases in use have codes");
        Some((id, self.leases[at].tenant.clone()))
    }

    /// The end of the lease begins.
    pub(super) fn drop_codes(&mut self, at: usize) {
        let id = self.leases[at].id;
        self.codes.retain(|(of, _)| *of != id);
    }
}
