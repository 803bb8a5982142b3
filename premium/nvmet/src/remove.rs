//! Removes all objects of a lease that has been cut.

use std::{collections::BTreeMap, thread, time::Duration};

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseId, Nqn};

use super::{
    Export, Target,
    host_records::record_key,
    listed_port::list_ports,
    names::{allowed_host_path, host_path, namespace_path, subsystem_path},
    namespace,
    objects::failed,
    run::remove_swept,
    steps,
};

/// Pause between two looks at a link that may be that of a sweep. A sweep unlinks right after it links, and waits at
/// most for other calls of the kernel's target.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// Number of looks: two seconds, so that a release ends in time also with a link that stays.
const LOOKS: u32 = 400;

impl Target {
    /// Removes all objects of the lease, after a cut. When this succeeds, no I/O of the lease is in progress and its
    /// volume is not open. Idempotent.
    ///
    /// # Errors
    /// The lease is still linked, the kernel refuses, or the removal makes no progress for some seconds. In that case
    /// the error names the device, and a later call continues to wait for the same process.
    pub fn remove(&self, lease: LeaseId, progress: &dyn Fn()) -> Result<(), StepError> {
        let Some(entry) = self.bindings.entry(lease) else {
            return Ok(());
        };
        let work = entry.objects.lock();
        let subsystem = self.names.subsystem(lease);
        self.bindings.remove(lease, |_| {
            refuse_linked(&self.tree, &subsystem, || thread::sleep(BETWEEN_LOOKS))?;
            self.remove_objects(lease, &subsystem, work.as_ref(), progress)
        })
    }

    fn remove_objects(
        &self,
        lease: LeaseId,
        subsystem: &str,
        export: Option<&Export>,
        progress: &dyn Fn(),
    ) -> Result<(), StepError> {
        let exists = self.tree.exists(subsystem_path(subsystem));
        if exists.map_err(|error| failed("remove", error))? {
            self.remove_namespace(subsystem, export)?;
            progress();
            self.remove_subsystem(subsystem)?;
        }
        let mut credentials = self.credentials();
        credentials.release(lease, |host| self.remove_host(host))?;
        steps::passed("remove credentials");
        progress();
        Ok(())
    }

    fn remove_namespace(&self, subsystem: &str, export: Option<&Export>) -> Result<(), StepError> {
        let path = namespace_path(subsystem);
        let device = export.map(|export| export.volume.as_path());
        let removed = namespace::remove(&self.tree, &self.supervisor, &path, device);
        removed.map_err(|error| {
            let what = format!("subsystem {subsystem}, {error}");
            StepError::new("remove namespace", what)
        })?;
        steps::passed("remove namespace");
        Ok(())
    }

    fn remove_subsystem(&self, subsystem: &str) -> Result<(), StepError> {
        const STEP: &str = "remove subsystem";
        let base = subsystem_path(subsystem);
        let hosts = self.tree.list(format!("{base}/allowed_hosts"));
        for host in hosts.map_err(|error| failed(STEP, error))? {
            let unlinked = self.tree.unlink(allowed_host_path(subsystem, &host));
            unlinked.map_err(|error| failed(STEP, error))?;
        }
        remove_swept(self, &base).map_err(|error| failed(STEP, error))?;
        steps::passed(STEP);
        Ok(())
    }

    /// Removes a host that no lease uses any more, and its mark. Idempotent.
    ///
    /// # Errors
    /// A subsystem still allows the host.
    pub fn remove_host(&self, host: &Nqn) -> Result<(), StepError> {
        self.remove_object("remove host", host_path(host.as_str()))?;
        self.remove_object("unmark host", subsystem_path(&self.names.host_mark(host)))
    }

    /// At the start: removes the hosts of this node that have no record. There are two causes. Either the earlier run
    /// died before the commit with the host's record; then no client was told of a lease with that host. Or an older
    /// journal was put back. A host that cannot be removed is tried again at the next start, or used when a lease names
    /// it.
    ///
    /// # Errors
    /// The objects of the kernel's target cannot be listed.
    pub fn remove_unrecorded_hosts(&self) -> Result<(), StepError> {
        let list = |at| {
            let names = self.tree.list(at);
            names.map_err(|error| failed("look at hosts", error))
        };
        let (subsystems, hosts) = (list("subsystems")?, list("hosts")?);
        let hosts = hosts.iter().filter_map(|name| name.parse().ok());
        let hosts: BTreeMap<u128, Nqn> = hosts.map(|host| (record_key(&host), host)).collect();
        let credentials = self.credentials();
        for mark in &subsystems {
            let key = self.names.marked_host(mark);
            let Some(key) = key.filter(|key| !credentials.has(*key)) else {
                continue;
            };
            let host = hosts.get(&key);
            let removed = host.map_or(Ok(()), |host| {
                let of_leases = subsystems.iter();
                for subsystem in of_leases.filter(|name| self.names.lease_of(name).is_some()) {
                    // Fails for most subsystems, which do not allow the host.
                    self.tree
                        .unlink(allowed_host_path(subsystem, host.as_str()))
                        .ok();
                }
                self.remove_object("remove host", host_path(host.as_str()))
            });
            match removed.and_then(|()| self.remove_object("unmark host", subsystem_path(mark))) {
                Ok(()) => {
                    tracing::warn!(?host, "removed a host that is on no record");
                }
                Err(why) => {
                    tracing::error!(?host, %why, "a host that is on no record stays");
                }
            }
        }
        Ok(())
    }

    fn remove_object(&self, step: &'static str, path: String) -> Result<(), StepError> {
        match self.tree.rmdir(path) {
            Err(error) if !error.is_absent() => Err(failed(step, error)),
            _ => {
                steps::passed(step);
                Ok(())
            }
        }
    }
}

/// Refuses to remove a linked subsystem: it can still be reached, so it must be cut first. The sweep of a cut links a
/// subsystem without hosts for a moment; the proof by this process has ended before the removal, but the watchdog may
/// still sweep. `pause` waits between two looks.
fn refuse_linked(tree: &Tree, subsystem: &str, pause: impl Fn()) -> Result<(), StepError> {
    let mut looks = LOOKS;
    while let Some(number) = linked_port(tree, subsystem)? {
        looks -= 1;
        if looks == 0 || allows_a_host(tree, subsystem)? {
            let why =
                format_args!("subsystem {subsystem} is linked to ports/{number}: cut it first");
            return Err(StepError::new("remove", why));
        }
        pause();
    }
    Ok(())
}

/// The number of a port that the subsystem is linked to.
fn linked_port(tree: &Tree, subsystem: &str) -> Result<Option<u16>, StepError> {
    let ports = list_ports(tree)?;
    let linked = ports
        .iter()
        .find(|port| port.subsystems.iter().any(|name| name == subsystem));
    Ok(linked.map(|port| port.number))
}

fn allows_a_host(tree: &Tree, subsystem: &str) -> Result<bool, StepError> {
    let hosts = tree.list(format!("{}/allowed_hosts", subsystem_path(subsystem)));
    let hosts = hosts.map_err(|error| failed("remove", error))?;
    Ok(!hosts.is_empty())
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs, os::unix::fs::symlink};

    use crate::names::port_link_path;

    use super::*;

    const SUBSYSTEM: &str = "nqn.2026-11.org.fabricbios:0011223344556677:1";

    /// A target with a subsystem that is linked to port 1.
    fn linked() -> (tempfile::TempDir, Tree) {
        let place = tempfile::tempdir().unwrap();
        let port = place.path().join("ports/1");
        fs::create_dir_all(port.join("subsystems")).unwrap();
        for name in ["addr_trtype", "addr_adrfam", "addr_traddr", "addr_trsvcid"] {
            fs::write(port.join(name), "loop").unwrap();
        }
        let tree = Tree::new(place.path());
        let hosts = format!("{}/allowed_hosts", subsystem_path(SUBSYSTEM));
        fs::create_dir_all(place.path().join(hosts)).unwrap();
        tree.symlink(subsystem_path(SUBSYSTEM), port_link_path(1, SUBSYSTEM))
            .unwrap();
        (place, tree)
    }

    #[test]
    fn a_release_that_meets_the_link_of_a_sweep_waits_for_its_end() {
        let (_place, tree) = linked();
        let unlink = || tree.unlink(port_link_path(1, SUBSYSTEM)).unwrap();
        refuse_linked(&tree, SUBSYSTEM, unlink).unwrap();
    }

    #[test]
    fn a_lease_that_is_still_linked_is_not_released() {
        let (place, tree) = linked();
        let looks = Cell::new(1);
        let refused = refuse_linked(&tree, SUBSYSTEM, || looks.set(looks.get() + 1));
        assert!(refused.unwrap_err().to_string().contains("ports/1"));
        assert_eq!(looks.get(), LOOKS, "the link stays");
        let host = allowed_host_path(SUBSYSTEM, "nqn.2026-11.org.example:host");
        symlink("/", place.path().join(host)).unwrap();
        let refused = refuse_linked(&tree, SUBSYSTEM, || panic!("its host is allowed"));
        assert!(refused.unwrap_err().to_string().contains("ports/1"));
    }
}
