//! The NVMe-oF connections of this machine, in `/sys/class`.

use std::path::{Path, PathBuf};

use fabricbios_kernfs::{Error, Tree};
use fabricbios_wire::{NvmeofBinding, Transport};
use serde::{Deserialize, Serialize};

pub(crate) const CONTROLLERS: &str = "class/nvme";
/// The unit of a block device's size in sysfs, whatever its block size.
const SECTOR_BYTES: u64 = 512;
const SUBSYSTEMS: &str = "class/nvme-subsystem";

/// A namespace of a subsystem, and the host NQN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) subnqn: String,
    pub(crate) hostnqn: String,
    pub(crate) nsid: u32,
}

impl From<&NvmeofBinding> for Target {
    fn from(binding: &NvmeofBinding) -> Self {
        Self {
            subnqn: binding.subsystem.to_string(),
            hostnqn: binding.host_nqn.to_string(),
            nsid: binding.nsid,
        }
    }
}

/// The NVMe-oF host of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct NvmeHost {
    pub(crate) sys: Tree,
    pub(crate) dev: PathBuf,
}

impl NvmeHost {
    pub(crate) fn this_machine() -> Self {
        Self {
            sys: Tree::new("/sys"),
            dev: PathBuf::from("/dev"),
        }
    }

    /// The connections to a target, such as `nvme0`.
    pub(crate) fn controllers(&self, target: &Target) -> Result<Vec<String>, Error> {
        let mut found = Vec::new();
        for name in self.list(CONTROLLERS)? {
            let is = |attribute: &str, value: &str| {
                self.is(&format!("{CONTROLLERS}/{name}/{attribute}"), value)
            };
            if is("subsysnqn", &target.subnqn)? && is("hostnqn", &target.hostnqn)? {
                found.push(name);
            }
        }
        Ok(found)
    }

    /// The block device of a target, such as `/dev/nvme0n1`, once it exists. With multipath it is listed under the subsystem,
    /// without multipath under the controller.
    pub(crate) fn device(&self, target: &Target) -> Result<Option<PathBuf>, Error> {
        let controllers = self.controllers(target)?;
        if controllers.is_empty() {
            return Ok(None);
        }
        let mut places = Vec::new();
        for subsystem in self.list(SUBSYSTEMS)? {
            let place = format!("{SUBSYSTEMS}/{subsystem}");
            if self.is(&format!("{place}/subsysnqn"), &target.subnqn)? {
                places.push(place);
            }
        }
        places.extend(
            controllers
                .iter()
                .map(|name| format!("{CONTROLLERS}/{name}")),
        );
        for place in places {
            if let Some(name) = self.namespace(&place, target.nsid, is_disk)? {
                let path = self.dev.join(name);
                return Ok(path.exists().then_some(path));
            }
        }
        Ok(None)
    }

    /// The size of a block device in bytes.
    pub(crate) fn bytes(&self, device: &Path) -> Result<u64, Error> {
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        let sectors: u64 = self.sys.read_as(format!("class/block/{name}/size"))?;
        Ok(sectors.saturating_mul(SECTOR_BYTES))
    }

    /// Whether a connection has a namespace as a disk of its own: without multipath.
    pub(crate) fn has_own_disk(&self, controller: &str, nsid: u32) -> Result<bool, Error> {
        let own = self.namespace(&format!("{CONTROLLERS}/{controller}"), nsid, is_disk)?;
        Ok(own.is_some())
    }

    /// Whether a connection takes I/O now. A lost connection stays listed as long as the kernel tries to connect again.
    pub(crate) fn is_live(&self, controller: &str) -> Result<bool, Error> {
        self.is(&format!("{CONTROLLERS}/{controller}/state"), "live")
    }

    /// Whether a connection is a path to a namespace, with multipath.
    pub(crate) fn has_path(&self, controller: &str, nsid: u32) -> Result<bool, Error> {
        let path = self.namespace(&format!("{CONTROLLERS}/{controller}"), nsid, is_path)?;
        Ok(path.is_some())
    }

    /// The transport of the connection to a target; `None`: there is no connection.
    pub(crate) fn transport(&self, target: &Target) -> Result<Option<Transport>, Error> {
        for name in self.controllers(target)? {
            for (name_of_kernel, transport) in
                [("tcp", Transport::NvmeTcp), ("rdma", Transport::NvmeRdma)]
            {
                if self.is(&format!("{CONTROLLERS}/{name}/transport"), name_of_kernel)? {
                    return Ok(Some(transport));
                }
            }
        }
        Ok(None)
    }

    /// The namespace in a directory, in the form that `has_form` accepts.
    fn namespace(
        &self,
        place: &str,
        nsid: u32,
        has_form: fn(&str) -> bool,
    ) -> Result<Option<String>, Error> {
        for name in self.list(place)?.into_iter().filter(|name| has_form(name)) {
            if self.is(&format!("{place}/{name}/nsid"), &nsid.to_string())? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Ends a connection and returns when its devices are gone. A connection that is gone already is no error.
    pub(crate) fn delete(&self, controller: &str) -> Result<(), Error> {
        let path = format!("{CONTROLLERS}/{controller}/delete_controller");
        match self.sys.write(path, "1") {
            Err(error) if !is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// The names in a directory; none if it does not exist: the driver is not loaded, or the device has just gone.
    fn list(&self, path: &str) -> Result<Vec<String>, Error> {
        match self.sys.list(path) {
            Err(error) if is_gone(&error) => Ok(Vec::new()),
            names => names,
        }
    }

    fn is(&self, path: &str, value: &str) -> Result<bool, Error> {
        match self.sys.read(path) {
            Err(error) if is_gone(&error) => Ok(false),
            read => Ok(read? == value),
        }
    }
}

/// Whether the file is absent, or its device went away during the call.
pub(crate) fn is_gone(error: &Error) -> bool {
    error.is_absent() || error.errno() == Some(nix::libc::ENODEV)
}

/// `nvme0n1`; not `nvme0c0n1`, which is one path to it, nor `nvme0n1p1`.
fn is_disk(name: &str) -> bool {
    numbers(name, &['n']).is_some()
}

/// `nvme0c1n1`: subsystem, controller, head.
fn is_path(name: &str) -> bool {
    numbers(name, &['c', 'n']).is_some()
}

/// `nvme`, and numbers with these letters between them.
fn numbers(name: &str, letters: &[char]) -> Option<()> {
    let number = |text: &str| {
        let is = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is.then_some(())
    };
    let mut rest = name.strip_prefix("nvme")?;
    for letter in letters {
        let (before, after) = rest.split_once(*letter)?;
        number(before)?;
        rest = after;
    }
    number(rest)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    pub(crate) fn target() -> Target {
        Target {
            subnqn: "nqn.2025-01.io.example:lease".into(),
            hostnqn: "nqn.2025-01.io.example:host".into(),
            nsid: 1,
        }
    }

    /// A machine whose kernel shows `attributes` in sysfs.
    pub(crate) fn machine(attributes: &[(&str, &str)]) -> (tempfile::TempDir, NvmeHost) {
        let dir = tempfile::tempdir().unwrap();
        for (path, value) in attributes {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        let host = NvmeHost {
            sys: Tree::new(dir.path()),
            dev: dir.path().join("dev"),
        };
        (dir, host)
    }

    pub(crate) const CONTROLLER: [(&str, &str); 3] = [
        (
            "class/nvme/nvme3/subsysnqn",
            "nqn.2025-01.io.example:lease\n",
        ),
        ("class/nvme/nvme3/hostnqn", "nqn.2025-01.io.example:host\n"),
        ("class/nvme/nvme3/nvme3c3n1/nsid", "1\n"),
    ];
    pub(crate) const HEAD: [(&str, &str); 4] = [
        (
            "class/nvme-subsystem/nvme-subsys3/subsysnqn",
            "nqn.2025-01.io.example:lease\n",
        ),
        ("class/nvme-subsystem/nvme-subsys3/nvme3n2/nsid", "2\n"),
        ("class/nvme-subsystem/nvme-subsys3/nvme3n1/nsid", "1\n"),
        ("dev/nvme3n1", ""),
    ];

    #[test]
    fn the_device_is_the_head_and_not_a_path_to_it() {
        let (_dir, host) = machine(&[&CONTROLLER[..], &HEAD[..]].concat());
        assert_eq!(host.controllers(&target()).unwrap(), ["nvme3"]);
        let device = host.device(&target()).unwrap().unwrap();
        assert!(device.ends_with("dev/nvme3n1"), "{device:?}");
    }

    #[test]
    fn without_multipath_the_controller_has_it() {
        let alone = [
            ("class/nvme/nvme3/nvme3n1/nsid", "1\n"),
            ("dev/nvme3n1", ""),
        ];
        let (_dir, host) = machine(&[&CONTROLLER[..2], &alone[..]].concat());
        let device = host.device(&target()).unwrap().unwrap();
        assert!(device.ends_with("dev/nvme3n1"), "{device:?}");
    }

    #[test]
    fn a_device_that_cannot_be_opened_yet_is_none() {
        let (_dir, host) = machine(&[&CONTROLLER[..], &HEAD[..3]].concat());
        assert_eq!(host.device(&target()).unwrap(), None);
    }

    #[test]
    fn somebody_elses_connection_is_not_ours() {
        let (_dir, host) = machine(&[&CONTROLLER[..], &HEAD[..]].concat());
        let other = Target {
            hostnqn: "nqn.2025-01.io.example:other".into(),
            ..target()
        };
        assert!(host.controllers(&other).unwrap().is_empty());
        assert_eq!(host.device(&other).unwrap(), None);
    }

    #[test]
    fn the_transport_is_what_the_kernel_says() {
        let over = |transport| {
            let attribute = ("class/nvme/nvme3/transport", transport);
            let (_dir, host) = machine(&[&CONTROLLER[..], &[attribute]].concat());
            host.transport(&target()).unwrap()
        };
        assert_eq!(over("tcp\n"), Some(Transport::NvmeTcp));
        assert_eq!(over("rdma\n"), Some(Transport::NvmeRdma));
        let (_dir, host) = machine(&[]);
        assert_eq!(host.transport(&target()).unwrap(), None);
    }

    #[test]
    fn a_machine_without_the_driver_has_nothing() {
        let (_dir, host) = machine(&[]);
        assert!(host.controllers(&target()).unwrap().is_empty());
        host.delete("nvme3").unwrap();
    }

    #[test]
    fn only_whole_disks_are_disks() {
        assert!(is_disk("nvme0n1") && is_disk("nvme12n34"));
        for name in [
            "nvme0c0n1",
            "nvme0n1p1",
            "nvme0",
            "nvmen1",
            "ng0n1",
            "nvme0n",
        ] {
            assert!(!is_disk(name), "{name}");
        }
        assert!(is_path("nvme0c1n1"));
        assert!(!is_path("nvme0n1") && !is_path("nvme0c1") && !is_path("nvmec1n1"));
    }
}
