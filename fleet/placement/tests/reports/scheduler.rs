//! A scheduler with a real view, as `fleet/scheduler/src/owner.rs` drives it, and what is checked of it.

use std::collections::{BTreeMap, BTreeSet};

use fabricbios_placement::{Reporter, View, Whose};
use fabricbios_wire::{
    FleetLease, FleetPage, LeaseAllocRequest, LeaseId, NodeId, ReportPart, ResourceId,
    ResourceInventory,
};

use crate::{
    invariants::{Broken, Invariant, Mistake},
    node::{Node, Report, of_lease},
};

/// Of a node that reports.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Its newest connection.
    connection: u64,
    /// The number of its last report.
    last: u64,
    /// Whether it has told all its leases over this connection.
    is_whole: bool,
}

pub(crate) struct Scheduler {
    view: View,
    taken: BTreeMap<NodeId, Taken>,
    /// The nodes that have gone once: members of the fabric, as with etcd.
    known: BTreeSet<NodeId>,
    /// The connections whose end is awaited.
    pub(crate) awaited: BTreeSet<u64>,
    /// How often it was started.
    pub(crate) life: u64,
}

impl Scheduler {
    pub(crate) fn new(life: u64) -> Self {
        let mut view = View::default();
        view.members_are_known(true);
        Self {
            view,
            taken: BTreeMap::new(),
            known: BTreeSet::new(),
            awaited: BTreeSet::new(),
            life,
        }
    }

    /// All that it knew is gone.
    pub(crate) fn starts_anew(&mut self) {
        *self = Self::new(self.life + 1);
    }

    /// Whether a later connection of the node than this one has reported.
    pub(crate) fn has_later(&self, node_id: NodeId, connection: u64) -> bool {
        let newest = self.taken.get(&node_id);
        newest.is_some_and(|it| it.connection > connection)
    }

    /// Returns whether the report was taken.
    pub(crate) fn takes(
        &mut self,
        node_id: NodeId,
        connection: u64,
        mut report: Report,
        mistake: Option<Mistake>,
    ) -> Result<bool, Broken> {
        let newest = self.taken.get(&node_id).copied();
        let got = *report.sequence();
        let is_inventory = matches!(report, Report::Inventory(_));
        let is_next = match newest {
            Some(newest) if newest.connection == connection => got == newest.last + 1,
            Some(_) if self.has_later(node_id, connection) => false,
            _ => is_inventory && got == 1,
        };
        let mut from = Reporter {
            node_id,
            labels: Vec::new(),
            connection,
        };
        let is_end = match &report {
            Report::Leases(it) => matches!(it.part, ReportPart::End | ReportPart::Whole),
            Report::Inventory(_) => false,
        };
        self.errs(mistake, &mut from, &mut report);
        let before = (!is_next).then(|| self.all());
        let told = format!("report {got} of connection {connection}, and {newest:?} is newest");
        let taken = match report {
            Report::Inventory(report) => self.view.report(&from, 0, report).map(|_| ()),
            Report::Leases(report) => self.view.report_leases(&from, report).map(|_| ()),
        };
        let is_taken = taken.is_ok();
        if !is_taken && mistake == Some(Mistake::ForgetsWhoIsRefused) {
            newest.map(|it| self.view.gone(node_id, it.connection));
        }
        Invariant::OnlyTheNextIsTaken
            .holds(is_taken == is_next, || format!("{told}: {taken:?}"))?;
        if let Some(before) = before {
            let is_same = before == self.all();
            Invariant::RefusedChangesNothing.holds(is_same, || told)?;
        } else {
            let newest = newest.filter(|it| it.connection == connection);
            let taken = Taken {
                connection,
                last: got,
                is_whole: is_end || newest.is_some_and(|it| it.is_whole),
            };
            self.taken.insert(node_id, taken);
        }
        self.check()?;
        Ok(is_taken)
    }

    /// What a mistake makes of a report.
    fn errs(&self, mistake: Option<Mistake>, from: &mut Reporter, report: &mut Report) {
        let Some(newest) = self.taken.get(&from.node_id) else {
            return;
        };
        let got = *report.sequence();
        let is_of_newest = newest.connection == from.connection;
        match (mistake, report) {
            (Some(Mistake::TakesWhatFollowsALoss), report) if is_of_newest && got > newest.last => {
                *report.sequence() = newest.last + 1;
            }
            (Some(Mistake::BelievesAnOldConnection), report)
                if newest.connection > from.connection =>
            {
                from.connection = newest.connection;
                *report.sequence() = newest.last + 1;
            }
            (Some(Mistake::TakesAPartForTheWhole), Report::Leases(it))
                if it.part == ReportPart::Begin =>
            {
                it.part = ReportPart::Whole;
            }
            (Some(Mistake::MixesUpNodes), Report::Leases(it)) => {
                let other = { self.taken.iter() }.find(|(id, _)| **id > from.node_id);
                if let Some((other, newest)) = other {
                    (from.node_id, from.connection) = (*other, newest.connection);
                    it.sequence = newest.last + 1;
                }
            }
            _ => {}
        }
    }

    /// A connection has ended.
    pub(crate) fn ends(
        &mut self,
        node_id: NodeId,
        connection: u64,
        mistake: Option<Mistake>,
    ) -> Result<(), Broken> {
        self.awaited.remove(&connection);
        let newest = self.taken.get(&node_id).map(|it| it.connection);
        self.view.know_reporting(node_id, 0);
        if newest.is_some() {
            self.known.insert(node_id);
        }
        let ended = match (mistake, newest) {
            (Some(Mistake::HearsNoEnd), _) => 0,
            (Some(Mistake::AnyEndIsTheEnd), Some(newest)) => newest,
            _ => connection,
        };
        self.view.gone(node_id, ended);
        if newest == Some(connection) {
            self.taken.remove(&node_id);
        }
        self.check()
    }

    fn check(&self) -> Result<(), Broken> {
        let listed = |id: &NodeId| self.view.reports(*id);
        let all_are = self.view.len() == self.taken.len() && self.taken.keys().all(listed);
        Invariant::ListsWhoReports.holds(all_are, || {
            let listed: Vec<NodeId> = self.all().0.nodes.iter().map(|it| it.node_id).collect();
            format!("{:?} report, and {listed:?} are listed", self.taken.keys())
        })?;
        let away = { self.known.iter() }.filter(|id| !self.taken.contains_key(*id));
        let away = away.count();
        let why = || format!("{} and not {away} are away", self.view.away());
        Invariant::ListsWhoReports.holds(self.view.away() == away, why)?;
        let are_told = self.taken.values().all(|it| it.is_whole);
        let is_whole = away == 0 && !self.taken.is_empty() && are_told;
        let why = || format!("{} with {:?}", self.view.is_whole(), self.taken);
        Invariant::WholeIfAllIsTold.holds(self.view.is_whole() == is_whole, why)?;
        for it in self.leases() {
            let is_own = of_lease(it.lease.lease_id) == it.node_id;
            Invariant::OwnLeases.holds(is_own, || format!("{it:?}"))?;
        }
        Ok(())
    }

    /// Without faults.
    pub(crate) fn check_against(&self, nodes: &[&Node]) -> Result<(), Broken> {
        let ids: Vec<NodeId> = nodes.iter().map(|it| it.id()).collect();
        let (page, mut leases) = self.all();
        let listed: Vec<NodeId> = page.nodes.iter().map(|it| it.node_id).collect();
        Invariant::ListsWhoReports.holds(listed == ids, || format!("{listed:?} of {ids:?}"))?;
        for (node, told) in nodes.iter().zip(&page.nodes) {
            let inventory: ResourceInventory = node.inventory();
            let is_same = told.inventory == inventory && told.endpoint == node.endpoint();
            let why = || format!("{:?} instead of {inventory:?}", told.inventory);
            Invariant::ViewIsTheTables.holds(is_same, why)?;
        }
        let of_node = |node: &&Node| {
            let node_id = node.id();
            let leases = node.leases().into_iter();
            leases.map(move |lease| FleetLease { node_id, lease })
        };
        let mut expected: Vec<FleetLease> = nodes.iter().flat_map(of_node).collect();
        for all in [&mut leases, &mut expected] {
            all.sort_by_key(|it| (it.lease.lease_id, it.node_id));
        }
        let is_same = leases == expected;
        Invariant::ViewIsTheTables
            .holds(is_same, || format!("{leases:?} instead of {expected:?}"))?;
        for it in &expected {
            let tenant = Whose::Tenant(&it.lease.tenant);
            let found = self.view.find(it.lease.lease_id, tenant);
            let is_there = found.is_ok_and(|all| all.len() == 1 && all[0].node_id == it.node_id);
            Invariant::ViewIsTheTables.holds(is_there, || format!("{it:?} is not found"))?;
        }
        Ok(())
    }

    /// The nodes that it names for a request, each with its resource.
    pub(crate) fn places(
        &self,
        request: &LeaseAllocRequest,
        seed: u64,
    ) -> BTreeMap<NodeId, ResourceId> {
        let named = self.view.place(request, seed).unwrap_or_default();
        let named = named.into_iter().map(|it| (it.node_id, it.resource_id));
        named.collect()
    }

    fn all(&self) -> (FleetPage, Vec<FleetLease>) {
        (self.view.page(NodeId([0; 32])), self.leases())
    }

    fn leases(&self) -> Vec<FleetLease> {
        let (mut all, mut after) = (Vec::new(), (LeaseId(0), NodeId([0; 32])));
        loop {
            let page = self.view.lease_page(after, Whose::All);
            all.extend(page.leases);
            match all.last().filter(|_| page.more) {
                Some(last) => after = (last.lease.lease_id, last.node_id),
                None => return all,
            }
        }
    }
}
