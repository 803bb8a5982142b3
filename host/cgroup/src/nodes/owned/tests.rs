//! These tests use nodes of their own, in a directory of their own.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::*;

const WORKER: u32 = 0x4000_0007;

struct Place {
    directory: tempfile::TempDir,
    nodes: [Node; 1],
    taken: Taken,
}

/// A node that everybody may open.
fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let node = Node {
        path: at("render"),
        major: 1,
        minor: 7,
        is_shared: false,
    };
    make(&node.path);
    let taken = Taken {
        at: at("taken"),
        new: at("taken.new"),
    };
    Place {
        nodes: [node],
        taken,
        directory,
    }
}

/// Makes a node; its mode does not depend on the umask.
fn make(at: &Path) {
    mknod(at, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 7)).unwrap();
    fs::set_permissions(at, fs::Permissions::from_mode(0o666)).unwrap();
    std::os::unix::fs::chown(at, Some(0), Some(44)).unwrap();
}

impl Place {
    fn node(&self) -> &Path {
        &self.nodes[0].path
    }

    fn state(&self) -> (u32, u32, u32) {
        let found = fs::metadata(self.node()).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    }

    fn take(&self, users: &[u32]) -> Result<(), NodeError> {
        self.taken.take(&self.nodes, &set(users))
    }

    fn users(&self) -> Vec<u32> {
        let node = OpenNode::of(&self.nodes[0]).unwrap();
        node.users().unwrap().into_iter().collect()
    }
}

fn set(users: &[u32]) -> BTreeSet<u32> {
    users.iter().copied().collect()
}

#[test]
fn a_node_is_roots_while_free_and_its_users_for_a_term_and_then_as_it_was() {
    let place = place();
    let nodes = &place.nodes;
    place.take(&[]).unwrap();
    assert_eq!(place.state(), (0, 0, 0o600));
    check(nodes, &set(&[])).unwrap();
    admit(nodes, &set(&[WORKER, 1000])).unwrap();
    assert_eq!(place.users(), [1000, WORKER]);
    let why = check(nodes, &set(&[WORKER])).unwrap_err().to_string();
    assert!(why.ends_with("user 1000 may open it"), "{why}");
    // A second user, of another lease of a shared device.
    admit(nodes, &set(&[WORKER + 1])).unwrap();
    withdraw(nodes, &set(&[WORKER, 1000])).unwrap();
    assert_eq!(place.users(), [WORKER + 1]);
    // The next daemon has the state that the first daemon found. It keeps the users of leases that go on.
    place.take(&[WORKER + 1, 5]).unwrap();
    assert_eq!(place.users(), [WORKER + 1]);
    place.take(&[]).unwrap();
    assert!(place.users().is_empty());
    assert_eq!(place.state(), (0, 0, 0o600));
    assert!(place.taken.at.exists());
    place.taken.give_back().unwrap();
    assert_eq!(place.state(), (0, 44, 0o666));
    assert!(!place.taken.at.exists());
    place.taken.give_back().unwrap();
}

#[test]
fn a_list_that_was_there_comes_back() {
    let place = place();
    let node = OpenNode::of(&place.nodes[0]).unwrap();
    node.admit_only(&set(&[4242])).unwrap();
    let before = node.access().unwrap();
    place.take(&[]).unwrap();
    assert!(place.users().is_empty());
    place.taken.give_back().unwrap();
    assert_eq!(node.access().unwrap(), before);
}

#[test]
fn links_other_files_and_other_devices_are_not_taken() {
    let place = place();
    let nodes = &place.nodes;
    let (path, other) = (place.node(), place.directory.path().join("other"));
    let wrong = |why: &str| {
        let error = place.take(&[]).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(check(nodes, &set(&[])).is_err());
    };
    fs::rename(path, &other).unwrap();
    wrong("is not there");
    withdraw(nodes, &set(&[1])).unwrap();
    symlink(&other, path).unwrap();
    wrong("no link");
    assert!(withdraw(nodes, &set(&[1])).is_err());
    fs::remove_file(path).unwrap();
    fs::write(path, "").unwrap();
    wrong("is not the character device 1:7");
    fs::remove_file(path).unwrap();
    mknod(path, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 5)).unwrap();
    wrong("is not the character device 1:7");
    // The target of the link was not changed.
    assert_eq!(fs::metadata(&other).unwrap().mode() & 0o7777, 0o666);
}

#[test]
fn a_node_that_took_the_place_of_the_devices_is_closed_at_the_end() {
    let place = place();
    let nodes = &place.nodes;
    place.take(&[]).unwrap();
    admit(nodes, &set(&[1000])).unwrap();
    fs::remove_file(place.node()).unwrap();
    make(place.node());
    let why = check(nodes, &set(&[1000])).unwrap_err().to_string();
    assert!(why.contains("mode is 0666, so others"), "{why}");
    withdraw(nodes, &set(&[1000])).unwrap();
    assert_eq!(place.state(), (0, 0, 0o600));
}

#[test]
fn a_device_without_known_nodes_is_not_taken() {
    let place = place();
    let refused = place.taken.take(&[], &set(&[]));
    assert_eq!(refused, Err(NodeError::Unknown));
    assert_eq!(place.state(), (0, 44, 0o666));
}
