//! Which road is asked what, in which order, and what comes of every failure.
use fabricbios_lease::Layout;

use std::{cell::Cell, time::Duration};

use fabricbios_wire::{DpKey, Generation, Limits, RdmaPeer, RdmaStrategy};

use super::*;

const ARENA: ResourceId = ResourceId(0xa);
const EXTENT: Extent = Extent {
    offset: 0,
    length: 4096,
};

/// What was asked of whom, as `rdma bind`.
type Log = Arc<Mutex<Vec<String>>>;

/// One road, which does what it is asked unless told to fail.
struct Road {
    name: &'static str,
    log: Log,
    failing: Mutex<Vec<(&'static str, BindError)>>,
}

impl Road {
    fn fail(&self, step: &'static str, error: BindError) {
        self.failing.lock().unwrap().push((step, error));
    }

    fn does(&self, step: &'static str) -> Result<(), BindError> {
        self.log
            .lock()
            .unwrap()
            .push(format!("{} {step}", self.name));
        let failing = self.failing.lock().unwrap();
        let failure = failing.iter().find(|(failing, _)| *failing == step);
        failure.map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    fn proves(&self, step: &'static str) -> Result<(), StepError> {
        self.does(step)
            .map_err(|error| StepError::new(step, format!("{}: {error:?}", self.name)))
    }

    fn proof(&self) -> Proof {
        let mut proof = Proof::default();
        proof.add(self.name, Duration::ZERO, "");
        proof
    }

    fn binding(&self) -> Binding {
        match self.name {
            "rdma" => Binding {
                rdma: Some(rdma()),
                ..Binding::default()
            },
            _ => Binding {
                dp_key: Some(DpKey([7; 32])),
                udp_endpoint: Some(std::net::SocketAddr::from(([10, 0, 0, 1], 5702)).into()),
                limits: Some(Limits {
                    offset: 0,
                    length: 4096,
                }),
                rdma: None,
                nvmeof: None,
            },
        }
    }
}

impl Backend for Road {
    fn probe(&self) -> Result<Vec<Offer>, StepError> {
        Ok(vec![Offer {
            resource_id: ARENA,
            capacity: 1 << 20,
            align: 4096,
            transports: vec![if self.name == "rdma" {
                Transport::Rdma
            } else {
                Transport::Udp
            }],
            outlives: Outlives::arena(self.name == "udp"),
            layout: Layout::Stretches,
            read_only: false,
        }])
    }

    fn bind(&self, order: &BindOrder) -> Result<Binding, BindError> {
        assert_ne!(order.transport, Transport::Both, "a road knows itself only");
        self.does("bind").map(|()| self.binding())
    }

    fn prepare(&self, _order: &BindOrder, _progress: &dyn Fn()) -> Result<(), StepError> {
        Ok(())
    }

    fn extend(&self, _tag: Tag, _deadline: BootTime) -> Result<(), AlreadyCut> {
        self.does("extend").map_err(|_on_purpose| AlreadyCut)
    }

    fn fenced(&self, _tag: Tag) {
        self.does("fenced").unwrap();
    }

    fn rotate(&self, _tag: Tag) -> Result<Binding, BindError> {
        self.does("rotate").map(|()| self.binding())
    }

    fn retire_key(&self, _tag: Tag) -> Result<Binding, StepError> {
        self.proves("retire_key").map(|()| self.binding())
    }

    fn sever(&self, _tag: Tag) -> bool {
        false
    }

    fn cut(&self, _tag: Tag, _farewell: Farewell) -> Result<Proof, StepError> {
        self.proves("cut").map(|()| self.proof())
    }

    fn release(&self, _tag: Tag, _extent: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        progress();
        self.proves("release")
    }

    fn reset(&self, _id: ResourceId, _leases: &[(Tag, Extent)]) -> Result<(), StepError> {
        self.proves("reset")
    }
}

impl Guest for Road {
    fn retire(&self, _tag: Tag) -> Result<(), StepError> {
        self.proves("retire")
    }
}

struct Scene {
    rdma: Arc<Road>,
    udp: Arc<Road>,
    roads: Roads,
    log: Log,
}

impl Scene {
    fn new() -> Self {
        let log = Log::default();
        let road = |name| {
            Arc::new(Road {
                name,
                log: log.clone(),
                failing: Mutex::default(),
            })
        };
        let (rdma, udp) = (road("rdma"), road("udp"));
        let roads = Roads::new(rdma.clone(), udp.clone());
        Self {
            rdma,
            udp,
            roads,
            log,
        }
    }

    /// With a lease that is bound over both roads.
    fn bound() -> Self {
        let scene = Self::new();
        scene.roads.bind(&order(1, Transport::Both)).unwrap();
        scene.asked();
        scene
    }

    /// What was asked since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}

fn rdma() -> RdmaBinding {
    RdmaBinding {
        rkey: Some(1),
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
    }
}

fn tag(generation: u32) -> Tag {
    Tag {
        lease_id: LeaseId(1),
        generation: Generation(generation),
        resource_id: ARENA,
    }
}

fn order(generation: u32, transport: Transport) -> BindOrder {
    BindOrder {
        tag: tag(generation),
        extent: EXTENT,
        transport,
        peers: vec![RdmaPeer {
            qpn: 1,
            psn: 1,
            gid: [9; 16],
            path_mtu: 0,
        }],
        block: None,
        adopts: false,
    }
}

fn error() -> StepError {
    StepError::new("step", "on purpose")
}

#[test]
fn both_are_offered_the_direct_one_first() {
    let offers = Scene::new().roads.probe().unwrap();
    let [offer] = offers.as_slice() else {
        panic!("{offers:?}")
    };
    let expected = [Transport::Rdma, Transport::Udp, Transport::Both];
    assert_eq!(offer.transports, expected);
    assert_eq!(offer.outlives, Outlives::Process);
}

#[test]
fn a_lease_is_bound_over_the_roads_it_asked_for() {
    for (transport, asked) in [
        (Transport::Rdma, &["rdma bind"][..]),
        (Transport::Udp, &["udp bind"]),
        (Transport::Both, &["rdma bind", "udp bind"]),
    ] {
        let scene = Scene::new();
        let binding = scene.roads.bind(&order(1, transport)).unwrap();
        assert_eq!(scene.asked(), asked);
        assert_eq!(binding.rdma.is_some(), transport != Transport::Udp);
        let over_udp = transport != Transport::Rdma;
        assert_eq!(binding.dp_key.is_some(), over_udp);
        assert_eq!(binding.udp_endpoint.is_some(), over_udp);
        assert_eq!(binding.limits.is_some(), over_udp);
    }
}

#[test]
fn a_first_binding_that_fails_leaves_nothing() {
    let scene = Scene::new();
    scene.rdma.fail("bind", BindError::Refused(error()));
    let Err(BindError::Refused(why)) = scene.roads.bind(&order(1, Transport::Both)) else {
        panic!("not refused")
    };
    assert!(why.step.path() == Some("RDMA"), "{why}");
    assert_eq!(scene.asked(), ["rdma bind"]);

    let scene = Scene::new();
    scene.udp.fail("bind", BindError::Failed(error()));
    let Err(BindError::Failed(why)) = scene.roads.bind(&order(1, Transport::Both)) else {
        panic!("not failed")
    };
    assert!(why.step.path() == Some("UDP"), "{why}");
    let asked = ["rdma bind", "udp bind", "rdma cut", "rdma release"];
    assert_eq!(scene.asked(), asked);
}

#[test]
fn a_later_binding_whose_peer_cannot_be_reached_leaves_both_roads_as_they_were() {
    for failure in [
        BindError::Refused(error()),
        BindError::Failed(error()),
        BindError::Cancelled,
    ] {
        let scene = Scene::bound();
        scene.rdma.fail("bind", failure.clone());
        let outcome = scene.roads.bind(&order(2, Transport::Both)).unwrap_err();
        let same = std::mem::discriminant(&outcome) == std::mem::discriminant(&failure);
        assert!(same, "{outcome:?}");
        assert_eq!(scene.asked(), ["rdma bind"]);
        scene.roads.rotate(tag(2)).unwrap();
        assert_eq!(scene.asked(), ["rdma rotate", "udp rotate"]);
    }
}

#[test]
fn a_later_binding_that_fails_after_the_one_before_was_cut_is_closed_and_its_bytes_stay() {
    let scene = Scene::bound();
    scene.rdma.fail("bind", BindError::Lost(error()));
    let outcome = scene.roads.bind(&order(2, Transport::Both));
    assert!(matches!(outcome, Err(BindError::Lost(_))), "{outcome:?}");
    assert_eq!(scene.asked(), ["rdma bind", "udp cut"]);

    let scene = Scene::bound();
    scene.udp.fail("bind", BindError::Failed(error()));
    let outcome = scene.roads.bind(&order(2, Transport::Both));
    assert!(matches!(outcome, Err(BindError::Lost(_))), "{outcome:?}");
    let asked = ["rdma bind", "udp bind", "rdma cut", "udp cut"];
    assert_eq!(scene.asked(), asked);
}

#[test]
fn what_cannot_be_closed_again_is_stranded() {
    for (bind_fails, cut_fails) in [("udp", "rdma"), ("udp", "udp"), ("rdma", "udp")] {
        let scene = Scene::bound();
        let road = |name| {
            if name == "udp" {
                &scene.udp
            } else {
                &scene.rdma
            }
        };
        road(bind_fails).fail("bind", BindError::Lost(error()));
        road(cut_fails).fail("cut", BindError::Failed(error()));
        let outcome = scene.roads.bind(&order(2, Transport::Both));
        assert!(
            matches!(outcome, Err(BindError::Stranded(_))),
            "{outcome:?}"
        );
    }
}

#[test]
fn stranded_and_cancelled_stay_what_they_are() {
    for failure in [BindError::Stranded(error()), BindError::Cancelled] {
        for name in ["rdma", "udp"] {
            let scene = Scene::bound();
            let road = if name == "udp" {
                &scene.udp
            } else {
                &scene.rdma
            };
            road.fail("bind", failure.clone());
            let outcome = scene.roads.bind(&order(2, Transport::Both)).unwrap_err();
            let same = std::mem::discriminant(&outcome) == std::mem::discriminant(&failure);
            assert!(same, "{outcome:?}");
        }
    }
}

#[test]
fn a_deadline_and_a_fence_are_told_to_both() {
    let scene = Scene::bound();
    scene.roads.extend(tag(1), BootTime(1)).unwrap();
    scene.roads.fenced(tag(1));
    let asked = ["rdma extend", "udp extend", "rdma fenced", "udp fenced"];
    assert_eq!(scene.asked(), asked);
}

#[test]
fn a_road_that_is_cut_refuses_for_both() {
    for name in ["rdma", "udp"] {
        let scene = Scene::bound();
        let road = match name {
            "udp" => &scene.udp,
            _ => &scene.rdma,
        };
        road.fail("extend", BindError::Cancelled);
        let extended = scene.roads.extend(tag(1), BootTime(1));
        assert_eq!(extended, Err(AlreadyCut), "{name}");
        assert_eq!(scene.asked(), ["rdma extend", "udp extend"]);
    }
}

#[test]
fn keys_change_on_the_roads_that_have_one() {
    for (transport, asked) in [
        (Transport::Rdma, &["rdma rotate", "rdma retire_key"][..]),
        (Transport::Udp, &["udp rotate", "udp retire_key"]),
        (
            Transport::Both,
            &[
                "rdma rotate",
                "udp rotate",
                "udp retire_key",
                "rdma retire_key",
            ],
        ),
    ] {
        let scene = Scene::new();
        let bound = scene.roads.bind(&order(1, transport)).unwrap();
        scene.asked();
        assert_eq!(scene.roads.rotate(tag(1)).unwrap(), bound);
        assert_eq!(scene.roads.retire_key(tag(1)).unwrap(), bound);
        assert_eq!(scene.asked(), asked);
    }
}

#[test]
fn a_queue_pair_that_waits_for_its_client_survives_a_new_udp_key() {
    let scene = Scene::new();
    let waiting = BindOrder {
        peers: Vec::new(),
        ..order(1, Transport::Both)
    };
    let bound = scene.roads.bind(&waiting).unwrap();
    scene.asked();
    assert_eq!(scene.roads.rotate(tag(1)).unwrap(), bound);
    assert_eq!(scene.roads.retire_key(tag(1)).unwrap(), bound);
    assert_eq!(scene.asked(), ["udp rotate", "udp retire_key"]);
}

#[test]
fn half_a_rotation_is_something_left_behind() {
    let scene = Scene::bound();
    scene.rdma.fail("rotate", BindError::Refused(error()));
    assert!(matches!(
        scene.roads.rotate(tag(1)),
        Err(BindError::Refused(_))
    ));
    assert_eq!(scene.asked(), ["rdma rotate"]);

    let scene = Scene::bound();
    scene.udp.fail("rotate", BindError::Failed(error()));
    assert!(matches!(
        scene.roads.rotate(tag(1)),
        Err(BindError::Stranded(_))
    ));
}

#[test]
fn an_old_key_that_stays_on_either_road_is_not_retired() {
    for name in ["rdma", "udp"] {
        let scene = Scene::bound();
        let road = if name == "udp" {
            &scene.udp
        } else {
            &scene.rdma
        };
        road.fail("retire_key", BindError::Failed(error()));
        assert!(scene.roads.retire_key(tag(1)).is_err());
        assert_eq!(scene.asked(), ["udp retire_key", "rdma retire_key"]);
    }
}

#[test]
fn a_cut_cuts_udp_first_and_both_whatever_happens() {
    let scene = Scene::bound();
    let proof = scene.roads.cut(tag(1), Farewell::None).unwrap();
    let steps: Vec<&str> = proof.steps().iter().map(|it| &*it.step).collect();
    assert_eq!(steps, ["udp", "rdma"]);
    assert_eq!(scene.asked(), ["udp cut", "rdma cut"]);
    for failing in [&["rdma"][..], &["udp"], &["rdma", "udp"]] {
        let scene = Scene::bound();
        for name in failing {
            let road = if *name == "udp" {
                &scene.udp
            } else {
                &scene.rdma
            };
            road.fail("cut", BindError::Failed(error()));
        }
        let why = scene
            .roads
            .cut(tag(1), Farewell::None)
            .unwrap_err()
            .to_string();
        assert!(failing.iter().all(|name| why.contains(name)), "{why}");
        assert_eq!(scene.asked(), ["udp cut", "rdma cut", "udp fenced"]);
    }
}

#[test]
fn the_bytes_are_scrubbed_when_udp_has_let_go_of_them() {
    let scene = Scene::bound();
    let calls = Cell::new(0);
    let progress = || calls.set(calls.get() + 1);
    scene.roads.release(tag(1), EXTENT, &progress).unwrap();
    assert_eq!(
        (scene.asked(), calls.get()),
        (vec!["udp retire".into(), "rdma release".into()], 1)
    );
    assert!(
        scene.roads.lock().is_empty(),
        "a released lease is forgotten"
    );

    let scene = Scene::bound();
    scene.udp.fail("retire", BindError::Failed(error()));
    assert!(scene.roads.release(tag(1), EXTENT, &|| ()).is_err());
    assert_eq!(scene.asked(), ["udp retire", "udp fenced"]);

    let scene = Scene::bound();
    scene.rdma.fail("release", BindError::Failed(error()));
    assert!(scene.roads.release(tag(1), EXTENT, &|| ()).is_err());
    assert_eq!(scene.asked(), ["udp retire", "rdma release", "udp fenced"]);
}

#[test]
fn a_remediation_takes_both_roads_and_stops_at_what_does_not_verify() {
    let leases = [(tag(1), EXTENT)];
    let scene = Scene::bound();
    scene.roads.reset(ARENA, &leases).unwrap();
    assert_eq!(scene.asked(), ["udp cut", "udp retire", "rdma reset"]);
    for (road, step, asked) in [
        ("udp", "cut", &["udp cut", "udp fenced"][..]),
        ("udp", "retire", &["udp cut", "udp retire", "udp fenced"]),
        (
            "rdma",
            "reset",
            &["udp cut", "udp retire", "rdma reset", "udp fenced"],
        ),
    ] {
        let scene = Scene::bound();
        let failing = if road == "udp" {
            &scene.udp
        } else {
            &scene.rdma
        };
        failing.fail(step, BindError::Failed(error()));
        assert!(scene.roads.reset(ARENA, &leases).is_err());
        assert_eq!(scene.asked(), asked);
    }
}
