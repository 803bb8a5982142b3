//! Parts of leases that are over and are still being cleaned. A request that such a part can meet is refused for a
//! moment only: the refusal says after which time the cleaning is probably done.

use alloc::{collections::BTreeSet, format, string::String, vec::Vec};
use core::time::Duration;

use fabricbios_wire::{LeaseAllocRequest, LeaseId, Refusal, ResourceId, ResourceType};

use crate::{
    LeaseTable, Need, Now, Offered, State, lease::Lease, resource::Resource, standing::busy,
};

/// The bounds of the time after which the client of a refused request asks again.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(20);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// The most leases that one refusal looks at.
const LOOKED_AT_MAX: usize = 64;

/// How long the cleaning of an amount took the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    amount: u64,
    took: Duration,
}

impl Pace {
    /// `None`: nothing was cleaned.
    pub(crate) fn new(amount: u64, took: Duration) -> Option<Self> {
        (amount > 0).then_some(Self { amount, took })
    }

    fn expects(self, amount: u64) -> Duration {
        let nanos = self.took.as_nanos().saturating_mul(amount.into()) / u128::from(self.amount);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Lease {
    /// Whether the lease is over, and its part is free as soon as it is clean.
    pub(crate) fn leaves(&self) -> bool {
        // A lease that was over in an earlier run is cut once more first.
        self.state() == State::Releasing || self.is_told_over()
    }

    /// How long the cleaning of its part has taken so far.
    pub(crate) fn cleaned_for(&self, now: Now) -> Duration {
        let since = self.over_since;
        since.map_or(Duration::ZERO, |since| since.until(now.boot))
    }
}

impl LeaseTable {
    /// The refusal of a request that a resource can meet once leases that are over are cleaned: the chosen one, or
    /// another one that fits. `None`: none can.
    pub(crate) fn comes_back(
        &self,
        now: Now,
        chosen: ResourceId,
        request: &LeaseAllocRequest,
    ) -> Option<Refusal> {
        let fitting = self.resources.values();
        let fitting = fitting.map(|it| (it, it as &dyn Offered));
        let fitting = fitting.filter(|(_, seen)| seen.is_meant(chosen, request));
        let soonest = fitting.filter_map(|(it, seen)| {
            let leaving: Vec<&Lease> = self.some_of(&it.leaving).collect();
            let need = seen.need(request);
            if leaving.is_empty() || it.empty.most(need) < need.amount {
                return None;
            }
            let more = it.leaving.len() > leaving.len();
            let after = returns_in(now, it, need, &leaving);
            // If these leases do not free enough, the leases beyond the limit may: then the longest time.
            let after = after.or(more.then_some(RETRY_AFTER_MAX))?;
            Some((after, it.id))
        });
        let (after, id) = soonest.min()?;
        Some(refusal(after, format!("resource {id} is being cleaned")))
    }

    /// The refusal of a request that a quota allows once leases of the tenant that are over are cleaned. `None`: the
    /// quota does not allow the request then either. `wanted`: the kind and the amount; `None` if leases are counted.
    pub(crate) fn quota_comes_back(
        &self,
        now: Now,
        tenant: &str,
        wanted: Option<ResourceType>,
        over_by: u64,
    ) -> Option<Refusal> {
        let its = &self.tenants.get(tenant)?.leaving;
        let leaving = self.some_of(its);
        let mut parts: Vec<(Duration, u64)> = match wanted {
            Some(kind) => leaving
                .filter(|it| it.kind == kind)
                .map(|it| (self.left(now, it), it.placement.amount()))
                .collect(),
            None => leaving.map(|it| (self.left(now, it), 1)).collect(),
        };
        parts.sort_unstable();
        let more = its.len() > LOOKED_AT_MAX;
        let mut back = 0_u64;
        let enough = parts.into_iter().find(|(_, amount)| {
            back = back.saturating_add(*amount);
            back >= over_by
        });
        let after = enough.map(|(after, _)| after);
        let after = after.or(more.then_some(RETRY_AFTER_MAX))?;
        Some(refusal(
            after,
            format!("what tenant {tenant} held is being cleaned"),
        ))
    }

    /// Some of these leases: a refusal looks at few of them, however many there are.
    fn some_of<'a>(&'a self, ids: &'a BTreeSet<LeaseId>) -> impl Iterator<Item = &'a Lease> {
        let ids = ids.iter().take(LOOKED_AT_MAX);
        ids.filter_map(|id| self.leases.get(id)).map(|it| &**it)
    }

    fn left(&self, now: Now, lease: &Lease) -> Duration {
        let resource = self.resources.get(&lease.resource_id);
        left(now, resource.and_then(|it| it.pace), lease)
    }
}

/// The time until the cleaning of these leases, the soonest first, has freed enough for the need.
fn returns_in(now: Now, of: &Resource, need: Need, leaving: &[&Lease]) -> Option<Duration> {
    let mut soonest: Vec<(Duration, LeaseId, &Lease)> = leaving
        .iter()
        .map(|it| (left(now, of.pace, it), it.id, *it))
        .collect();
    soonest.sort_unstable_by_key(|&(left, id, _)| (left, id));
    let mut room = of.free.clone();
    let enough = soonest.into_iter().find(|(_, _, lease)| {
        room.give_back(&lease.placement);
        room.most(need) >= need.amount
    });
    enough.map(|(left, ..)| left)
}

/// How long cleaning will probably take from now on. Without a pace, or beyond the expected time: as long as it has
/// taken so far.
fn left(now: Now, pace: Option<Pace>, lease: &Lease) -> Duration {
    let so_far = lease.cleaned_for(now);
    let expected = pace.map(|it| it.expects(lease.placement.amount()));
    let left = expected.and_then(|it| it.checked_sub(so_far));
    left.filter(|it| !it.is_zero())
        .unwrap_or(so_far)
        .clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
}

fn refusal(after: Duration, what: String) -> Refusal {
    let after_ms = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
    Refusal {
        retry_after_ms: Some(after_ms),
        ..busy(format!(
            "{what} after a lease that is over: ask again in about {after_ms} ms"
        ))
    }
}
