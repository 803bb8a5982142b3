//! Store and path of virtual functions on a card that consists of files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod suite;
mod world;

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use fabricbios_contract::{
    DataPath, EndByName, Given, LocalAccess, LocalRefusal, Store, testing::user_of,
};
use fabricbios_lease::{BindError, Condition, Linger};
use fabricbios_sriov::vf::{Card, VfStore};
use fabricbios_wire::{Generation, HandOver, LeaseId, MacAddress, NetTerms, VlanId};
use nix::{
    sched::{CloneFlags, unshare},
    sys::{
        ptrace,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use world::{
    CARD, CARD_INDEX, FUNCTIONS, RESOURCE, World, binding_id, card, function, kernel, net, order,
};

const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x42]);

fn terms(hand_over: HandOver) -> NetTerms {
    NetTerms {
        mac: Some(MAC),
        vlan: VlanId::new(42),
        hand_over: Some(hand_over),
    }
}

fn plain() -> NetTerms {
    NetTerms::default()
}

#[test]
fn a_lease_has_what_it_asked_for_and_nothing_of_it_stays() {
    let world = World::new();
    let net = world.bind(1, terms(HandOver::Interface));
    assert_eq!(net.pci_function, Some(function(FUNCTIONS[0])));
    assert_eq!(
        (net.mac, net.vlan, net.rate_bps),
        (MAC, VlanId::new(42), 100_000_000)
    );
    let name = net.interface.unwrap();
    let links = world.kernel().links();
    let link = links.iter().find(|it| it.name == name).unwrap();
    assert!(link.is_up && link.mac == Some(MAC));
    let vf = world.kernel().vf(0);
    assert_eq!((vf.vlan, vf.rate_mbps), (Some(42), Some(100)));
    assert_eq!((vf.spoof_check, vf.trust), (Some(true), Some(false)));
    world.kernel().log();
    let proof = world.cut(1).unwrap().to_string();
    assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
    assert!(proof.contains("no bus master"), "{proof}");
    let cleaned = world.release(1).unwrap().to_string();
    assert!(cleaned.contains("reset function"), "{cleaned}");
    let steps = ["unbind", "reset", "mac", "vlan", "rate"];
    assert_eq!(world.kernel().log(), steps);
    assert!(world.is_neutral(0));
    assert!(world.store.leases().unwrap().is_empty());
}

#[test]
fn two_leases_never_have_one_function_or_one_address() {
    let world = World::new();
    let one = world.bind(1, terms(HandOver::Interface));
    for mac in [MAC, "52:54:00:77:00:04".parse().unwrap()] {
        let again = NetTerms {
            mac: Some(mac),
            ..plain()
        };
        let refused = world.provider.bind(&order(2, again));
        assert!(matches!(refused, Err(BindError::Refused(_))), "{refused:?}");
    }
    let two = world.bind(3, plain());
    assert_ne!(one.pci_function, two.pci_function);
    assert!(two.mac.is_of_one_interface() && two.mac.0[0] & 2 != 0);
    let third = world.provider.bind(&order(4, plain()));
    assert!(matches!(third, Err(BindError::Failed(_))), "{third:?}");
    world.cut(1).unwrap();
    world.release(1).unwrap();
    let next = world.bind(5, plain());
    assert_eq!(next.pci_function, one.pci_function);
}

#[test]
fn a_setting_that_the_card_does_not_keep_is_an_error() {
    for action in ["mac", "vlan", "rate"] {
        let world = World::new();
        world.kernel().ignores(Some(action));
        let error = world.provider.bind(&order(1, terms(HandOver::Interface)));
        let Err(BindError::Failed(why)) = error else {
            panic!("{action}: {error:?}")
        };
        assert_eq!(why.step.name(), "read settings back", "{why}");
    }
}

/// Two drivers: one that was tested to leave bus mastering off, and an untested one.
#[test]
fn a_driver_that_turns_bus_mastering_on_again_is_unbound_within_the_proof() {
    for (driver, on, unbound) in [
        ("igb", false, false),
        ("igb", true, true),
        ("ixgbe", false, true),
        ("ixgbe", true, true),
    ] {
        let world = World::of(driver);
        world.bind(1, plain());
        let revoked = world.path.revoke(binding_id(1), Linger::None).unwrap();
        assert!(
            world.kernel().driver(FUNCTIONS[0]).is_some(),
            "a cut unbinds nothing"
        );
        world.kernel().set_bus_master(FUNCTIONS[0], on);
        // Its driver or another process switches bus mastering on during the unbinding.
        let kernel = world.kernel().clone();
        world.kernel().meanwhile("unbind", move || {
            kernel.set_bus_master(FUNCTIONS[0], true);
            while kernel.is_bus_master(FUNCTIONS[0]) {
                thread::yield_now();
            }
        });
        let proof = world.path.verify(binding_id(1), Some(&revoked)).unwrap();
        assert_eq!(
            proof.to_string().contains("unbind driver"),
            unbound,
            "{proof}"
        );
        assert_eq!(world.kernel().driver(FUNCTIONS[0]).is_none(), unbound);
        assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
        world.release(1).unwrap();
        assert!(world.is_neutral(0));
    }
}

#[test]
fn a_cut_goes_on_while_a_driver_turns_bus_mastering_on_all_the_time() {
    let world = World::of("ixgbe");
    for lease in 1..=50 {
        world.bind(lease, plain());
        let is_cut = AtomicBool::new(false);
        let revoked = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_cut.load(Ordering::Relaxed) {
                    world.kernel().set_bus_master(FUNCTIONS[0], true);
                }
            });
            world.kernel().set_bus_master(FUNCTIONS[0], false);
            while !world.kernel().is_bus_master(FUNCTIONS[0]) {}
            let revoked = world.path.revoke(binding_id(lease), Linger::None);
            is_cut.store(true, Ordering::Relaxed);
            revoked
        });
        let proof = world
            .path
            .verify(binding_id(lease), Some(&revoked.unwrap()));
        let proof = proof.unwrap().to_string();
        assert!(proof.contains("unbind driver"), "{proof}");
        assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
        world.release(lease).unwrap();
    }
}

#[test]
fn the_time_limit_of_a_cut_is_longer_where_its_proof_unbinds() {
    let limit = |driver| {
        let world = World::of(driver);
        let opened = card(world.kernel(), "pf0", None).unwrap();
        opened.offer(world::RESOURCE).cut_within.unwrap()
    };
    assert!(limit("ixgbe") > limit("igb"));
}

#[test]
fn the_watchdog_unbinds_a_driver_that_nobody_has_checked() {
    let world = World::of("ixgbe");
    world.bind(1, plain());
    let watchdog = world.watchdog();
    while watchdog.end(LeaseId(1)).is_err() {}
    assert_eq!(world.kernel().driver(FUNCTIONS[0]), None);
    assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
    world.cut(1).unwrap();
    world.release(1).unwrap();
    assert!(world.is_neutral(0));
}

#[test]
fn a_release_takes_a_function_that_reaches_memory_again() {
    let world = World::new();
    world.bind(1, plain());
    world.cut(1).unwrap();
    world.kernel().set_bus_master(FUNCTIONS[0], true);
    world.release(1).unwrap();
    assert!(world.is_neutral(0));
}

fn holder_of(file: &Path) -> Child {
    let mut holder = Command::new("sleep");
    holder.arg("600").stdin(File::open(file).unwrap());
    holder.spawn().unwrap()
}

#[test]
fn a_machine_gets_the_group_and_its_process_is_killed_before_the_driver_lets_go() {
    let world = World::new();
    let net = world.bind(1, terms(HandOver::Vfio));
    assert_eq!((net.vfio_group, net.interface), (Some(8), None));
    let device = net.cdi_device.unwrap();
    let containers = world.containers(1);
    assert!(containers.join("open").exists());
    let spec = world
        .machine
        .directory
        .path()
        .join(format!("cdi/fabricbios-{}.json", LeaseId(1)));
    assert_eq!(
        fs::metadata(&spec).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let text = fs::read_to_string(&spec).unwrap();
    let group = world.machine.directory.path().join("dev/vfio/8");
    assert!(text.contains(group.to_str().unwrap()), "{text}");
    assert!(device.ends_with(&LeaseId(1).to_string()), "{device}");
    let mut holder = holder_of(&group);
    world.kernel().set_bus_master(FUNCTIONS[0], true);
    world.kernel().log();
    let proof = world.cut(1).unwrap().to_string();
    assert!(proof.contains(&format!("[{}]", holder.id())), "{proof}");
    assert!(!holder.wait().unwrap().success());
    assert!(!spec.exists() && !world.kernel().is_bus_master(FUNCTIONS[0]));
    assert!(!containers.join("open").exists());
    world.release(1).unwrap();
    assert!(!containers.exists());
    let log = world.kernel().log();
    let done: Vec<_> = log.iter().filter(|it| *it != "open group").collect();
    assert_eq!(done[..2], ["unbind", "reset"]);
    assert!(world.is_neutral(0));
}

#[test]
fn a_machine_that_turns_bus_mastering_on_all_the_time_is_cut() {
    let world = World::new();
    for lease in 1..=10 {
        world.bind(lease, terms(HandOver::Vfio));
        let turns_on = r#"while :; do printf '\0\0\0\0\7\0' 1<>"$0"; done"#;
        let mut machine = Command::new("sh")
            .args(["-c", turns_on])
            .arg(world.kernel().device(FUNCTIONS[0]).join("config"))
            .stdin(File::open(world.machine.directory.path().join("dev/vfio/8")).unwrap())
            .spawn()
            .unwrap();
        while !world.kernel().is_bus_master(FUNCTIONS[0]) {}
        if lease > 5 {
            let end = world.watchdog();
            while end.end(LeaseId(lease)).is_err() {}
        }
        world.cut(lease).unwrap();
        assert!(!machine.wait().unwrap().success());
        assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
        world.release(lease).unwrap();
        assert!(world.is_neutral(0));
    }
}

/// The slow holder delays no other lease's cut, neither in the daemon nor in the watchdog.
#[test]
fn a_holder_that_is_slow_to_end_delays_only_the_proof() {
    let world = World::new();
    world.bind(1, terms(HandOver::Vfio));
    let mut holder = holder_of(&world.machine.directory.path().join("dev/vfio/8"));
    let pid = Pid::from_raw(holder.id().cast_signed());
    // A tracer holds the process at its exit, with all of its open files.
    ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACEEXIT).unwrap();
    world.kernel().set_bus_master(FUNCTIONS[0], true);
    let revoked = world.path.revoke(binding_id(1), Linger::None).unwrap();
    assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
    let stopped = waitpid(pid, None).unwrap();
    assert!(
        matches!(stopped, WaitStatus::PtraceEvent(..)),
        "{stopped:?}"
    );
    let watchdog = world.watchdog();
    watchdog.end(LeaseId(1)).unwrap_err();
    let path = world.path.clone();
    let proving = thread::spawn(move || path.verify(binding_id(1), Some(&revoked)));
    ptrace::detach(pid, None).unwrap();
    proving.join().unwrap().unwrap();
    while watchdog.end(LeaseId(1)).is_err() {}
    assert!(!holder.wait().unwrap().success());
}

#[test]
fn a_group_that_cannot_be_opened_is_an_error() {
    let world = World::new();
    world.bind(1, terms(HandOver::Vfio));
    world.kernel().fails(Some("open group"));
    let error = world.cut(1).unwrap_err();
    assert!(error.detail.contains("dev/vfio/8"), "{error}");
    world.kernel().fails(None);
    world.cut(1).unwrap();
}

/// While the holder of one lease is searched for, the access of the next lease ends.
#[test]
fn the_watchdog_ends_a_lease_beside_a_search() {
    let world = World::new();
    world.bind(1, terms(HandOver::Vfio));
    let other = NetTerms {
        mac: None,
        ..terms(HandOver::Vfio)
    };
    world.bind(2, other);
    let (go_on, goes_on) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel();
    world.kernel().meanwhile("open group", move || {
        begun.send(()).unwrap();
        goes_on.recv().ok();
    });
    world.kernel().set_bus_master(FUNCTIONS[0], true);
    world.kernel().set_bus_master(FUNCTIONS[1], true);
    let watchdog = world.watchdog();
    let left = watchdog.end(LeaseId(1)).unwrap_err();
    assert!(left.detail.contains("not over yet"), "{left}");
    has_begun.recv().unwrap();
    assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
    // Another process switches bus mastering on during the search.
    world.kernel().set_bus_master(FUNCTIONS[0], true);
    while world.kernel().is_bus_master(FUNCTIONS[0]) {
        thread::yield_now();
    }
    while watchdog.end(LeaseId(2)).is_err() {
        assert!(!world.kernel().is_bus_master(FUNCTIONS[1]));
    }
    watchdog.end(LeaseId(1)).unwrap_err();
    drop(go_on);
    while watchdog.end(LeaseId(1)).is_err() {}
}

#[test]
fn a_function_that_shares_its_group_is_not_handed_to_vfio() {
    let world = World::new();
    let members = world
        .machine
        .directory
        .path()
        .join("kernel/iommu_groups/8/devices");
    fs::create_dir(members.join("0000:01:11.0")).unwrap();
    let refused = world.provider.bind(&order(1, terms(HandOver::Vfio)));
    let Err(BindError::Refused(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.detail.contains("0000:01:11.0"), "{why}");
    fs::remove_file(world.kernel().device(FUNCTIONS[0]).join("iommu_group")).unwrap();
    let refused = world.provider.bind(&order(1, terms(HandOver::Vfio)));
    let Err(BindError::Refused(why)) = refused else {
        panic!("{refused:?}")
    };
    assert!(why.detail.contains("no IOMMU"), "{why}");
}

#[test]
fn only_a_network_namespace_that_is_not_the_nodes_own_is_given() {
    let world = World::new();
    let caller = user_of("blue");
    world.bind(1, terms(HandOver::Netns));
    for path in ["/proc/self/ns/net", "/proc/self/ns/mnt", "/dev/null"] {
        let given = Given::NetworkNamespace(File::open(path).unwrap().into());
        let refused = world.path.enter(LeaseId(1), &caller, given);
        assert!(
            matches!(refused, Err(LocalRefusal::Unsupported(_))),
            "{path}: {refused:?}"
        );
    }
}

/// A network namespace that no process is in.
fn namespace() -> Given {
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("only root makes network namespaces");
        File::open("/proc/thread-self/ns/net").unwrap()
    };
    Given::NetworkNamespace(thread::spawn(make).join().unwrap().into())
}

#[test]
fn an_entry_that_waits_in_the_kernel_delays_no_proof_and_moves_nothing_of_the_next_lease() {
    let world = World::new();
    let enter = |lease| {
        world
            .path
            .enter(LeaseId(lease), &user_of("blue"), namespace())
    };
    let has_interface = |lease: u128| {
        let name = format!("fb{}", &LeaseId(lease).to_string()[..12]);
        world.kernel().links().iter().any(|it| it.name == name)
    };
    let [first, second] = [1, 2].map(|it: u128| it << 100);
    world.bind(first, terms(HandOver::Netns));
    let (begin, begun) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    world.kernel().meanwhile("move", move || {
        begin.send(()).unwrap();
        goes_on.recv().ok();
    });
    thread::scope(|scope| {
        // The move goes on when the test ends.
        let go_on = go_on;
        let entry = scope.spawn(|| enter(first));
        begun.recv().unwrap();
        let (prove, proved) = mpsc::channel();
        let world = &world;
        scope.spawn(move || prove.send(world.cut(first)));
        let proved = proved.recv_timeout(Duration::from_secs(60));
        proved.expect("the proof waits for the entry").unwrap();
        world.release(first).unwrap();
        world.bind(second, terms(HandOver::Netns));
        drop(go_on);
        entry.join().unwrap().unwrap_err();
    });
    assert!(
        has_interface(second),
        "the next lease's interface was moved"
    );
    enter(second).unwrap();
    assert!(!has_interface(second));
}

#[test]
fn an_interface_that_is_moved_behind_a_cut_is_told_as_cut() {
    let world = World::new();
    world.bind(1, terms(HandOver::Netns));
    let path = Arc::clone(&world.path);
    world.kernel().meanwhile("move", move || {
        path.revoke(binding_id(1), Linger::None).unwrap();
    });
    let refused = world.path.enter(LeaseId(1), &user_of("blue"), namespace());
    assert!(
        matches!(refused, Err(LocalRefusal::NotActive(_))),
        "{refused:?}"
    );
    world.cut(1).unwrap();
    world.release(1).unwrap();
}

#[test]
fn an_interface_in_another_namespace_is_cut_and_released_all_the_same() {
    let world = World::new();
    world.bind(1, terms(HandOver::Netns));
    world.kernel().take_interface(FUNCTIONS[0]);
    world.cut(1).unwrap();
    assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
    world.release(1).unwrap();
    assert!(world.is_neutral(0));
}

#[test]
fn the_next_start_adopts_a_lease_or_ends_it_by_its_record() {
    let world = World::new();
    let one = world.bind(1, terms(HandOver::Interface));
    let two = world.bind(2, plain());
    world.kernel().log();
    let world = world.restarted();
    assert_eq!(
        world.kernel().log(),
        ["set up"],
        "leases are not touched by a start"
    );
    let mut leases = world.store.leases().unwrap();
    leases.sort_unstable();
    assert_eq!(leases, [LeaseId(1), LeaseId(2)]);
    let mut adopted = order(1, terms(HandOver::Interface));
    adopted.adopts = true;
    // The function is in a reset.
    world.kernel().set_bus_master(FUNCTIONS[0], false);
    let failed = world.provider.bind(&adopted).unwrap_err();
    assert!(matches!(failed, BindError::Failed(_)), "{failed:?}");
    world.kernel().set_bus_master(FUNCTIONS[0], true);
    let driver = world.kernel().driver(FUNCTIONS[0]);
    adopted.binding_id.generation = Generation(2);
    assert_eq!(net(world.provider.bind(&adopted).unwrap()), one);
    assert_eq!(world.kernel().driver(FUNCTIONS[0]), driver);
    world.cut(2).unwrap();
    world.release(2).unwrap();
    assert!(world.kernel().is_bus_master(FUNCTIONS[0]) && world.is_neutral(1));
    assert_ne!(two.mac, one.mac);
}

#[test]
fn a_lease_that_the_watchdog_cut_is_not_adopted() {
    for hand_over in [HandOver::Interface, HandOver::Vfio] {
        let world = World::new();
        world.bind(1, terms(hand_over));
        world.watchdog().end(LeaseId(1)).unwrap();
        assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
        let world = world.restarted();
        let mut adopted = order(1, terms(hand_over));
        adopted.adopts = true;
        let error = world.provider.bind(&adopted).unwrap_err();
        assert!(matches!(error, BindError::Failed(_)), "{error:?}");
        world.cut(1).unwrap();
        world.release(1).unwrap();
        assert!(world.is_neutral(0));
    }
}

#[test]
fn a_lease_of_a_card_that_is_not_on_offer_is_ended() {
    let world = World::new();
    world.bind(1, plain());
    let end = world.watchdog();
    end.end_unoffered(&[function(FUNCTIONS[1]), function(CARD)])
        .unwrap();
    assert!(world.kernel().is_bus_master(FUNCTIONS[0]));
    end.end_unoffered(&[function(FUNCTIONS[1])]).unwrap();
    assert!(!world.kernel().is_bus_master(FUNCTIONS[0]));
    // The card is on offer again.
    let world = world.restarted();
    assert_eq!(world.store.leases().unwrap(), [LeaseId(1)]);
    world.cut(1).unwrap();
    world.release(1).unwrap();
    assert!(world.is_neutral(0));
}

#[test]
fn a_start_while_the_link_is_down_keeps_leases_and_rate() {
    let world = World::new();
    world.bind(1, terms(HandOver::Interface));
    let interface = world.kernel().root.join("class/net/pf0");
    fs::write(interface.join("carrier"), "0").unwrap();
    fs::write(interface.join("speed"), "-1").unwrap();
    let opened = card(world.kernel(), "pf0", None).unwrap();
    assert_eq!(opened.rate_bps(), 1_000_000_000);
    let world = world.restarted();
    let mut adopted = order(1, terms(HandOver::Interface));
    adopted.adopts = true;
    world.provider.bind(&adopted).unwrap();
}

#[test]
fn leases_of_a_card_that_is_gone_are_over() {
    let world = World::new();
    let end = world.watchdog();
    assert!(!end.all_are_gone(&[]).unwrap(), "there is no lease");
    world.bind(1, terms(HandOver::Vfio));
    assert!(!end.all_are_gone(&[]).unwrap());
    fs::remove_dir_all(world.kernel().device(FUNCTIONS[0])).unwrap();
    assert!(end.all_are_gone(&[]).unwrap());
    // A card that exists keeps its leases, whatever has happened to other cards.
    assert!(!end.all_are_gone(&[function(CARD)]).unwrap());
    assert!(end.all_are_gone(&[function(FUNCTIONS[1])]).unwrap());
    end.end_unoffered(&[]).unwrap();
}

#[test]
fn a_card_that_goes_away_gives_no_leases_and_another_one_in_its_place_neither() {
    let world = World::new();
    let (tell, told) = mpsc::channel();
    let store = VfStore::new(Arc::new(card(world.kernel(), "pf0", None).unwrap()));
    store.tell_condition(Box::new(move |it| tell.send(it).unwrap_or_default()));
    let next = || match told.recv().unwrap() {
        Condition::Degraded(why) => ("degraded", why),
        Condition::Unavailable(why) => ("unavailable", why),
        other => panic!("{other:?}"),
    };
    let (_, unseen) = next();
    for (index, condition, why) in [
        (None, "unavailable", "gone"),
        (Some(CARD_INDEX + 100), "unavailable", "another"),
        (Some(CARD_INDEX), "degraded", &*unseen),
    ] {
        world.kernel().replace_card(index);
        let (told, words) = next();
        assert_eq!(told, condition, "{words}");
        assert!(words.contains(why), "{words}");
    }
}

/// A card that is down sets no rates.
#[test]
fn a_card_that_is_down_gives_no_leases_until_it_is_up() {
    let world = World::new();
    let put = |file: &str, text: &str| {
        let new = world.kernel().root.join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, world.kernel().root.join("class/net/pf0").join(file)).unwrap();
    };
    put("operstate", "down");
    put("flags", "0x1002");
    // A grant that was in progress.
    world.kernel().fails(Some("rate"));
    let refused = world.provider.bind(&order(1, plain())).unwrap_err();
    let BindError::Unavailable(why) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.detail.contains("ip link set pf0 up"), "{why}");
    let (tell, told) = mpsc::channel();
    world
        .store
        .tell_condition(Box::new(move |it| tell.send(it).unwrap_or_default()));
    let next = |is_there: fn(&Condition) -> bool| {
        let told = told.iter().find(is_there).unwrap();
        told.why().unwrap().to_owned()
    };
    let down = next(|it| matches!(it, Condition::Unavailable(_)));
    assert!(down.contains("ip link set pf0 up"), "{down}");
    put("flags", "0x1003");
    let no_carrier = next(|it| matches!(it, Condition::Degraded(_)));
    assert!(no_carrier.contains("no carrier"), "{no_carrier}");
    put("operstate", "up");
    let unseen = next(|it| matches!(it, Condition::Degraded(_)));
    assert!(!unseen.contains("no carrier"), "{unseen}");
}

#[test]
fn the_function_of_a_damaged_record_is_given_to_nobody() {
    let world = World::new();
    world.bind(1, terms(HandOver::Interface));
    let directory = world.machine.directory.path().join("records");
    let record = fs::read_dir(directory).unwrap().next().unwrap().unwrap();
    fs::write(record.path(), "{").unwrap();
    let world = world.restarted();
    let refused = world.provider.bind(&order(2, plain())).unwrap_err();
    let name = record.file_name().into_string().unwrap();
    assert!(format!("{refused:?}").contains(&name), "{refused:?}");
    // The node uses the other function.
    assert_eq!(card(world.kernel(), "pf0", None).unwrap().count(), 1);
    assert!(world.kernel().is_bus_master(FUNCTIONS[0]));
    let mut adopted = order(1, plain());
    adopted.adopts = true;
    let error = world.provider.bind(&adopted).unwrap_err();
    assert!(matches!(error, BindError::Failed(_)), "{error:?}");
    let error = world.cut(1).unwrap_err();
    assert!(error.to_string().contains(&name), "{error}");
    // Does what the error says.
    fs::remove_file(record.path()).unwrap();
    world.bind(2, terms(HandOver::Interface));
    assert_eq!(world.kernel().vf(0).mac, Some(MAC), "not touched");
}

/// The table refuses leases without a VLAN.
#[test]
fn a_card_that_was_not_seen_to_drop_tags_of_tenants_needs_a_vlan() {
    let (_directory, kernel) = kernel();
    let offer = card(&kernel, "pf0", None).unwrap().offer(RESOURCE);
    let why = offer.needs_vlan.unwrap();
    assert!(why.contains("igb") && why.contains("tagged"), "{why}");
}

#[test]
fn functions_that_others_use_are_left_alone() {
    let (_directory, kernel) = kernel();
    kernel.create(2);
    kernel.bind(FUNCTIONS[0], "igbvf");
    kernel.take_interface(FUNCTIONS[0]);
    kernel.bind(FUNCTIONS[1], "e1000e");
    kernel.log();
    let card = card(&kernel, "pf0", None).unwrap();
    assert_eq!(card.count(), 0);
    assert_eq!(kernel.log(), ["set up"]);
    assert_eq!(kernel.driver(FUNCTIONS[1]).as_deref(), Some("e1000e"));
}

#[test]
fn a_start_that_fails_removes_the_functions_that_it_has_made_and_no_other() {
    let number = |kernel: &world::Kernel| {
        fs::read_to_string(kernel.device(CARD).join("sriov_numvfs")).unwrap()
    };
    // Another card fails.
    let (_directory, kernel) = world::kernel();
    let opened = card(&kernel, "pf0", None).unwrap();
    assert_eq!(number(&kernel), "2");
    opened.close();
    assert_eq!(number(&kernel), "0");
    // This card fails.
    let (_directory, kernel) = world::kernel();
    kernel.fails(Some("reset"));
    card(&kernel, "pf0", None).unwrap_err();
    assert_eq!(number(&kernel), "0");
    // The functions existed before the start, so others may use them.
    let (_directory, kernel) = world::kernel();
    kernel.create(2);
    card(&kernel, "pf0", None).unwrap().close();
    kernel.fails(Some("reset"));
    card(&kernel, "pf0", None).unwrap_err();
    assert_eq!(number(&kernel), "2");
}

#[test]
fn a_check_refuses_what_an_open_does_and_touches_no_card() {
    let (_directory, kernel) = kernel();
    let check = |name: &str, count| {
        let found = Card::check(&world::places(&kernel.root), name, count);
        found.map_err(|error| error.to_string())
    };
    assert_eq!(check("pf0", Some(2)), Ok(function(CARD)));
    for (name, count, why) in [
        ("eth9", None, "no such interface"),
        ("pf0", Some(3), "the card has 2"),
    ] {
        let checked = check(name, count).unwrap_err();
        assert!(checked.contains(why), "{checked}");
        let opened = card(&kernel, name, count).unwrap_err();
        assert_eq!(checked, opened.to_string());
    }
    assert_eq!(kernel.log(), [""; 0]);
}

#[test]
fn an_idle_function_is_cleaned_and_one_with_an_address_is_left_alone() {
    use fabricbios_sriov::{netlink::VfSetting, vf::Links};
    let (_directory, kernel) = kernel();
    kernel.create(2);
    kernel.bind(FUNCTIONS[0], "igbvf");
    kernel.set_function(2, 0, VfSetting::Trust(true)).unwrap();
    kernel.set_function(2, 1, VfSetting::Mac(MAC)).unwrap();
    let card = card(&kernel, "pf0", None).unwrap();
    assert_eq!((card.count(), card.total()), (1, 2));
    assert_eq!(kernel.driver(FUNCTIONS[0]), None);
    assert_eq!(kernel.vf(0).trust, Some(false));
    assert_eq!(kernel.vf(1).mac, Some(MAC));
}

#[test]
fn an_interface_that_is_no_such_card_is_refused_with_the_reason() {
    let said = |interface: &str, count, expected: &str, break_it: &dyn Fn(&Path)| {
        let (directory, kernel) = kernel();
        break_it(directory.path());
        let error = card(&kernel, interface, count).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    said("eth9", None, "eth9: there is no such interface", &|_| ());
    said("../pf0", None, "no such interface", &|_| ());
    said(
        "pf0",
        Some(3),
        "3 virtual functions were asked for, and the card has 2",
        &|_| (),
    );
    said("pf0", Some(0), "0 virtual functions", &|_| ());
    let of = |root: &Path, file: &str| root.join("bus/pci/devices").join(CARD).join(file);
    said("pf0", None, "virtual function itself", &|root| {
        fs::write(of(root, "physfn"), "").unwrap();
    });
    said("pf0", None, "no virtual functions", &|root| {
        fs::remove_file(of(root, "sriov_totalvfs")).unwrap();
    });
    said(
        "pf0",
        None,
        "its driver is e1000e; known are igb",
        &|root| {
            fs::remove_file(of(root, "driver")).unwrap();
            std::os::unix::fs::symlink("../../drivers/e1000e", of(root, "driver")).unwrap();
        },
    );
}
