//! These tests use nodes of their own, in a directory of their own.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::*;
use crate::Health;

const WORKER: u32 = 0x4000_0007;

struct Place {
    directory: tempfile::TempDir,
    records: Records,
    device: Device,
}

/// An AMD device with a node that everybody may open.
fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let node = Node {
        path: directory.path().join("render"),
        major: 1,
        minor: 7,
        is_shared: false,
    };
    make(&node.path);
    let records = Records::at(directory.path().join("records"));
    records.make_directory().unwrap();
    let device = Device {
        uuid: "GPU-1".into(),
        vendor: GpuVendor::Amd,
        name: String::new(),
        pci: None,
        vram_bytes: 1,
        compute_units: 1,
        compute_slices: 1,
        partition_of: None,
        has_partitions: false,
        nodes: vec![node],
        visible: String::new(),
        health: Health::Good,
    };
    Place {
        directory,
        records,
        device,
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
        &self.device.nodes[0].path
    }

    fn state(&self) -> (u32, u32, u32) {
        let found = fs::metadata(self.node()).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o7777)
    }

    fn users(&self) -> Vec<u32> {
        let node = OpenNode::of(&self.device.nodes[0]).unwrap();
        node.access()
            .unwrap()
            .users()
            .unwrap()
            .into_iter()
            .collect()
    }
}

fn set(users: &[u32]) -> BTreeSet<u32> {
    users.iter().copied().collect()
}

#[test]
fn a_node_is_roots_while_free_and_its_users_for_a_term_and_then_as_it_was() {
    let place = place();
    let nodes = place.device.own_nodes();
    take(&place.records, &place.device, &set(&[])).unwrap();
    assert_eq!(place.state(), (0, 0, 0o600));
    check(&nodes, &set(&[])).unwrap();
    admit(&nodes, &set(&[WORKER, 1000])).unwrap();
    assert_eq!(place.users(), [1000, WORKER]);
    let why = check(&nodes, &set(&[WORKER])).unwrap_err();
    assert!(why.ends_with("user 1000 may open it"), "{why}");
    // A second user, of another lease of a shared device.
    admit(&nodes, &set(&[WORKER + 1])).unwrap();
    withdraw(&nodes, &set(&[WORKER, 1000])).unwrap();
    assert_eq!(place.users(), [WORKER + 1]);
    // The next daemon has the state that the first daemon found. It keeps the users of leases that go on.
    take(&place.records, &place.device, &set(&[WORKER + 1, 5])).unwrap();
    assert_eq!(place.users(), [WORKER + 1]);
    take(&place.records, &place.device, &set(&[])).unwrap();
    assert!(place.users().is_empty());
    assert_eq!(place.state(), (0, 0, 0o600));
    assert_eq!(taken(&place.records), ["GPU-1"]);
    give_back(&place.records, "GPU-1").unwrap();
    assert_eq!(place.state(), (0, 44, 0o666));
    assert!(taken(&place.records).is_empty());
    give_back(&place.records, "GPU-1").unwrap();
}

#[test]
fn a_list_that_was_there_comes_back() {
    let place = place();
    let node = OpenNode::of(&place.device.nodes[0]).unwrap();
    node.admit_only(&set(&[4242])).unwrap();
    let before = node.access().unwrap();
    take(&place.records, &place.device, &set(&[])).unwrap();
    assert!(place.users().is_empty());
    give_back(&place.records, "GPU-1").unwrap();
    assert_eq!(node.access().unwrap(), before);
}

#[test]
fn links_other_files_and_other_devices_are_not_taken() {
    let place = place();
    let nodes = place.device.own_nodes();
    let (path, other) = (place.node(), place.directory.path().join("other"));
    let wrong = |why: &str| {
        let error = take(&place.records, &place.device, &set(&[])).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(check(&nodes, &set(&[])).is_err());
    };
    fs::rename(path, &other).unwrap();
    wrong("is not there");
    withdraw(&nodes, &set(&[1])).unwrap();
    symlink(&other, path).unwrap();
    wrong("no link");
    assert!(withdraw(&nodes, &set(&[1])).is_err());
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
    let nodes = place.device.own_nodes();
    take(&place.records, &place.device, &set(&[])).unwrap();
    admit(&nodes, &set(&[1000])).unwrap();
    fs::remove_file(place.node()).unwrap();
    make(place.node());
    let why = check(&nodes, &set(&[1000])).unwrap_err();
    assert!(why.contains("mode is 0666, so others"), "{why}");
    withdraw(&nodes, &set(&[1000])).unwrap();
    assert_eq!(place.state(), (0, 0, 0o600));
}

#[test]
fn nvidias_nodes_are_kept_only_if_nothing_puts_their_mode_back() {
    let place = tempfile::tempdir().unwrap();
    let roots = Roots::at(place.path());
    let parameters = |text: &str| {
        let at = place.path().join("proc/driver/nvidia");
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("params"), text).unwrap();
        check_parameters(&roots)
    };
    assert!(
        check_parameters(&roots)
            .unwrap_err()
            .contains("NVreg_Modify")
    );
    parameters("Mobile: 0\nModifyDeviceFiles: 0\nDeviceFileMode: 438\n").unwrap();
    for text in ["ModifyDeviceFiles: 1\n", "DeviceFileMode: 438\n", ""] {
        let why = parameters(text).unwrap_err();
        assert!(why.contains("nvidia-modprobe"), "{why}");
    }
}

#[test]
fn a_device_without_known_nodes_is_not_taken() {
    let mut place = place();
    place.device.nodes[0].is_shared = true;
    let why = take(&place.records, &place.device, &set(&[])).unwrap_err();
    assert!(why.contains("does not know its device nodes"), "{why}");
    assert_eq!(place.state(), (0, 44, 0o666));
}
