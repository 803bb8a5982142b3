//! The order of the nodes that may grant a request.

use std::cmp::Reverse;

use fabricbios_wire::{NodeId, health};

use crate::{Offer, view::Member};

/// Puts the best first: of healthy nodes and resources those with the most room, which spreads leases over nodes. `seed`
/// decides among equal ones.
pub(crate) fn order(found: &mut [(&Member, &Offer)], class: Option<u8>, seed: u64) {
    found.sort_by_cached_key(|(member, offer)| {
        let room = Reverse(offer.available_of(class));
        // A node that is not well itself may refuse every lease.
        let is_ill = member.told.inventory.health != health::OK;
        (
            is_ill,
            !offer.is_well(),
            room,
            mixed(seed, member.told.node_id),
        )
    });
}

/// A number of the node that differs from seed to seed (the finalizer of SplitMix64).
fn mixed(seed: u64, node_id: NodeId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = node_id.0;
    let mut z = seed.wrapping_add(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
