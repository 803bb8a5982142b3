//! Hands a virtual function to its tenant, and takes it back.

use std::{os::fd::AsFd, path::Path, sync::Arc};

use fabricbios_contract::{
    Bindings, Caller, DataPath, Edits, Entered, Given, Guard, LocalAccess, LocalRefusal, Part,
    Revoked,
};
use fabricbios_lease::{
    AlreadyCut, BindError, BindOrder, BindingId, BootTime, Linger, Proof, StepError,
};
use fabricbios_wire::{Binding, HandOver, KindBinding, LeaseId, NetBinding, ResourceType};

use super::{
    card::{Card, MBPS, VFIO},
    cut::Cutter,
    record::VfRecord,
    steps,
};
use crate::{
    given,
    netlink::{By, Link},
};

/// Digits of a lease's id in the name of its interface, which has at most 15 bytes.
const NAME_DIGITS: usize = 12;

/// The path to one card's virtual functions.
#[derive(Debug)]
pub struct VfPath {
    card: Arc<Card>,
    bindings: Bindings,
}

impl VfPath {
    /// The path for leases of this card. `guard` ends leases that this process cannot end.
    #[must_use]
    pub fn new(card: Arc<Card>, guard: Arc<dyn Guard>) -> Self {
        Self {
            card,
            bindings: Bindings::guarded_by(guard),
        }
    }

    fn cutter(&self) -> &Cutter {
        &self.card.cutter
    }

    /// The record of a lease. `None`: the lease has no function of this card.
    fn record(&self, lease: LeaseId) -> Result<Option<VfRecord>, StepError> {
        let record = self.card.records.find(lease)?;
        Ok(record.filter(|it| it.card == self.card.function))
    }

    fn driver_of(&self, record: &VfRecord) -> &'static str {
        match record.hand_over {
            HandOver::Vfio => VFIO,
            HandOver::Interface | HandOver::Netns => self.card.driver.function,
        }
    }

    /// Binds the function's driver. Only the node can reach the function so far.
    fn attach(&self, lease: LeaseId, record: &VfRecord) -> Result<Option<Link>, StepError> {
        let operator = &self.card.operator;
        operator.bind(record.function, self.driver_of(record))?;
        steps::passed("bind driver");
        if record.hand_over == HandOver::Vfio {
            return Ok(None);
        }
        let (name, index) = self.interface(record)?;
        let link = self.card.links.link(By::Index(index))?;
        let link = link.ok_or_else(|| gone(&name))?;
        if link.mac != Some(record.mac) {
            let why = format!(
                "interface {} has the address {:?}, and not {}",
                link.name, link.mac, record.mac
            );
            return Err(StepError::new("read address back", why));
        }
        let name = interface_name(lease);
        if link.name != name {
            self.card.links.rename(link.index, &name)?;
        }
        steps::passed("name interface");
        Ok(Some(Link { name, ..link }))
    }

    /// Name and index of the function's interface, in the node's namespace. Waits for no lock that a tenant can keep
    /// busy.
    fn interface(&self, record: &VfRecord) -> Result<(String, u32), StepError> {
        let function = record.function;
        let names = self.card.operator.pci.interfaces(function)?;
        let [name] = &*names else {
            let why = format!(
                "function {function} has the interfaces {names:?} in the node's namespace, not one"
            );
            return Err(StepError::new("look for interface", why));
        };
        let index = self.card.links.index_of(name)?;
        Ok((name.clone(), index.ok_or_else(|| gone(name))?))
    }

    /// Gives the function to the tenant.
    fn give(
        &self,
        lease: LeaseId,
        record: &VfRecord,
        link: Option<&Link>,
    ) -> Result<(), StepError> {
        match (record.hand_over, link) {
            (HandOver::Interface, Some(link)) => {
                self.card.links.set_up(By::Index(link.index))?;
                steps::passed("set interface up");
            }
            (HandOver::Vfio, _) => {
                let group = record.group(&self.cutter().groups);
                if let (Some(vfio), Some(group)) = (&record.vfio, group) {
                    self.cutter().containers(lease).open()?;
                    let environment = [format!("FABRICBIOS_PCI_FUNCTION={}", record.function)];
                    let edits = Edits {
                        environment: &environment,
                        nodes: &[(Path::new("/dev/vfio/vfio"), 0o666), (&group, 0o600)],
                        hook: &self.card.hook(lease),
                    };
                    vfio.cdi().write(lease, &edits)?;
                    steps::passed("write CDI spec");
                }
            }
            // With `Netns` the tenant gives a namespace later.
            (HandOver::Netns | HandOver::Interface, _) => {}
        }
        Ok(())
    }

    /// Takes the function back, in whatever state it is. Afterwards access is cut and no driver is bound.
    fn take_back(&self, lease: LeaseId, record: &VfRecord) -> Result<(), StepError> {
        self.cutter().stop(lease, record)?;
        self.cutter().prove(lease, record, true)?;
        self.cutter().unbind(record.function)?;
        steps::passed("unbind driver");
        self.cutter().pci().stop_bus_master(record.function)
    }

    /// Checks that an adopted function is in the state in which the earlier process left it; the watchdog may have cut
    /// it.
    fn check_adopted(&self, lease: LeaseId, record: &VfRecord) -> Result<(), StepError> {
        let (function, expected) = (record.function, self.driver_of(record));
        let pci = &self.card.operator.pci;
        let bound = pci.driver(function)?;
        let is_open = match &record.vfio {
            Some(vfio) => vfio.cdi().exists(lease),
            None => pci.is_bus_master(function)?,
        };
        let wrong = if bound.as_deref() != Some(expected) {
            format!("its driver is {bound:?}, not {expected}")
        } else if !is_open {
            "it was cut, or never handed over".to_owned()
        } else {
            return Ok(());
        };
        Err(StepError::new(
            "adopt function",
            format_args!("function {function}: {wrong}"),
        ))
    }

    fn cut(&self, lease: LeaseId) -> Result<Revoked, StepError> {
        match self.record(lease)? {
            Some(record) => self.cutter().stop(lease, &record).map(Revoked::by),
            None => Ok(Revoked::proved(nothing())),
        }
    }

    fn prove(&self, lease: LeaseId) -> Result<Proof, StepError> {
        match self.record(lease)? {
            Some(record) => self.cutter().prove(lease, &record, true),
            None => Ok(nothing()),
        }
    }
}

impl DataPath for VfPath {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let lease = order.binding_id.lease_id;
        let making = self.bindings.begin(order)?;
        let record = part.record::<VfRecord>()?;
        let make = || match order.adopts {
            true => self.check_adopted(lease, &record).map(|()| None),
            false => self.attach(lease, &record),
        };
        let open = |link: Option<Link>| match order.adopts {
            true => Ok(()),
            false => self.give(lease, &record, link.as_ref()),
        };
        // The tenant of the older binding loses the function and gets it anew.
        let end = || self.take_back(lease, &record);
        making.anew(order.adopts, make, open, end)?;
        Ok(binding(lease, &record))
    }

    fn extend(&self, binding_id: BindingId, deadline: BootTime) -> Result<(), AlreadyCut> {
        self.bindings.extend(binding_id, deadline)
    }

    fn revoke(&self, binding_id: BindingId, _linger: Linger) -> Result<Revoked, StepError> {
        let lease = binding_id.lease_id;
        self.bindings.revoke(binding_id, |()| self.cut(lease))
    }

    fn verify(&self, binding_id: BindingId, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let lease = binding_id.lease_id;
        self.bindings.verify(
            binding_id,
            revoked,
            |()| self.cut(lease),
            |(), _| self.prove(lease),
        )
    }

    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        let lease = binding_id.lease_id;
        self.bindings.remove(lease, |()| {
            let Some(record) = self.record(lease)? else {
                return Ok(());
            };
            progress();
            // After a restart this process has not cut the function itself, and a process that resets the function may
            // switch bus mastering on.
            self.take_back(lease, &record)
        })
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        self.card.leases()
    }
}

impl LocalAccess for VfPath {
    fn enter(
        &self,
        lease: LeaseId,
        caller: &Caller,
        given: Given,
    ) -> Result<Entered, LocalRefusal> {
        let entry = self.bindings.in_use(lease)?;
        let of_tenant = |tenant: &str| caller.check(tenant);
        let admission = entry.admit(of_tenant)?;
        // The function is not released while the admission is held, so the interface is the lease's. Nothing until
        // then waits for the kernel's lock of network devices, which every user with a namespace can keep busy.
        let record = self.record(lease).map_err(LocalRefusal::Failed)?;
        let record = record.ok_or(LocalRefusal::NotFound)?;
        let namespace = given::namespace(given, record.hand_over)?;
        let (found, index) = self.interface(&record).map_err(LocalRefusal::Failed)?;
        // The proof of a cut does not wait for the calls below. They change no other interface: unbinding a function
        // deletes its interface, and the index of a deleted interface is not used again.
        drop(admission);
        let links = &self.card.links;
        // The interface may come back from a namespace that has ended, with a name that the tenant chose.
        let name = interface_name(lease);
        if found != name {
            links.rename(index, &name).map_err(LocalRefusal::Failed)?;
        }
        let moved = links.move_to(index, namespace.as_fd());
        moved.map_err(LocalRefusal::Failed)?;
        steps::passed("move to namespace");
        entry.remaining(of_tenant)?;
        Ok(Entered::at(name))
    }
}

fn binding(lease: LeaseId, record: &VfRecord) -> Binding {
    let is_vfio = record.hand_over == HandOver::Vfio;
    let net = NetBinding {
        pci_function: Some(record.function),
        interface: (!is_vfio).then(|| interface_name(lease)),
        mac: record.mac,
        vlan: record.vlan,
        rate_bps: u64::from(record.rate_mbps) * MBPS,
        hand_over: record.hand_over,
        vfio_group: record.vfio.as_ref().map(|it| it.group),
        cdi_device: record.vfio.as_ref().map(|it| it.cdi().device_name(lease)),
    };
    Binding {
        kind: KindBinding::Net(Some(Box::new(net))),
        ..Binding::plain(ResourceType::Net)
    }
}

fn interface_name(lease: LeaseId) -> String {
    format!("fb{}", &lease.to_string()[..NAME_DIGITS])
}

fn gone(interface: &str) -> StepError {
    StepError::new(
        "look for interface",
        format_args!("{interface}: it is gone"),
    )
}

fn nothing() -> Proof {
    Proof::nothing_to_cut("the lease has no virtual function")
}
