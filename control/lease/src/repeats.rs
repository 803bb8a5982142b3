//! Repeats of LEASE_ALLOC: a request with the token of an earlier one gets the lease of that one, and never a second lease.
//!
//! A client whose reply was lost repeats its request. The token is in the record of its lease and is forgotten with it,
//! so a tenant has no more tokens here than leases. A token counts for its tenant only.

use alloc::format;

use fabricbios_wire::{LeaseId, Refusal, Reply, Request, RequestToken};

use crate::{
    Asked, LeaseTable, Now, Requested, State,
    lease::{Lease, Waiting},
    requests::Decision,
    standing::{busy, invalid},
};

/// How many repeats of one request may wait for their answers: one is enough for a client.
const WAITING_MAX: usize = 8;

impl LeaseTable {
    /// Whether an earlier request of the tenant with the same token got a lease, or waits for one: the answer takes no
    /// capacity.
    #[must_use]
    pub fn is_repeat(&self, tenant: &str, request: &Request) -> bool {
        match request {
            Request::LeaseAlloc(request) => request
                .request_token
                .is_some_and(|token| self.known(tenant, token).is_some()),
            _ => false,
        }
    }

    /// The lease that an earlier request with this token got, or waits for. A due deadline of it is handled first.
    pub(crate) fn lease_of_request(
        &mut self,
        now: Now,
        tenant: &str,
        token: RequestToken,
    ) -> Option<LeaseId> {
        let id = self.known(tenant, token)?;
        self.catch_up(now, id);
        self.known(tenant, token)
    }

    fn known(&self, tenant: &str, token: RequestToken) -> Option<LeaseId> {
        let id = *self.tenants.get(tenant)?.requests.get(&token)?;
        // Its client was told that nothing was leased.
        let in_vain = |lease: &Lease| !lease.granted() && lease.is_over();
        (!self.leases.get(&id).is_some_and(|it| in_vain(it))).then_some(id)
    }

    /// Answers a repeat: with the lease as its holder sees it, which waits for a binding that is being made and for a
    /// cut that is going on, or with its end.
    pub(crate) fn repeat(
        &mut self,
        now: Now,
        asked: &Asked,
        id: LeaseId,
        requested: Requested,
    ) -> Decision {
        let ended = self.ended.get(&id).and_then(|it| it.record.requested);
        let live = self.leases.get(&id).and_then(|lease| lease.requested);
        if live.or(ended) != Some(requested) {
            return Err(invalid(format!(
                "request token {} got lease {id} on other terms: repeat the request unchanged, or ask with a new token",
                requested.token
            )));
        }
        let lease = self.live_mut(id).map_err(gets_no_other)?;
        if lease.is_over() {
            return Err(gets_no_other(lease.over()));
        }
        let waits = match lease.state() {
            State::Binding | State::Cutting => true,
            State::Rebinding => lease.binding().is_none(),
            _ => false,
        };
        if !waits {
            return Ok(Some(Reply::Lease(lease.info(now, true))));
        }
        let waiting = lease.waiting.iter();
        if waiting.filter(|(it, _)| *it == Waiting::Repeat).count() >= WAITING_MAX {
            return Err(busy(format!(
                "{WAITING_MAX} repeats of this request wait for lease {id} already; ask again when they are answered"
            )));
        }
        lease.waiting.push((Waiting::Repeat, asked.ticket));
        Ok(None)
    }
}

/// The refusal of a repeat whose lease is over.
pub(crate) fn gets_no_other(over: Refusal) -> Refusal {
    let message = format!(
        "{}; this request got it and gets no other: ask with a new request token",
        over.message
    );
    Refusal { message, ..over }
}
