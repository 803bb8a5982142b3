//! The store of virtual functions: gives each lease a function, and sets the function's limits on the wire.

use std::{sync::Arc, time::Instant};

use fabricbios_contract::{Health, Part, Store, TellCondition};
use fabricbios_lease::{BindError, BindOrder, BindingId, Placement, Proof, StepError};
use fabricbios_wire::{HandOver, LeaseId, NetTerms, PciFunction};

use super::{
    card::{Card, MBPS},
    record::{VfRecord, Vfio},
    settings::{NEUTRAL, Settings},
    steps,
};
use crate::{LOOK_EVERY, claims::Leases, link::Trouble};

/// The store of one card's virtual functions.
#[derive(Debug)]
pub struct VfStore {
    card: Arc<Card>,
    health: Health,
}

impl VfStore {
    /// The store of this card.
    #[must_use]
    pub fn new(card: Arc<Card>) -> Self {
        let watched = card.clone();
        let check = Box::new(move || watched.condition());
        Self {
            health: Health::watch(card.present(), LOOK_EVERY, check),
            card,
        }
    }

    /// Chooses a function for a new lease and records it.
    fn claim(&self, order: &BindOrder, terms: &NetTerms) -> Result<VfRecord, BindError> {
        let card = &self.card;
        let choose = |mac, held: &Leases| {
            let is_free = |function| held.values().all(|it| it.function != Some(function));
            let free = card.functions.iter().find(|(_, it)| is_free(*it));
            let &(number, function) = free.ok_or_else(|| {
                let why = format!("every virtual function of {} is leased", card.name());
                BindError::Failed(StepError::new("claim function", why))
            })?;
            let rate_mbps = u32::try_from(order.placement.amount() / MBPS).unwrap_or(u32::MAX);
            Ok(VfRecord {
                card: card.function,
                function,
                number,
                mac,
                vlan: terms.vlan,
                // The card takes 0 as no limit.
                rate_mbps: rate_mbps.max(1),
                hand_over: terms.hand_over.unwrap_or_default(),
                vfio: None,
            })
        };
        let complete = |record: VfRecord| {
            let vfio = match record.hand_over {
                HandOver::Vfio => Some(Vfio {
                    group: self.group_of(record.function)?,
                    specs: card.cdi.clone(),
                }),
                HandOver::Interface | HandOver::Netns => None,
            };
            Ok(VfRecord { vfio, ..record })
        };
        let (lease, sysfs) = (order.binding_id.lease_id, card.operator.pci.tree());
        let record = card
            .claims
            .claim(lease, terms.mac, sysfs, choose, complete)?;
        steps::passed("claim function");
        Ok(record)
    }

    /// The IOMMU group of a function, which must have no other device: a process that has the group has all of its
    /// devices.
    fn group_of(&self, function: PciFunction) -> Result<u32, BindError> {
        let pci = &self.card.operator.pci;
        let refuse = |why: String| BindError::Refused(StepError::new("hand over to vfio", why));
        let group = pci.group(function).map_err(BindError::Failed)?;
        let group = group.ok_or_else(|| refuse("this machine has no IOMMU in use".to_owned()))?;
        let members = pci.members(group).map_err(BindError::Failed)?;
        let other = members.iter().find(|it| **it != function.to_string());
        other.map_or(Ok(group), |other| {
            let why = format!("IOMMU group {group} of {function} has the device {other} too");
            Err(refuse(why))
        })
    }

    fn give_back(&self, lease: LeaseId, record: &VfRecord) -> Result<(), StepError> {
        let function = record.function;
        // The path unbinds it once. Before another attempt, the operator may have loaded a driver anew.
        if let Some(driver) = self.card.operator.pci.driver(function)? {
            let why = format!("function {function}: {driver} is still bound to it");
            return Err(StepError::new("give function back", why));
        }
        self.card.operator.reset(function)?;
        steps::passed("reset function");
        NEUTRAL.apply(&*self.card.links, self.card.index, record.number)?;
        self.card.cutter.containers(lease).remove()?;
        self.card.claims.remove::<VfRecord>(lease)?;
        steps::passed("remove record");
        Ok(())
    }

    /// The record of a lease, if its function is one of this card.
    fn record(&self, lease: LeaseId) -> Result<Option<VfRecord>, StepError> {
        let record = self.card.claims.find::<VfRecord>(lease)?;
        Ok(record.filter(|it| it.card == self.card.function))
    }
}

impl Store for VfStore {
    /// Does nothing: functions are cleaned when they are given back.
    fn prepare(&self, _order: &BindOrder, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let lease = order.binding_id.lease_id;
        let part = |record: VfRecord| Part::with(order.placement.clone(), record);
        match self.record(lease).map_err(BindError::Failed)? {
            Some(record) => return Ok(part(record)),
            None if order.adopts => {
                let why = format!("lease {lease} has no virtual function any more");
                return Err(BindError::Failed(StepError::new("adopt function", why)));
            }
            None => {}
        }
        let terms = order.terms.net().cloned().unwrap_or_default();
        let record = self.claim(order, &terms)?;
        let set = Settings::from(&record);
        let set = set.apply(&*self.card.links, self.card.index, record.number);
        match set {
            Ok(()) => Ok(part(record)),
            Err(error) => Err(match self.give_back(lease, &record) {
                Ok(()) => match self.card.link_trouble() {
                    Some(Trouble::Down(detail) | Trouble::NoCarrier(detail)) => {
                        BindError::Unavailable(StepError { detail, ..error })
                    }
                    None => BindError::Failed(error),
                },
                Err(left) => BindError::Stranded(left),
            }),
        }
    }

    /// Does nothing: a reboot ends all leases, even those in an older journal.
    fn confirm(&self, _binding_id: BindingId) -> Result<(), StepError> {
        Ok(())
    }

    fn forget(&self, binding_id: BindingId, _placement: &Placement) -> Result<(), StepError> {
        match self.record(binding_id.lease_id)? {
            Some(record) => self.give_back(binding_id.lease_id, &record),
            None => Ok(()),
        }
    }

    fn release(
        &self,
        binding_id: BindingId,
        _placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        let Some(record) = self.record(lease)? else {
            return Ok(Proof::default());
        };
        progress();
        let began = Instant::now();
        self.give_back(lease, &record)?;
        let found = format_args!(
            "{}: reset; address, VLAN and rate are as before the lease; it keeps no bytes",
            record.function
        );
        Ok(Proof::of("reset function", began.elapsed(), found))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.card.leases()
    }

    fn tell_condition(&self, tell: TellCondition) {
        self.health.tell(tell);
    }
}
