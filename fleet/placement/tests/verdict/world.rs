//! A node with a real table, and its inventory as it would report it.

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use fabricbios_lease::{
    AllocationMode, Asked, BindError, BootTime, COMPUTE_SLICES, ClassOffer, ClassState, Condition,
    CoreGroup, Dimension, Durability, Effect, FenceScope, LeaseTable, Now, Offer, OfferedClass,
    Order, Policy, Profile, Proof, Report, StepError, Takes, Ticket,
};
use fabricbios_placement::{Reporter, View};
use fabricbios_wire::{
    Binding, BlockDev, BlockTerms, CpuCap, CpuExecutionMode, CpuIsolationClass, CpuPartition,
    CpuTerms, Epoch, GpuExclusivityClass, GpuInfo, GpuTerms, InventoryExtension, LeaseAllocRequest,
    LeaseId, LeaseReport, LeaseTerms, MacAddress, MemArena, NetTerms, NicInfo, NodeId, NodeReport,
    Refusal, ReportPart, ReportedLease, Request, ResourceId, ResourceInventory, ResourceType, Role,
    Transport, VlanId, decode_structured, encode_structured, health,
};

const KINDS: [ResourceType; 5] = [
    ResourceType::Mem,
    ResourceType::Block,
    ResourceType::Cpu,
    ResourceType::Net,
    ResourceType::Gpu,
];

/// Choices: random bytes, then zeros.
pub(crate) struct Dice(std::vec::IntoIter<u8>);

impl Dice {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.into_iter())
    }

    fn below(&mut self, n: u8) -> u8 {
        self.0.next().unwrap_or(0) % n
    }

    fn one_in(&mut self, n: u8) -> bool {
        self.below(n) == n - 1
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.below(u8::try_from(all.len()).unwrap()))]
    }
}

/// What becomes of a lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    /// It stays, and its bind does not end.
    Holds,
    /// It stays, and is bound.
    Lives,
    /// It ends, and its part is clean.
    Goes,
    /// It ends, and its part is being cleaned.
    Cleans,
    /// It ends, and its part cannot be cleaned.
    Stains,
    /// It ends, and its cut fails.
    Stays,
    /// Its bind fails, and something of it cannot be undone.
    Strands,
}

impl Fate {
    pub(crate) fn random(dice: &mut Dice) -> Self {
        let rare = [
            Self::Lives,
            Self::Goes,
            Self::Goes,
            Self::Cleans,
            Self::Cleans,
            Self::Stains,
            Self::Stays,
            Self::Strands,
        ];
        match dice.one_in(4) {
            true => dice.of(&rare),
            false => Self::Holds,
        }
    }
}

pub(crate) struct World {
    pub(crate) table: LeaseTable,
    pub(crate) now: Now,
    kinds: Vec<(ResourceType, Offer)>,
    /// Kinds of which the node has more than it offers.
    detected: Vec<ResourceType>,
    /// The number of the last request, and the id of its lease.
    pub(crate) next: u64,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#?} detected {:?}", self.kinds, self.detected)
    }
}

impl World {
    pub(crate) fn random(dice: &mut Dice) -> Self {
        let detected = KINDS.into_iter().filter(|_| dice.one_in(3)).collect();
        let policy = Policy {
            lease_secs_max: dice.of(&[60, 3600]),
            grace_secs_max: dice.of(&[0, 30]),
            profile: dice.of(&[Profile::Linux, Profile::Linux, Profile::BareMetal]),
            ..Policy::default()
        };
        let offers = (0..dice.below(5)).map(|number| {
            let kind = dice.of(&KINDS);
            (kind, offer(kind, number, dice))
        });
        let offers = offers.collect();
        Self::new(policy, detected, offers)
    }

    /// A node with one resource of each kind.
    pub(crate) fn of_each_kind(change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = Policy::default();
        change(&mut policy);
        let mut offers = Vec::new();
        for (number, kind) in (0..).zip(KINDS) {
            let mut offer = offer(kind, number, &mut Dice::new(Vec::new()));
            if kind == ResourceType::Gpu {
                let enforced = |class| OfferedClass {
                    class,
                    state: ClassState::Enforced,
                };
                offer.classes = Some(ClassOffer {
                    default: 0,
                    classes: vec![enforced(0), enforced(1), enforced(2)],
                });
            }
            offers.push((kind, offer));
        }
        Self::new(policy, Vec::new(), offers)
    }

    fn new(
        mut policy: Policy,
        detected: Vec<ResourceType>,
        kinds: Vec<(ResourceType, Offer)>,
    ) -> Self {
        policy.detected.clone_from(&detected);
        let vlans = [("blue".to_owned(), "0-4094".parse().unwrap())];
        policy.network.vlans = vlans.into();
        let mut table = LeaseTable::new(policy);
        for (kind, offer) in &kinds {
            table.offer(*kind, offer.clone());
        }
        Self {
            table,
            now: Now {
                boot: BootTime(1_000_000_000_000),
                unix_ms: 1_700_000_000_000,
            },
            kinds,
            detected,
            next: 1,
        }
    }

    /// Now and then the condition of a resource changes.
    pub(crate) fn happens(&mut self, dice: &mut Dice) {
        if self.kinds.is_empty() || !dice.one_in(4) {
            return;
        }
        let at = dice.below(u8::try_from(self.kinds.len()).unwrap());
        let (kind, offer) = &self.kinds[usize::from(at)];
        let id = offer.resource_id;
        let why = "it has been looked at".to_owned();
        let condition = match dice.below(6) {
            0 | 1 => Condition::Good,
            2 => Condition::Degraded(why),
            3 => Condition::Unavailable(why),
            4 if *kind == ResourceType::Cpu => Condition::Partial {
                why,
                missing: vec![0, 2],
            },
            4 => Condition::Good,
            _ => Condition::Failed(why),
        };
        let report = Report::Condition(id, condition);
        self.table.on_report(self.now, self.now.boot, report);
        self.settle(Fate::Holds);
    }

    /// Asks the table: which resource it grants.
    pub(crate) fn ask(
        &mut self,
        tenant: &str,
        request: &LeaseAllocRequest,
        fate: Fate,
    ) -> Result<ResourceId, Refusal> {
        self.next += 1;
        let asked = Asked {
            ticket: Ticket(self.next),
            tenant: Arc::from(tenant),
            role: Role::Tenant,
            fresh_id: LeaseId(self.next.into()),
            request: Request::LeaseAlloc(request.clone()),
        };
        self.table.on_request(self.now, &asked);
        // The first order or answer is about the request.
        let mut told = None;
        let mut orders = Vec::new();
        while let Some(effect) = self.table.poll_effect() {
            match effect {
                Effect::Answer { answer, .. } => {
                    told = told.or(Some(answer.map(|_| ResourceId(0))));
                }
                Effect::Order { order, .. } => {
                    if let Order::Bind(bind) = &order {
                        told = told.or(Some(Ok(bind.binding_id.resource_id)));
                    }
                    orders.push(order);
                }
                Effect::Journal(_) | Effect::Note(_) => {}
            }
        }
        for order in orders {
            self.carry_out(order, fate);
        }
        self.settle(fate);
        let ends = !matches!(fate, Fate::Holds | Fate::Lives | Fate::Strands);
        if ends && matches!(told, Some(Ok(_))) {
            let revoked = Asked {
                role: Role::Operator,
                request: Request::LeaseRevoke(asked.fresh_id),
                ..asked
            };
            self.table.on_request(self.now, &revoked);
            self.settle(fate);
        }
        told.expect("an answer or a grant")
    }

    pub(crate) fn settle(&mut self, fate: Fate) {
        while let Some(effect) = self.table.poll_effect() {
            if let Effect::Order { order, .. } = effect {
                self.carry_out(order, fate);
            }
        }
    }

    fn carry_out(&mut self, order: Order, fate: Fate) {
        let error = StepError::new("a step", "it does not work");
        let report = match order {
            Order::Bind(_) if fate == Fate::Holds => return,
            Order::Bind(bind) => {
                let plain = Binding::plain(bind.terms.resource_type());
                let bound = match fate {
                    Fate::Strands => Err(BindError::Stranded(error)),
                    _ => Ok(plain),
                };
                Report::Bind(bind.binding_id, bound)
            }
            Order::Extend(id, deadline) => Report::Extended(id, deadline, Ok(())),
            Order::Cut(id, ..) if fate == Fate::Stays => Report::Cut(id, Err(error)),
            Order::Cut(id, ..) => Report::Cut(id, Ok(Proof::nothing_to_cut("a test"))),
            Order::Release(id, ..) => match fate {
                Fate::Cleans => return,
                Fate::Stains => Report::Release(id, Err(error)),
                _ => Report::Release(id, Ok(Proof::nothing_to_clean("a test"))),
            },
            _ => return,
        };
        let done = self.now.boot;
        self.now.boot = done + Duration::from_millis(1);
        self.table.on_report(self.now, done, report);
    }

    /// The inventory as the node reports it, after its way over the wire.
    pub(crate) fn reported(&self) -> ResourceInventory {
        let mut told = ResourceInventory {
            node_id: NodeId([1; 32]),
            epoch: Epoch(1),
            health: health::OK,
            mem_arenas: Vec::new(),
            block_devs: Vec::new(),
            cpu_caps: Vec::new(),
            nics: Vec::new(),
            gpus: Vec::new(),
            extensions: vec![self.table.limits().to_wire()],
        };
        for (number, kind) in (200..).zip(&self.detected) {
            add_entry(&mut told, *kind, ResourceId(number), health::OK);
        }
        for of in self.table.availability() {
            let state = match (of.fenced, &of.trouble) {
                (true, _) => health::FENCED,
                (false, Some(_)) => health::DEGRADED,
                (false, None) => health::OK,
            };
            add_entry(&mut told, of.resource_type, of.resource_id, state);
            let mut offers = self.kinds.iter().map(|(_, offer)| offer);
            let offer = offers.find(|it| it.resource_id == of.resource_id).unwrap();
            told.extensions.extend(of.to_wire(&offer.transports));
        }
        decode_structured(&encode_structured(&told).unwrap()).unwrap()
    }
}

impl World {
    /// The view of a scheduler to which this node alone reports.
    pub(crate) fn view(&self) -> View {
        let node_id = NodeId([1; 32]);
        let from = Reporter {
            node_id,
            labels: Vec::new(),
            connection: 1,
        };
        let report = NodeReport {
            sequence: 1,
            endpoint: SocketAddr::from(([192, 0, 2, 1], 5701)).into(),
            inventory: ResourceInventory {
                node_id,
                ..self.reported()
            },
        };
        let leases = self.table.summaries(LeaseId(0), usize::MAX).into_iter();
        let leases = leases.map(|it| ReportedLease {
            lease_id: it.lease_id,
            resource_id: it.resource_id,
            resource_type: it.resource_type,
            phase: it.phase,
            capacity: it.capacity,
            expires_at_unix_ms: it.expires_at_unix_ms,
            tenant: it.tenant.to_string(),
        });
        let leases = LeaseReport {
            sequence: 2,
            part: ReportPart::Whole,
            leases: leases.collect(),
            gone: Vec::new(),
        };
        let mut view = View::default();
        view.report(&from, 0, report).unwrap();
        view.report_leases(&from, leases).unwrap();
        view
    }
}

/// Takes away what a node of an earlier version does not say.
pub(crate) fn forget_what_is_new(told: &mut ResourceInventory) {
    told.extensions.retain(|it| {
        !matches!(
            it,
            InventoryExtension::Limits { .. } | InventoryExtension::Admission { .. }
        )
    });
}

fn add_entry(
    told: &mut ResourceInventory,
    kind: ResourceType,
    resource_id: ResourceId,
    health: u32,
) {
    match kind {
        ResourceType::Mem => told.mem_arenas.push(MemArena {
            resource_id,
            base: 0,
            len: 0,
            align: 1,
            max_read: 0,
            max_write: 0,
            health,
        }),
        ResourceType::Block => told.block_devs.push(BlockDev {
            resource_id,
            block_size: 512,
            capacity: 0,
            flags: 0,
            health,
        }),
        ResourceType::Cpu => told.cpu_caps.push(CpuCap {
            resource_id,
            cores: 0,
            threads: 0,
            max_mhz: 0,
            flags: 0,
            health,
        }),
        ResourceType::Net => told.nics.push(NicInfo {
            resource_id,
            speed_bps: 0,
            mtu: 0,
            flags: 0,
            health,
        }),
        _ => told.gpus.push(GpuInfo {
            resource_id,
            vram_bytes: 0,
            compute_units: 0,
            flags: 0,
            health,
        }),
    }
}

fn offer(kind: ResourceType, number: u8, dice: &mut Dice) -> Offer {
    let dimension = |name: &str, capacity, takes| Dimension {
        name: name.into(),
        capacity,
        takes,
    };
    let align = dice.of(&[1, 4, 10]);
    let mode = match kind {
        ResourceType::Mem if dice.one_in(3) => AllocationMode::Slots,
        ResourceType::Block if dice.one_in(2) => AllocationMode::Amounts,
        ResourceType::Mem | ResourceType::Block => AllocationMode::Stretches,
        ResourceType::Cpu => AllocationMode::Cores {
            groups: (0..4 + u32::from(dice.below(4)))
                .map(|number| CoreGroup {
                    number,
                    cpus: 1 + u32::from(dice.below(2)),
                    node: u32::from(dice.below(2)),
                })
                .collect(),
        },
        ResourceType::Net => AllocationMode::Vector(vec![
            dimension("rate", 100, Takes::Asked),
            dimension("functions", 2, Takes::Each(1)),
        ]),
        _ => AllocationMode::Device(vec![
            dimension("vram", 100, Takes::Asked),
            dimension(COMPUTE_SLICES, 7, Takes::InProportion),
            dimension("sessions", 3, Takes::Each(1)),
        ]),
    };
    let of_kind: &[Transport] = match kind {
        ResourceType::Mem => &[Transport::Udp, Transport::Rdma, Transport::Both],
        ResourceType::Block => &[Transport::Udp, Transport::NvmeTcp, Transport::NvmeRdma],
        _ => &[],
    };
    let mut transports = of_kind.to_vec();
    if !dice.one_in(6) {
        transports.retain(|it| *it == Transport::Udp || dice.one_in(2));
    }
    let is_classed = matches!(kind, ResourceType::Cpu | ResourceType::Gpu);
    Offer {
        resource_id: ResourceId(100 + u128::from(number)),
        capacity: 100,
        align,
        transports,
        durability: Durability::Nothing,
        fence_scope: dice.of(&[FenceScope::Separate, FenceScope::Part, FenceScope::Whole]),
        cut_within: None,
        allocation_mode: mode,
        read_only: kind == ResourceType::Block && dice.one_in(4),
        classes: is_classed.then(|| classes(dice)),
        rate: None,
        needs_vlan: (kind == ResourceType::Net && dice.one_in(3)).then(|| "tags".to_owned()),
    }
}

fn classes(dice: &mut Dice) -> ClassOffer {
    let state = |dice: &mut Dice| match dice.below(8) {
        0..4 => ClassState::Enforced,
        4 => ClassState::BestEffort,
        5 => ClassState::Refused("it cannot".into()),
        6 => ClassState::Forbidden("it may not".into()),
        _ => ClassState::Implied("leave it out".into()),
    };
    let classes = (0..3).filter_map(|class| {
        let state = state(dice);
        (!dice.one_in(8)).then_some(OfferedClass { class, state })
    });
    ClassOffer {
        classes: classes.collect(),
        default: dice.below(3),
    }
}

/// A request for this much of a GPU.
pub(crate) fn gpu(capacity: u64, class: Option<u8>, slices: Option<u16>) -> LeaseAllocRequest {
    let terms = GpuTerms {
        exclusivity: class.and_then(GpuExclusivityClass::from_byte),
        execution_mode: None,
        compute_slices: slices,
    };
    LeaseAllocRequest::new(ResourceType::Gpu, capacity, 60).with_terms(terms)
}

pub(crate) fn request(dice: &mut Dice, world: &World) -> LeaseAllocRequest {
    let offered: Vec<ResourceType> = world.kinds.iter().map(|(kind, _)| *kind).collect();
    let kind = match offered.is_empty() || dice.one_in(8) {
        true => dice.of(&[&KINDS[..], &[ResourceType::Vendor]].concat()),
        false => dice.of(&offered),
    };
    let few = matches!(kind, ResourceType::Cpu);
    let capacity = match few {
        true => dice.of(&[1, 1, 1, 2, 2, 3, 5, 9, 0]),
        false => dice.of(&[1, 5, 10, 20, 34, 50, 96, 100, 101, 0]),
    };
    let some = |dice: &mut Dice, n| dice.one_in(2).then(|| dice.below(n));
    let terms: LeaseTerms = match kind {
        ResourceType::Block => BlockTerms {
            read_only: dice.one_in(4),
            mutual_auth: dice.one_in(8),
            ..BlockTerms::default()
        }
        .into(),
        ResourceType::Cpu => CpuTerms {
            isolation: some(dice, 3).and_then(CpuIsolationClass::from_byte),
            execution_mode: dice.one_in(6).then_some(CpuExecutionMode::SingleThreaded),
            execution_width: dice.one_in(4).then(|| 1 + u16::from(dice.below(2))),
            partition: dice.one_in(6).then_some(CpuPartition::Root),
        }
        .into(),
        ResourceType::Gpu => GpuTerms {
            exclusivity: some(dice, 4).and_then(GpuExclusivityClass::from_byte),
            execution_mode: None,
            compute_slices: dice.one_in(3).then(|| 1 + u16::from(dice.below(8))),
        }
        .into(),
        ResourceType::Net => NetTerms {
            mac: dice
                .one_in(4)
                .then(|| MacAddress([2 + dice.below(2), 0, 0, 0, 0, 1])),
            vlan: some(dice, 4).and_then(|it| VlanId::new(it.into())),
            hand_over: None,
        }
        .into(),
        kind => LeaseTerms::plain(kind),
    };
    let named = dice.one_in(4);
    let mut request = LeaseAllocRequest {
        resource_id: named.then(|| ResourceId(100 + u128::from(dice.below(5)))),
        grace_secs: if dice.one_in(6) { 20 } else { 0 },
        transport: match dice.one_in(3) {
            true => dice.of(&[
                Transport::Udp,
                Transport::Rdma,
                Transport::NvmeTcp,
                Transport::Both,
            ]),
            false => Transport::Auto,
        },
        rotate_on_renew: dice.one_in(8),
        ..LeaseAllocRequest::new(kind, capacity, dice.of(&[30, 60, 60, 600, 7200, 0]))
    }
    .with_terms(terms);
    if dice.one_in(20) {
        request = request.with_terms(NetTerms {
            vlan: VlanId::new(7),
            ..NetTerms::default()
        });
    }
    request
}
