//! Memory without hardware, for step order and fault injection: a store, and a path that stands for RDMA or for
//! UDP.
//!
//! It makes the same refusals as the RDMA path and its kernel: an extent outside the arena, an address that
//! does not resolve, a bind after a cut of the same generation. The lab suites send the same requests to the
//! real path.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use fabricbios_contract::{DataPath, Part, Provider, Revoked, Store, TellCondition};
use fabricbios_lease::{
    AllocationMode, AlreadyCut, BindError, BindOrder, BindingId, BootTime, Durability, Extent,
    FenceScope, Linger, Offer, Placement, Proof, StepError,
};
use fabricbios_wire::{
    Binding, DpKey, Endpoint, Generation, KindBinding, LeaseId, Limits, PreviousKey, RdmaBinding,
    RdmaQueuePair, RdmaStrategy, ResourceId, ResourceType, Transport,
};

/// A peer with this queue pair number stands for an address that does not resolve.
pub const UNREACHABLE_QPN: u32 = 0xBAD;

/// Steps that a test can block or make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// [`DataPath::bind`].
    Bind,
    /// [`DataPath::revoke`].
    Cut,
    /// [`Store::confirm`].
    Confirm,
    /// [`Store::release`].
    Release,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Bind => "Bind",
            Self::Cut => "Cut",
            Self::Confirm => "Confirm",
            Self::Release => "Release",
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct FakeMemory {
    resource_id: ResourceId,
    arena_bytes: u64,
    transport: Transport,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next_key: u32,
    bound: HashMap<LeaseId, Bound>,
    cut: HashMap<LeaseId, Generation>,
    held: HashSet<Step>,
    failing: HashSet<Step>,
    log: Vec<(Step, LeaseId)>,
}

#[derive(Clone, Debug)]
struct Bound {
    /// The kind of the lease; a fake serves any kind over UDP.
    kind: ResourceType,
    generation: Generation,
    extent: Extent,
    /// One key for each queue pair of the client; one key over UDP.
    keys: Vec<u32>,
    previous: Option<u32>,
}

impl FakeMemory {
    /// An arena of `arena_bytes`, reached over RDMA.
    #[must_use]
    pub fn new(resource_id: ResourceId, arena_bytes: u64) -> Self {
        Self::over(Transport::Rdma, resource_id, arena_bytes)
    }

    /// An arena of `arena_bytes`, reached over `transport`: RDMA, or UDP with bytes that survive the
    /// process.
    #[must_use]
    pub fn over(transport: Transport, resource_id: ResourceId, arena_bytes: u64) -> Self {
        Self {
            resource_id,
            arena_bytes,
            transport,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The offer of this memory to the table.
    #[must_use]
    pub fn offer(&self) -> Offer {
        Offer {
            resource_id: self.resource_id,
            capacity: self.arena_bytes,
            align: 4096,
            transports: vec![self.transport],
            durability: Durability::arena(self.transport == Transport::Udp),
            fence_scope: FenceScope::Whole,
            cut_within: None,
            allocation_mode: AllocationMode::Stretches,
            read_only: false,
            classes: None,
            rate: None,
            needs_vlan: None,
        }
    }

    /// The provider of this memory.
    #[must_use]
    pub fn provider(self: &Arc<Self>) -> Arc<Provider> {
        let provider = Provider::new().with_store(self.resource_id, self.clone());
        Arc::new(provider.with_path("fake", &[self.transport], self.clone()))
    }

    /// Makes every call of `step` wait until [`FakeMemory::let_go`].
    pub fn hold(&self, step: Step) {
        self.lock().held.insert(step);
    }

    /// Lets the held calls continue.
    pub fn let_go(&self, step: Step) {
        self.lock().held.remove(&step);
        self.changed.notify_all();
    }

    /// Makes every call of `step` fail, or succeed again.
    pub fn fail(&self, step: Step, failing: bool) {
        let mut state = self.lock();
        if failing {
            state.failing.insert(step);
        } else {
            state.failing.remove(&step);
        }
    }

    /// Whether `rkey`, or the number that a data-plane key begins with, gives access, as a client
    /// would see it.
    pub fn opens(&self, key: u32) -> bool {
        let state = self.lock();
        let opens = |bound: &Bound| bound.keys.contains(&key) || bound.previous == Some(key);
        state.bound.values().any(opens)
    }

    /// Waits until `step` has begun for `count` leases.
    pub fn wait_for(&self, step: Step, count: usize) {
        let mut state = self.lock();
        while state.log.iter().filter(|(s, _)| *s == step).count() < count {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a step: records it, blocks it if a test holds it, and fails it if a test wants that.
    fn begin(&self, step: Step, lease: LeaseId) -> Result<MutexGuard<'_, State>, StepError> {
        let mut state = self.lock();
        state.log.push((step, lease));
        self.changed.notify_all();
        while state.held.contains(&step) {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.failing.contains(&step) {
            let detail = format!("lease {lease}: on purpose");
            return Err(StepError::new(step.name(), detail));
        }
        Ok(state)
    }
}

impl State {
    fn fresh_key(&mut self) -> u32 {
        self.next_key += 1;
        self.next_key << 8
    }

    fn binding(&self, lease: LeaseId, transport: Transport) -> Binding {
        let Some(bound) = self.bound.get(&lease) else {
            return Binding::plain(ResourceType::Mem);
        };
        match transport {
            Transport::Udp => over_udp(bound),
            _ => over_rdma(bound),
        }
    }
}

fn over_udp(bound: &Bound) -> Binding {
    let mut key = [0; 32];
    if let (Some(first), Some(number)) = (key.first_chunk_mut(), bound.keys.first()) {
        *first = number.to_be_bytes();
    }
    Binding {
        dp_key: Some(DpKey(key)),
        udp_endpoint: Some(Endpoint {
            addr: [0; 16],
            port: 5702,
        }),
        limits: Some(limits(bound)),
        ..Binding::plain(bound.kind)
    }
}

fn over_rdma(bound: &Bound) -> Binding {
    let qp_num = 100 + 10 * bound.generation.0;
    let further = bound.keys.iter().zip(qp_num..).skip(1);
    let rdma = RdmaBinding {
        rkey: bound.keys.first().copied(),
        remote_addr: 0x7f00_0000_0000 + bound.extent.offset,
        qp_num,
        gid: [0xfe; 16],
        port: 1,
        psn: 7,
        path_mtu: 1024,
        strategy: RdmaStrategy::Window,
        previous: bound.previous.map(|rkey| PreviousKey {
            rkey,
            remaining_ms: 0,
        }),
        max_rd_atomic: 16,
        atomics: true,
        further: further
            .map(|(&rkey, qp_num)| RdmaQueuePair {
                qp_num,
                psn: 7,
                rkey,
            })
            .collect(),
        prepared_rkey: None,
        attach: None,
    };
    Binding {
        kind: KindBinding::Mem(Some(rdma)),
        limits: Some(limits(bound)),
        ..Binding::plain(ResourceType::Mem)
    }
}

fn limits(bound: &Bound) -> Limits {
    Limits {
        offset: 0,
        length: bound.extent.length,
    }
}

impl DataPath for FakeMemory {
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        let (lease, generation) = (order.binding_id.lease_id, order.binding_id.generation);
        let mut state = self.begin(Step::Bind, lease).map_err(BindError::Failed)?;
        if state.cut.get(&lease).is_some_and(|&cut| cut >= generation) {
            return Err(BindError::Cancelled);
        }
        let extent = part.extent();
        if extent.length == 0 || extent.end() > self.arena_bytes {
            let error = StepError::new("bind", "outside the arena");
            return Err(BindError::Failed(error));
        }
        if order.peers().iter().any(|peer| peer.qpn == UNREACHABLE_QPN) {
            return Err(BindError::Refused(StepError::new(
                "modify_qp RTR",
                "cannot be reached",
            )));
        }
        let keys = match self.transport {
            Transport::Udp => 1,
            _ => order.peers().len(),
        };
        let bound = Bound {
            kind: order.terms.resource_type(),
            generation,
            extent,
            keys: (0..keys).map(|_| state.fresh_key()).collect(),
            previous: None,
        };
        state.bound.insert(lease, bound);
        Ok(state.binding(lease, self.transport))
    }

    /// A binding that was cut must not go on.
    fn extend(&self, binding_id: BindingId, _deadline: BootTime) -> Result<(), AlreadyCut> {
        let cut = self.lock().cut.get(&binding_id.lease_id).copied();
        match cut {
            Some(cut) if cut >= binding_id.generation => Err(AlreadyCut),
            _ => Ok(()),
        }
    }

    fn fenced(&self, _binding_id: BindingId) {}

    fn rotate(&self, binding_id: BindingId) -> Result<Binding, BindError> {
        let mut state = self.lock();
        let rkey = state.fresh_key();
        let Some(bound) = state.bound.get_mut(&binding_id.lease_id) else {
            return Err(BindError::Cancelled);
        };
        bound.previous = bound
            .keys
            .first_mut()
            .map(|key| std::mem::replace(key, rkey));
        Ok(state.binding(binding_id.lease_id, self.transport))
    }

    fn retire_key(&self, binding_id: BindingId) -> Result<Binding, StepError> {
        let mut state = self.lock();
        if let Some(bound) = state.bound.get_mut(&binding_id.lease_id) {
            bound.previous = None;
        }
        Ok(state.binding(binding_id.lease_id, self.transport))
    }

    fn revoke(&self, binding_id: BindingId, _farewell: Linger) -> Result<Revoked, StepError> {
        let mut state = self.begin(Step::Cut, binding_id.lease_id)?;
        state.bound.remove(&binding_id.lease_id);
        state.cut.insert(binding_id.lease_id, binding_id.generation);
        Ok(Revoked::proved(Proof::nothing_to_cut("it is a fake")))
    }

    fn verify(
        &self,
        binding_id: BindingId,
        _revoked: Option<&Revoked>,
    ) -> Result<Proof, StepError> {
        match self.lock().bound.contains_key(&binding_id.lease_id) {
            true => Err(StepError::new("verify", "still bound")),
            false => Ok(Proof::nothing_to_cut("it is a fake")),
        }
    }

    fn remove(&self, binding_id: BindingId, _progress: &dyn Fn()) -> Result<(), StepError> {
        match self.lock().bound.contains_key(&binding_id.lease_id) {
            true => Err(StepError::new("remove", "still bound")),
            false => Ok(()),
        }
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.lock().bound.keys().copied().collect())
    }
}

impl Store for FakeMemory {
    fn prepare(&self, _order: &BindOrder, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        Ok(Part::at(order.placement.clone()))
    }

    fn confirm(&self, binding_id: BindingId) -> Result<(), StepError> {
        self.begin(Step::Confirm, binding_id.lease_id).map(drop)
    }

    fn forget(&self, _binding_id: BindingId, _placement: &Placement) -> Result<(), StepError> {
        Ok(())
    }

    fn release(
        &self,
        binding_id: BindingId,
        _placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        progress();
        self.begin(Step::Release, binding_id.lease_id)?
            .cut
            .remove(&binding_id.lease_id);
        Ok(Proof::nothing_to_clean("this memory is made up"))
    }

    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(Vec::new())
    }

    fn tell_condition(&self, _tell: TellCondition) {}
}
