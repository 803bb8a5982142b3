//! Which nodes may grant a request: filter ([`crate::Shadow`]), then order ([`crate::score`]). Isolation and transport only
//! filter, and are never weakened (001 §6.3).

use fabricbios_lease::{Filter, NodeLimits, Offered, Refuses, Removed, Wordless, named_class};
use fabricbios_wire::{
    CANDIDATES_MAX, Candidate, LeaseAllocRequest, LeaseError, LeaseIntent, NodeId, Refusal,
    RefusalClass,
};

use crate::{
    Asking, Offer, View,
    left_out::{By, Left, LeftOut},
    score::{Wishes, mixed},
    view::Member,
};

/// So many nodes that can grant a request are compared, from a random one on: more make no better choice.
const COMPARED_MAX: usize = 128;

/// How many nodes are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Until enough can grant the request; all, if it wishes for certain ones.
    Enough,
    All,
}

/// Nodes, each with one resource.
pub(crate) type Ranked<'a> = Vec<(&'a Member, &'a Offer)>;

impl View {
    /// The nodes that may grant the request of somebody without leases, see [`View::place_for`].
    ///
    /// # Errors
    /// As of [`View::place_for`].
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
    /// None may at the moment. The refusal is for good only if no node ever could: it is transient while a member of the
    /// fabric is away, or has not reported all, or the members are not known.
    pub fn place_for(
        &self,
        request: &LeaseAllocRequest,
        asking: &Asking<'_>,
    ) -> Result<Vec<Candidate>, Refusal> {
        let (mut found, ..) = self.ranked(request, asking, Look::Enough)?;
        found.truncate(CANDIDATES_MAX);
        let candidates = found.into_iter().map(|(member, offer)| Candidate {
            node_id: member.told.node_id,
            endpoint: member.told.endpoint,
            resource_id: offer.resource_id,
        });
        Ok(candidates.collect())
    }

    /// The nodes that may grant the request, the best first, those that may not, and the order. A refusal has looked at
    /// all.
    pub(crate) fn ranked<'a>(
        &'a self,
        request: &LeaseAllocRequest,
        asking: &Asking<'a>,
        look: Look,
    ) -> Result<(Ranked<'a>, LeftOut, Wishes<'a>), Refusal> {
        // What is wrong at every node.
        NodeLimits::UNKNOWN.check::<Refusal>(request)?;
        let wishes = self.wishes(request, named_class(&request.terms), asking);
        let affinities = &request.intent.affinities;
        // What a table looks at: a copy for each node costs little.
        let request = &LeaseAllocRequest {
            intent: LeaseIntent::default(),
            tried: Vec::new(),
            ..request.clone()
        };
        let (mut found, mut left_out) = (Vec::new(), LeftOut::default());
        if look == Look::Enough {
            let most = if wishes.are_of_nodes() {
                usize::MAX
            } else {
                COMPARED_MAX
            };
            let members = self.members_from(asking.seed);
            let members = members.filter(|it| it.shadow.may_grant(request));
            let granting = members.filter_map(|member| {
                let offer = choose::<Wordless>(member, request, &wishes).ok()?;
                Some((member, offer))
            });
            found.extend(granting.take(most));
        }
        if found.is_empty() {
            self.check_somewhere(affinities, &wishes.affinities)?;
            for (node_id, member) in &self.members {
                match self.ask(member, request, &wishes) {
                    Ok(offer) => found.push((member, offer)),
                    Err(left) => left_out.add(*node_id, left),
                }
            }
        }
        if found.is_empty() {
            return Err(self.refusal(left_out, request, &wishes));
        }
        wishes.order(&mut found);
        Ok((found, left_out, wishes))
    }

    /// All members, from a random one on.
    fn members_from(&self, seed: u64) -> impl Iterator<Item = &Member> {
        let mut first = [0; 32];
        let random = mixed(seed, NodeId([0; 32]));
        first[..8].copy_from_slice(&random.to_be_bytes());
        let first = NodeId(first);
        let behind = self.members.range(first..);
        behind.chain(self.members.range(..first)).map(|(_, it)| it)
    }

    /// As [`choose`]. A node that has too little room is busy if there is enough once leases that are over are cleaned, as its
    /// table says too.
    fn ask<'a, R: Refuses>(
        &self,
        member: &'a Member,
        request: &LeaseAllocRequest,
        wishes: &Wishes<'_>,
    ) -> Result<&'a Offer, Left<R>> {
        choose(member, request, wishes).map_err(|left| {
            if !matches!(left.by, By::Table(Filter::Exclusivity | Filter::Capacity)) {
                return left;
            }
            let mut leaving = self.leases.leaving(member.told.node_id);
            let comes_back = leaving.find(|it| {
                member.shadow.offer(it.resource_id).is_some_and(|offer| {
                    wishes.affinities.allow(member, offer)
                        && (offer as &dyn Offered).has_room_once(it.amount, it.kept, request)
                })
            });
            match comes_back {
                Some(it) => Left::being_cleaned(left.by, it.resource_id),
                None => left,
            }
        })
    }

    fn refusal(
        &self,
        left_out: LeftOut,
        request: &LeaseAllocRequest,
        wishes: &Wishes<'_>,
    ) -> Refusal {
        let told = left_out.told();
        // This node is asked again, for its words.
        let last_word = left_out.last_word.and_then(|(node_id, _)| {
            let member = self.members.get(&node_id)?;
            let left = self.ask::<Refusal>(member, request, wishes).err()?;
            Some((node_id, left.refusal))
        });
        let Some((node_id, refusal)) = last_word else {
            let why = "no node reports to this scheduler at the moment; try again later, or ask a node itself";
            return Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, why);
        };
        let nodes = match self.len() {
            1 => "the one node that reports cannot grant this".to_owned(),
            nodes => format!("none of the {nodes} nodes that report can grant this"),
        };
        let is_final = refusal.class == RefusalClass::Transient || self.is_whole();
        let (error, class, what_now) = match (is_final, refusal.error) {
            (true, error) => (error, refusal.class, ""),
            // Another node may, and a client that is patient waits for it unless it is a matter of amounts.
            (false, LeaseError::CapacityExceeded) => (
                LeaseError::CapacityExceeded,
                RefusalClass::Transient,
                "; others may report later",
            ),
            (false, _) => (
                LeaseError::Unavailable,
                RefusalClass::Transient,
                "; others may report later",
            ),
        };
        let why = format!(
            "{nodes}: left out are {told}; node {node_id}: {}{what_now}",
            refusal.message
        );
        Refusal::new(error, class, why)
    }
}

/// The resource that the node's table would choose, unless the request wishes for others of its resources.
fn choose<'a, R: Refuses>(
    member: &'a Member,
    request: &LeaseAllocRequest,
    wishes: &Wishes<'_>,
) -> Result<&'a Offer, Left<R>> {
    if wishes.leave_out(member) {
        let why = "the request leaves it out; try again later, or ask a node itself";
        return Err(Left::for_now(By::Request, why));
    }
    let offer = match wishes.weigh_resources() {
        true => wished(member, request, wishes)?,
        false => member.shadow.verdict(request)?,
    };
    match wishes.affinities.allow(member, offer) {
        true => Ok(offer),
        false => Err(not_near()),
    }
}

/// Of the resources of the node that its table would grant a part of, the one that the request wishes most, of the healthy
/// ones first; among those the one that the table would choose.
fn wished<'a, R: Refuses>(
    member: &'a Member,
    request: &LeaseAllocRequest,
    wishes: &Wishes<'_>,
) -> Result<&'a Offer, Left<R>> {
    let named = request.resource_id;
    let allowed = member.shadow.offers().iter().filter(|it| {
        it.kind == request.resource_type()
            && named.is_none_or(|id| id == it.resource_id)
            && wishes.affinities.allow(member, it)
    });
    let mut one = request.clone();
    let (mut best, mut removed) = (None, None::<Removed<R>>);
    for offer in allowed {
        one.resource_id = Some(offer.resource_id);
        match member.shadow.verdict(&one) {
            Ok(offer) => {
                let disliking = wishes.disliking(member, offer);
                let rank = (offer as &dyn Offered).rank(request);
                let place = (!offer.is_well(), disliking, rank, offer.resource_id);
                if best.as_ref().is_none_or(|(first, _)| place < *first) {
                    best = Some((place, offer));
                }
            }
            Err(it) if removed.as_ref().is_none_or(|last| it.by > last.by) => removed = Some(it),
            Err(_) => {}
        }
    }
    match (best, removed) {
        (Some((_, offer)), _) => Ok(offer),
        (None, Some(removed)) => Err(removed.into()),
        // It has no such resource, or none that is near.
        (None, None) => Err(member
            .shadow
            .verdict(request)
            .map_or_else(Left::from, |_| not_near())),
    }
}

fn not_near<R: Refuses>() -> Left<R> {
    let why =
        "it is not near what the request requires; try again later, or ask without the affinity";
    Left::for_now(By::Affinity, why)
}

#[cfg(test)]
mod tests;
