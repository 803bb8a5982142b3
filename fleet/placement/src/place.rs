//! Which nodes may grant a request: filter ([`crate::Shadow`]), then order ([`crate::score`]). Isolation and transport only
//! filter, and are never weakened (001 §6.3).

use std::{cmp::Reverse, collections::BTreeMap};

use fabricbios_lease::{Filter, NodeLimits, Offered, Removed, named_class};
use fabricbios_wire::{
    CANDIDATES_MAX, Candidate, LeaseAllocRequest, LeaseError, NodeId, Refusal, RefusalClass,
};

use crate::{
    Asking, Offer, View,
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

/// What leaves a node out, from the farthest from a lease to the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// The request itself: the node was tried, and refused for good.
    Request,
    /// A required affinity.
    Affinity,
    /// What its table would say.
    Table(Filter),
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Request => "the request",
            Self::Affinity => "affinity",
            Self::Table(filter) => filter.name(),
        }
    }
}

/// A node that cannot grant the request, and why.
struct Left {
    by: By,
    refusal: Refusal,
}

impl Left {
    /// Other nodes may come that are not left out so.
    fn for_now(by: By, why: &str) -> Self {
        let refusal = Refusal::new(LeaseError::Unavailable, RefusalClass::Transient, why);
        Self { by, refusal }
    }

    /// What a table would say counts before what the request itself leaves out. Transient comes before policy, and policy before permanent. Of transient ones a device that becomes free comes
    /// first, because a client waits for it; then the node that is the nearest to a lease.
    fn weight(&self) -> impl Ord + use<> {
        let class = match self.refusal.class {
            RefusalClass::Transient => 2,
            RefusalClass::Policy => 1,
            RefusalClass::Permanent => 0,
        };
        let is_busy = self.refusal.error == LeaseError::ResourceBusy;
        let is_of_table = matches!(self.by, By::Table(_));
        (is_of_table, class, is_busy, self.by)
    }
}

impl From<Removed> for Left {
    fn from(Removed { by, refusal }: Removed) -> Self {
        let by = By::Table(by);
        Self { by, refusal }
    }
}

/// The nodes that cannot grant a request.
#[derive(Default)]
pub(crate) struct LeftOut {
    /// How many by each filter.
    by: BTreeMap<Reverse<By>, usize>,
    /// The one whose refusal counts for all.
    last_word: Option<(NodeId, Left)>,
}

impl LeftOut {
    fn add(&mut self, node_id: NodeId, left: Left) {
        *self.by.entry(Reverse(left.by)).or_default() += 1;
        let last = self.last_word.as_ref();
        if last.is_none_or(|(_, last)| left.weight() > last.weight()) {
            self.last_word = Some((node_id, left));
        }
    }

    /// Such as `1 by capacity, 2 by kind`; the filter that is the nearest to a lease comes first.
    pub(crate) fn told(&self) -> String {
        let told = self.by.iter();
        let told = told.map(|(Reverse(by), count)| format!("{count} by {}", by.name()));
        told.collect::<Vec<_>>().join(", ")
    }
}

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
        NodeLimits::UNKNOWN.check(request)?;
        let wishes = self.wishes(request, named_class(&request.terms), asking)?;
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
                let offer = choose(member, request, &wishes).ok()?;
                Some((member, offer))
            });
            found.extend(granting.take(most));
        }
        if found.is_empty() {
            for (node_id, member) in &self.members {
                match choose(member, request, &wishes) {
                    Ok(offer) => found.push((member, offer)),
                    Err(left) => left_out.add(*node_id, left),
                }
            }
        }
        if found.is_empty() {
            return Err(self.refusal(left_out));
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

    fn refusal(&self, left_out: LeftOut) -> Refusal {
        let told = left_out.told();
        let Some((node_id, Left { refusal, .. })) = left_out.last_word else {
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
fn choose<'a>(
    member: &'a Member,
    request: &LeaseAllocRequest,
    wishes: &Wishes<'_>,
) -> Result<&'a Offer, Left> {
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
fn wished<'a>(
    member: &'a Member,
    request: &LeaseAllocRequest,
    wishes: &Wishes<'_>,
) -> Result<&'a Offer, Left> {
    let named = request.resource_id;
    let allowed = member.shadow.offers().iter().filter(|it| {
        it.kind == request.resource_type()
            && named.is_none_or(|id| id == it.resource_id)
            && wishes.affinities.allow(member, it)
    });
    let mut one = request.clone();
    let (mut best, mut removed) = (None, None::<Removed>);
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

fn not_near() -> Left {
    let why =
        "it is not near what the request requires; try again later, or ask without the affinity";
    Left::for_now(By::Affinity, why)
}

#[cfg(test)]
mod tests;
