//! Which nodes may grant a request: filter, then order ([`crate::score`]). Isolation and transport only filter, and are never weakened
//! (001 §6.3).

use std::fmt::{self, Write};

use fabricbios_wire::{
    CANDIDATES_MAX, Candidate, LeaseAllocRequest, LeaseError, LeaseTerms, Refusal, RefusalClass,
    Transport, health,
};

use crate::{Asking, Offer, View, score::Wishes, view::Member};

/// Why a resource on offer cannot grant the request, in the order in which it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removed {
    /// Its health says that nothing is leased.
    Fenced,
    /// It does not have the class.
    Class,
    /// It does not have the transport.
    Transport,
    /// It has less than the amount.
    Room,
    /// The request leaves its node out. Looked at first.
    LeftOut,
    /// It is not near what the request requires. Looked at next.
    Affinity,
}

/// Nodes, each with one resource.
pub(crate) type Ranked<'a> = Vec<(&'a Member, &'a Offer)>;

/// How many resources each filter has removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    offers: usize,
    removed: [usize; 6],
}

impl Counts {
    /// The number of all resources of the kind.
    pub(crate) fn offers(&self) -> usize {
        self.offers
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WHY: [&str; 6] = [
            "fenced",
            "without the class",
            "without the transport",
            "with less room",
            "of nodes that the request leaves out",
            "without the required affinity",
        ];
        let told = { self.removed.iter().zip(WHY) }.filter(|(count, _)| **count > 0);
        for (at, (count, why)) in told.enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{count} {why}")?;
        }
        Ok(())
    }
}

impl View {
    /// The nodes that may grant the request of somebody without leases, see [`View::place_for`].
    ///
    /// # Errors
    /// None may at the moment.
    pub fn place(&self, request: &LeaseAllocRequest, seed: u64) -> Result<Vec<Candidate>, Refusal> {
        let asking = Asking {
            seed,
            ..Asking::default()
        };
        self.place_for(request, &asking)
    }

    /// The nodes that may grant the request, the best first, each with one resource.
    ///
    /// # Errors
    /// None may at the moment. The refusal is transient: a node that does not report now may.
    pub fn place_for(
        &self,
        request: &LeaseAllocRequest,
        asking: &Asking<'_>,
    ) -> Result<Vec<Candidate>, Refusal> {
        let (mut found, ..) = self.ranked(request, asking)?;
        found.truncate(CANDIDATES_MAX);
        let candidates = found.into_iter().map(|(member, offer)| Candidate {
            node_id: member.told.node_id,
            endpoint: member.told.endpoint,
            resource_id: offer.resource_id,
        });
        Ok(candidates.collect())
    }

    /// All that may grant the request, the best first, how many resources each filter has removed, and the order.
    pub(crate) fn ranked<'a>(
        &'a self,
        request: &LeaseAllocRequest,
        asking: &Asking<'a>,
    ) -> Result<(Ranked<'a>, Counts, Wishes<'a>), Refusal> {
        let wishes = self.wishes(request, class(&request.terms), asking)?;
        let mut counts = Counts::default();
        let mut found: Vec<_> = { self.members.values() }
            .filter_map(|member| best_of(member, request, &wishes, &mut counts))
            .collect();
        if found.is_empty() {
            return Err(self.refusal(request, &counts));
        }
        wishes.order(&mut found);
        Ok((found, counts, wishes))
    }

    fn refusal(&self, request: &LeaseAllocRequest, counts: &Counts) -> Refusal {
        let kind = request.resource_type();
        if matches!(request.terms, LeaseTerms::Other(_)) {
            let why = format!("resources of type {kind} are advertised, never leased");
            return Refusal::new(LeaseError::InvalidArgs, RefusalClass::Permanent, why);
        }
        let nodes = self.len();
        let mut why = match nodes {
            0 => "no node reports to this scheduler at the moment".to_owned(),
            1 => "the one node that reports cannot grant this".to_owned(),
            _ => format!("none of the {nodes} nodes that report can grant this"),
        };
        let offers = counts.offers;
        let told = match request.resource_id {
            _ if nodes == 0 => Ok(()),
            Some(id) if offers == 0 => write!(why, ": none offers resource {id} of type {kind}"),
            None if offers == 0 => write!(why, ": none offers {kind}"),
            _ => write!(why, ": of {offers} resources of type {kind}, {counts}"),
        };
        // Writing to a text does not fail.
        told.ok();
        why.push_str("; try again later, or ask a node itself");
        let error = match counts.removed[Removed::Room as usize] {
            0 => LeaseError::Unavailable,
            _ => LeaseError::CapacityExceeded,
        };
        Refusal::new(error, RefusalClass::Transient, why)
    }
}

/// The resource of the node that fits tightest, of the healthy ones first, as the node itself chooses.
fn best_of<'a>(
    member: &'a Member,
    request: &LeaseAllocRequest,
    wishes: &Wishes<'_>,
    counts: &mut Counts,
) -> Option<(&'a Member, &'a Offer)> {
    let class = class(&request.terms);
    let named = request.resource_id;
    let of_kind = { member.offers.iter() }.filter(|it| {
        it.kind == request.resource_type() && named.is_none_or(|id| id == it.resource_id)
    });
    let fits = of_kind.filter(|offer| {
        counts.offers += 1;
        let removed = match () {
            () if wishes.leave_out(member) => Some(Removed::LeftOut),
            () if !wishes.affinities.allow(member, offer) => Some(Removed::Affinity),
            () => removed(offer, request, class),
        };
        if let Some(why) = removed {
            counts.removed[why as usize] += 1;
        }
        removed.is_none()
    });
    let best = fits.min_by_key(|it| {
        let disliking = wishes.disliking(member, it);
        (
            !it.is_well(),
            disliking,
            it.available_of(class),
            it.resource_id,
        )
    })?;
    Some((member, best))
}

fn removed(offer: &Offer, request: &LeaseAllocRequest, class: Option<u8>) -> Option<Removed> {
    if offer.health == health::FENCED {
        return Some(Removed::Fenced);
    }
    if class.is_some_and(|class| !offer.classes.contains(&class)) {
        return Some(Removed::Class);
    }
    let wanted = request.transport;
    if wanted != Transport::Auto && !offer.transports.contains(&wanted) {
        return Some(Removed::Transport);
    }
    (offer.available_of(class) < request.capacity).then_some(Removed::Room)
}

/// The class that the request names, as its byte.
fn class(terms: &LeaseTerms) -> Option<u8> {
    match terms {
        LeaseTerms::Cpu(terms) => terms.isolation.map(|it| it as u8),
        LeaseTerms::Gpu(terms) => terms.exclusivity.map(|it| it as u8),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
