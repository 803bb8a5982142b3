//! Ends access to a lease's subsystem, and proves it. docs/decisions/0008-nvmet-cut.md has the reasons.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use fabricbios_kernfs::Tree;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;

use super::{
    faults,
    names::{allowed_at, subsystem_at},
    objects::failed,
    plan, ports,
    proof::{Case, Proofs},
    run::Run,
};

/// One cut.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    pub(super) tree: &'a Tree,
    pub(super) proofs: &'a Proofs,
    pub(super) lease: LeaseId,
    pub(super) subsystem: String,
}

/// Access that has ended, and what is said of it.
#[derive(Clone, Debug)]
pub(super) enum Severed {
    /// There was none.
    Nothing,
    Links {
        /// Numbers of the ports that had the link.
        ports: Vec<u16>,
        hosts: Vec<String>,
        /// That took so long.
        took: Duration,
    },
}

impl Cut<'_> {
    /// Ends access: new connections stop with the host, old ones with the link. Waits for nothing but other
    /// cuts that do the same, and looks at nothing that it need not know.
    pub(super) fn sever(&self) -> Result<Severed, StepError> {
        let _turn = self.proofs.turns.begin();
        let exists = self.tree.exists(subsystem_at(&self.subsystem));
        if !exists.map_err(|error| self.error(error))? {
            return Ok(Severed::Nothing);
        }
        let started = Instant::now();
        let hosts = self.disallow_hosts()?;
        let ports = self.unlink()?;
        Ok(Severed::Links {
            ports,
            hosts,
            took: started.elapsed(),
        })
    }

    fn disallow_hosts(&self) -> Result<Vec<String>, StepError> {
        let allowed = format!("{}/allowed_hosts", subsystem_at(&self.subsystem));
        let hosts = self.tree.list(allowed).map_err(|error| self.error(error))?;
        for host in &hosts {
            match self.tree.unlink(allowed_at(&self.subsystem, host)) {
                Ok(()) => faults::passed("disallow host"),
                // The watchdog cuts too, where the daemon is late.
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

    /// `Ok`: proven unreachable.
    pub(super) fn prove(&self, severed: Severed) -> Result<Proof, StepError> {
        let Severed::Links { ports, hosts, took } = severed else {
            return Ok(Proof::nothing_to_cut("there is no subsystem of the lease"));
        };
        let mut proof = Proof::default();
        proof.add("unlink", took, format_args!("from {} ports", ports.len()));
        let started = Instant::now();
        let anchored = self.proofs.settle()?;
        self.sweep_all(&ports, &anchored)?;
        proof.add("sweep", started.elapsed(), "");
        let started = Instant::now();
        let proven = self.proofs.prove(Case {
            lease: self.lease,
            subsystem: self.subsystem.clone(),
            ports: ports.clone(),
            host: hosts.into_iter().next(),
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

    /// Where no link was found, somebody has unlinked before, and may have died before this.
    pub(super) fn sweep_all(
        &self,
        ports: &[u16],
        anchored: &BTreeSet<u16>,
    ) -> Result<(), StepError> {
        let had = |number: &&u16| ports.is_empty() || ports.contains(number);
        let swept = anchored.iter().filter(had);
        swept.copied().try_for_each(|port| self.sweep(port))
    }

    /// Links and unlinks once more: a connection that had passed the kernel's checks before the unlink, and
    /// was entered in its list only after it, falls now. With no host allowed, no new one comes in.
    /// A port without the anchor stopped listening at the unlink, and dropped all that it had.
    fn sweep(&self, port: u16) -> Result<(), StepError> {
        let mut link = plan::port_link(port, &self.subsystem);
        link.name = "sweep link";
        self.proofs.turns.step_aside();
        match Run::new(self.tree).take(&link) {
            // It was only half made, and has been taken back since.
            Err(failed) if failed.trouble.errno == Some(libc::ENOENT) => return Ok(()),
            taken => taken?,
        }
        ports::unlink(self.tree, "sweep unlink", port, &self.subsystem)?;
        Ok(())
    }

    fn error(&self, detail: impl std::fmt::Display) -> StepError {
        let subsystem = &self.subsystem;
        StepError::new("cut", format_args!("subsystem {subsystem}: {detail}"))
    }
}
