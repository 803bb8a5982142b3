//! The record of which lease has which virtual function.

use fabricbios_contract::Cdi;
use fabricbios_wire::{HandOver, MacAddress, PciFunction, VlanId};
use serde::{Deserialize, Serialize};

use crate::{claims::Claim, records};

pub(super) type Records = records::Records<VfRecord>;

/// The record of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VfRecord {
    /// The card.
    pub(super) card: PciFunction,
    /// The virtual function.
    pub(super) function: PciFunction,
    /// Its number on the card.
    pub(super) number: u32,
    pub(super) mac: MacAddress,
    pub(super) vlan: Option<VlanId>,
    pub(super) rate_mbps: u32,
    pub(super) hand_over: HandOver,
    /// `Some` if the function is handed over through vfio.
    pub(super) vfio: Option<Vfio>,
}

impl records::Record for VfRecord {
    const SUFFIX: &'static str = records::VF;

    fn claim(&self) -> Claim {
        Claim {
            mac: self.mac,
            function: Some(self.function),
        }
    }
}

/// The properties of a function that a process gets through vfio.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Vfio {
    /// The IOMMU group.
    pub(super) group: u32,
    /// The directory of its CDI specification.
    pub(super) specs: String,
}

impl Vfio {
    pub(super) fn cdi(&self) -> Cdi {
        Cdi::at(&self.specs, "vfio")
    }
}
