//! The surroundings of a table: a manual clock, tickets, and the effects so far.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "all of this is a test")]

use std::{sync::Arc, time::Duration};

use fabricbios_lease::*;
use fabricbios_wire::*;

pub(crate) const ARENA: ResourceId = ResourceId(0xa);
pub(crate) const PAGE: u64 = 4096;

pub(crate) struct World {
    pub(crate) table: LeaseTable,
    pub(crate) now: Now,
    pub(crate) orders: Vec<Order>,
    /// Orders with deadlines and fences for the paths.
    pub(crate) said: Vec<Order>,
    pub(crate) answers: Vec<(Ticket, Answer)>,
    pub(crate) journal: Vec<Change>,
    pub(crate) notes: Vec<Note>,
    pub(crate) next: u64,
    /// Paths acknowledge deadlines at once.
    pub(crate) acknowledges: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_policy(Policy::default())
    }

    pub(crate) fn with_policy(policy: Policy) -> Self {
        Self::of(ResourceType::Mem, policy, offer(ARENA, 16 * PAGE))
    }

    /// A world with blocks of this offer.
    pub(crate) fn of_blocks(offer: Offer) -> Self {
        Self::of(ResourceType::Block, Policy::default(), offer)
    }

    /// A world with an arena whose bytes survive the process, over these transports.
    pub(crate) fn lasting(transports: &[Transport]) -> Self {
        let offer = Offer {
            transports: transports.to_vec(),
            durability: Durability::Process,
            ..offer(ARENA, 16 * PAGE)
        };
        Self::of(ResourceType::Mem, Policy::default(), offer)
    }

    pub(crate) fn of(kind: ResourceType, policy: Policy, offer: Offer) -> Self {
        let mut table = LeaseTable::new(policy);
        table.offer(kind, offer);
        Self {
            table,
            now: Now {
                boot: BootTime(1_000_000_000_000),
                unix_ms: 1_700_000_000_000,
            },
            orders: Vec::new(),
            said: Vec::new(),
            answers: Vec::new(),
            journal: Vec::new(),
            notes: Vec::new(),
            next: 0,
            acknowledges: true,
        }
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        self.now.boot = self.now.boot + span;
        self.now.unix_ms += u64::try_from(span.as_millis()).unwrap();
        self.table.on_tick(self.now);
        self.drain();
    }

    pub(crate) fn pass_ms(&mut self, ms: u64) {
        self.pass(Duration::from_millis(ms));
    }

    pub(crate) fn ask_as(&mut self, tenant: &str, role: Role, request: Request) -> Ticket {
        self.next += 1;
        let ticket = Ticket(self.next);
        let fresh_id = LeaseId(u128::from(self.next));
        let asked = Asked {
            ticket,
            tenant: Arc::from(tenant),
            role,
            fresh_id,
            request,
        };
        self.table.on_request(self.now, &asked);
        self.drain();
        ticket
    }

    pub(crate) fn ask(&mut self, request: Request) -> Ticket {
        self.ask_as("alice", Role::Tenant, request)
    }

    pub(crate) fn operator(&mut self, request: Request) -> Ticket {
        self.ask_as("root", Role::Operator, request)
    }

    pub(crate) fn report(&mut self, report: Report) {
        self.table.on_report(self.now, self.now.boot, report);
        self.drain();
    }

    pub(crate) fn drain(&mut self) {
        while let Some(effect) = self.table.poll_effect() {
            match effect {
                Effect::Order {
                    order: order @ (Order::Extend(..) | Order::Fenced(_)),
                    ..
                } => {
                    if let (Order::Extend(binding_id, deadline), true) = (&order, self.acknowledges)
                    {
                        let agreed = Report::Extended(*binding_id, *deadline, Ok(()));
                        self.table.on_report(self.now, self.now.boot, agreed);
                    }
                    self.said.push(order);
                }
                Effect::Order { order, .. } => self.orders.push(order),
                Effect::Journal(change) => self.journal.push(change),
                Effect::Answer { ticket, answer, .. } => self.answers.push((ticket, answer)),
                Effect::Note(note) => self.notes.push(note),
            }
        }
    }

    pub(crate) fn answer(&self, ticket: Ticket) -> Option<&Answer> {
        self.answers
            .iter()
            .find(|(to, _)| *to == ticket)
            .map(|(_, answer)| answer)
    }

    pub(crate) fn refusal(&self, ticket: Ticket) -> &Refusal {
        match self.answer(ticket) {
            Some(Err(refusal)) => refusal,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    pub(crate) fn lease(&self, ticket: Ticket) -> &LeaseInfo {
        match self.answer(ticket) {
            Some(Ok(Reply::Lease(info))) => info,
            other => panic!("expected a lease, got {other:?}"),
        }
    }

    pub(crate) fn query(&mut self, id: LeaseId) -> LeaseInfo {
        let ticket = self.ask(Request::LeaseQuery(id));
        self.lease(ticket).clone()
    }

    /// Takes the order, which must be the only one.
    pub(crate) fn order(&mut self) -> Order {
        assert_eq!(self.orders.len(), 1, "{:?}", self.orders);
        self.orders.remove(0)
    }

    pub(crate) fn bind_order(&mut self) -> BindOrder {
        match self.order() {
            Order::Bind(order) => order,
            other => panic!("expected a bind, got {other:?}"),
        }
    }

    /// Takes the order of a cut and reports that a thread has begun it.
    pub(crate) fn cut_order(&mut self) -> BindingId {
        match self.order() {
            Order::Cut(binding_id, _) => {
                self.report(Report::EndBegan(binding_id));
                binding_id
            }
            other => panic!("expected a cut, got {other:?}"),
        }
    }

    pub(crate) fn release_order(&mut self) -> (BindingId, Extent) {
        match self.order() {
            Order::Release(binding_id, placement) => (binding_id, placement.extent()),
            other => panic!("expected a release, got {other:?}"),
        }
    }

    /// A lease of `pages` that is active.
    pub(crate) fn granted(&mut self, pages: u64, secs: u32, grace: u32) -> BindingId {
        let ticket = self.ask(alloc(pages * PAGE, secs, grace));
        let order = self.bind_order();
        self.report(Report::Bind(order.binding_id, Ok(binding(7))));
        assert_eq!(self.lease(ticket).phase, LeasePhase::Active);
        order.binding_id
    }

    /// A lease over `transport` that is active, with the keys that the transport has.
    pub(crate) fn granted_over(
        &mut self,
        transport: Transport,
        secs: u32,
        grace: u32,
    ) -> BindingId {
        self.granted_for(over(transport, secs, grace))
    }

    /// An active lease of a page of blocks over `transport`.
    pub(crate) fn granted_blocks(
        &mut self,
        transport: Transport,
        secs: u32,
        grace: u32,
    ) -> BindingId {
        let wanted = LeaseAllocRequest {
            transport,
            ..blocks(secs, grace)
        };
        self.granted_for(wanted)
    }

    /// An active lease as requested, of memory or blocks.
    pub(crate) fn granted_for(&mut self, wanted: LeaseAllocRequest) -> BindingId {
        let (transport, kind) = (wanted.transport, wanted.terms.resource_type());
        let ticket = self.ask(Request::LeaseAlloc(wanted));
        let order = self.bind_order();
        assert!(transport == Transport::Auto || order.transport == transport);
        let binding = match kind {
            ResourceType::Block => block_binding_over(order.transport, 7),
            _ => binding_over(order.transport, 7),
        };
        self.report(Report::Bind(order.binding_id, Ok(binding)));
        assert_eq!(self.lease(ticket).phase, LeasePhase::Active);
        order.binding_id
    }

    pub(crate) fn free(&mut self, id: LeaseId) -> Ticket {
        self.ask(Request::LeaseFree(id))
    }

    pub(crate) fn phase(&mut self, id: LeaseId) -> LeasePhase {
        self.query(id).phase
    }

    pub(crate) fn renew(&mut self, id: LeaseId) -> Ticket {
        self.ask(Request::LeaseRenew {
            lease_id: id,
            lease_secs: 0,
        })
    }

    pub(crate) fn rotate(&mut self, id: LeaseId, overlap_ms: u32) -> Ticket {
        self.ask(Request::LeaseRotate {
            lease_id: id,
            overlap_ms,
        })
    }

    pub(crate) fn rebind(&mut self, id: LeaseId) -> Ticket {
        self.ask(Request::LeaseBind {
            lease_id: id,
            peers: vec![peer()],
        })
    }

    /// Takes the order about a deadline or a fence, which must be the only one.
    pub(crate) fn said(&mut self) -> Order {
        assert_eq!(self.said.len(), 1, "{:?}", self.said);
        self.said.remove(0)
    }

    pub(crate) fn cut_ok(&mut self, binding_id: BindingId) {
        self.report(Report::Cut(binding_id, Ok(Proof::default())));
    }

    pub(crate) fn released(&mut self) {
        let (binding_id, _) = self.release_order();
        self.report(Report::Release(binding_id, Ok(Proof::default())));
    }

    pub(crate) fn available(&self) -> u64 {
        self.table.availability().next().unwrap().available
    }
}

pub(crate) fn offer(id: ResourceId, capacity: u64) -> Offer {
    Offer {
        resource_id: id,
        capacity,
        align: PAGE,
        transports: vec![Transport::Rdma],
        durability: Durability::Nothing,
        fence_scope: FenceScope::Whole,
        cut_within: None,
        allocation_mode: AllocationMode::Stretches,
        read_only: false,
        classes: None,
        rate: None,
        needs_vlan: None,
    }
}

/// Classes of CPU cores: all enforced, except the one that is refused for a reason.
pub(crate) fn classes(
    default: CpuIsolationClass,
    refused: Option<(CpuIsolationClass, &str)>,
) -> ClassOffer {
    let offered = |&class: &CpuIsolationClass| OfferedClass {
        class: class as u8,
        state: match refused.filter(|(it, _)| *it == class) {
            Some((_, why)) => ClassState::Refused(why.into()),
            None => ClassState::Enforced,
        },
    };
    ClassOffer {
        default: default as u8,
        classes: CpuIsolationClass::ALL.iter().map(offered).collect(),
    }
}

/// A device of sixteen pages, over NVMe-oF and FBBU.
pub(crate) fn block_offer() -> Offer {
    Offer {
        transports: vec![Transport::NvmeTcp, Transport::Udp, Transport::Both],
        durability: Durability::Machine,
        fence_scope: FenceScope::Part,
        ..offer(ARENA, 16 * PAGE)
    }
}

/// A page of blocks over the best transport.
pub(crate) fn blocks(secs: u32, grace: u32) -> LeaseAllocRequest {
    LeaseAllocRequest {
        grace_secs: grace,
        ..LeaseAllocRequest::new(ResourceType::Block, PAGE, secs)
    }
}

/// `key`: the number of the key that the transport has.
pub(crate) fn block_binding_over(transport: Transport, key: u8) -> Binding {
    let name = |text: &str| text.parse::<Nqn>().unwrap();
    let nvmeof = NvmeofBinding {
        addresses: vec![],
        subsystem: name("nqn.2025-01.org.example:subsystem"),
        nsid: 1,
        host_nqn: name("nqn.2025-01.org.example:host"),
        host_id: HostId([1; 16]),
        dhchap_secret: DhchapSecret::new(&format!("DHHC-1:00:{key}:")).unwrap(),
        dhchap_ctrl_secret: None,
        ctrl_loss_secs: 5,
        block_bytes: 512,
    };
    Binding {
        kind: KindBinding::Block((transport != Transport::Udp).then(|| Box::new(nvmeof))),
        ..binding_over(transport, key)
    }
}

pub(crate) fn request(capacity: u64, secs: u32, grace: u32) -> LeaseAllocRequest {
    LeaseAllocRequest {
        grace_secs: grace,
        terms: to_peers(vec![peer()]).into(),
        ..LeaseAllocRequest::new(ResourceType::Mem, capacity, secs)
    }
}

pub(crate) fn to_peers(rdma_peers: Vec<RdmaPeer>) -> MemTerms {
    MemTerms { rdma_peers }
}

/// The terms of a request for blocks.
pub(crate) fn block_terms(wanted: &mut LeaseAllocRequest) -> &mut BlockTerms {
    match &mut wanted.terms {
        LeaseTerms::Block(terms) => terms,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn alloc(capacity: u64, secs: u32, grace: u32) -> Request {
    Request::LeaseAlloc(request(capacity, secs, grace))
}

pub(crate) fn peer() -> RdmaPeer {
    RdmaPeer {
        qpn: 17,
        psn: 3,
        gid: [1; 16],
        path_mtu: 0,
    }
}

pub(crate) fn binding(rkey: u32) -> Binding {
    let rdma = RdmaBinding {
        rkey: Some(rkey),
        remote_addr: 0x1000,
        qp_num: 18,
        gid: [2; 16],
        port: 1,
        psn: 4,
        path_mtu: 1024,
        strategy: RdmaStrategy::Window,
        previous: None,
        max_rd_atomic: 16,
        atomics: true,
        further: vec![],
        prepared_rkey: None,
        attach: None,
    };
    Binding {
        kind: KindBinding::Mem(Some(rdma)),
        ..Binding::plain(ResourceType::Mem)
    }
}

pub(crate) fn rotated(rkey: u32, previous: u32) -> Binding {
    let mut binding = binding(rkey);
    if let Some(rdma) = binding.rdma_mut() {
        rdma.previous = Some(PreviousKey {
            rkey: previous,
            remaining_ms: 0,
        });
    }
    binding
}

/// A request without queue pairs.
pub(crate) fn over(transport: Transport, secs: u32, grace: u32) -> LeaseAllocRequest {
    LeaseAllocRequest {
        transport,
        terms: LeaseTerms::plain(ResourceType::Mem),
        ..request(PAGE, secs, grace)
    }
}

/// `key`: the number of the key that the transport has.
pub(crate) fn binding_over(transport: Transport, key: u8) -> Binding {
    let rdma = match transport {
        Transport::Rdma | Transport::Both => binding(key.into()),
        _ => Binding::plain(ResourceType::Mem),
    };
    let udp = matches!(transport, Transport::Udp | Transport::Both);
    Binding {
        dp_key: udp.then(|| DpKey([key; 32])),
        ..rdma
    }
}

pub(crate) fn failed(step: &'static str) -> StepError {
    StepError::new(step, "on purpose")
}

/// An active lease of a kind without transports, and its part.
pub(crate) fn granted(world: &mut World, wanted: LeaseAllocRequest) -> (BindingId, Placement) {
    let kind = wanted.resource_type();
    let ticket = world.ask(Request::LeaseAlloc(wanted));
    let order = world.bind_order();
    world.report(Report::Bind(order.binding_id, Ok(Binding::plain(kind))));
    assert_eq!(world.lease(ticket).phase, LeasePhase::Active);
    (order.binding_id, order.placement)
}

/// Ends a lease that [`granted`] gave.
pub(crate) fn ended(world: &mut World, binding_id: BindingId) {
    world.free(binding_id.lease_id);
    let cut = world.cut_order();
    world.cut_ok(cut);
    world.released();
}

/// The report of an order to a kind without keys: success or failure.
pub(crate) fn outcome(kind: ResourceType, order: Order, well: bool) -> Report {
    let or = |step| match well {
        true => Ok(()),
        false => Err(failed(step)),
    };
    match order {
        Order::Bind(order) => {
            let bound = or("bind").map(|()| Binding::plain(kind));
            Report::Bind(order.binding_id, bound.map_err(BindError::Failed))
        }
        Order::Cut(binding_id, _) => Report::Cut(binding_id, or("cut").map(|()| Proof::default())),
        Order::Release(binding_id, _) => {
            Report::Release(binding_id, or("release").map(|()| Proof::default()))
        }
        Order::Reset(id, _) => Report::Reset(id, or("reset")),
        other => panic!("a kind without keys: {other:?}"),
    }
}
