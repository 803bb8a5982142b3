//! Store and path of macvlan leases on an imitation of the kernel.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod kernel;
mod suite;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    ops::Deref,
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
};

use fabricbios_contract::{
    DataPath, EndByName, Given, LocalAccess, LocalRefusal, Removal, Store,
    testing::{self, Fails, user_of},
};
use fabricbios_kernfs::Tree;
use fabricbios_lease::{
    BindError, BindOrder, BindingId, Condition, Linger, Placement, Quantity, StepError,
};
use fabricbios_sriov::{
    Claims,
    macvlan::{Kernel, MacvlanEnd, MacvlanPath, MacvlanStore, Parent, ParentConfig, end_unoffered},
    netlink::{Action, Frames, Rule},
};
use fabricbios_wire::{
    Enforcement, Generation, HandOver, KindBinding, LeaseId, LeaseTerms, MacAddress, NetBinding,
    NetTerms, NodeId, ResourceId, Transport, VlanId,
};
use tempfile::TempDir;

use kernel::FakeKernel;
use suite::Machine;

const NIC: ResourceId = ResourceId(3);
const NODE: NodeId = NodeId([7; 32]);
const OTHERS: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

struct World(testing::World<Machine>);

impl Deref for World {
    type Target = testing::World<Machine>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// A machine with `parent0`, whose driver reports this speed.
fn machine(speed: &str) -> (TempDir, Arc<FakeKernel>) {
    let directory = tempfile::tempdir().unwrap();
    let nic = directory.path().join("sys/class/net/parent0");
    fs::create_dir_all(&nic).unwrap();
    fs::write(nic.join("speed"), speed).unwrap();
    fs::write(nic.join("address"), OTHERS.to_string()).unwrap();
    (directory, Arc::new(FakeKernel::new()))
}

fn records(directory: &TempDir) -> PathBuf {
    directory.path().join("run")
}

fn claims(directory: &TempDir) -> Arc<Claims> {
    Arc::new(Claims::of(records(directory)))
}

fn parent(
    directory: &TempDir,
    kernel: &Arc<FakeKernel>,
    mbps: Option<u64>,
) -> Result<Arc<Parent>, StepError> {
    let opened = Parent::open(ParentConfig {
        name: "parent0".into(),
        node_id: NODE,
        mbps,
        claims: claims(directory),
        sys: Tree::new(directory.path().join("sys")),
        kernel: kernel.clone(),
    });
    opened.map(Arc::new)
}

impl World {
    fn new() -> Self {
        Self(testing::World::new())
    }

    /// Ends the process without an order, and starts another one.
    fn restarted(self) -> Self {
        Self(self.0.restarted())
    }

    fn kernel(&self) -> &Arc<FakeKernel> {
        &self.machine.kernel
    }

    /// The conditions that the store tells from now on.
    fn told(&self) -> mpsc::Receiver<Condition> {
        let (tell, told) = mpsc::channel();
        self.store
            .tell_condition(Box::new(move |it| tell.send(it).unwrap_or_default()));
        told
    }

    fn bound(&self, lease: u128, terms: NetTerms) -> NetBinding {
        match self.0.bound(&order(lease, terms)).kind {
            KindBinding::Net(Some(net)) => *net,
            other => panic!("{other:?}"),
        }
    }

    fn refused(&self, lease: u128, terms: NetTerms) -> String {
        match self.provider.bind(&order(lease, terms)) {
            Err(BindError::Refused(why)) => why.detail,
            other => panic!("{other:?}"),
        }
    }

    fn end(&self, lease: u128) {
        self.0.end(&order(lease, NetTerms::default()));
    }
}

fn binding_id(lease: u128) -> BindingId {
    // The names of devices contain the first digits of the id.
    testing::binding_id(LeaseId(lease << 100), 1, NIC)
}

fn rate() -> Placement {
    let rate = Quantity {
        name: "rate".into(),
        amount: 100_000_000,
    };
    Placement::Vector([rate].into())
}

fn order(lease: u128, terms: NetTerms) -> BindOrder {
    BindOrder {
        terms: LeaseTerms::Net(terms),
        tenant: "red".into(),
        ..BindOrder::new(binding_id(lease), rate(), Transport::Auto)
    }
}

fn netns() -> NetTerms {
    NetTerms {
        hand_over: Some(HandOver::Netns),
        ..NetTerms::default()
    }
}

fn with_mac(mac: MacAddress) -> NetTerms {
    NetTerms {
        mac: Some(mac),
        ..NetTerms::default()
    }
}

#[test]
fn a_lease_has_three_devices_with_its_limits_and_the_tenant_one_of_them() {
    let world = World::new();
    let net = world.bound(1, NetTerms::default());
    let name = net.interface.unwrap();
    let up = world.kernel().up();
    assert_eq!(up.len(), 4, "with the parent: {up:?}");
    assert!(up.contains(&name), "{up:?}");
    assert!(net.mac.is_of_one_interface());
    assert_eq!(net.rate_bps, 100_000_000);
    let macvlan = &world.kernel().links("macvlan").unwrap()[0];
    assert_eq!(macvlan.mac, Some(net.mac));
    let rate = world.kernel().shaped(macvlan.index).unwrap();
    assert_eq!(rate, Some(100_000_000 / 8));
    world.end(1);
    world.is_clean();
}

#[test]
fn a_tagged_frame_of_a_tenant_is_dropped_before_any_rule_passes_it() {
    let world = World::new();
    for (lease, vlan) in [(1, None), (2, VlanId::new(42))] {
        let terms = NetTerms {
            vlan,
            ..NetTerms::default()
        };
        let net = world.bound(lease, terms);
        assert_eq!(net.vlan, vlan);
        let its = net.interface.unwrap();
        let node_end = its.replace("fbt", "fbn");
        let index = world.kernel().index_of(&node_end).unwrap().unwrap();
        let rules = world.kernel().rules(index).unwrap();
        let passes = |it: &Option<Rule>| it.is_some_and(|(_, action)| action != Action::Drop);
        let first = rules.iter().position(passes).unwrap();
        for tag in [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300] {
            let drops = Some((Frames::Tagged(tag), Action::Drop));
            assert!(rules[..first].contains(&drops), "{tag:#x}: {rules:?}");
        }
    }
}

#[test]
fn access_opens_last_and_for_a_namespace_only_the_node_s_devices_are_up() {
    let world = World::new();
    world.bound(1, netns());
    let calls = world.kernel().calls.taken();
    assert_eq!(calls[calls.len() - 2..], ["set up", "set up"]);
    let before = &calls[..calls.len() - 2];
    assert!(!before.contains(&"set up".to_owned()), "{calls:?}");
    assert_eq!(world.kernel().up().len(), 3, "with the parent");
    world.end(1);
}

#[test]
fn what_cannot_be_had_is_refused_and_leaves_nothing() {
    let world = World::new();
    let vfio = NetTerms {
        hand_over: Some(HandOver::Vfio),
        ..NetTerms::default()
    };
    assert!(world.refused(1, vfio).contains("no PCI devices"));
    let of_node = world.refused(1, with_mac(OTHERS));
    assert!(of_node.contains("interface parent0"), "{of_node}");
    world.is_clean();
    let mac = MacAddress([2, 0, 0, 0, 0, 1]);
    world.bound(1, with_mac(mac));
    assert!(world.refused(2, with_mac(mac)).contains("another lease"));
    let world = world.restarted();
    assert!(world.refused(2, with_mac(mac)).contains("another lease"));
    world.end(1);
    // Other leases can get the address again.
    world.bound(3, with_mac(mac));
    world.end(3);
    world.is_clean();
}

#[test]
fn a_limit_that_does_not_read_back_is_no_grant() {
    let world = World::new();
    world.kernel().set_forgetful(true);
    let Err(BindError::Failed(why)) = world.provider.bind(&order(1, netns())) else {
        panic!("granted without its last rule, which drops")
    };
    assert!(why.detail.contains("rules for sent frames"), "{why}");
    world.is_clean();
}

#[test]
fn a_cut_deletes_the_rules_that_pass_frames_and_the_release_deletes_the_devices() {
    let world = World::new();
    world.bound(1, NetTerms::default());
    assert!(world.kernel().redirects());
    world.kernel().calls.taken();
    let cut = world.provider.cut(binding_id(1), Linger::None).unwrap();
    let calls = [
        "delete redirect",
        "delete redirect",
        "get redirect",
        "get redirect",
    ];
    assert_eq!(world.kernel().calls.taken(), calls);
    assert!(!world.kernel().redirects());
    let steps: Vec<&str> = cut.steps().iter().map(|it| &*it.step).collect();
    let expected = [
        "delete rule for sent frames",
        "delete rule for received frames",
        "look for rules",
    ];
    assert_eq!(steps, expected);
    assert_eq!(world.guard.over(), [binding_id(1)]);
    world.kernel().listed();
    let released = world.provider.release(binding_id(1), rate(), &|| ());
    // The kernel lists all of a kind, those of neighbours too.
    assert_eq!(world.kernel().listed(), ["macvlan", "veth"]);
    let cleaned = released.unwrap().to_string();
    assert!(cleaned.contains("nothing to clean"), "{cleaned}");
    world.is_clean();
}

/// A tenant that keeps the kernel's lock of network devices busy delays no cut, neither of the daemon nor of the
/// watchdog.
#[test]
fn a_cut_does_not_wait_for_devices_that_cannot_be_deleted() {
    let world = World::new();
    for (lease, is_daemon_dead) in [(1, false), (2, true)] {
        world.bound(lease, NetTerms::default());
        world.kernel().calls.fail_named(&["delete"]);
        if is_daemon_dead {
            let watchdog = MacvlanEnd::new(world.kernel().clone());
            watchdog.end(binding_id(lease).lease_id).unwrap();
        } else {
            world.provider.cut(binding_id(lease), Linger::None).unwrap();
        }
        assert!(!world.kernel().redirects(), "lease {lease}");
        let kept = world.provider.release(binding_id(lease), rate(), &|| ());
        kept.unwrap_err();
        world.kernel().calls.fail(Fails::Never);
        world.end(lease);
    }
    world.is_clean();
}

#[test]
fn a_rule_that_cannot_be_deleted_or_read_ends_with_its_device() {
    let world = World::new();
    for (lease, call) in [(1, &["delete redirect"]), (2, &["get redirect"])] {
        world.bound(lease, NetTerms::default());
        world.kernel().calls.fail_named(call);
        world.provider.cut(binding_id(lease), Linger::None).unwrap();
        assert_eq!(world.kernel().names(), [""; 0], "{call:?}");
        world.kernel().calls.fail(Fails::Never);
        world.end(lease);
    }
    world.is_clean();
}

#[test]
fn a_device_with_another_name_is_cut_by_its_index_and_found_by_its_note() {
    let world = World::new();
    let rename = || {
        let macvlan = world.kernel().links("macvlan").unwrap()[0].name.clone();
        world.kernel().rename(&macvlan, "mine");
    };
    world.bound(1, NetTerms::default());
    rename();
    // A new process does not know the indexes.
    let parent = parent(&world.machine.directory, world.kernel(), None).unwrap();
    let next = MacvlanPath::new(parent, world.guard.clone());
    next.revoke(binding_id(1), Linger::None).unwrap();
    let uncut = next.verify(binding_id(1), None).unwrap_err();
    assert!(uncut.detail.contains("mine"), "{uncut}");
    world.provider.cut(binding_id(1), Linger::None).unwrap();
    assert!(!world.kernel().redirects());
    let kept = world.provider.release(binding_id(1), rate(), &|| ());
    assert!(kept.unwrap_err().detail.contains("mine"));
}

#[test]
fn what_a_dead_process_has_left_is_ended_by_name() {
    let [left, world] = [World::new(), World::new()];
    // Leftovers: one lease complete, one half made (only a macvlan).
    left.bound(1, NetTerms::default());
    world
        .kernel()
        .make_macvlan("fbm000000000002", kernel::PARENT, OTHERS)
        .unwrap();
    let note = format!("fabricbios-07070707 {} 1 parent0", LeaseId(2 << 80));
    world.kernel().set_alias("fbm000000000002", &note).unwrap();
    let none = BTreeSet::new();
    let in_turn = |removals: Vec<_>| removals.into_iter().for_each(|it: Removal| it());
    drop(world.provider.reconcile(&none, in_turn).unwrap());
    left.end(1);
    left.bound(3, NetTerms::default());
    end_unoffered(
        &**left.kernel(),
        NODE,
        &claims(&left.machine.directory),
        &["parent0"],
    )
    .unwrap();
    assert_eq!(left.kernel().names().len(), 3, "still on offer");
    end_unoffered(
        &**left.kernel(),
        NODE,
        &claims(&left.machine.directory),
        &[],
    )
    .unwrap();
    left.is_clean();
}

#[test]
fn the_lease_of_a_damaged_record_ends_by_its_name() {
    let world = World::new();
    world.bound(1, NetTerms::default());
    let directory = records(&world.machine.directory);
    let record = fs::read_dir(directory).unwrap().next().unwrap().unwrap();
    fs::write(record.path(), "{").unwrap();
    let world = world.restarted();
    let refused = world.provider.bind(&order(2, NetTerms::default()));
    let name = record.file_name().into_string().unwrap();
    assert!(format!("{refused:?}").contains(&name), "{refused:?}");
    world.end(1);
    world.is_clean();
    world.bound(2, NetTerms::default());
}

#[test]
fn a_start_while_the_driver_tells_no_speed_keeps_the_rate() {
    let (directory, kernel) = machine("1000");
    let told = parent(&directory, &kernel, None).unwrap().offer(NIC);
    fs::write(directory.path().join("sys/class/net/parent0/speed"), "-1").unwrap();
    let kept = parent(&directory, &kernel, None).unwrap().offer(NIC);
    assert_eq!(kept.capacity, told.capacity);
}

#[test]
fn an_adopted_lease_keeps_its_devices_and_one_without_them_fails() {
    let world = World::new();
    let first = world.bound(1, NetTerms::default());
    let parent = parent(&world.machine.directory, world.kernel(), None).unwrap();
    let next = MacvlanPath::new(parent, world.guard.clone());
    let adopts = BindOrder {
        adopts: true,
        ..order(1, NetTerms::default())
    };
    let part = world.store.open(&adopts).unwrap();
    let devices = world.kernel().names();
    world.kernel().rename("parent0", "elsewhere");
    let failed = next.bind(&adopts, &part).unwrap_err();
    assert!(matches!(failed, BindError::Failed(_)), "{failed:?}");
    world.kernel().rename("elsewhere", "parent0");
    let adopts = BindOrder {
        binding_id: BindingId {
            generation: Generation(2),
            ..adopts.binding_id
        },
        ..adopts
    };
    world.kernel().calls.taken();
    let adopted = next.bind(&adopts, &part).unwrap();
    assert_eq!(world.kernel().names(), devices);
    assert_eq!(adopted.kind, KindBinding::Net(Some(Box::new(first))));
    assert_eq!(world.kernel().calls.taken(), [""; 0], "nothing was changed");
    MacvlanEnd::new(world.kernel().clone())
        .end(binding_id(1).lease_id)
        .unwrap();
    let mut again = adopts.clone();
    again.binding_id.generation = Generation(3);
    let gone = next.bind(&again, &part);
    assert!(gone.is_err(), "{gone:?}");
}

#[test]
fn only_a_lease_that_takes_a_namespace_gets_one_and_not_the_nodes_own() {
    let world = World::new();
    world.bound(1, netns());
    world.bound(2, NetTerms::default());
    let file = || Given::NetworkNamespace(File::open("/dev/null").unwrap().into());
    let own = File::open("/proc/self/ns/net").unwrap().into();
    for (lease, given) in [(1, file()), (1, Given::NetworkNamespace(own)), (2, file())] {
        let lease = binding_id(lease).lease_id;
        let refused = world.path.enter(lease, &user_of("red"), given);
        assert!(
            matches!(refused, Err(LocalRefusal::Unsupported(_))),
            "{refused:?}"
        );
    }
}

#[test]
fn a_kernel_without_a_shaper_makes_rates_best_effort_and_says_so() {
    let (directory, kernel) = machine("1000");
    kernel.calls.fail_named(&["shape"]);
    let unshaped = parent(&directory, &kernel, None).unwrap();
    assert_eq!(unshaped.offer(NIC).rate, Some(Enforcement::BestEffort));
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    MacvlanStore::new(unshaped).tell_condition(Box::new(move |it| tell.lock().unwrap().push(it)));
    let told = told.lock().unwrap();
    let [Condition::Degraded(why)] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(why.contains("parent0") && why.contains("shape"), "{why}");
    kernel.calls.fail_named(&["set rules"]);
    let error = parent(&directory, &kernel, None).unwrap_err();
    assert_eq!(error.step, "set rules".into(), "no lease without rules");
    assert_eq!(kernel.names(), [""; 0]);
}

#[test]
fn a_parent_that_goes_away_gives_no_leases_until_it_is_back() {
    let world = World::new();
    let told = world.told();
    let old = order(1, netns());
    world.provider.bind(&old).unwrap();
    world.kernel().lose_parent();
    let gone = Condition::Unavailable("parent0: the interface is gone".into());
    assert_eq!(told.recv().unwrap(), gone);
    // A grant that was in progress.
    let late = world.provider.bind(&order(2, netns())).unwrap_err();
    assert!(format!("{late:?}").contains("parent0"), "{late:?}");
    // The lease that lost the parent ends like any other.
    world.end(1);
    assert_eq!(world.kernel().names(), [""; 0]);
    let index = world.kernel().make_parent();
    assert_eq!(told.recv().unwrap(), Condition::Good);
    world.provider.bind(&order(3, netns())).unwrap();
    let macvlans = world.kernel().links("macvlan").unwrap();
    let parents: Vec<_> = macvlans.iter().map(|it| it.parent).collect();
    assert_eq!(parents, [Some(index)]);
}

/// Replaces a file of `parent0` in `/sys`, which a store may read at the same time.
fn put(directory: &TempDir, file: &str, text: &str) {
    let new = directory.path().join("new");
    fs::write(&new, text).unwrap();
    fs::rename(
        new,
        directory.path().join("sys/class/net/parent0").join(file),
    )
    .unwrap();
}

#[test]
fn a_parent_without_a_carrier_is_told_and_leased_as_before() {
    let world = World::new();
    put(&world.machine.directory, "operstate", "up\n");
    put(&world.machine.directory, "flags", "0x1003\n");
    let told = world.told();
    for (nth, (file, text, why)) in [
        ("operstate", "lowerlayerdown\n", "no carrier"),
        ("flags", "0x1002\n", "is down: ip link set parent0 up"),
    ]
    .into_iter()
    .enumerate()
    {
        put(&world.machine.directory, file, text);
        let Condition::Degraded(told) = told.recv().unwrap() else {
            panic!("not degraded");
        };
        assert!(told.contains(why), "{told}");
        world
            .provider
            .bind(&order(nth as u128 + 1, netns()))
            .unwrap();
    }
    put(&world.machine.directory, "operstate", "up\n");
    put(&world.machine.directory, "flags", "0x1003\n");
    assert_eq!(told.recv().unwrap(), Condition::Good);
}

#[test]
fn a_start_deletes_what_one_that_died_has_left() {
    let (directory, kernel) = machine("1000");
    // Leaves a macvlan without its note.
    kernel.calls.fail(Fails::After(1));
    parent(&directory, &kernel, None).unwrap_err();
    assert_eq!(kernel.names().len(), 1);
    kernel.calls.fail(Fails::Never);
    let opened = parent(&directory, &kernel, None).unwrap();
    assert_eq!(kernel.names(), Vec::<String>::new());
    assert_eq!(opened.offer(NIC).rate, Some(Enforcement::Enforced));
}

#[test]
fn the_rate_on_offer_is_that_of_the_driver_or_less() {
    for (speed, mbps, expected) in [
        ("1000", None, Some(1_000_000_000)),
        ("1000", Some(400), Some(400_000_000)),
        ("-1", Some(400), Some(400_000_000)),
        ("-1", None, None),
        ("1000", Some(1001), None),
        ("1000", Some(0), None),
    ] {
        let (directory, kernel) = machine(speed);
        let opened = parent(&directory, &kernel, mbps);
        let offered = opened.map(|it| it.offer(NIC).capacity);
        assert_eq!(
            offered.as_ref().ok(),
            expected.as_ref(),
            "{speed} {mbps:?}: {offered:?}"
        );
    }
}
