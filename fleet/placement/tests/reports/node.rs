//! A node with a real table, and what it tells over one connection: as `node/src/process/reports.rs` and
//! `lease_reports.rs` do.

use std::{collections::BTreeSet, iter::repeat_with, net::SocketAddr, sync::Arc, time::Duration};

use fabricbios_lease::{Asked, LeaseSummary, LogPosition, Ticket};
use fabricbios_wire::{
    Endpoint, LeaseAllocRequest, LeaseId, LeaseReport, NodeId, NodeReport, ReportPart,
    ReportedLease, Request, ResourceInventory, ResourceType, Role,
};

use crate::{
    invariants::Mistake,
    world::{self, Dice, Fate, World},
};

/// Leases of a report. A real node tells up to 256.
const LEASES_PER_REPORT: usize = 3;

pub(crate) struct Node {
    pub(crate) number: u8,
    pub(crate) world: World,
    /// Leases that were granted and bound.
    granted: Vec<(LeaseId, &'static str)>,
}

pub(crate) fn dice(random: &mut fastrand::Rng) -> Dice {
    Dice::new(repeat_with(|| random.u8(..)).take(400).collect())
}

/// The node that has granted this lease.
pub(crate) fn of_lease(id: LeaseId) -> NodeId {
    NodeId([u8::try_from(id.0 >> 32).unwrap_or(u8::MAX); 32])
}

impl Node {
    pub(crate) fn new(number: u8, random: &mut fastrand::Rng) -> Self {
        let mut world = World::random(&mut dice(random));
        world.next = u64::from(number) << 32;
        Self {
            number,
            world,
            granted: Vec::new(),
        }
    }

    pub(crate) fn id(&self) -> NodeId {
        NodeId([self.number; 32])
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        SocketAddr::from(([192, 0, 2, self.number], 5701)).into()
    }

    pub(crate) fn inventory(&self) -> ResourceInventory {
        ResourceInventory {
            node_id: self.id(),
            ..self.world.reported()
        }
    }

    /// Something happens at the node.
    pub(crate) fn happens(&mut self, random: &mut fastrand::Rng) {
        match random.u8(..20) {
            0 => self.world.happens(&mut dice(random)),
            1 => {
                let passes = Duration::from_millis(random.u64(..20_000));
                self.world.now.boot = self.world.now.boot + passes;
                self.world.now.unix_ms += passes.as_millis() as u64;
                self.world.table.on_tick(self.world.now);
                self.world.settle(Fate::Lives);
            }
            2..7 if !self.granted.is_empty() => {
                let at = random.usize(..self.granted.len());
                let (lease_id, tenant) = self.granted[at];
                let request = match random.bool() {
                    true => Request::LeaseRenew {
                        lease_id,
                        lease_secs: 0,
                    },
                    false => Request::LeaseFree(lease_id),
                };
                self.ask(tenant, request);
            }
            _ => {
                let request = self.request(random);
                // What depends on a tenant is the tables' alone: VLANs and MAC addresses are those of "blue".
                let tenant = match request.resource_type() {
                    ResourceType::Mem if random.bool() => "red",
                    _ => "blue",
                };
                let fate = match random.u8(..8) {
                    0 => Fate::random(&mut dice(random)),
                    _ => Fate::Lives,
                };
                if self.world.ask(tenant, &request, fate).is_ok() {
                    let id = LeaseId(self.world.next.into());
                    self.granted.push((id, tenant));
                }
            }
        }
    }

    /// A request that it may grant: every other one is for a little, and plain.
    pub(crate) fn request(&self, random: &mut fastrand::Rng) -> LeaseAllocRequest {
        let request = world::request(&mut dice(random), &self.world);
        match random.bool() {
            true => LeaseAllocRequest::new(request.resource_type(), 1, 60),
            false => request,
        }
    }

    fn ask(&mut self, tenant: &str, request: Request) {
        self.world.next += 1;
        let asked = Asked {
            ticket: Ticket(self.world.next),
            tenant: Arc::from(tenant),
            role: Role::Tenant,
            fresh_id: LeaseId(self.world.next.into()),
            request,
        };
        self.world.table.on_request(self.world.now, &asked);
        self.world.settle(Fate::Lives);
    }

    /// Everything that the table has.
    pub(crate) fn leases(&self) -> Vec<ReportedLease> {
        let all = self.world.table.summaries(LeaseId(0), usize::MAX);
        all.into_iter().map(reported).collect()
    }
}

fn reported(it: LeaseSummary) -> ReportedLease {
    ReportedLease {
        lease_id: it.lease_id,
        resource_id: it.resource_id,
        resource_type: it.resource_type,
        phase: it.phase,
        capacity: it.capacity,
        expires_at_unix_ms: it.expires_at_unix_ms,
        tenant: it.tenant.to_string(),
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Report {
    Inventory(NodeReport),
    Leases(LeaseReport),
}

impl Report {
    pub(crate) fn sequence(&mut self) -> &mut u64 {
        match self {
            Self::Inventory(it) => &mut it.sequence,
            Self::Leases(it) => &mut it.sequence,
        }
    }
}

/// The node's end of a connection to a scheduler.
pub(crate) struct Connection {
    pub(crate) number: u64,
    /// The number of the last report.
    sent: u64,
    /// Reports without an answer.
    pub(crate) waiting: BTreeSet<u64>,
    /// The inventory that was told last.
    inventory: Option<ResourceInventory>,
    /// The changes of leases before this are told. `None`: nothing is.
    told: Option<LogPosition>,
    /// The last lease of a list that is not told to its end, and where the changes since it began are.
    coming: Option<(LeaseId, LogPosition)>,
}

impl Connection {
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            sent: 0,
            waiting: BTreeSet::new(),
            inventory: None,
            told: None,
            coming: None,
        }
    }

    /// What the node tells next; `None`: all is told.
    pub(crate) fn next(&mut self, node: &Node, mistake: Option<Mistake>) -> Option<Report> {
        let sequence = self.sent + 1;
        let report = match self.inventory_if_changed(node, mistake) {
            Some(inventory) => Report::Inventory(NodeReport {
                sequence,
                endpoint: node.endpoint(),
                inventory,
            }),
            None => {
                let (part, leases, gone) = self.next_leases(node, mistake)?;
                Report::Leases(LeaseReport {
                    sequence,
                    part,
                    leases: leases.into_iter().map(reported).collect(),
                    gone,
                })
            }
        };
        self.sent = sequence;
        self.waiting.insert(sequence);
        Some(report)
    }

    fn inventory_if_changed(
        &mut self,
        node: &Node,
        mistake: Option<Mistake>,
    ) -> Option<ResourceInventory> {
        let is_told = self.inventory.is_some();
        let is_once = mistake == Some(Mistake::TellsTheInventoryOnce);
        if self.coming.is_some() || is_told && is_once {
            return None;
        }
        let inventory = node.inventory();
        let is_new = self.inventory.as_ref() != Some(&inventory);
        is_new.then(|| self.inventory.insert(inventory).clone())
    }

    fn next_leases(
        &mut self,
        node: &Node,
        mistake: Option<Mistake>,
    ) -> Option<(ReportPart, Vec<LeaseSummary>, Vec<LeaseId>)> {
        let table = &node.world.table;
        let changes = self.told.filter(|_| self.coming.is_none());
        if let Some(mut changes) =
            changes.and_then(|from| table.changes_since(from, LEASES_PER_REPORT))
        {
            self.told = Some(changes.next);
            if mistake == Some(Mistake::TellsNotWhatIsOver) {
                changes.gone.clear();
            }
            let is_empty = changes.leases.is_empty() && changes.gone.is_empty();
            let changes = (ReportPart::Changes, changes.leases, changes.gone);
            return (!is_empty).then_some(changes);
        }
        let is_first = self.coming.is_none();
        let (after, began) = self.coming.unwrap_or((LeaseId(0), table.log_end()));
        let leases = table.summaries(after, LEASES_PER_REPORT);
        let goes_on = leases.len() == LEASES_PER_REPORT;
        self.coming = { leases.last().filter(|_| goes_on) }.map(|last| (last.lease_id, began));
        let part = match (is_first, goes_on) {
            (true, false) => ReportPart::Whole,
            (true, true) => ReportPart::Begin,
            (false, true) => ReportPart::Next,
            (false, false) => ReportPart::End,
        };
        if !goes_on {
            let is_late = mistake == Some(Mistake::ReadsTheLogTooLate);
            self.told = Some(if is_late { table.log_end() } else { began });
        }
        Some((part, leases, Vec::new()))
    }
}
