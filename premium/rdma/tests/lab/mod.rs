//! A path on the lab's device, and steps that several tests use.

use std::{
    net::Ipv6Addr,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fabricbios_arena::{Arena, ArenaStore, Source};
use fabricbios_contract::{
    Provider,
    testing::{Calls, Fails},
};
use fabricbios_lease::{BindError, BindOrder, BindingId, Extent, Linger};
use fabricbios_rdma::{Guard, RdmaConfig, RdmaOpened, RdmaPath, RdmaRequester, Strategy};
use fabricbios_wire::{
    Generation, LeaseId, MemTerms, RdmaBinding, RdmaPeer, ResourceId, Transport,
};

pub(crate) mod child;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const ARENA_BYTES: u64 = 4 << 20;
pub(crate) const RESOURCE: ResourceId = ResourceId(7);

/// soft-RoCE drops completions when many queue pairs are busy at once, so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Whether this run may use a device.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("FABRICBIOS_LAB").is_some_and(|value| value == "1")
}

pub(crate) struct Lab {
    pub(crate) rdma: Arc<RdmaPath>,
    pub(crate) backend: Provider,
    pub(crate) arena: Arc<Arena>,
    calls: Arc<Calls>,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    pub(crate) fn open() -> Self {
        let arena = Arena::open(&Source::default(), ARENA_BYTES).unwrap();
        Self::over(arena, crate::STRATEGY)
    }

    pub(crate) fn over(arena: Arena, strategy: Strategy) -> Self {
        let (arena, calls) = (Arc::new(arena), Arc::<Calls>::default());
        let turn = turn();
        let made = Arc::clone(&calls);
        let rdma = open_path(&arena, strategy, move |step| made.begin(step).is_err());
        Self::of(rdma, arena, calls, turn)
    }

    fn of(
        rdma: RdmaPath,
        arena: Arc<Arena>,
        calls: Arc<Calls>,
        turn: MutexGuard<'static, ()>,
    ) -> Self {
        let (rdma, store) = (Arc::new(rdma), ArenaStore::new(Arc::clone(&arena)));
        let backend = Provider::new()
            .with_store(RESOURCE, Arc::new(store))
            .with_path("RDMA", &[Transport::Rdma], rdma.clone());
        Self {
            rdma,
            backend,
            arena,
            calls,
            _turn: turn,
        }
    }

    pub(crate) fn guarded_by(self, guard: Arc<dyn Guard>) -> Self {
        drop(self.backend);
        let rdma = Arc::into_inner(self.rdma).unwrap();
        Self::of(rdma.guarded_by(guard), self.arena, self.calls, self._turn)
    }

    /// Makes each of these steps fail once, at its next call.
    pub(crate) fn fail_next(&self, steps: &[&'static str]) {
        let planned = Mutex::new(steps.to_vec());
        self.calls.fail(Fails::If(Box::new(move |step| {
            let mut planned = planned.lock().unwrap();
            let place = planned.iter().position(|it| *it == step);
            place.map(|place| planned.remove(place)).is_some()
        })));
    }

    /// Makes this step fail once, at its second call from now on.
    pub(crate) fn fail_second(&self, step: &'static str) {
        let calls = Mutex::new(0);
        self.calls.fail(Fails::If(Box::new(move |it| {
            let mut calls = calls.lock().unwrap();
            *calls += usize::from(it == step);
            it == step && *calls == 2
        })));
    }

    /// Destroys everything, and checks that the test has left nothing behind.
    pub(crate) fn close(self) {
        drop(self.backend);
        Arc::into_inner(self.rdma).unwrap().close().unwrap();
    }

    /// Binds a lease to a client and connects the client.
    pub(crate) fn grant(&self, lease: u128, extent: Extent) -> (RdmaRequester, RdmaBinding) {
        let client = client();
        let rdma = self
            .bind(binding_id(lease, 1), extent, Some(client.peer()))
            .unwrap();
        client.connect(&rdma).unwrap();
        (client, rdma)
    }

    pub(crate) fn bind(
        &self,
        binding_id: BindingId,
        extent: Extent,
        peer: Option<RdmaPeer>,
    ) -> Result<RdmaBinding, BindError> {
        let order = BindOrder {
            terms: MemTerms {
                rdma_peers: peer.into_iter().collect(),
            }
            .into(),
            ..BindOrder::new(binding_id, extent, Transport::Rdma)
        };
        self.backend
            .bind(&order)
            .map(|binding| binding.rdma().unwrap().clone())
    }

    pub(crate) fn cut(&self, binding_id: BindingId) -> String {
        self.backend
            .cut(binding_id, Linger::Brief)
            .unwrap()
            .to_string()
    }

    pub(crate) fn cut_and_release(&self, binding_id: BindingId, extent: Extent) {
        self.cut(binding_id);
        self.backend.release(binding_id, extent, &|| ()).unwrap();
    }

    pub(crate) fn bytes(&self, extent: Extent) -> Vec<u8> {
        let mut bytes = vec![0; extent.length as usize];
        self.arena.read(extent.offset, &mut bytes).unwrap();
        bytes
    }
}

/// Waits for the device, and takes it for one test.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    assert!(
        is_wanted(),
        "needs the lab: FABRICBIOS_LAB=1 and an RDMA device"
    );
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A path to the arena. `fails` decides which of its steps fail.
pub(crate) fn open_path(
    arena: &Arc<Arena>,
    strategy: Strategy,
    fails: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> RdmaPath {
    let config = RdmaConfig {
        device: None,
        arenas: [(RESOURCE, Arc::clone(arena))].into(),
        strategy,
    };
    let rdma = match RdmaPath::open(config).unwrap() {
        RdmaOpened::Ready(rdma) => *rdma,
        RdmaOpened::Absent(reason) => panic!("FABRICBIOS_LAB=1 and {reason}"),
    };
    rdma.fail_if(fails);
    rdma
}

pub(crate) fn client() -> RdmaRequester {
    RdmaRequester::open(None, 1 << 20).unwrap()
}

pub(crate) fn binding_id(lease: u128, generation: u32) -> BindingId {
    BindingId {
        lease_id: LeaseId(lease),
        generation: Generation(generation),
        resource_id: RESOURCE,
    }
}

pub(crate) fn pages(first: u64, count: u64) -> Extent {
    Extent {
        offset: first * PAGE,
        length: count * PAGE,
    }
}

/// A peer in the lab's own network whose address does not resolve.
pub(crate) fn nobody() -> RdmaPeer {
    let gid = "::ffff:10.77.0.250".parse::<Ipv6Addr>().unwrap().octets();
    RdmaPeer {
        qpn: 99,
        psn: 1,
        gid,
        path_mtu: 0,
    }
}

pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 + 1).collect()
}

/// The kernel's own count of objects, read by another program than the tested one.
pub(crate) fn kernel_objects() -> String {
    let output = Command::new("rdma")
        .args(["resource", "show"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(" qp "), "no count of queue pairs in {text:?}");
    text
}
