//! LEASE_LIST, a page at a time.

use alloc::{collections::BTreeSet, vec::Vec};
use core::ops::Bound;

use fabricbios_wire::{LeaseId, LeaseInfo, LeasePage, Reply, Role};

use crate::{Asked, LeaseTable, Now};

/// Leases in one page: about half of a message's 64 KiB.
const PAGE_LEASES: usize = 128;

impl LeaseTable {
    /// The caller's leases, or everybody's for an operator, with ids above `after`. Looks at a page
    /// of the living and a page of the ended at most, however many there are.
    pub(crate) fn list(&self, now: Now, asked: &Asked, after: LeaseId, ended: bool) -> Reply {
        let above = (Bound::Excluded(after), Bound::Unbounded);
        let page = PAGE_LEASES + 1;
        let tenant = self.tenants.get(&asked.tenant);
        let of = |ids: &BTreeSet<LeaseId>| ids.range(above).copied().take(page).collect();
        let ids: (Vec<LeaseId>, Vec<LeaseId>) = match (asked.role, tenant) {
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
            (Role::Tenant, Some(tenant)) => (of(&tenant.live), of(&tenant.ended)),
            (Role::Tenant, None) => (Vec::new(), Vec::new()),
        };
        let live = ids
            .0
            .iter()
            .filter_map(|id| Some(self.leases.get(id)?.info(now, false)));
        let over = ids.1.iter().filter(|_| ended);
        let over = over.filter_map(|id| Some(self.ended.get(id)?.info(*id)));
        Reply::Leases(page_of(live.chain(over).collect()))
    }
}

fn page_of(mut leases: Vec<LeaseInfo>) -> LeasePage {
    leases.sort_by_key(|info| info.lease_id);
    let more = leases.len() > PAGE_LEASES;
    leases.truncate(PAGE_LEASES);
    let next = leases.last().map(|info| info.lease_id).filter(|_| more);
    LeasePage { leases, next }
}
