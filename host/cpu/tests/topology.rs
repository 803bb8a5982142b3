//! Topologies in directories that look like `/sys`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{collections::BTreeSet, fs};

use fabricbios_cpu::{CoreType, Topology, Wanted, list};
use fabricbios_kernfs::Tree;
use tempfile::TempDir;

/// The files of a machine with these cores, each with its NUMA node. CPUs in `offline` have no topology.
fn machine(cores: &[(&[u32], u32)], offline: &[u32]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let put = |path: String, text: String| put(&directory, &path, &text);
    let all: Vec<u32> = cores.iter().flat_map(|(cpus, _)| cpus.to_vec()).collect();
    let is_online = |cpu: &&u32| !offline.contains(cpu);
    let online: Vec<u32> = all.iter().filter(is_online).copied().collect();
    put("devices/system/cpu/online".into(), list(&online));
    put("devices/system/cpu/possible".into(), list(&all));
    for (cpus, node) in cores {
        let siblings: Vec<u32> = cpus.iter().filter(is_online).copied().collect();
        for cpu in &siblings {
            let topology = format!("devices/system/cpu/cpu{cpu}/topology");
            put(format!("{topology}/thread_siblings_list"), list(&siblings));
            put(format!("{topology}/physical_package_id"), node.to_string());
        }
    }
    let nodes: BTreeSet<u32> = cores.iter().map(|(_, node)| *node).collect();
    for node in nodes {
        let on_it = cores.iter().filter(|(_, on)| *on == node);
        let cpus: Vec<u32> = on_it.flat_map(|(cpus, _)| cpus.to_vec()).collect();
        put(
            format!("devices/system/node/node{node}/cpulist"),
            list(&cpus),
        );
    }
    directory
}

fn put(directory: &TempDir, path: &str, text: &str) {
    let at = directory.path().join(path);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at, text).unwrap();
}

fn read(directory: &TempDir) -> Topology {
    Topology::read(&Tree::new(directory.path())).unwrap()
}

/// The CPUs of each offered group.
fn offered(topology: &Topology, wanted: &str, reserve: &[u32]) -> Result<Vec<Vec<u32>>, String> {
    let wanted: Wanted = wanted.parse().unwrap();
    let groups = topology.select(&wanted, reserve, &BTreeSet::new());
    let groups = groups.map_err(|why| why.to_string())?;
    Ok(groups.into_iter().map(|group| group.cpus).collect())
}

#[test]
fn one_package_two_cores_without_siblings() {
    let topology = read(&machine(&[(&[0], 0), (&[1], 0)], &[]));
    assert!(topology.is_complete());
    assert_eq!(offered(&topology, "all", &[]).unwrap(), [[1]]);
    assert!(offered(&topology, "all", &[1]).unwrap().is_empty());
}

#[test]
fn two_packages_two_cores_two_siblings_on_two_nodes() {
    let cores: &[(&[u32], u32)] = &[(&[0, 4], 0), (&[1, 5], 0), (&[2, 6], 1), (&[3, 7], 1)];
    let topology = read(&machine(cores, &[]));
    assert!(topology.is_complete());
    let places: Vec<_> = topology
        .groups
        .iter()
        .map(|it| (it.number, it.node, it.package))
        .collect();
    let expected = [
        (0, 0, Some(0)),
        (1, 0, Some(0)),
        (2, 1, Some(1)),
        (3, 1, Some(1)),
    ];
    assert_eq!(places, expected);
    // A reserved CPU withholds its whole core, and so does the boot CPU.
    assert_eq!(offered(&topology, "all", &[5]).unwrap(), [[2, 6], [3, 7]]);
    assert_eq!(offered(&topology, "2,6", &[]).unwrap(), [[2, 6]]);
    let why = offered(&topology, "2-3,6", &[]).unwrap_err();
    assert!(
        why.contains("CPUs 3,7 are one core") && why.contains("name 7"),
        "{why}"
    );
    let why = offered(&topology, "2,6,8-9", &[]).unwrap_err();
    assert!(why.contains("CPUs 8-9 are not online"), "{why}");
}

#[test]
fn a_sibling_that_is_offline_is_in_no_group() {
    let cores: &[(&[u32], u32)] = &[(&[0, 1], 0), (&[2, 3], 0), (&[4, 5], 0), (&[6, 7], 0)];
    let topology = read(&machine(cores, &[3]));
    assert!(topology.is_complete());
    assert_eq!(topology.offline, [3]);
    let groups = offered(&topology, "all", &[]).unwrap();
    assert_eq!(groups, [vec![2], vec![4, 5], vec![6, 7]]);
    let single = read(&machine(cores, &[1, 3, 5, 7]));
    assert!(single.is_complete());
}

#[test]
fn a_core_that_changed_since_the_start_is_noticed() {
    let cores: &[(&[u32], u32)] = &[(&[0, 1], 0), (&[2, 3], 0)];
    let (before, after) = (machine(cores, &[3]), machine(cores, &[]));
    let group = read(&before).groups.pop().unwrap();
    group.check(&Tree::new(before.path())).unwrap();
    let back = group
        .check(&Tree::new(after.path()))
        .unwrap_err()
        .to_string();
    assert!(
        back.contains("core 2 has changed") && back.contains("cpu3 is online now"),
        "{back}"
    );
    let whole = read(&after).groups.pop().unwrap();
    let gone = whole
        .check(&Tree::new(before.path()))
        .unwrap_err()
        .to_string();
    assert!(gone.contains("cpu3 is offline now"), "{gone}");
}

#[test]
fn files_that_are_missing_or_contradict_each_other_leave_the_topology_incomplete() {
    let cores: &[(&[u32], u32)] = &[(&[0, 1], 0), (&[2, 3], 0)];
    for (path, text) in [
        (
            "devices/system/cpu/cpu3/topology/thread_siblings_list",
            None,
        ),
        (
            "devices/system/cpu/cpu3/topology/thread_siblings_list",
            Some("3"),
        ),
        (
            "devices/system/cpu/cpu3/topology/thread_siblings_list",
            Some("what"),
        ),
        (
            "devices/system/cpu/cpu3/topology/physical_package_id",
            Some("7"),
        ),
        ("devices/system/node/node0/cpulist", Some("0-2")),
    ] {
        let directory = machine(cores, &[]);
        match text {
            Some(text) => put(&directory, path, text),
            None => fs::remove_file(directory.path().join(path)).unwrap(),
        }
        let topology = read(&directory);
        assert!(
            !topology.is_complete() && !topology.faults.is_empty(),
            "{path}: {topology:?}"
        );
        // The time of single CPUs can still be leased, except that of the boot CPU.
        assert_eq!(
            offered(&topology, "all", &[]).unwrap(),
            [[2], [3]],
            "{path}"
        );
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(Topology::read(&Tree::new(empty.path())).is_err());
    let without_numa = machine(cores, &[]);
    fs::remove_dir_all(without_numa.path().join("devices/system/node")).unwrap();
    assert!(read(&without_numa).is_complete());
}

#[test]
fn cores_of_several_types_are_never_offered_together() {
    let cores: &[(&[u32], u32)] = &[(&[0, 1], 0), (&[2, 3], 0), (&[4], 0), (&[5], 0)];
    let intel = machine(cores, &[]);
    put(&intel, "devices/cpu_core/cpus", "0-3");
    put(&intel, "devices/cpu_atom/cpus", "4-5");
    let topology = read(&intel);
    assert_eq!(topology.groups[3].core_type, CoreType::Atom);
    assert_eq!(offered(&topology, "all", &[]).unwrap(), [[2, 3]]);
    assert_eq!(offered(&topology, "4-5", &[]).unwrap(), [[4], [5]]);
    let why = offered(&topology, "2-4", &[]).unwrap_err();
    assert!(
        why.contains("cpu_core: 2-3") && why.contains("cpu_atom: 4"),
        "{why}"
    );
    let arm = machine(&[(&[0], 0), (&[1], 0), (&[2], 0)], &[]);
    put(&arm, "devices/system/cpu/cpu1/cpu_capacity", "446");
    assert_eq!(offered(&read(&arm), "all", &[]).unwrap(), [[2]]);
}

#[test]
fn cpus_that_are_isolated_since_boot_are_somebody_elses() {
    let directory = machine(&[(&[0], 0), (&[1], 0), (&[2], 0)], &[]);
    put(&directory, "devices/system/cpu/isolated", "2");
    let topology = read(&directory);
    assert_eq!(offered(&topology, "all", &[]).unwrap(), [[1]]);
    let why = offered(&topology, "1-2", &[]).unwrap_err();
    assert!(why.contains("CPUs 2 are isolated"), "{why}");
    // On some kernels the CPUs of an earlier lease's isolated partition appear in this file.
    let held = BTreeSet::from([2]);
    assert_eq!(topology.select(&Wanted::All, &[], &held).unwrap().len(), 2);
}
