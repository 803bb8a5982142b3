//! LEASE_LIST, a page at a time.

use alloc::{collections::BTreeSet, sync::Arc, vec::Vec};
use core::ops::Bound;

use fabricbios_wire::{LEASES_PER_PAGE_MAX, LeaseId, LeasePage, Reply, Role};

use crate::{Asked, LeaseTable, Now};

impl LeaseTable {
    /// The caller's leases, or all leases for an operator, with ids above `after`. Looks at one page of live leases and
    /// one page of ended leases at most. Proofs and intents are left out: a page of them would be long.
    pub(crate) fn list(&self, now: Now, asked: &Asked, after: LeaseId, ended: bool) -> Reply {
        let above = (Bound::Excluded(after), Bound::Unbounded);
        let page = LEASES_PER_PAGE_MAX + 1;
        let tenant = self.tenants.get(&asked.tenant);
        let of = |ids: &BTreeSet<LeaseId>| ids.range(above).copied().take(page).collect();
        let (mut ids, over): (Vec<LeaseId>, Vec<LeaseId>) = match (asked.role, tenant) {
            (Role::Operator, _) => (
                self.leases
                    .range(above)
                    .map(|(id, _)| *id)
                    .take(page)
                    .collect(),
                self.ended
                    .range(above)
                    .map(|(id, _)| *id)
                    .take(page)
                    .collect(),
            ),
            (_, Some(tenant)) => (of(&tenant.live), of(&tenant.ended)),
            (_, None) => (Vec::new(), Vec::new()),
        };
        if ended {
            ids.extend(over);
        }
        ids.sort_unstable();
        let more = ids.len() > LEASES_PER_PAGE_MAX;
        ids.truncate(LEASES_PER_PAGE_MAX);
        let told = |id: &LeaseId| {
            let mut info = self.told(now, asked.role, false, *id)?;
            info.intent = None;
            if let Some(end) = info.end.as_mut().map(Arc::make_mut) {
                end.proof.clear();
                end.cleaning.clear();
            }
            Some(info)
        };
        Reply::Leases(LeasePage {
            leases: ids.iter().filter_map(told).collect(),
            next: ids.last().copied().filter(|_| more),
        })
    }
}
