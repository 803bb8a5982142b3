//! Refusals for lack of room.

use alloc::{format, string::String, vec::Vec};

use fabricbios_wire::{LeaseAllocRequest, LeaseError, Refusal, RefusalClass, ResourceId};

use crate::{
    Condition, LeaseTable, Now,
    device::Occupancy,
    kinds::rules,
    parts::Shortage,
    resource::Resource,
    room::{Holding, Room},
    standing::busy,
};

impl LeaseTable {
    /// Refuses for lack of room, and says the most that a lease can get: of the named resource, or of any that fits.
    pub(crate) fn no_room(
        &self,
        now: Now,
        chosen: ResourceId,
        request: &LeaseAllocRequest,
    ) -> Refusal {
        let fits = |resource: &&Resource| match request.resource_id {
            Some(id) => resource.id == id,
            None => resource.id == chosen || resource.may_serve(request),
        };
        let fitting: Vec<&Resource> = self.resources.values().filter(fits).collect();
        if let Some(refusal) = self.comes_back(now, &fitting, request) {
            return refusal;
        }
        let most = |room: &dyn Fn(&Resource) -> &Room| {
            let most = |it: &&Resource| room(it).most(it.need(request));
            fitting.iter().map(most).max().unwrap_or(0)
        };
        let (usable, longest) = (most(&|it| &it.empty), most(&|it| &it.free));
        let never = request.capacity > usable;
        let chosen = self.resources.get(&chosen);
        if let Some(refusal) = chosen
            .filter(|_| !never)
            .and_then(|it| it.occupied(request))
        {
            return refusal;
        }
        let explicit = rules(&request.terms).explicit();
        let explicit = explicit.map(|it| {
            let dimensions = chosen.map(|of| of.empty.free_dimensions());
            let mut dimensions = dimensions.into_iter().flatten();
            let all = dimensions.find(|of| of.name == it.dimension);
            (it, all.map_or(0, |all| all.amount))
        });
        let place = match request.resource_id {
            Some(id) => format!("resource {id}"),
            None => format!("any {} here", request.resource_type()),
        };
        let dimensions = chosen.map(|it| it.free.free_dimensions());
        let all_leased = dimensions.unwrap_or_default();
        let all_leased = all_leased.iter().find(|it| it.amount == 0);
        let all_leased = all_leased.map(|it| format!("; nothing is left of its {}", it.name));
        let told = |amount| amount_told(request, amount);
        let missing = chosen.and_then(|it| match &it.condition.0 {
            Condition::Partial { why, .. } => Some(format!("; at the moment {why}")),
            _ => None,
        });
        if let Some((it, all)) = explicit.as_ref().filter(|(it, all)| it.amount > *all) {
            let why = format!(
                "asked for {} {}; {place} has {all}",
                it.amount, it.dimension
            );
            return Refusal::new(LeaseError::CapacityExceeded, RefusalClass::Permanent, why);
        }
        let explicit =
            explicit.map(|(it, all)| format!(" with {} of {all} {}", it.amount, it.dimension));
        let message = format!(
            "asked for {}{}; the most that one lease can get of {place} is {} now, and {} when all of it is free{}{}",
            told(request.capacity),
            explicit.unwrap_or_default(),
            told(longest),
            told(usable),
            all_leased.unwrap_or_default(),
            missing.unwrap_or_default()
        );
        match never {
            true => Refusal::new(
                LeaseError::CapacityExceeded,
                RefusalClass::Permanent,
                message,
            ),
            false => exhausted(message),
        }
    }
}

impl Resource {
    /// Why a device that could meet the request has no room for it: which leases have it, or which amounts they have
    /// used up. `None` for other resources.
    fn occupied(&self, request: &LeaseAllocRequest) -> Option<Refusal> {
        let (id, need) = (self.id, self.need(request));
        let (occupancy, shortages) = self.free.occupancy(need)?;
        let refusal = match occupancy {
            _ if !self.can_be_shared() => exhausted(format!(
                "resource {id} is held by another lease, and its leases do not share it: try again when that lease is \
                 over"
            )),
            Occupancy::Alone => busy(format!(
                "resource {id} is held by another lease that has it alone: try again when that lease is over"
            )),
            _ if need.holding != Holding::Shared => busy(format!(
                "resource {id} is shared by other leases, and a lease of this class has it alone: try again when they \
                 are over, or ask for a class that shares it"
            )),
            _ => exhausted(format!(
                "asked for {}, and too little is left of resource {id}: {}; try again when one of its leases is over, or \
                 ask for less{}",
                amount_told(request, request.capacity),
                shortages_told(request, &shortages),
                // What the request did not name follows from its capacity.
                match (need.explicit, &shortages[..]) {
                    (None, [one]) if !one.is_first => {
                        format!(": of its {}, a lease can name its number", one.name)
                    }
                    _ => String::new(),
                }
            )),
        };
        Some(refusal)
    }
}

fn shortages_told(request: &LeaseAllocRequest, shortages: &[Shortage]) -> String {
    let told = |it: &Shortage| {
        let told = |amount| match it.is_first {
            true => amount_told(request, amount),
            false => format!("{amount}"),
        };
        let (wanted, free, all) = (told(it.wanted), told(it.free), told(it.capacity));
        format!("{wanted} of its {} needed, {free} of {all} left", it.name)
    };
    let told: Vec<String> = shortages.iter().map(told).collect();
    told.join(", ")
}

/// The amount in a unit for people, and as a number for programs.
fn amount_told(request: &LeaseAllocRequest, amount: u64) -> String {
    format!("{} ({amount})", request.resource_type().amount(amount))
}

/// Too little of the resource is free now.
fn exhausted(message: String) -> Refusal {
    Refusal::new(
        LeaseError::CapacityExceeded,
        RefusalClass::Transient,
        message,
    )
}
