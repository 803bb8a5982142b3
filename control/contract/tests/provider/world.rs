//! A fake store and two fake paths. Each call succeeds unless the test makes it fail.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use fabricbios_contract::{
    DataPath, Inline, Part, Provider, Removal, Revoked, Store, Stray, TellCondition,
};
use fabricbios_lease::*;
use fabricbios_wire::*;

pub(crate) const POOL: ResourceId = ResourceId(7);
pub(crate) const EXTENT: Extent = Extent {
    offset: 0,
    length: 1 << 20,
};

/// A step that reports its begin and then waits until the test lets it go on.
type Held = (String, Sender<()>, Receiver<()>);

/// The state that the fakes share.
#[derive(Default)]
struct Place {
    /// The objects of each lease by their owner: `part` for the store, or the name of the path. The value is true if a
    /// client may reach them.
    there: Mutex<BTreeMap<(&'static str, LeaseId), bool>>,
    failing: Mutex<BTreeMap<String, BindError>>,
    held: Mutex<Option<Held>>,
    done: Mutex<Vec<String>>,
}

impl Place {
    fn step(&self, step: &str) -> Result<(), BindError> {
        self.done.lock().unwrap().push(step.to_owned());
        let held = self.held.lock().unwrap().take_if(|(it, ..)| it == step);
        if let Some((_, began, let_on)) = held {
            began.send(()).unwrap();
            let_on.recv().unwrap();
        }
        let failing = self.failing.lock().unwrap();
        failing.get(step).map_or(Ok(()), |error| Err(error.clone()))
    }

    fn proves(&self, step: &str) -> Result<(), StepError> {
        let done = self.step(step);
        done.map_err(|error| StepError::new("fake", format!("{step}: {error:?}")))
    }

    fn has(&self, what: &'static str, lease: LeaseId) -> bool {
        self.there.lock().unwrap().contains_key(&(what, lease))
    }

    fn ids(&self, what: &'static str) -> Vec<LeaseId> {
        let there = self.there.lock().unwrap();
        let its = there.keys().filter(|(its, _)| *its == what);
        its.map(|(_, id)| *id).collect()
    }
}

struct FakeStore(Arc<Place>);

impl Store for FakeStore {
    fn prepare(&self, _: &BindOrder, progress: &dyn Fn()) -> Result<(), StepError> {
        progress();
        self.0.proves("prepare")
    }
    fn open(&self, order: &BindOrder) -> Result<Part, BindError> {
        self.0.step("open")?;
        let key = ("part", order.binding_id.lease_id);
        self.0.there.lock().unwrap().insert(key, true);
        Ok(Part::at(order.placement.clone()))
    }
    fn confirm(&self, _: BindingId) -> Result<(), StepError> {
        self.0.proves("confirm")
    }
    fn forget(&self, binding_id: BindingId, _: &Placement) -> Result<(), StepError> {
        self.0.proves("forget")?;
        self.0
            .there
            .lock()
            .unwrap()
            .remove(&("part", binding_id.lease_id));
        Ok(())
    }
    fn release(
        &self,
        binding_id: BindingId,
        placement: Option<&Placement>,
        progress: &dyn Fn(),
    ) -> Result<Proof, StepError> {
        progress();
        self.0.proves("release")?;
        // Every placement is the same: a real store claims it to clean it.
        let others = self.0.ids("part");
        let is_taken = !others.is_empty() && !others.contains(&binding_id.lease_id);
        if placement.is_some() && is_taken {
            return Err(StepError::new("claim", "another lease has it"));
        }
        for path in ["rdma", "udp"] {
            assert!(
                !self.0.has(path, binding_id.lease_id),
                "cleaned under {path}"
            );
        }
        self.0
            .there
            .lock()
            .unwrap()
            .remove(&("part", binding_id.lease_id));
        Ok(Proof::nothing_to_clean("made up"))
    }
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.0.ids("part"))
    }
    fn place_of(&self, lease: LeaseId) -> Option<Placement> {
        let place = Placement::from(EXTENT);
        self.0.has("part", lease).then_some(place)
    }
    fn is_inline(&self, placement: &Placement) -> bool {
        placement.extent().length <= EXTENT.length
    }
    fn tell_condition(&self, _: TellCondition) {}
}

struct FakePath {
    name: &'static str,
    place: Arc<Place>,
}

impl FakePath {
    fn does(&self, step: &str) -> Result<(), BindError> {
        self.place.step(&format!("{} {step}", self.name))
    }

    fn proves(&self, step: &str) -> Result<(), StepError> {
        self.place.proves(&format!("{} {step}", self.name))
    }

    fn may_be_reached(&self, lease: LeaseId) -> bool {
        let there = self.place.there.lock().unwrap();
        there.get(&(self.name, lease)).copied().unwrap_or(false)
    }

    fn binding(&self, has_peer: bool) -> Binding {
        let limits = Some(Limits {
            offset: 0,
            length: EXTENT.length,
        });
        match self.name {
            "rdma" => Binding {
                kind: KindBinding::Mem(Some(rdma(has_peer))),
                limits,
                ..Binding::plain(ResourceType::Mem)
            },
            _ => Binding {
                dp_key: Some(DpKey([7; 32])),
                limits,
                ..Binding::plain(ResourceType::Mem)
            },
        }
    }
}

impl DataPath for FakePath {
    fn inline(&self, _: ResourceId) -> Inline {
        match self.name {
            "udp" => Inline::Everything,
            _ => Inline::Nothing,
        }
    }
    fn bind(&self, order: &BindOrder, part: &Part) -> Result<Binding, BindError> {
        assert_eq!(part.placement, order.placement);
        self.does("bind")?;
        let key = (self.name, order.binding_id.lease_id);
        self.place.there.lock().unwrap().insert(key, true);
        Ok(self.binding(!order.peers().is_empty()))
    }
    fn extend(&self, _: BindingId, _: BootTime) -> Result<(), AlreadyCut> {
        self.does("extend").map_err(|_planned| AlreadyCut)
    }
    fn fenced(&self, _: BindingId) {
        self.does("fenced").unwrap();
    }
    fn rotate(&self, _: BindingId) -> Result<Binding, BindError> {
        self.does("rotate").map(|()| self.binding(true))
    }
    fn retire_key(&self, _: BindingId) -> Result<Binding, StepError> {
        self.proves("retire").map(|()| self.binding(true))
    }
    fn change_peers(&self, _: BindingId, _: &PeerChange) -> Result<Binding, BindError> {
        self.does("change").map(|()| self.binding(true))
    }
    fn revoke(&self, binding_id: BindingId, _: Linger) -> Result<Revoked, StepError> {
        self.proves("revoke")?;
        let mut there = self.place.there.lock().unwrap();
        if let Some(reached) = there.get_mut(&(self.name, binding_id.lease_id)) {
            *reached = false;
        }
        Ok(Revoked::default())
    }
    fn verify(&self, binding_id: BindingId, _: Option<&Revoked>) -> Result<Proof, StepError> {
        self.proves("verify")?;
        if self.may_be_reached(binding_id.lease_id) {
            return Err(StepError::new("verify", "it answers"));
        }
        let mut proof = Proof::default();
        proof.add(self.name, Duration::ZERO, "");
        Ok(proof)
    }
    fn remove(&self, binding_id: BindingId, progress: &dyn Fn()) -> Result<(), StepError> {
        progress();
        self.proves("remove")?;
        assert!(
            !self.may_be_reached(binding_id.lease_id),
            "removed under a client"
        );
        let key = (self.name, binding_id.lease_id);
        self.place.there.lock().unwrap().remove(&key);
        Ok(())
    }
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.place.ids(self.name))
    }
}

fn rdma(has_peer: bool) -> RdmaBinding {
    RdmaBinding {
        rkey: has_peer.then_some(1),
        remote_addr: 0,
        qp_num: 2,
        gid: [3; 16],
        port: 1,
        psn: 4,
        path_mtu: 1024,
        strategy: RdmaStrategy::Window,
        previous: None,
        max_rd_atomic: 16,
        atomics: false,
        further: Vec::new(),
        prepared_rkey: None,
        attach: None,
    }
}

pub(crate) struct World {
    place: Arc<Place>,
    pub(crate) provider: Arc<Provider>,
}

impl World {
    pub(crate) fn new() -> Self {
        let place = Arc::<Place>::default();
        let path = |name| {
            let place = place.clone();
            Arc::new(FakePath { name, place })
        };
        let provider = Provider::new()
            .with_store(POOL, Arc::new(FakeStore(place.clone())))
            .with_path("RDMA", &[Transport::Rdma], path("rdma"))
            .with_path("UDP", &[Transport::Udp], path("udp"));
        let provider = Arc::new(provider);
        Self { place, provider }
    }

    /// Reconciles, and waits for every removal.
    pub(crate) fn reconcile(&self, known: &BTreeSet<LeaseId>) -> Vec<Stray> {
        let in_turn = |removals: Vec<Removal>| removals.into_iter().for_each(|it| it());
        self.provider.reconcile(known, in_turn).unwrap()
    }

    /// A world with a lease that is bound over both paths.
    pub(crate) fn bound() -> Self {
        let world = Self::new();
        world.provider.bind(&order(1, Transport::Both)).unwrap();
        world.asked();
        world
    }

    /// The calls since the last time.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.place.done.lock().unwrap())
    }

    pub(crate) fn fail(&self, step: &str, error: BindError) {
        self.place
            .failing
            .lock()
            .unwrap()
            .insert(step.to_owned(), error);
    }

    pub(crate) fn works(&self) {
        self.place.failing.lock().unwrap().clear();
    }

    /// The next call of this step reports its begin and waits until the test lets it go on.
    pub(crate) fn hold(&self, step: &str) -> (Receiver<()>, Sender<()>) {
        let ((tell, began), (let_on, wait)) = (channel(), channel());
        *self.place.held.lock().unwrap() = Some((step.to_owned(), tell, wait));
        (began, let_on)
    }

    pub(crate) fn put(&self, what: &'static str, lease: LeaseId) {
        self.place.there.lock().unwrap().insert((what, lease), true);
    }

    pub(crate) fn ids(&self, what: &'static str) -> Vec<LeaseId> {
        self.place.ids(what)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.place.there.lock().unwrap().is_empty()
    }

    pub(crate) fn has_access(&self) -> bool {
        let there = self.place.there.lock().unwrap();
        there
            .iter()
            .any(|((what, _), reached)| *what != "part" && *reached)
    }
}

pub(crate) fn binding_id(generation: u32) -> BindingId {
    BindingId {
        lease_id: LeaseId(1),
        generation: Generation(generation),
        resource_id: POOL,
    }
}

pub(crate) fn order(generation: u32, transport: Transport) -> BindOrder {
    BindOrder {
        terms: MemTerms {
            rdma_peers: vec![RdmaPeer {
                qpn: 1,
                psn: 1,
                gid: [9; 16],
                path_mtu: 0,
            }],
        }
        .into(),
        ..BindOrder::new(binding_id(generation), EXTENT, transport)
    }
}
