//! Refusals for lack of room.

use alloc::{format, string::String, vec::Vec};

use fabricbios_wire::{LeaseAllocRequest, LeaseError, Refusal, RefusalClass, ResourceId};

use crate::{
    Filter, Holding, Offered, Refuses, Removed, Shortage, Sight, When, kinds::rules, standing::busy,
};

impl Sight<'_> {
    /// Refuses for lack of room, and says the most that a lease can get: of the named resource, or of any that fits.
    pub(crate) fn check_room<R: Refuses>(
        &self,
        chosen: &dyn Offered,
        request: &LeaseAllocRequest,
    ) -> Result<(), Removed<R>> {
        if chosen.most(When::Now, chosen.need(request)) >= request.capacity {
            return Ok(());
        }
        let most = |when| {
            let fitting = self.resources.iter();
            let fitting = fitting.filter(|it| it.is_meant(chosen.id(), request));
            let most = fitting.map(|it| it.most(when, it.need(request)));
            most.max().unwrap_or(0)
        };
        let usable = most(When::Empty);
        let never = request.capacity > usable;
        match chosen.occupied(request).filter(|_| !never) {
            Some(occupied) => Err(occupied),
            None => {
                let words = || too_little(chosen, request, most(When::Now), usable);
                let refusal = match never {
                    true => R::with(never_enough, words),
                    false => R::with(exhausted, words),
                };
                Err(Filter::Capacity.removes()(refusal))
            }
        }
    }
}

/// `longest` and `usable`: the most that a lease can get now, and when all is free.
fn too_little(
    chosen: &dyn Offered,
    request: &LeaseAllocRequest,
    longest: u64,
    usable: u64,
) -> String {
    // A resource without the dimension ignores it.
    let explicit = rules(&request.terms).explicit().and_then(|it| {
        let mut dimensions = chosen.dimensions(When::Empty).into_iter();
        let all = dimensions.find(|of| of.name == it.dimension)?;
        Some((it, all.amount))
    });
    let place = match request.resource_id {
        Some(id) => format!("resource {id}"),
        None => format!("any {} here", request.resource_type()),
    };
    if let Some((it, all)) = explicit.as_ref().filter(|(it, all)| it.amount > *all) {
        return format!(
            "asked for {} {}; {place} has {all}",
            it.amount, it.dimension
        );
    }
    let explicit =
        explicit.map(|(it, all)| format!(" with {} of {all} {}", it.amount, it.dimension));
    let dimensions = chosen.dimensions(When::Now);
    let all_leased = dimensions.iter().find(|it| it.amount == 0);
    let all_leased = all_leased.map(|it| format!("; nothing is left of its {}", it.name));
    let missing = chosen.missing_part();
    let missing = missing.map(|why| format!("; at the moment {why}"));
    let told = |amount| amount_told(request, amount);
    let when_free = match usable {
        u64::MAX => String::new(),
        _ => format!(", and {} when all of it is free", told(usable)),
    };
    format!(
        "asked for {}{}; the most that one lease can get of {place} is {} now{when_free}{}{}",
        told(request.capacity),
        explicit.unwrap_or_default(),
        told(longest),
        all_leased.unwrap_or_default(),
        missing.unwrap_or_default()
    )
}

impl dyn Offered + '_ {
    /// Whether it can probably meet the request once `leaving` of it is free, if other leases have `kept`. Which parts these are
    /// decides, and is not known here: where free parts may come together, it is taken that they do.
    #[must_use]
    pub fn has_room_once(&self, leaving: u64, kept: u64, request: &LeaseAllocRequest) -> bool {
        let need = self.need(request);
        let [now, empty] = [When::Now, When::Empty].map(|when| self.most(when, need));
        let most = { now.saturating_add(leaving) }.max(empty.saturating_sub(kept));
        let is_meant = request.resource_id.is_none_or(|id| id == self.id());
        is_meant && self.may_serve(request) && most.min(empty) >= request.capacity
    }

    /// Whether a refusal for lack of room is about this resource.
    pub(crate) fn is_meant(&self, chosen: ResourceId, request: &LeaseAllocRequest) -> bool {
        match request.resource_id {
            Some(id) => self.id() == id,
            None => self.id() == chosen || self.may_serve(request),
        }
    }

    /// Why a device that could meet the request has no room for it: which leases have it, or which amounts they have
    /// used up. `None` for other resources.
    fn occupied<R: Refuses>(&self, request: &LeaseAllocRequest) -> Option<Removed<R>> {
        let (id, need, is_alone) = (self.id(), self.need(request), self.is_held_alone()?);
        let (by, refusal) = match is_alone {
            _ if !self.can_be_shared() => (
                Filter::Exclusivity,
                R::with(exhausted, || {
                    format!(
                        "resource {id} is held by another lease, and its leases do not share it: try again when that \
                         lease is over"
                    )
                }),
            ),
            true => (
                Filter::Exclusivity,
                R::with(busy, || {
                    format!(
                        "resource {id} is held by another lease that has it alone: try again when that lease is over"
                    )
                }),
            ),
            false if need.holding != Holding::Shared => (
                Filter::Exclusivity,
                R::with(busy, || {
                    format!(
                        "resource {id} is shared by other leases, and a lease of this class has it alone: try again \
                         when they are over, or ask for a class that shares it"
                    )
                }),
            ),
            false => (
                Filter::Capacity,
                R::with(exhausted, || {
                    let shortages = self.shortages(need);
                    // What the request did not name follows from its capacity.
                    let hint = match (need.explicit, &shortages[..]) {
                        (None, [one]) if !one.is_first => {
                            format!(": of its {}, a lease can name its number", one.name)
                        }
                        _ => String::new(),
                    };
                    format!(
                        "asked for {}, and too little is left of resource {id}{}; try again when one of its leases is \
                         over, or ask for less{hint}",
                        amount_told(request, request.capacity),
                        shortages_told(request, &shortages),
                    )
                }),
            ),
        };
        Some(by.removes()(refusal))
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
    match told.is_empty() {
        true => String::new(),
        false => format!(": {}", told.join(", ")),
    }
}

/// The amount in a unit for people, and as a number for programs.
fn amount_told(request: &LeaseAllocRequest, amount: u64) -> String {
    format!("{} ({amount})", request.resource_type().amount(amount))
}

/// Too little of the resource is free now.
fn exhausted(message: String) -> Refusal {
    let class = RefusalClass::Transient;
    Refusal::new(LeaseError::CapacityExceeded, class, message)
}

/// The resource has too little, also when all of it is free.
fn never_enough(message: String) -> Refusal {
    let class = RefusalClass::Permanent;
    Refusal::new(LeaseError::CapacityExceeded, class, message)
}
