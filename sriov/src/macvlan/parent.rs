//! The parent: the network card under the macvlans.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use fabricbios_kernfs::Tree;
use fabricbios_lease::{
    AllocationMode, Condition, Dimension, Durability, FenceScope, Offer, StepError, Takes,
};
use fabricbios_wire::{Enforcement, Generation, HandOver, LeaseId, NodeId, ResourceId};

use super::{
    devices::{Devices, Plan, leases_noted, note_of},
    kernel::Kernel,
    record::{MacvlanRecord, Records},
};
use crate::{
    Claims,
    link::{self, Trouble},
    netlink::{By, Link},
    records::random_mac,
};

/// Largest number of leases of one parent: each has three devices.
const SLOTS: u64 = 256;

const BITS_PER_MEGABIT: u64 = 1_000_000;

/// The settings of a parent.
#[derive(Clone, Debug)]
pub struct ParentConfig {
    /// The name of its interface.
    pub name: String,
    /// The node; its mark is on each device.
    pub node_id: NodeId,
    /// The rate to offer, in megabits per second, instead of the speed that the driver reports.
    pub mbps: Option<u64>,
    /// What the node's leases have. The directory of records is on a tmpfs: `/run/fabricbios-NODE/net`.
    pub claims: Arc<Claims>,
    /// `/sys`.
    pub sys: Tree,
    /// The calls to the kernel about links.
    pub kernel: Arc<dyn Kernel>,
}

/// An open parent.
#[derive(Debug)]
pub struct Parent {
    pub(super) name: String,
    /// The index of the interface at the latest look. An interface that was removed comes back with another index.
    index: AtomicU32,
    /// See [`note_of`].
    note: String,
    pub(super) claims: Arc<Claims>,
    pub(super) records: Records,
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) sys: Tree,
    rate_bps: u64,
    /// Why rates are not enforced; `None`: they are.
    unshaped: Option<String>,
}

impl Parent {
    /// Opens the parent. Makes the devices of a lease and deletes them again, to see which limits this kernel enforces.
    ///
    /// # Errors
    /// There is no such interface, its speed is unknown, or the kernel cannot restrict a tenant to its address.
    pub fn open(config: ParentConfig) -> Result<Self, StepError> {
        let ParentConfig {
            name,
            node_id,
            mbps,
            claims,
            sys,
            kernel,
        } = config;
        let link = find(&*kernel, &name)?;
        let records: Records = claims.records();
        records.make_directory()?;
        let mut parent = Self {
            rate_bps: rate_bps(&sys, &records, &name, mbps)?,
            index: link.index.into(),
            claims,
            records,
            note: note_of(node_id),
            unshaped: None,
            name,
            kernel,
            sys,
        };
        if !link.is_up {
            tracing::warn!(
                parent = parent.name,
                "the interface is down: leases of it reach nothing"
            );
        }
        parent.unshaped = parent.probe(node_id)?;
        Ok(parent)
    }

    /// Makes and deletes the devices of a test lease. Returns why rates are not enforced; `None`: they are.
    fn probe(&self, node_id: NodeId) -> Result<Option<String>, StepError> {
        // The names are the same at each start, so a start deletes the devices that an earlier one left without a note
        // when it died.
        let lease = node_id.0.first_chunk().copied().unwrap_or_default();
        let devices = Devices::of(LeaseId(u128::from_be_bytes(lease)));
        devices.delete(&*self.kernel)?;
        let record = MacvlanRecord {
            parent: self.name.clone(),
            mac: random_mac()?,
            vlan: None,
            rate_bps: self.rate_bps,
            hand_over: HandOver::Netns,
        };
        let attempt = |is_shaped| {
            let plan = Plan {
                is_shaped,
                ..self.plan(&record)?
            };
            let made = devices.make(&*self.kernel, &plan, Generation(1));
            devices.delete(&*self.kernel)?;
            Ok::<_, StepError>(made)
        };
        let Err(error) = attempt(true)? else {
            return Ok(None);
        };
        attempt(false)??;
        Ok(Some(format!(
            "rates on {} are not enforced: {error}",
            self.name
        )))
    }

    /// The offer for the lease table. The sum of the leases' rates never exceeds the rate of the link.
    #[must_use]
    pub fn offer(&self, resource_id: ResourceId) -> Offer {
        let slots = Dimension {
            name: "slots".into(),
            capacity: SLOTS,
            takes: Takes::Each(1),
        };
        let rate = Dimension {
            name: "rate".into(),
            capacity: self.rate_bps,
            takes: Takes::Asked,
        };
        Offer {
            resource_id,
            capacity: self.rate_bps,
            align: 1,
            transports: Vec::new(),
            // The devices and the records stay until a reboot.
            durability: Durability::Boot,
            fence_scope: FenceScope::Separate,
            cut_within: None,
            allocation_mode: AllocationMode::Vector(vec![rate, slots]),
            read_only: false,
            classes: None,
            rate: Some(match self.unshaped {
                Some(_) => Enforcement::BestEffort,
                None => Enforcement::Enforced,
            }),
            // The rules drop every frame that a tenant has tagged.
            needs_vlan: None,
        }
    }

    /// Name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The condition while the interface exists.
    pub(super) fn present(&self) -> Condition {
        let unshaped = self.unshaped.clone();
        unshaped.map_or(Condition::Good, Condition::Degraded)
    }

    /// The present condition. Waits for no lock that a tenant can keep busy.
    pub(super) fn condition(&self) -> Condition {
        match self.kernel.index_of(&self.name) {
            Ok(Some(_)) => match (link::trouble(&self.sys, &self.name), self.present()) {
                (None, present) => present,
                // Leases can still be made.
                (Some(Trouble::Down(link) | Trouble::NoCarrier(link)), present) => {
                    let whys = [Some(&*link), present.why()];
                    let whys: Vec<&str> = whys.into_iter().flatten().collect();
                    Condition::Degraded(whys.join("; "))
                }
            },
            Ok(None) => Condition::Unavailable(format!("{}: the interface is gone", self.name)),
            Err(error) => Condition::Degraded(error.to_string()),
        }
    }

    /// The index of the interface; the last known one if the interface no longer exists.
    pub(super) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    pub(super) fn plan<'a>(&'a self, record: &'a MacvlanRecord) -> Result<Plan<'a>, StepError> {
        let link = find(&*self.kernel, &self.name)?;
        self.index.store(link.index, Ordering::Relaxed);
        Ok(Plan {
            record,
            note: &self.note,
            parent: link.index,
            mtu: link.mtu,
            is_shaped: self.unshaped.is_none(),
        })
    }

    /// The record of a lease of this parent.
    pub(super) fn record(&self, lease: LeaseId) -> Result<Option<MacvlanRecord>, StepError> {
        let record = self.records.find(lease)?;
        Ok(record.filter(|it| it.parent == self.name))
    }

    /// The leases with devices on this parent, also those of an earlier process.
    pub(super) fn leases_with_devices(&self) -> Result<Vec<LeaseId>, StepError> {
        let noted = leases_noted(&*self.kernel, &self.note)?.into_iter();
        let ours = noted.filter(|(_, parent)| *parent == self.name);
        Ok(ours.map(|(lease, _)| lease).collect())
    }
}

fn find(kernel: &dyn Kernel, name: &str) -> Result<Link, StepError> {
    let link = kernel.link(By::Name(name))?;
    link.ok_or_else(|| {
        StepError::new(
            "find parent",
            format_args!("{name}: there is no such interface"),
        )
    })
}

/// The rate of the operator's setting, otherwise the speed that the driver reports; bits per second.
fn rate_bps(
    sys: &Tree,
    records: &Records,
    name: &str,
    mbps: Option<u64>,
) -> Result<u64, StepError> {
    let refuse = |why: String| Err(StepError::new("open parent", why));
    // A driver that does not know the speed reports -1 or fails the read.
    let told = sys.read_as::<i64>(format!("class/net/{name}/speed"));
    let told = told
        .ok()
        .and_then(|it| u64::try_from(it).ok())
        .filter(|it| *it > 0);
    let told = records.rate_of(name, told.map(|mbps| mbps.saturating_mul(BITS_PER_MEGABIT)))?;
    let told = told.map(|bps| bps / BITS_PER_MEGABIT);
    let mbps = match (mbps, told) {
        (Some(0), _) => return refuse(format!("{name}=0: offer at least 1 megabit per second")),
        (Some(asked), Some(told)) if asked > told => {
            return refuse(format!(
                "{name}={asked}: the driver says {told} megabits per second"
            ));
        }
        (Some(asked), _) => asked,
        (None, Some(told)) => told,
        (None, None) => {
            return refuse(format!(
                "{name}: the driver tells no speed; give the megabits per second to offer: {name}=MBPS"
            ));
        }
    };
    Ok(mbps.saturating_mul(BITS_PER_MEGABIT))
}
