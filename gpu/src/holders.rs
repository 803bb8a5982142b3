//! Who has the nodes of a device open.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        process::parent_id,
    },
};

use fabricbios_cgroup::Process;
use fabricbios_helper::{Call, Caller, Failure};
use nix::sys::stat::makedev;
use serde::{Deserialize, Serialize};

use crate::Node;

/// Looks for the processes that have one of the nodes open, or mapped. Those that end meanwhile are left out, and the helper
/// processes of this node. It asks for every open file of the machine, and the file system of one of them may not answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Holders(pub(crate) Vec<Node>);

impl Call for Holders {
    const NAME: &'static str = "gpu-holders";
    type Answer = Vec<Process>;

    fn make(self, _caller: &Caller) -> Result<Vec<Process>, Failure> {
        let mut holders = holders(&self.0);
        // All helper processes are children of the supervisor.
        holders.retain(|it| parent(it.pid) != Some(parent_id()));
        Ok(holders)
    }
}

fn holders(nodes: &[Node]) -> Vec<Process> {
    let holding = pids().filter(|pid| holds(*pid, nodes));
    holding.filter_map(Process::of).collect()
}

fn parent(pid: i32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// The numbers of all processes.
pub(crate) fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Whether the process has one of the nodes open, or mapped.
fn holds(pid: i32, nodes: &[Node]) -> bool {
    !nodes.is_empty() && (has_open(pid, nodes) || has_mapped(pid, nodes))
}

fn has_open(pid: i32, nodes: &[Node]) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let mut files = descriptors.filter_map(|entry| fs::metadata(entry.ok()?.path()).ok());
    let is_node = |device| {
        { nodes.iter() }.any(|node| makedev(node.major.into(), node.minor.into()) == device)
    };
    files.any(|file| file.file_type().is_char_device() && is_node(file.rdev()))
}

/// A mapping stays after its descriptor was closed.
fn has_mapped(pid: i32, nodes: &[Node]) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let is_node = |line: &str| {
        let path = line.split_whitespace().nth(5);
        path.is_some_and(|path| nodes.iter().any(|node| node.path.as_os_str() == path))
    };
    maps.lines().any(is_node)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, process::id};

    use super::*;

    #[test]
    fn who_opens_a_node_is_found_and_who_closes_it_is_not() {
        // Nobody else here reads the kernel's list of misc devices through this number.
        let node = Node {
            path: "/dev/full".into(),
            major: 1,
            minor: 7,
            is_shared: false,
        };
        let own = i32::try_from(id()).unwrap();
        let is_found = || {
            holders(std::slice::from_ref(&node))
                .iter()
                .any(|it| it.pid == own)
        };
        let open = File::open(&node.path).unwrap();
        assert!(is_found());
        drop(open);
        assert!(!is_found());
        assert_eq!(holders(&[]), []);
    }
}
