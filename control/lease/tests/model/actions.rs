//! Actions of a random life. Each names a lease or order by a number, modulo the leases and orders of that time.

use fabricbios_lease::EarlierRun;
use fabricbios_wire::{GpuExclusivityClass, ResourceType, Transport};
use proptest::prelude::*;

use crate::oracle::Limits;

/// The role of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asker {
    Holder,
    Stranger,
    Operator,
}

/// How far time moves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Nanos(u64),
    Millis(u64),
    /// Exactly to the next deadline.
    Due,
    /// To one nanosecond before the next deadline.
    AlmostDue,
    /// Exactly to the time from which a lease can be renewed, or one nanosecond before it.
    Renewable(usize, bool),
}

/// The result of an order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Fine,
    /// Failed, nothing left behind.
    Failed,
    Refused,
    Cancelled,
    /// Failed, nothing left behind, and the old binding is gone.
    Lost,
    /// Failed, something left behind.
    Stranded,
    /// Not done, but in progress.
    Moving,
}

/// The queue pairs of the client that a request names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    None,
    /// One queue pair, at a port.
    Port(usize),
    /// Several queue pairs, all at ports.
    Several(usize),
    /// One queue pair at the address of a group, or at an address of no port.
    Nobody(usize),
    /// Several queue pairs, one of them at an address of no port.
    Mixed(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) tenant: usize,
    pub(crate) bytes: u64,
    pub(crate) secs: u32,
    pub(crate) grace: u32,
    pub(crate) transport: Transport,
    pub(crate) peer: Peer,
    pub(crate) rotate_on_renew: bool,
    pub(crate) arena: Option<usize>,
    pub(crate) kind: ResourceType,
    pub(crate) terms: Terms,
    pub(crate) token: Token,
}

/// The token of a request for a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Token {
    None,
    Fresh,
    /// The token of an earlier request, counted from the last one.
    Used(usize),
}

/// Terms for blocks and for GPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) read_only: bool,
    pub(crate) host: bool,
    pub(crate) mutual: bool,
    pub(crate) class: Option<GpuExclusivityClass>,
    pub(crate) slices: Option<u16>,
}

impl Terms {
    pub(crate) const PLAIN: Self = Self {
        read_only: false,
        host: false,
        mutual: false,
        class: None,
        slices: None,
    };
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Alloc(Wish),
    /// An earlier request for a lease, counted from the last one, again. Its tenant sends it, or the tenant so many
    /// after this one.
    Repeat(usize, usize),
    Renew(Asker, usize, u32),
    Free(Asker, usize),
    Bind(Asker, usize, Peer),
    Rotate(Asker, usize, u32),
    /// Queue pairs of the client join the binding in use.
    Join(Asker, usize, Peer),
    /// Queue pairs of the node leave it, by number.
    Leave(Asker, usize, u32),
    /// Somebody asks for attach codes, so many times.
    Attach(Asker, usize, usize),
    /// A caller presents a code: 0 is one that nobody was told, 1 the last one asked for, 2 the one before it.
    Present(usize),
    Revoke(Asker, usize),
    ClearFence(Asker, usize),
    Drain,
    /// From now on, paths acknowledge deadlines at once (true), or only by reports.
    Paths(bool),
    Pass(Step),
    /// The report of an order that has none yet.
    Report(usize, Outcome),
    /// An earlier report comes again.
    Again(usize),
    /// A report about a binding that never existed.
    Stray(usize, Outcome),
    /// A report that a release progresses, for any lease.
    Moves(usize),
    /// The daemon dies, and comes back after this time. The number says how much of the journal remains after a worse
    /// crash.
    Restart(Step, EarlierRun, usize),
}

const PAGE: u64 = 4096;

fn wish() -> impl Strategy<Value = Action> {
    let bytes = prop_oneof![
        8 => 1..=4 * PAGE,
        4 => (1..=10u64).prop_map(|pages| pages * PAGE),
        1 => prop::sample::select(vec![0, 11 * PAGE, 16 * PAGE, 16 * PAGE + 50, 17 * PAGE, u64::MAX]),
    ];
    let secs = prop_oneof![
        8 => 1..=20u32,
        2 => 35..=120u32,
        1 => prop::sample::select(vec![0, 3600, 3601]),
    ];
    let grace = prop_oneof![3 => Just(0u32), 6 => 1..=10u32, 1 => Just(3601)];
    let none = || Just(Peer::None);
    let transport = prop_oneof![
        3 => (Just(Transport::Auto), none()),
        3 => (Just(Transport::Auto), peer()),
        6 => (Just(Transport::Rdma), peer()),
        1 => (Just(Transport::Rdma), none()),
        4 => (Just(Transport::Udp), none()),
        1 => (Just(Transport::Udp), peer()),
        3 => (Just(Transport::Both), peer()),
        2 => (Just(Transport::Both), none()),
    ];
    let arena = prop::option::weighted(0.3, 0..10usize);
    let of_what = prop_oneof![
        9 => (Just(ResourceType::Mem), transport, Just(Terms::PLAIN)),
        9 => (Just(ResourceType::Block), block_transport(), terms()),
        1 => (Just(ResourceType::Mem), block_transport(), terms()),
        5 => (Just(ResourceType::Gpu), Just((Transport::Auto, Peer::None)), gpu_terms()),
    ];
    let token = prop_oneof![
        3 => Just(Token::None),
        8 => Just(Token::Fresh),
        1 => (0..8usize).prop_map(Token::Used),
    ];
    let place = (arena, token);
    (0..3usize, bytes, secs, grace, of_what, any::<bool>(), place).prop_map(
        |(tenant, bytes, secs, grace, (kind, (transport, peer), terms), rotate_on_renew, place)| {
            let (arena, token) = place;
            // Leases of GPUs have neither contents nor keys, so most of these requests ask for neither.
            let plain = kind == ResourceType::Gpu && grace != 1;
            let (grace, rotate_on_renew) = if plain {
                (0, false)
            } else {
                (grace, rotate_on_renew)
            };
            Action::Alloc(Wish {
                tenant,
                bytes,
                secs,
                grace,
                transport,
                peer,
                rotate_on_renew,
                arena,
                kind,
                terms,
                token,
            })
        },
    )
}

fn block_transport() -> impl Strategy<Value = (Transport, Peer)> {
    let none = || Just(Peer::None);
    prop_oneof![
        6 => (Just(Transport::Auto), none()),
        4 => (Just(Transport::NvmeTcp), none()),
        1 => (Just(Transport::NvmeRdma), none()),
        3 => (Just(Transport::Both), none()),
        4 => (Just(Transport::Udp), none()),
        1 => (Just(Transport::Both), peer()),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let (read_only, host) = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    (read_only, host, prop::bool::weighted(0.1)).prop_map(|(read_only, host, mutual)| Terms {
        read_only,
        host,
        mutual,
        ..Terms::PLAIN
    })
}

fn gpu_terms() -> impl Strategy<Value = Terms> {
    let class = prop_oneof![
        6 => Just(None),
        6 => Just(Some(GpuExclusivityClass::Shared)),
        3 => Just(Some(GpuExclusivityClass::SessionExclusive)),
        3 => Just(Some(GpuExclusivityClass::DeviceExclusive)),
        1 => Just(Some(GpuExclusivityClass::PartitionExclusive)),
    ];
    let slices = prop::option::weighted(0.5, 1..5u16);
    (class, slices).prop_map(|(class, slices)| Terms {
        class,
        slices,
        ..Terms::PLAIN
    })
}

/// A request for a lease of ten seconds, and the report of its bind.
pub(crate) fn comes(number: usize) -> [Action; 2] {
    let wish = Wish {
        tenant: number % 3,
        bytes: PAGE,
        secs: 10,
        grace: if number.is_multiple_of(2) { 0 } else { 5 },
        transport: Transport::Rdma,
        peer: Peer::Port(number),
        rotate_on_renew: false,
        arena: None,
        kind: ResourceType::Mem,
        terms: Terms::PLAIN,
        token: Token::Fresh,
    };
    [Action::Alloc(wish), Action::Report(0, Outcome::Fine)]
}

fn peer() -> impl Strategy<Value = Peer> {
    prop_oneof![
        15 => (0..64usize).prop_map(Peer::Port),
        5 => (0..64usize).prop_map(Peer::Several),
        1 => (0..64usize).prop_map(Peer::Nobody),
        1 => (0..64usize).prop_map(Peer::Mixed),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (1..3u64).prop_map(Step::Nanos),
        4 => (1..1_500u64).prop_map(Step::Millis),
        2 => (1_000..40_000u64).prop_map(Step::Millis),
        1 => (900_000..4_000_000u64).prop_map(Step::Millis),
        6 => Just(Step::Due),
        3 => Just(Step::AlmostDue),
        3 => (0..64usize, any::<bool>()).prop_map(|(who, before)| Step::Renewable(who, before)),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        24 => Just(Outcome::Fine),
        2 => Just(Outcome::Failed),
        1 => Just(Outcome::Refused),
        2 => Just(Outcome::Cancelled),
        1 => Just(Outcome::Lost),
        2 => Just(Outcome::Stranded),
        2 => Just(Outcome::Moving),
    ]
}

fn restart() -> impl Strategy<Value = Action> {
    let run = (prop::bool::weighted(0.7), prop::bool::weighted(0.7));
    let run = run.prop_map(|(same_boot, wall_clock_trusted)| EarlierRun {
        same_boot,
        wall_clock_trusted,
    });
    (step(), run, any::<usize>()).prop_map(|(step, run, left)| Action::Restart(step, run, left))
}

pub(crate) fn action() -> impl Strategy<Value = Action> {
    let asker = || {
        prop_oneof![
            10 => Just(Asker::Holder),
            1 => Just(Asker::Stranger),
            1 => Just(Asker::Operator),
        ]
    };
    let boss = || prop_oneof![8 => Just(Asker::Operator), 1 => Just(Asker::Holder)];
    let who = || 0..64usize;
    let secs = prop_oneof![3 => Just(0u32), 3 => 1..20u32, 1 => Just(3601)];
    let times = prop_oneof![4 => 1..3usize, 1 => 7..11usize];
    let overlap =
        prop_oneof![3 => Just(0u32), 3 => 1..8_000u32, 1 => Just(60_000), 1 => Just(60_001)];
    prop_oneof![
        10 => wish(),
        5 => (0..8usize, prop_oneof![6 => Just(0), 1 => 1..3usize])
            .prop_map(|(which, tenant)| Action::Repeat(which, tenant)),
        8 => (asker(), who(), secs).prop_map(|(a, w, s)| Action::Renew(a, w, s)),
        3 => (asker(), who()).prop_map(|(a, w)| Action::Free(a, w)),
        4 => (asker(), who(), peer()).prop_map(|(a, w, p)| Action::Bind(a, w, p)),
        5 => (asker(), who(), overlap).prop_map(|(a, w, o)| Action::Rotate(a, w, o)),
        4 => (asker(), who(), peer()).prop_map(|(a, w, p)| Action::Join(a, w, p)),
        4 => (asker(), who(), 17..24u32).prop_map(|(a, w, n)| Action::Leave(a, w, n)),
        6 => (asker(), who(), times).prop_map(|(a, w, n)| Action::Attach(a, w, n)),
        4 => (0..8usize).prop_map(Action::Present),
        2 => (boss(), who()).prop_map(|(a, w)| Action::Revoke(a, w)),
        3 => (boss(), 0..10usize).prop_map(|(a, w)| Action::ClearFence(a, w)),
        (1) => prop::bool::weighted(0.2).prop_map(|drain| match drain {
            true => Action::Drain,
            false => Action::Pass(Step::Due),
        }),
        1 => any::<bool>().prop_map(Action::Paths),
        16 => step().prop_map(Action::Pass),
        34 => (who(), outcome()).prop_map(|(w, o)| Action::Report(w, o)),
        3 => who().prop_map(Action::Again),
        1 => (who(), outcome()).prop_map(|(w, o)| Action::Stray(w, o)),
        2 => who().prop_map(Action::Moves),
        3 => restart(),
    ]
}

/// The operator's limits: often so low that tenants reach them.
pub(crate) fn limits() -> impl Strategy<Value = Limits> {
    let plenty = Limits::PLENTY;
    let few = |most: usize| prop_oneof![1 => 1..most, 2 => Just(plenty.leases)];
    let binds = prop_oneof![2 => 1..4usize, 2 => Just(plenty.tenant_binds)];
    let bytes = prop_oneof![1 => 1..12 * PAGE, 2 => Just(plenty.tenant_bytes)];
    (few(10), few(6), few(8), few(4), binds, bytes).prop_map(
        |(leases, ended, tenant_leases, tenant_ended, tenant_binds, tenant_bytes)| Limits {
            leases,
            ended,
            tenant_leases,
            tenant_ended,
            tenant_binds,
            tenant_bytes,
        },
    )
}
