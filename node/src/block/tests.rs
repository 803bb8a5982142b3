//! The order of steps, and what is left when one of them fails; against fakes that remember what they
//! hold. The real parts are tested in the lab.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fabricbios_fallback_udp::BlockFile;
use fabricbios_lease::*;
use fabricbios_nvmet::Export;
use fabricbios_pool::{Facts, Volume};
use fabricbios_wire::*;

use super::{BlockBackend, Datagrams, Exports, Ledger, Volumes, parts::facts};
use crate::watchdog::Watchdog;

const POOL: ResourceId = ResourceId(7);
const EXTENT: Extent = Extent {
    offset: 0,
    length: 1 << 20,
};

/// Whatever the fakes hold, by part and lease, and which step fails.
#[derive(Default)]
struct Place {
    there: Mutex<BTreeMap<(&'static str, LeaseId), u32>>,
    failing: Mutex<BTreeSet<&'static str>>,
    done: Mutex<Vec<String>>,
    /// Grants that the journal has, and that the pool has.
    written: AtomicU64,
    counted: AtomicU64,
}

impl Place {
    fn step(&self, step: &'static str) -> Result<(), StepError> {
        self.done.lock().unwrap().push(step.to_owned());
        match self.failing.lock().unwrap().contains(step) {
            true => Err(StepError::new(step, "on purpose")),
            false => Ok(()),
        }
    }

    fn has(&self, part: &'static str, id: LeaseId) -> bool {
        self.there.lock().unwrap().contains_key(&(part, id))
    }

    fn put(&self, part: &'static str, id: LeaseId) {
        *self.there.lock().unwrap().entry((part, id)).or_default() += 1;
    }

    fn take(&self, part: &'static str, id: LeaseId) {
        self.there.lock().unwrap().remove(&(part, id));
    }

    fn ids(&self, part: &'static str) -> Vec<LeaseId> {
        let there = self.there.lock().unwrap();
        let its = there.keys().filter(|(its, _)| *its == part);
        its.map(|(_, id)| *id).collect()
    }

    fn is_empty(&self) -> bool {
        self.there.lock().unwrap().is_empty()
    }

    fn fails(&self, step: &'static str) {
        self.failing.lock().unwrap().insert(step);
    }

    fn works(&self) {
        self.failing.lock().unwrap().clear();
    }
}

struct Part {
    place: Arc<Place>,
    facts: Facts,
}

fn volume() -> Volume {
    Volume {
        path: "/dev/fake".into(),
        bytes: 1 << 20,
        block_bytes: 4096,
        read_only: false,
    }
}

impl Volumes for Part {
    fn facts(&self) -> &Facts {
        &self.facts
    }
    fn count_grant(&self, number: u64) -> Result<(), StepError> {
        self.place.step("count")?;
        self.place.counted.store(number, Ordering::SeqCst);
        Ok(())
    }
    fn prepare(&self, _: Extent, progress: &dyn Fn()) -> Result<(), StepError> {
        progress();
        self.place.step("prepare")
    }
    fn create(&self, lease: LeaseId, _: Extent) -> Result<Volume, StepError> {
        self.place.step("create")?;
        assert!(!self.place.has("volume", lease), "made twice");
        self.place.put("volume", lease);
        Ok(volume())
    }
    fn reopen(&self, lease: LeaseId, _: Extent) -> Result<Volume, StepError> {
        self.place.step("reopen")?;
        match self.place.has("volume", lease) {
            true => Ok(volume()),
            false => Err(StepError::new("reopen", "it is gone")),
        }
    }
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.place.ids("volume"))
    }
    fn destroy(
        &self,
        lease: LeaseId,
        _: Option<Extent>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        self.place.step("destroy")?;
        assert!(!self.place.has("export", lease), "wiped under an export");
        assert!(!self.place.has("entry", lease), "wiped under datagrams");
        progress();
        self.place.take("volume", lease);
        Ok(())
    }
    fn condition(&self) -> Condition {
        Condition::Good
    }
}

impl Ledger for Part {
    fn next_grant(&self, _: ResourceId) -> Result<u64, StepError> {
        self.place.step("write down")?;
        Ok(self.place.written.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

impl Exports for Part {
    fn transports(&self) -> Vec<Transport> {
        vec![Transport::NvmeTcp]
    }
    fn publish(&self, export: &Export) -> Result<NvmeofBinding, BindError> {
        self.place.step("publish").map_err(BindError::Failed)?;
        self.place.put("export", export.tag.lease_id);
        self.place.put("link", export.tag.lease_id);
        Ok(nvmeof())
    }
    fn rekey(&self, _: Tag) -> Result<NvmeofBinding, BindError> {
        self.place.step("rekey").map_err(BindError::Refused)?;
        Ok(nvmeof())
    }
    fn sever(&self, _: Tag) {
        self.place.step("sever").ok();
    }
    fn cut(&self, tag: Tag) -> Result<Proof, StepError> {
        self.place.step("unlink")?;
        self.place.take("link", tag.lease_id);
        Ok(did("unlink"))
    }
    fn remove(&self, lease: LeaseId, _: &dyn Fn()) -> Result<(), StepError> {
        self.place.step("remove")?;
        assert!(!self.place.has("link", lease), "removed under a link");
        self.place.take("export", lease);
        Ok(())
    }
    fn leases(&self) -> Result<Vec<LeaseId>, StepError> {
        Ok(self.place.ids("export"))
    }
}

fn did(step: &str) -> Proof {
    let mut proof = Proof::default();
    proof.add(step, Duration::ZERO, "");
    proof
}

impl Datagrams for Part {
    fn bind(&self, tag: Tag, _: &str, _: &BlockFile) -> Result<Binding, BindError> {
        self.place.step("serve").map_err(BindError::Failed)?;
        self.place.put("entry", tag.lease_id);
        Ok(Binding {
            dp_key: Some(DpKey([7; 32])),
            ..Binding::default()
        })
    }
    fn extend(&self, _: Tag, _: BootTime) {}
    fn fenced(&self, _: Tag) {}
    fn rotate(&self, _: Tag) -> Result<Binding, BindError> {
        self.place.step("rotate").map_err(BindError::Failed)?;
        Ok(Binding::default())
    }
    fn retire_key(&self, _: Tag) -> Result<Binding, StepError> {
        Ok(Binding::default())
    }
    fn cut(&self, _: Tag) -> Result<Proof, StepError> {
        self.place.step("silence")?;
        Ok(did("silence"))
    }
    fn retire(&self, tag: Tag, _: &dyn Fn()) -> Result<(), StepError> {
        self.place.step("retire")?;
        self.place.take("entry", tag.lease_id);
        Ok(())
    }
}

fn nvmeof() -> NvmeofBinding {
    NvmeofBinding {
        addresses: Vec::new(),
        subsystem: "nqn.2026-11.org.fabricbios:x".parse().unwrap(),
        nsid: 1,
        host_nqn: "nqn.2026-11.org.fabricbios:y".parse().unwrap(),
        host_id: HostId([1; 16]),
        dhchap_secret: DhchapSecret::new("DHHC-1:01:AAAA:").unwrap(),
        dhchap_ctrl_secret: None,
        ctrl_loss_secs: 5,
        block_bytes: 4096,
    }
}

fn world() -> (Arc<Place>, Arc<BlockBackend>) {
    watched(None)
}

fn watched(by: Option<Watchdog>) -> (Arc<Place>, Arc<BlockBackend>) {
    let place = Arc::new(Place::default());
    let part = || {
        Arc::new(Part {
            place: Arc::clone(&place),
            facts: facts(1),
        })
    };
    let mut backend = BlockBackend::new(part(), Some(part()), Some(part())).watched_by(by);
    backend.add(POOL, part());
    (place, Arc::new(backend))
}

fn tag(id: u128, generation: u32) -> Tag {
    Tag {
        lease_id: LeaseId(id),
        generation: Generation(generation),
        resource_id: POOL,
    }
}

fn order(tag: Tag, transport: Transport) -> BindOrder {
    BindOrder {
        tag,
        extent: EXTENT,
        transport,
        peers: Vec::new(),
        block: Some(BlockOrder {
            tenant: "a".into(),
            terms: BlockTerms::default(),
            grace: Duration::ZERO,
        }),
        adopts: false,
    }
}

#[test]
fn a_life_over_both_roads_leaves_nothing() {
    let (place, backend) = world();
    let its = tag(1, 1);
    let bound = backend.bind(&order(its, Transport::Both)).unwrap();
    assert!(bound.nvmeof.is_some() && bound.dp_key.is_some());
    let blocks = Limits {
        offset: 0,
        length: 256,
    };
    assert_eq!(bound.limits, Some(blocks));
    let proof = backend.cut(its, Farewell::None).unwrap();
    assert_eq!(proof, did("silence").and(did("unlink")));
    backend.release(its, EXTENT, &|| ()).unwrap();
    assert!(place.is_empty());
}

#[test]
fn a_grant_is_in_the_journal_before_the_pool_knows_of_it() {
    let (place, backend) = world();
    backend.bind(&order(tag(1, 1), Transport::Udp)).unwrap();
    place.fails("count");
    backend.bind(&order(tag(2, 1), Transport::Udp)).unwrap_err();
    assert_eq!(place.written.load(Ordering::SeqCst), 2);
    assert_eq!(place.counted.load(Ordering::SeqCst), 1);
}

#[test]
fn a_road_that_does_not_open_leaves_nothing_either() {
    for (step, road) in [
        ("write down", Transport::Both),
        ("count", Transport::Both),
        ("create", Transport::Both),
        ("publish", Transport::NvmeTcp),
        ("serve", Transport::Both),
        ("serve", Transport::Udp),
    ] {
        let (place, backend) = world();
        place.fails(step);
        let error = backend.bind(&order(tag(1, 1), road)).unwrap_err();
        assert!(matches!(error, BindError::Failed(_)), "{step}: {error:?}");
        assert!(place.is_empty(), "{step} left something");
        // The next one is not in its way.
        place.works();
        backend.bind(&order(tag(2, 1), road)).unwrap();
    }
}

#[test]
fn what_cannot_be_undone_is_said() {
    let (place, backend) = world();
    place.fails("publish");
    place.fails("destroy");
    let error = backend.bind(&order(tag(1, 1), Transport::NvmeTcp));
    let Err(BindError::Stranded(left)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(left.step, "destroy");
}

#[test]
fn both_roads_are_cut_even_if_the_first_is_not() {
    let (place, backend) = world();
    backend.bind(&order(tag(1, 1), Transport::Both)).unwrap();
    place.fails("silence");
    assert!(backend.cut(tag(1, 1), Farewell::None).is_err());
    assert!(!place.has("link", LeaseId(1)));
}

#[test]
fn a_release_that_comes_twice_touches_nothing_the_second_time() {
    let (place, backend) = world();
    backend.bind(&order(tag(1, 1), Transport::NvmeTcp)).unwrap();
    backend.cut(tag(1, 1), Farewell::None).unwrap();
    backend.release(tag(1, 1), EXTENT, &|| ()).unwrap();
    let before = place.done.lock().unwrap().len();
    backend.release(tag(1, 1), EXTENT, &|| ()).unwrap();
    assert_eq!(place.done.lock().unwrap().len(), before);
    // Nor is it bound again.
    let error = backend.bind(&order(tag(1, 2), Transport::NvmeTcp));
    assert_eq!(error, Err(BindError::Cancelled));
}

#[test]
fn a_renewal_in_grace_finds_the_same_volume() {
    let (place, backend) = world();
    backend.bind(&order(tag(1, 1), Transport::NvmeTcp)).unwrap();
    backend.cut(tag(1, 1), Farewell::None).unwrap();
    backend.bind(&order(tag(1, 2), Transport::NvmeTcp)).unwrap();
    let done = place.done.lock().unwrap().join(" ");
    assert_eq!(
        done,
        "write down count create publish unlink reopen publish"
    );
}

#[test]
fn a_lease_of_an_earlier_run_is_never_given_a_new_volume() {
    let (place, backend) = world();
    backend.reconcile(&BTreeSet::from([LeaseId(1)])).unwrap();
    let adopted = BindOrder {
        adopts: true,
        ..order(tag(1, 2), Transport::NvmeTcp)
    };
    let error = backend.bind(&adopted).unwrap_err();
    assert!(matches!(error, BindError::Failed(why) if why.detail == "it is gone"));
    assert!(place.is_empty());
}

#[test]
fn strays_go_and_those_on_record_stay() {
    let (place, backend) = world();
    for part in ["volume", "export", "link"] {
        place.put(part, LeaseId(1));
        place.put(part, LeaseId(2));
    }
    place.put("export", LeaseId(3));
    let strays = backend.reconcile(&BTreeSet::from([LeaseId(1)])).unwrap();
    assert_eq!(strays, []);
    assert_eq!(place.ids("volume"), [LeaseId(1)]);
    assert_eq!(place.ids("export"), [LeaseId(1)]);
    // A remediation leaves a lease alone that is on record and not bound yet.
    backend.reset(POOL, &[]).unwrap();
    assert_eq!(place.ids("volume"), [LeaseId(1)]);
}

#[test]
fn a_stray_that_stays_is_named() {
    let (place, backend) = world();
    place.put("volume", LeaseId(9));
    place.fails("destroy");
    let strays = backend.reconcile(&BTreeSet::new()).unwrap();
    let [stray] = strays.as_slice() else {
        panic!("{strays:?}");
    };
    assert_eq!((stray.lease_id, stray.resource_id), (LeaseId(9), POOL));
}

#[test]
fn a_rotation_that_is_half_done_is_something_left_behind() {
    let (place, backend) = world();
    backend.bind(&order(tag(1, 1), Transport::Both)).unwrap();
    place.fails("rekey");
    assert!(matches!(
        backend.rotate(tag(1, 1)),
        Err(BindError::Refused(_))
    ));
    place.works();
    place.fails("rotate");
    assert!(matches!(
        backend.rotate(tag(1, 1)),
        Err(BindError::Stranded(_))
    ));
}

#[test]
fn only_the_blocks_of_a_new_lease_are_made_clean() {
    let (place, backend) = world();
    let moved = AtomicU64::new(0);
    let progress = || _ = moved.fetch_add(1, Ordering::SeqCst);
    let prepare = |order: &BindOrder| backend.prepare(order, &progress);
    let new = order(tag(1, 1), Transport::Udp);
    prepare(&new).unwrap();
    assert_eq!(moved.load(Ordering::SeqCst), 1, "it says that it moves");
    backend.bind(&new).unwrap();
    place.fails("prepare");
    prepare(&order(tag(1, 2), Transport::Udp)).unwrap();
    prepare(&BindOrder {
        adopts: true,
        ..order(tag(2, 1), Transport::Udp)
    })
    .unwrap();
    assert!(prepare(&order(tag(3, 1), Transport::Udp)).is_err());
}

#[test]
fn without_a_watchdog_nothing_new_goes_over_nvmeof_and_what_is_there_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    // One that has not begun.
    let watchdog = Watchdog::new(
        &fabricbios_helper::Program::of_this_process().unwrap(),
        directory.path(),
        NodeId([1; 32]),
    )
    .unwrap();
    let (place, backend) = watched(Some(watchdog));
    for transport in [Transport::NvmeTcp, Transport::Both] {
        let refused = backend.bind(&order(tag(1, 1), transport));
        let Err(BindError::Failed(error)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(error.step, "reach the watchdog");
        assert!(place.is_empty(), "nothing was made");
    }
    backend.bind(&order(tag(2, 1), Transport::Udp)).unwrap();
    place.put("volume", LeaseId(3));
    let of_before = BindOrder {
        adopts: true,
        ..order(tag(3, 1), Transport::Both)
    };
    backend.bind(&of_before).unwrap();
    backend.bind(&order(tag(3, 2), Transport::Both)).unwrap();
}
