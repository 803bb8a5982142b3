//! The store of macvlans: records the address, VLAN and rate of each lease.

use std::sync::Arc;

use fabricbios_contract::{Health, Part, Store, TellCondition};
use fabricbios_lease::{BindError, BindOrder, BindingId, Placement, Proof, StepError};
use fabricbios_wire::{HandOver, LeaseId};

use super::{devices::Devices, parent::Parent, record::MacvlanRecord, steps};
use crate::{LOOK_EVERY, claims::Leases};

/// The store of one parent.
#[derive(Debug)]
pub struct MacvlanStore {
    parent: Arc<Parent>,
    health: Health,
}

impl MacvlanStore {
    /// The store of this parent.
    #[must_use]
    pub fn new(parent: Arc<Parent>) -> Self {
        let watched = parent.clone();
        let check = Box::new(move || watched.condition());
        Self {
            health: Health::watch(parent.present(), LOOK_EVERY, check),
            parent,
        }
    }

    fn claim(&self, order: &BindOrder) -> Result<MacvlanRecord, BindError> {
        let lease = order.binding_id.lease_id;
        let terms = order.terms.net().cloned().unwrap_or_default();
        let refuse = |why: String| BindError::Refused(StepError::new("claim interface", why));
        let hand_over = terms.hand_over.unwrap_or_default();
        if hand_over == HandOver::Vfio {
            return Err(refuse(format!(
                "{} is offered with macvlan interfaces, which are no PCI devices: take --hand-over interface or netns, or \
                 a resource with virtual functions",
                self.parent.name
            )));
        }
        let choose = |mac, others: &Leases| {
            check_names(lease, others).map_err(BindError::Failed)?;
            Ok(MacvlanRecord {
                parent: self.parent.name.clone(),
                mac,
                vlan: terms.vlan,
                rate_bps: order.placement.amount(),
                hand_over,
            })
        };
        let (claims, sys) = (&self.parent.claims, &self.parent.sys);
        let record = claims.claim(lease, terms.mac, sys, choose, Ok)?;
        steps::passed("write record");
        Ok(record)
    }
}

impl Store for MacvlanStore {
    /// Does nothing: each lease gets a new macvlan.
    fn prepare(&self, _order: &BindOrder, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        let lease = order.binding_id.lease_id;
        let record = match self.parent.record(lease).map_err(BindError::Failed)? {
            Some(record) => record,
            None if order.adopts => {
                let why = format!("lease {lease} has no record any more");
                return Err(BindError::Failed(StepError::new("adopt interface", why)));
            }
            None => self.claim(order)?,
        };
        Ok(Part::with(order.placement.clone(), record))
    }

    /// Does nothing: a reboot ends all leases, even those in an older journal.
    fn confirm(&self, _binding_id: BindingId) -> Result<(), StepError> {
        Ok(())
    }

    fn forget(&self, binding_id: BindingId, _placement: &Placement) -> Result<(), StepError> {
        self.parent
            .claims
            .remove::<MacvlanRecord>(binding_id.lease_id)
    }

    fn release(
        &self,
        binding_id: BindingId,
        _placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        progress();
        // The path has proved that no device is left. From now on other leases may get the address.
        self.parent
            .claims
            .remove::<MacvlanRecord>(binding_id.lease_id)?;
        steps::passed("remove record");
        Ok(Proof::nothing_to_clean(
            "an interface keeps no bytes; all devices of the lease are gone",
        ))
    }

    /// Includes leases whose record is lost but whose devices exist.
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        let all = self.parent.records.readable()?.into_iter();
        let of_parent = all.filter(|(_, it)| it.parent == self.parent.name);
        let mut leases: Vec<LeaseId> = of_parent.map(|(lease, _)| lease).collect();
        leases.extend(self.parent.leases_with_devices()?);
        leases.sort_unstable();
        leases.dedup();
        Ok(leases)
    }

    fn tell_condition(&self, tell: TellCondition) {
        self.health.tell(tell);
    }
}

/// Refuses a lease whose device names another lease has: the names contain only the beginning of the lease's id.
fn check_names(lease: LeaseId, others: &Leases) -> Result<(), StepError> {
    let names = Devices::of(lease);
    let mut macvlans = others.iter().filter(|(_, it)| it.function.is_none());
    match macvlans.find(|(other, _)| Devices::of(**other).macvlan == names.macvlan) {
        Some((other, _)) => Err(StepError::new(
            "claim interface",
            format_args!("lease {other} has the name {}", names.macvlan),
        )),
        None => Ok(()),
    }
}
