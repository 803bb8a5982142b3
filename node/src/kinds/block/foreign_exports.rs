//! Exports of a pool that this node did not make: those of a former node whose state is lost, or of other software. A
//! client of such an export reads and writes the bytes of this node's leases.

use std::{
    cell::RefCell, ffi::OsString, fs, os::unix::fs::MetadataExt, path::Path, sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use fabricbios_contract::stray_binding_id;
use fabricbios_helper::{Call, Caller, Failure, Supervisor};
use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_nvmet::{HostRecords, Target, TargetConfig, belongs_to, maker_of};
use fabricbios_pool::Facts;
use fabricbios_wire::{LeaseId, NodeId, ResourceId};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::belonging::is_of;

/// How long listing the namespaces of a subsystem may take. The listing takes longer only while the kernel removes a
/// namespace.
const PATIENCE: Duration = Duration::from_secs(3);

/// Reports the path of each enabled namespace of the subsystem at this path. The kernel blocks the listing while a
/// namespace is removed, for as long as the storage takes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ListExports(OsString);

impl Call for ListExports {
    const NAME: &'static str = "list-exports";
    type Answer = ();

    fn make(self, caller: &Caller) -> Result<(), Failure> {
        let namespaces = Tree::new(Path::new(&self.0).join("namespaces"));
        let failed = |error: fabricbios_kernfs::Error| Failure {
            errno: error.errno(),
            detail: error.to_string(),
        };
        for name in namespaces.list("").map_err(failed)? {
            // The kernel may remove a namespace during the listing.
            let read = |what| namespaces.read(Path::new(&name).join(what));
            if let (Ok("1"), Ok(path)) = (read("enable").as_deref(), read("device_path")) {
                caller.progress(path)?;
            }
        }
        Ok(())
    }
}

/// Finds and ends exports.
pub(super) struct ForeignExports<'a> {
    /// `/sys/kernel/config/nvmet`.
    pub(super) configfs: &'a Path,
    pub(super) node_id: NodeId,
    pub(super) supervisor: &'a Supervisor,
}

/// An export of a volume of the pool.
#[derive(Debug, PartialEq, Eq)]
struct Export {
    subsystem: String,
    volume: String,
}

/// The host records of a target that only ends exports.
#[derive(Debug)]
struct NoRecords;

impl HostRecords for NoRecords {
    fn write(&self, _host: u128, _record: Option<Zeroizing<Vec<u8>>>) {}

    fn submit(&self) -> u64 {
        0
    }

    fn wait(&self, _number: u64) -> Result<(), StepError> {
        Ok(())
    }
}

impl ForeignExports<'_> {
    /// Ends the exports that any node made. `Err`: an export of other software, which the operator must end.
    pub(super) fn end(&self, pool: &Path, facts: &Facts) -> anyhow::Result<()> {
        for Export { subsystem, volume } in self.serving(|volume| is_of(volume, pool, facts)) {
            let Some((node_id, lease_id)) = maker_of(&subsystem) else {
                bail!(
                    "subsystem {subsystem} of the kernel's NVMe target serves {volume}, which is of this \
                     pool, and no node has made it: end it, then start again"
                );
            };
            self.end_one(&subsystem, node_id, lease_id)
                .with_context(|| format!("end {subsystem}, which serves {volume} of this pool"))?;
            tracing::warn!(
                %subsystem, %volume,
                "an export of a node that had this pool before: cut and removed"
            );
        }
        Ok(())
    }

    /// Refuses a device that is served as a whole, before anything is written to it. The kernel's target does not claim
    /// the device (`nvmet_bdev_ns_enable` opens it without a holder, drivers/nvme/target/io-cmd-bdev.c).
    pub(super) fn refuse_served(&self, device: &Path) -> anyhow::Result<()> {
        let number = |path: &Path| fs::metadata(path).ok().map(|it| it.rdev());
        let Some(its) = number(device).filter(|it| *it != 0) else {
            return Ok(());
        };
        match self.serving(|volume| number(volume) == Some(its)).first() {
            Some(Export { subsystem, .. }) => bail!(
                "subsystem {subsystem} of the kernel's NVMe target serves all of it: end that, then start \
                 again; nothing was written"
            ),
            None => Ok(()),
        }
    }

    /// Exports of the volumes for which `is_meant` is true, by subsystems that are not of this node.
    fn serving(&self, is_meant: impl Fn(&Path) -> bool) -> Vec<Export> {
        let subsystems = Tree::new(self.configfs).list("subsystems");
        // Without a target there are no exports.
        let names = subsystems.unwrap_or_default().into_iter();
        let mut found = Vec::new();
        for subsystem in names.filter(|name| !belongs_to(name, self.node_id)) {
            let volumes = self.served_by(&self.configfs.join("subsystems").join(&subsystem));
            let its = volumes.into_iter().filter(|it| is_meant(Path::new(it)));
            found.extend(its.map(|volume| Export {
                subsystem: subsystem.clone(),
                volume,
            }));
        }
        found
    }

    /// Ends an export in the way of the node that made it. Returns when no I/O of the export is in flight.
    fn end_one(&self, subsystem: &str, node_id: NodeId, lease_id: LeaseId) -> anyhow::Result<()> {
        let tree = Tree::new(self.configfs);
        let allowed = format!("subsystems/{subsystem}/allowed_hosts");
        let hosts = tree.list(allowed).unwrap_or_default();
        let target = self.target_of(node_id)?;
        target.cut(stray_binding_id(ResourceId(0), lease_id))?;
        target.remove(lease_id, &|| ())?;
        for host in hosts.iter().filter_map(|name| name.parse().ok()) {
            // The kernel refuses to remove a host that another subsystem allows.
            target.remove_host(&host).ok();
        }
        target.close()?;
        // A reopened target finds the ports that have no leases and removes them.
        Ok(self.target_of(node_id)?.close()?)
    }

    fn target_of(&self, node_id: NodeId) -> Result<Target, StepError> {
        Target::open(TargetConfig {
            configfs: self.configfs.to_owned(),
            ports: Vec::new(),
            hosts: Vec::new(),
            host_records: Arc::new(NoRecords),
            node_id,
            supervisor: self.supervisor.clone(),
        })
    }

    /// Paths of the enabled namespaces.
    fn served_by(&self, subsystem: &Path) -> Vec<String> {
        let served = RefCell::new(Vec::new());
        let call = ListExports(subsystem.into());
        let note = |path: &str| served.borrow_mut().push(path.to_owned());
        if let Err(why) = self.supervisor.call(&call, PATIENCE, &note) {
            tracing::warn!(subsystem = %subsystem.display(), %why, "cannot tell what it serves");
        }
        served.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_helper::Handler;

    use super::{super::facts, *};

    const OLD: &str =
        "nqn.2026-11.org.fabricbios:00000000000000aa:00000000000000000000000000001234";

    /// A subsystem with one namespace, as configfs has it.
    fn serve(configfs: &Path, subsystem: &str, enabled: bool, volume: &Path) {
        let at = configfs
            .join("subsystems")
            .join(subsystem)
            .join("namespaces/1");
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("enable"), if enabled { "1\n" } else { "0\n" }).unwrap();
        fs::write(at.join("device_path"), format!("{}\n", volume.display())).unwrap();
    }

    fn in_foreign<T>(configfs: &Path, look: impl FnOnce(&ForeignExports<'_>) -> T) -> T {
        look(&ForeignExports {
            configfs,
            node_id: NodeId([0xBB; 32]),
            supervisor: &Supervisor::of_threads(vec![Handler::of::<ListExports>()]),
        })
    }

    #[test]
    fn what_serves_a_volume_of_the_pool_is_found_and_nothing_else() {
        let (configfs, pool) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (configfs, pool) = (configfs.path(), pool.path());
        let volume = pool.join("0000.volume");
        serve(configfs, OLD, true, &volume);
        serve(configfs, "nqn.2020-01.org:off", false, &volume);
        serve(
            configfs,
            "nqn.2020-01.org:file",
            true,
            &pool.join("disk.img"),
        );
        serve(
            configfs,
            "nqn.2020-01.org:far",
            true,
            Path::new("/far/0000.volume"),
        );
        let own = OLD.replace("00000000000000aa:", "bbbbbbbbbbbbbbbb:");
        serve(configfs, &own, true, &volume);
        fs::create_dir_all(configfs.join("subsystems/nqn.2020-01.org:empty/namespaces")).unwrap();
        let found = in_foreign(configfs, |it| {
            it.serving(|volume| is_of(volume, pool, &facts(1)))
        });
        let expected = Export {
            subsystem: OLD.to_owned(),
            volume: volume.display().to_string(),
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn what_no_node_has_made_is_named_and_not_touched() {
        let (configfs, pool) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let volume = pool.path().join("0000.volume");
        serve(configfs.path(), "nqn.2020-01.org:theirs", true, &volume);
        let error = in_foreign(configfs.path(), |it| it.end(pool.path(), &facts(1)));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("nqn.2020-01.org:theirs"), "{error}");
        assert!(error.contains("0000.volume"), "{error}");
        assert!(
            configfs
                .path()
                .join("subsystems/nqn.2020-01.org:theirs")
                .is_dir()
        );
    }

    #[test]
    fn without_the_kernels_target_there_is_nothing_to_end() {
        let (configfs, pool) = (Path::new("/nonexistent"), Path::new("/pool"));
        in_foreign(configfs, |it| it.end(pool, &facts(1))).unwrap();
    }
}
