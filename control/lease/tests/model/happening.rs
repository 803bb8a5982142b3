//! Time passes, backends report, the daemon dies.

use super::*;

/// Time and reports.
impl Pair {
    pub(super) fn drain(&mut self) {
        self.table.on_drain(self.now);
        let effects = self.effects();
        self.oracle.drain();
        self.compare(effects);
    }

    pub(super) fn pass(&mut self, step: Step) {
        self.set_clock(self.after(step));
        self.table.on_tick(self.now);
        let effects = self.effects();
        self.oracle.pass_to(self.now.boot.0);
        self.compare(effects);
    }

    pub(super) fn after(&self, step: Step) -> u64 {
        let now = self.now.boot.0;
        let due = self.table.next_deadline().map_or(now, |at| at.0);
        match step {
            Step::Nanos(ns) => now + ns,
            Step::Millis(ms) => now + ms * 1_000_000,
            Step::Due => due,
            Step::AlmostDue => (due - 1).max(now),
            Step::Renewable(who, before) => self
                .renewable(who)
                .map_or(now, |at| if before { at - 1 } else { at }),
        }
    }

    pub(super) fn renewable(&self, who: usize) -> Option<u64> {
        let at = self.oracle.leases.iter().map(oracle::Held::renewable_at);
        let ahead: Vec<u64> = at.filter(|&at| at > self.now.boot.0).collect();
        ahead.get(who % ahead.len().max(1)).copied()
    }

    pub(super) fn set_clock(&mut self, boot: u64) {
        self.now = Now {
            boot: BootTime(boot),
            unix_ms: UNIX_MS + (boot - BOOT) / 1_000_000,
        };
    }

    pub(super) fn report(&mut self, report: Report) {
        let before = self.holders_view(&report);
        self.table
            .on_report(self.now, self.now.boot, report.clone());
        let effects = self.effects();
        self.seen.report(&report);
        self.oracle.report(&report);
        self.compare(effects);
        let after = self.holders_view(&report);
        invariant_a_binding_that_fails_takes_nothing(&report, before, after);
    }

    /// The holder's view of the lease that this report is about.
    fn holders_view(&mut self, report: &Report) -> Option<LeaseInfo> {
        let its = |lease: &&oracle::Held| Some(lease.id) == report.lease_id();
        let (id, tenant) = { self.oracle.leases.iter().find(its) }
            .map(|lease| (lease.id, lease.tenant.clone()))?;
        match self.look(&tenant, Asker::Holder, Request::LeaseQuery(id)) {
            Ok(Reply::Lease(info)) => Some(info),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn report_open(&mut self, which: usize, outcome: Outcome) {
        if self.open.is_empty() {
            return;
        }
        let which = which % self.open.len();
        let number = self.number();
        let report = outcome_of(&self.open[which], outcome, number, &self.oracle);
        let moves = matches!(
            report,
            Report::BindProgress(_)
                | Report::ReleaseProgress(_)
                | Report::EndBegan(_)
                | Report::CutMoves(_)
        );
        if !moves {
            self.open.remove(which);
            self.reported.push(report.clone());
        }
        self.report(report);
    }

    /// Repeats a report. It changes nothing, unless it also fits an order that has no report yet.
    pub(super) fn report_again(&mut self, which: usize) {
        let Some(report) = self
            .reported
            .get(which % self.reported.len().max(1))
            .cloned()
        else {
            return;
        };
        if !self.open.iter().any(|order| answers(&report, order)) {
            self.table.on_report(self.now, self.now.boot, report);
            let effects = self.effects();
            self.compare(effects);
        }
    }

    pub(super) fn report_stray(&mut self, which: usize, outcome: Outcome) {
        let Some(order) = self.open.get(which % self.open.len().max(1)) else {
            return;
        };
        let mut report = outcome_of(order, outcome, 0, &self.oracle);
        match &mut report {
            Report::Extended(binding_id, ..)
            | Report::Bind(binding_id, _)
            | Report::BindProgress(binding_id)
            | Report::Rotate(binding_id, _)
            | Report::RetireKey(binding_id, _)
            | Report::PeersChanged(binding_id, _)
            | Report::Cut(binding_id, _)
            | Report::EndBegan(binding_id)
            | Report::CutMoves(binding_id)
            | Report::Confirmed(binding_id, _)
            | Report::ReleaseProgress(binding_id)
            | Report::Release(binding_id, _) => {
                let Generation(right) = binding_id.generation;
                binding_id.generation = Generation(if which < 32 { right - 1 } else { right + 1 });
            }
            Report::Reset(id, _) => id.0 += 7,
            Report::Condition(..) => {}
        }
        if self.open.iter().any(|order| answers(&report, order)) {
            return;
        }
        self.table.on_report(self.now, self.now.boot, report);
        let effects = self.effects();
        self.compare(effects);
    }

    pub(super) fn report_progress(&mut self, who: usize) {
        let leases = &self.oracle.leases;
        let Some(lease) = leases.get(who % leases.len().max(1)) else {
            return;
        };
        let binding_id = BindingId {
            lease_id: lease.id,
            generation: lease.generation(),
            resource_id: self.oracle.arenas[lease.arena].id,
        };
        self.report(Report::ReleaseProgress(binding_id));
        self.report(Report::EndBegan(binding_id));
        self.report(Report::CutMoves(binding_id));
    }

    /// Reports every order, clears every fence and lets all time pass.
    pub(super) fn settle(&mut self) {
        for _ in 0..1_000 {
            if !self.open.is_empty() {
                self.report_open(0, Outcome::Fine);
            } else if !self.table.fences().is_empty() {
                let fenced = |arena: &usize| self.oracle.arenas[*arena].culprit().is_some();
                self.clear_fence(
                    Asker::Operator,
                    (0..self.world.offers.len()).find(fenced).unwrap(),
                );
            } else if self.table.next_deadline().is_some() {
                self.pass(Step::Due);
            } else {
                return self.nothing_is_left();
            }
        }
        panic!("it never settles: {:#?}", self.oracle);
    }

    pub(super) fn nothing_is_left(&mut self) {
        self.seen.invariant_every_ticket_was_answered();
        assert_eq!((self.table.records(), self.oracle.leases.len()), (0, 0));
        for (arena, offer) in self.table.availability().zip(&self.world.offers) {
            assert_eq!(arena.available, offer.capacity / PAGE * PAGE);
        }
    }
}

/// The daemon dies and comes back.
impl Pair {
    pub(super) fn restart(&mut self, step: Step, run: EarlierRun, left: usize) {
        let before = self.list(OPERATOR, Asker::Operator, true);
        let then = self.now.boot.0;
        self.set_clock(self.after(step));
        self.restart_after_a_worse_crash(run, left);
        self.seen.restart(&self.world.offers);
        self.open.clear();
        self.reported.clear();
        self.table = restored(&self.world, &self.seen.journal, self.now, run);
        self.copy = comparing::Follower::default();
        let effects = self.effects();
        invariant_nobody_is_displaced(&effects);
        self.oracle.restart(self.now.boot.0, run);
        self.compare(effects);
        let after = self.list(OPERATOR, Asker::Operator, true);
        let pause_ms = (self.now.boot.0 - then) / 1_000_000;
        invariant_nothing_revives(&before, &after, pause_ms, run, &self.world.offers);
        invariant_bytes_have_one_holder(&self.table, &self.world.offers);
    }

    /// After a crash, the disk has only some of the changes.
    pub(super) fn restart_after_a_worse_crash(&self, run: EarlierRun, left: usize) {
        let changes = &self.seen.changes;
        let left = left % (changes.len() + 1);
        let mut journal = Journal::default();
        changes[..left]
            .iter()
            .for_each(|change| journal.apply(change));
        let mut table = restored(&self.world, &journal, self.now, run);
        let effects: Vec<_> = std::iter::from_fn(|| table.poll_effect()).collect();
        invariant_nobody_is_displaced(&effects);
        invariant_bytes_have_one_holder(&table, &self.world.offers);
    }
}

pub(super) fn restored(world: &World, journal: &Journal, now: Now, run: EarlierRun) -> LeaseTable {
    let mut table = world.table();
    for record in journal.leases.values() {
        table.restore_lease(now, record.clone(), run);
    }
    for fence in journal.fences.values() {
        table.restore_fence(now, fence.clone(), !run.same_boot);
    }
    table.on_start(now);
    table
}

/// Whether the report is one of the order.
pub(super) fn answers(report: &Report, order: &Order) -> bool {
    match (report, order) {
        (Report::Bind(binding_id, _) | Report::BindProgress(binding_id), Order::Bind(order)) => {
            *binding_id == order.binding_id
        }
        (Report::Rotate(binding_id, _), Order::Rotate(of))
        | (Report::PeersChanged(binding_id, _), Order::ChangePeers(of, _))
        | (Report::RetireKey(binding_id, _) | Report::EndBegan(binding_id), Order::RetireKey(of))
        | (
            Report::Cut(binding_id, _)
            | Report::EndBegan(binding_id)
            | Report::CutMoves(binding_id),
            Order::Cut(of, _),
        )
        | (
            Report::Release(binding_id, _) | Report::ReleaseProgress(binding_id),
            Order::Release(of, _),
        ) => binding_id == of,
        (Report::Extended(binding_id, deadline, _), Order::Extend(of, to)) => {
            (binding_id, deadline) == (of, to)
        }
        (Report::Reset(id, _), Order::Reset(of, _)) => id == of,
        _ => false,
    }
}

/// The report of a backend. It names its keys: the new keys, and the old key of a rotation.
pub(super) fn outcome_of(order: &Order, outcome: Outcome, number: u32, oracle: &Oracle) -> Report {
    let fine = matches!(outcome, Outcome::Fine);
    let error = || StepError::new("step", "on purpose");
    let done = || if fine { Ok(()) } else { Err(error()) };
    // If a new key or a queue pair cannot be made, the others stay unchanged.
    let rotates = matches!(order, Order::Rotate(_) | Order::ChangePeers(..));
    let bound = |binding: Binding| match outcome {
        Outcome::Fine | Outcome::Moving => Ok(binding),
        Outcome::Lost if !rotates => Err(BindError::Lost(error())),
        Outcome::Failed | Outcome::Lost => Err(BindError::Failed(error())),
        Outcome::Refused => Err(BindError::Refused(error())),
        Outcome::Cancelled => Err(BindError::Cancelled),
        Outcome::Stranded => Err(BindError::Stranded(error())),
    };
    match order {
        Order::Bind(order) if matches!(outcome, Outcome::Moving) => {
            Report::BindProgress(order.binding_id)
        }
        Order::Bind(order) => {
            let rkey = (!order.peers().is_empty()).then_some(number);
            let pairs: Vec<u32> = (18..).take(order.peers().len().max(1)).collect();
            let binding = binding(order.binding_id, order.transport, (rkey, &pairs), number);
            Report::Bind(order.binding_id, bound(binding))
        }
        Order::Rotate(binding_id) => {
            Report::Rotate(*binding_id, bound(rotated(*binding_id, number, oracle)))
        }
        Order::ChangePeers(binding_id, change) => {
            let changed = changed(*binding_id, change, number, oracle);
            Report::PeersChanged(*binding_id, bound(changed))
        }
        Order::RetireKey(binding_id) if matches!(outcome, Outcome::Moving) => {
            Report::EndBegan(*binding_id)
        }
        Order::RetireKey(binding_id) => {
            Report::RetireKey(*binding_id, done().map(|()| retired(*binding_id, oracle)))
        }
        // A path that reports progress of this order has acknowledged the deadline.
        Order::Extend(binding_id, deadline) => {
            let agrees = fine || matches!(outcome, Outcome::Moving);
            Report::Extended(
                *binding_id,
                *deadline,
                agrees.then_some(()).ok_or(AlreadyCut),
            )
        }
        Order::Confirm(_) | Order::Fenced(_) => unreachable!("nobody reports on {order:?}"),
        Order::Cut(binding_id, _) if matches!(outcome, Outcome::Moving) => match number % 2 {
            0 => Report::EndBegan(*binding_id),
            _ => Report::CutMoves(*binding_id),
        },
        Order::Cut(binding_id, _) => Report::Cut(*binding_id, done().map(|()| Proof::default())),
        Order::Release(binding_id, _) if matches!(outcome, Outcome::Moving) => {
            Report::ReleaseProgress(*binding_id)
        }
        Order::Release(binding_id, _) => {
            Report::Release(*binding_id, done().map(|()| Proof::default()))
        }
        Order::Reset(id, _) => Report::Reset(*id, done()),
    }
}

pub(super) fn rotated(binding_id: BindingId, number: u32, oracle: &Oracle) -> Binding {
    let (transport, before, pairs) = oracle.keys(binding_id.lease_id);
    let rkey = before.rkey.map(|_| number);
    let mut binding = binding(binding_id, transport, (rkey, &pairs), number);
    if let Some(rdma) = binding.rdma_mut() {
        rdma.previous = before.rkey.map(|rkey| PreviousKey {
            rkey,
            remaining_ms: 0,
        });
    }
    binding
}

pub(super) fn retired(binding_id: BindingId, oracle: &Oracle) -> Binding {
    let (transport, keys, pairs) = oracle.keys(binding_id.lease_id);
    let number = keys.dp_key.or(keys.nvmeof).unwrap_or_default();
    binding(binding_id, transport, (keys.rkey, &pairs), number)
}

/// The binding with the queue pairs after the change. The first queue pair after none gets a key.
pub(super) fn changed(
    binding_id: BindingId,
    change: &PeerChange,
    number: u32,
    oracle: &Oracle,
) -> Binding {
    let (transport, keys, mut pairs) = oracle.keys(binding_id.lease_id);
    match change {
        PeerChange::Add(peers) => {
            let first = pairs.last().map_or(18, |last| last + 1);
            pairs.extend((first..).take(peers.len()));
        }
        PeerChange::Remove(numbers) => pairs.retain(|pair| !numbers.contains(pair)),
    }
    let rkey = keys.rkey.or(Some(number)).filter(|_| !pairs.is_empty());
    let udp = keys.dp_key.unwrap_or_default();
    let mut binding = binding(binding_id, transport, (rkey, &pairs), udp);
    if let Some(rdma) = binding.rdma_mut().filter(|_| !pairs.is_empty()) {
        rdma.previous = oracle
            .old_rkey(binding_id.lease_id)
            .map(|rkey| PreviousKey {
                rkey,
                remaining_ms: 0,
            });
    }
    binding
}

/// `number`: the number of the UDP key and of the NVMe-oF key, on transports that have them.
pub(super) fn binding(
    binding_id: BindingId,
    transport: Transport,
    (rkey, pairs): (Option<u32>, &[u32]),
    number: u32,
) -> Binding {
    let kind = kind_of(binding_id.resource_id);
    let rdma = matches!(transport, Transport::Rdma | Transport::Both);
    let rdma = rdma.then_some(RdmaBinding {
        rkey,
        remote_addr: 0x1000,
        qp_num: pairs.first().copied().unwrap_or(0),
        gid: [2; 16],
        port: 1,
        psn: 4,
        path_mtu: 1024,
        strategy: RdmaStrategy::Window,
        previous: None,
        max_rd_atomic: 16,
        atomics: true,
        further: { pairs.iter().skip(1) }
            .map(|&qp_num| RdmaQueuePair {
                qp_num,
                psn: 4,
                rkey: rkey.unwrap_or_default(),
            })
            .collect(),
        prepared_rkey: None,
        attach: None,
    });
    let by_datagrams = matches!(transport, Transport::Udp | Transport::Both);
    Binding {
        dp_key: by_datagrams.then(|| oracle::dp_key(number)),
        kind: match kind {
            ResourceType::Block => {
                let nvmeof = (transport != Transport::Udp).then(|| Box::new(nvmeof(number)));
                KindBinding::Block(nvmeof)
            }
            ResourceType::Gpu => KindBinding::Gpu(None),
            _ => KindBinding::Mem(rdma),
        },
        ..Binding::plain(ResourceType::Mem)
    }
}

/// `number`: the number of the key, for comparison.
fn nvmeof(number: u32) -> NvmeofBinding {
    let name = |number: u32| format!("nqn.2025-01.org.example:{number}").parse().unwrap();
    NvmeofBinding {
        addresses: vec![],
        subsystem: name(0),
        nsid: number,
        host_nqn: name(1),
        host_id: HostId([1; 16]),
        dhchap_secret: DhchapSecret::new("DHHC-1:00:AAAA:").unwrap(),
        dhchap_ctrl_secret: None,
        ctrl_loss_secs: 5,
        block_bytes: 512,
    }
}
