//! The record of a lease.

use fabricbios_wire::{HandOver, MacAddress, VlanId};
use serde::{Deserialize, Serialize};

use crate::{claims::Claim, records};

pub(super) type Records = records::Records<MacvlanRecord>;

/// The properties of a lease that its devices must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MacvlanRecord {
    /// The name of the parent.
    pub(super) parent: String,
    pub(super) mac: MacAddress,
    pub(super) vlan: Option<VlanId>,
    /// The rate in bits per second.
    pub(super) rate_bps: u64,
    pub(super) hand_over: HandOver,
}

impl records::Record for MacvlanRecord {
    const SUFFIX: &'static str = records::MACVLAN;

    fn claim(&self) -> Claim {
        Claim {
            mac: self.mac,
            function: None,
        }
    }
}
