//! Takes away everything of a lease that is cut.

use std::collections::BTreeMap;

use fabricbios_lease::StepError;
use fabricbios_wire::{LeaseId, Nqn};

use super::{
    Export, Target, faults,
    host_records::key_of,
    names::{allowed_at, host_at, namespace_at, subsystem_at},
    namespace,
    objects::failed,
    survey::{Seen, survey},
};

impl Target {
    /// After a cut: takes everything of the lease away. `Ok`: no I/O of it is under way any more and its
    /// volume is not open. Idempotent. Gives up, with the device's name, when the kernel makes no progress
    /// for some seconds; a later call goes on waiting for the same process.
    pub fn remove(&self, lease: LeaseId, progress: &dyn Fn()) -> Result<(), StepError> {
        let slot = self.slots.of(lease);
        let work = slot.work();
        let subsystem = self.names.subsystem(lease);
        self.refuse_linked(&subsystem)?;
        slot.gate().remove();
        let exists = self.tree.exists(subsystem_at(&subsystem));
        if exists.map_err(|error| failed("remove", error))? {
            self.remove_namespace(&subsystem, work.as_ref())?;
            progress();
            self.remove_subsystem(&subsystem)?;
        }
        let mut credentials = self.credentials();
        credentials.leave(lease, |host| self.remove_host(host))?;
        faults::passed("remove credentials");
        self.slots.forget_later(lease);
        progress();
        Ok(())
    }

    /// Whoever is linked could still be reached, and its removal would be no proper end.
    fn refuse_linked(&self, subsystem: &str) -> Result<(), StepError> {
        let seen = survey(&self.tree)?;
        let linked = |port: &&Seen| port.subsystems.iter().any(|name| name == subsystem);
        match seen.iter().find(linked) {
            None => Ok(()),
            Some(port) => Err(StepError::new(
                "remove",
                format_args!(
                    "subsystem {subsystem} is linked to ports/{}: cut it first",
                    port.number
                ),
            )),
        }
    }

    fn remove_namespace(&self, subsystem: &str, export: Option<&Export>) -> Result<(), StepError> {
        let path = namespace_at(subsystem);
        let device = export.map(|export| export.volume.as_path());
        let removed = namespace::remove(&self.tree, &self.supervisor, &path, device);
        removed.map_err(|trouble| {
            let what = format!("subsystem {subsystem}, {trouble}");
            StepError::new("remove namespace", what)
        })?;
        faults::passed("remove namespace");
        Ok(())
    }

    fn remove_subsystem(&self, subsystem: &str) -> Result<(), StepError> {
        let failed = |error| failed("remove subsystem", error);
        let base = subsystem_at(subsystem);
        let hosts = self.tree.list(format!("{base}/allowed_hosts"));
        for host in hosts.map_err(failed)? {
            let link = allowed_at(subsystem, &host);
            self.tree.unlink(link).map_err(failed)?;
        }
        self.tree.rmdir(base).map_err(failed)?;
        faults::passed("remove subsystem");
        Ok(())
    }

    /// Takes away a host that no lease uses any more. Idempotent.
    ///
    /// # Errors
    /// A subsystem still allows it.
    pub fn remove_host(&self, host: &Nqn) -> Result<(), StepError> {
        self.remove_object("remove host", host_at(host.as_str()))?;
        self.remove_object("unmark host", subsystem_at(&self.names.mark(host)))
    }

    /// At a start: takes away the hosts of this node that are on no record: the run before has died ahead of the commit
    /// that had them, and nobody was told of a lease with such a host; or an older journal was put back. What cannot be taken away is tried again at the next
    /// start, or used when a lease names it.
    ///
    /// # Errors
    /// The kernel's target cannot be looked at.
    pub fn remove_unrecorded_hosts(&self) -> Result<(), StepError> {
        let list = |at| {
            let names = self.tree.list(at);
            names.map_err(|error| failed("look at hosts", error))
        };
        let (subsystems, hosts) = (list("subsystems")?, list("hosts")?);
        let hosts = hosts.iter().filter_map(|name| name.parse().ok());
        let hosts: BTreeMap<u128, Nqn> = hosts.map(|host| (key_of(&host), host)).collect();
        let credentials = self.credentials();
        for mark in &subsystems {
            let key = self.names.marked(mark);
            let Some(key) = key.filter(|key| !credentials.has(*key)) else {
                continue;
            };
            let host = hosts.get(&key);
            let removed = host.map_or(Ok(()), |host| {
                let of_leases = subsystems.iter();
                for subsystem in of_leases.filter(|name| self.names.lease_of(name).is_some()) {
                    // Most do not allow it.
                    self.tree.unlink(allowed_at(subsystem, host.as_str())).ok();
                }
                self.remove_object("remove host", host_at(host.as_str()))
            });
            match removed.and_then(|()| self.remove_object("unmark host", subsystem_at(mark))) {
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
                faults::passed(step);
                Ok(())
            }
        }
    }
}
