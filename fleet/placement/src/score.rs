//! The order of the nodes that may grant a request.

use std::{cmp::Reverse, collections::BTreeSet, fmt, str::FromStr};

use fabricbios_wire::{
    KvCacheTier, LeaseAllocRequest, NodeId, ResourceInventory, ResourceType, Transport, health,
};

use crate::{
    Offer, View,
    affinity::Affinities,
    tried::{Tries, Try},
    view::Member,
};

/// Free shares of a resource are compared in this many steps, so that nodes which are about as free take turns.
const STEPS: u128 = 8;

/// Which of several nodes that have room comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The one with the largest free share of the resource.
    #[default]
    Spread,
    /// The one with the smallest.
    Binpack,
    /// One that has leases of the caller, then as [`Policy::Spread`].
    CacheAware,
}

const POLICIES: [(&str, Policy); 3] = [
    ("spread", Policy::Spread),
    ("binpack", Policy::Binpack),
    ("cache-aware", Policy::CacheAware),
];

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = POLICIES.iter().find(|(_, policy)| policy == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let known = POLICIES.iter().find(|(name, _)| *name == text);
        known.map(|(_, policy)| *policy).ok_or(UnknownPolicy)
    }
}

/// The text names no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write spread, binpack or cache-aware")]
pub struct UnknownPolicy;

/// Who asks, and how this scheduler chooses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asking<'a> {
    /// The tenant of the caller's certificate.
    pub tenant: &'a str,
    /// The policy of the scheduler.
    pub policy: Policy,
    /// Decides among equal nodes.
    pub seed: u64,
}

/// What a request wishes beyond its amount, class and transport.
pub(crate) struct Wishes<'a> {
    asking: Asking<'a>,
    /// The class that the request names.
    class: Option<u8>,
    tries: Tries,
    pub(crate) affinities: Affinities,
    tier: Option<KvCacheTier>,
    /// Under [`Policy::CacheAware`] the nodes that have leases of the caller.
    own: BTreeSet<NodeId>,
}

impl View {
    pub(crate) fn wishes<'a>(
        &self,
        request: &LeaseAllocRequest,
        class: Option<u8>,
        asking: &Asking<'a>,
    ) -> Wishes<'a> {
        Wishes {
            asking: *asking,
            class,
            tries: Tries::new(&request.tried),
            affinities: self.affinities(&request.intent.affinities, asking.tenant),
            tier: request.intent.kv_cache.map(|it| it.tier),
            own: match asking.policy {
                Policy::CacheAware => self.leases.nodes_of(asking.tenant).collect(),
                _ => BTreeSet::new(),
            },
        }
    }
}

impl Wishes<'_> {
    /// Whether the request leaves the node out.
    pub(crate) fn leave_out(&self, member: &Member) -> bool {
        self.tries.of(member.told.node_id) == Try::LeftOut
    }

    /// Whether certain nodes are wished, so that others cannot stand for them.
    pub(crate) fn are_of_nodes(&self) -> bool {
        let is_plain = self.affinities.is_empty() && self.own.is_empty();
        !is_plain || self.tier == Some(KvCacheTier::Hot)
    }

    /// Whether resources of one node are wished more or less.
    pub(crate) fn weigh_resources(&self) -> bool {
        self.tier == Some(KvCacheTier::Hot) || self.affinities.are_of_resources()
    }

    /// How little the resource is wished, beside others of any node: the least is the best.
    pub(crate) fn disliking(&self, member: &Member, offer: &Offer) -> impl Ord + use<> {
        let is_hot = self.tier == Some(KvCacheTier::Hot);
        let liking = Reverse(self.affinities.liking(member, offer));
        (liking, is_hot && !has_rdma(offer))
    }

    /// Puts the best first: nodes that were not tried before those that were, healthy nodes and resources before others,
    /// those that the request is to be near to, and then as the policy says. Among about equal ones the seed decides.
    pub(crate) fn order(&self, found: &mut [(&Member, &Offer)]) {
        found.sort_by_cached_key(|(member, offer)| {
            let node_id = member.told.node_id;
            // A node that is not well itself may refuse every lease.
            let is_ill = member.told.inventory.health != health::OK;
            let free = free_steps(&member.told.inventory, offer, self.class);
            (
                self.tries.of(node_id),
                is_ill,
                !offer.is_well(),
                self.disliking(member, offer),
                !self.own.is_empty() && !self.own.contains(&node_id),
                match self.packs() {
                    true => free,
                    false => STEPS - free,
                },
                mixed(self.asking.seed, node_id),
            )
        });
    }

    /// What decides about the place of a node, in words, in the order in which it is looked at.
    pub(crate) fn told(&self, member: &Member, offer: &Offer) -> String {
        let node_id = member.told.node_id;
        let free = free_steps(&member.told.inventory, offer, self.class);
        let is_ill = member.told.inventory.health != health::OK;
        let liking = self.affinities.liking(member, offer);
        let tried = match self.tries.of(node_id) {
            Try::Refused => "refused for now in this search, ",
            Try::Unanswered => "did not answer, ",
            Try::None | Try::LeftOut => "",
        };
        let well = match (is_ill, offer.is_well()) {
            (false, true) => "well",
            (true, _) => "the node is not well",
            (false, false) => "the resource is degraded",
        };
        let rdma = match self.tier {
            Some(KvCacheTier::Hot) if has_rdma(offer) => "with RDMA, ",
            Some(KvCacheTier::Hot) => "without RDMA, ",
            _ => "",
        };
        let own = match self.own.contains(&node_id) {
            true => "with leases of yours, ",
            false => "",
        };
        let packed = if self.packs() { ", packed" } else { "" };
        format!("{tried}{well}, affinities {liking:+}, {rdma}{own}{free} of {STEPS} free{packed}")
    }

    /// Whether fuller nodes come first.
    fn packs(&self) -> bool {
        self.tier == Some(KvCacheTier::Cold) || self.asking.policy == Policy::Binpack
    }
}

/// The free share of the resource in steps, rounded; a node that claims more than all has all. A resource whose whole amount
/// is not told counts as full.
fn free_steps(of: &ResourceInventory, offer: &Offer, class: Option<u8>) -> u128 {
    let whole = u128::from(whole(of, offer));
    let free = u128::from(offer.available_of(class)).min(whole);
    (free * STEPS + whole / 2).checked_div(whole).unwrap_or(0)
}

/// The whole amount of a resource, in the unit of its kind.
pub(crate) fn whole(of: &ResourceInventory, offer: &Offer) -> u64 {
    macro_rules! find {
        ($list:ident, $amount:expr) => {{
            let mut all = of.$list.iter();
            let found = all.find(|it| it.resource_id == offer.resource_id);
            found.map_or(0, $amount)
        }};
    }
    match offer.kind {
        ResourceType::Mem => find!(mem_arenas, |it| it.len),
        ResourceType::Block => find!(block_devs, |it| it.capacity),
        ResourceType::Cpu => find!(cpu_caps, |it| it.cores.into()),
        ResourceType::Net => find!(nics, |it| it.speed_bps),
        ResourceType::Gpu => find!(gpus, |it| it.vram_bytes),
        _ => 0,
    }
}

fn has_rdma(offer: &Offer) -> bool {
    use Transport::{Both, NvmeRdma, Rdma};
    { offer.transports.iter() }.any(|it| matches!(it, Rdma | Both | NvmeRdma))
}

/// A number of the node that differs from seed to seed (the finalizer of SplitMix64).
pub(crate) fn mixed(seed: u64, node_id: NodeId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = node_id.0;
    let mut z = seed.wrapping_add(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
