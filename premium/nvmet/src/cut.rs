//! Ends access to the subsystem of a lease, and proves it. The reasons are in docs/decisions/0008-nvmet-cut.md.

use std::{collections::BTreeSet, time::Instant};

use fabricbios_contract::Revoked;
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;
use serde::{Deserialize, Serialize};

use super::{
    names::{Names, allowed_host_path, subsystem_path},
    objects::failed,
    plan, ports,
    proof::{Case, Proofs},
    run::Run,
    steps,
};

/// One cut.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    tree: &'a Tree,
    proofs: &'a Proofs,
    lease: LeaseId,
    subsystem: String,
}

/// The findings of a revoke, which the proof needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unlinked {
    /// Numbers of the ports that had the link. Empty if unknown.
    pub(super) ports: Vec<u16>,
    /// A host that was allowed, if there was one.
    host: Option<String>,
}

impl<'a> Cut<'a> {
    pub(super) fn of(lease: LeaseId, names: &Names, proofs: &'a Proofs) -> Self {
        Self {
            tree: &proofs.tree,
            proofs,
            lease,
            subsystem: names.subsystem(lease),
        }
    }

    /// Ends access: disallowing the host stops new connections, and unlinking ends existing ones. Waits only for other
    /// revokes, and reads only what it needs.
    pub(super) fn revoke(&self) -> Result<Revoked, StepError> {
        let started = Instant::now();
        let Some(unlinked) = self.end_access()? else {
            return Ok(Revoked::proved(nothing_there()));
        };
        let mut steps = Proof::default();
        let count = unlinked.ports.len();
        steps.add(
            "unlink",
            started.elapsed(),
            format_args!("from {count} ports"),
        );
        let found = postcard::to_allocvec(&unlinked);
        Ok(Revoked {
            steps,
            is_proved: false,
            found: found.map_err(|error| self.error(error))?,
        })
    }

    /// Disallows the hosts and unlinks the subsystem. `None`: the subsystem does not exist.
    pub(super) fn end_access(&self) -> Result<Option<Unlinked>, StepError> {
        let _guard = self.proofs.fair_lock.acquire();
        if !self.is_there()? {
            return Ok(None);
        }
        let hosts = self.disallow_hosts()?;
        Ok(Some(Unlinked {
            ports: self.unlink()?,
            host: hosts.into_iter().next(),
        }))
    }

    fn is_there(&self) -> Result<bool, StepError> {
        let exists = self.tree.exists(subsystem_path(&self.subsystem));
        exists.map_err(|error| self.error(error))
    }

    fn disallow_hosts(&self) -> Result<Vec<String>, StepError> {
        let allowed = format!("{}/allowed_hosts", subsystem_path(&self.subsystem));
        let hosts = self.tree.list(allowed).map_err(|error| self.error(error))?;
        for host in &hosts {
            match self.tree.unlink(allowed_host_path(&self.subsystem, host)) {
                Ok(()) => steps::passed("disallow host"),
                // If the daemon is late, the watchdog cuts too.
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(failed("disallow host", error)),
            }
        }
        Ok(hosts)
    }

    fn unlink(&self) -> Result<Vec<u16>, StepError> {
        let listed = self.tree.list("ports").map_err(|error| self.error(error))?;
        let mut unlinked = Vec::new();
        for number in listed.iter().filter_map(|name| name.parse().ok()) {
            if ports::unlink(self.tree, "unlink port", number, &self.subsystem)? {
                unlinked.push(number);
            }
        }
        Ok(unlinked)
    }

    /// Proves that the subsystem cannot be reached. The returned steps follow those of `revoked`.
    pub(super) fn verify(&self, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let Unlinked { ports, host } = match revoked {
            Some(revoked) => {
                let unlinked = postcard::from_bytes(&revoked.found);
                unlinked.map_err(|error| self.error(error))?
            }
            None if self.is_there()? => Unlinked::default(),
            None => return Ok(nothing_there()),
        };
        let mut proof = Proof::default();
        let started = Instant::now();
        let anchored = self.proofs.settle()?;
        self.sweep_all(&ports, &anchored)?;
        proof.add("sweep", started.elapsed(), "");
        let started = Instant::now();
        let proven = self.proofs.prove(Case {
            lease: self.lease,
            subsystem: self.subsystem.clone(),
            ports,
            host,
        })?;
        let took = started.elapsed();
        for answer in proven.answers {
            proof.add("Connect", took, answer);
        }
        for why in proven.not_asked {
            proof.add(
                "no Connect",
                took,
                format_args!("{why}: the missing link is the proof"),
            );
        }
        Ok(proof)
    }

    /// Sweeps the ports that had the link. If none is known, sweeps all ports: another process may have unlinked and
    /// died before its sweep. All ports are tried; returns the first error.
    pub(super) fn sweep_all(
        &self,
        ports: &[u16],
        anchored: &BTreeSet<u16>,
    ) -> Result<(), StepError> {
        let had = |number: &&u16| ports.is_empty() || ports.contains(number);
        let swept = anchored.iter().filter(had).map(|port| self.sweep(*port));
        swept.fold(Ok(()), Result::and)
    }

    /// Links and unlinks once more. This ends a connection that passed the kernel's checks before the first unlink and
    /// entered the kernel's list only after it. No host is allowed, so no new connection comes in. A port without the
    /// anchor stopped listening at the first unlink and dropped all its connections.
    fn sweep(&self, port: u16) -> Result<(), StepError> {
        let mut link = plan::port_link(port, &self.subsystem);
        link.name = "sweep link";
        self.proofs.fair_lock.wait_until_idle();
        match Run::new(self.tree).take(&link) {
            // The export was only half made, and the thread that made it has removed it meanwhile.
            Err(failed) if failed.error.errno == Some(libc::ENOENT) => return Ok(()),
            linked => linked?,
        }
        ports::unlink(self.tree, "sweep unlink", port, &self.subsystem)?;
        Ok(())
    }

    fn error(&self, detail: impl std::fmt::Display) -> StepError {
        let subsystem = &self.subsystem;
        StepError::new("cut", format_args!("subsystem {subsystem}: {detail}"))
    }
}

fn nothing_there() -> Proof {
    Proof::nothing_to_cut("there is no subsystem of the lease")
}
