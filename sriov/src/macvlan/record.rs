//! What a lease has.

use fabricbios_wire::{HandOver, MacAddress, VlanId};
use serde::{Deserialize, Serialize};

use crate::records;

pub(super) type Records = records::Records<Record>;

/// What a lease has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The name of the parent.
    pub(super) parent: String,
    pub(super) mac: MacAddress,
    pub(super) vlan: Option<VlanId>,
    /// Bits per second.
    pub(super) rate_bps: u64,
    pub(super) hand_over: HandOver,
}

impl records::Record for Record {
    const SUFFIX: &'static str = records::MACVLAN;
}
