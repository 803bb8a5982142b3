//! Ends access to a lease's subsystem, and proves it. docs/decisions/0008-nvmet-cut.md has the reasons.

use std::{collections::BTreeSet, time::Instant};

use fabricbios_contract::Revoked;
use fabricbios_kernfs::Tree;
use fabricbios_lease::{Proof, StepError};
use fabricbios_wire::LeaseId;
use serde::{Deserialize, Serialize};

use super::{
    faults,
    names::{Names, allowed_at, subsystem_at},
    objects::failed,
    plan, ports,
    proof::{Case, Proofs},
    run::Run,
};

/// One cut.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    tree: &'a Tree,
    proofs: &'a Proofs,
    lease: LeaseId,
    subsystem: String,
}

/// What was unlinked, for the proof.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unlinked {
    /// Numbers of the ports that had the link. None: nobody knows which had it.
    pub(super) ports: Vec<u16>,
    /// A host that was allowed.
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

    /// Ends access: new connections stop with the host, old ones with the link. Waits for nothing but other
    /// cuts that do the same, and looks at nothing that it need not know.
    pub(super) fn revoke(&self) -> Result<Revoked, StepError> {
        let started = Instant::now();
        let Some(unlinked) = self.shut()? else {
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

    /// `None`: there is no subsystem.
    pub(super) fn shut(&self) -> Result<Option<Unlinked>, StepError> {
        let _turn = self.proofs.turns.begin();
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
        let exists = self.tree.exists(subsystem_at(&self.subsystem));
        exists.map_err(|error| self.error(error))
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
    pub(super) fn verify(&self, revoked: Option<&Revoked>) -> Result<Proof, StepError> {
        let (mut proof, unlinked) = match revoked {
            Some(revoked) if revoked.is_proved => return Ok(revoked.steps.clone()),
            Some(revoked) => {
                let unlinked = postcard::from_bytes(&revoked.found);
                let unlinked: Unlinked = unlinked.map_err(|error| self.error(error))?;
                (revoked.steps.clone(), unlinked)
            }
            None if self.is_there()? => (Proof::default(), Unlinked::default()),
            None => return Ok(nothing_there()),
        };
        let Unlinked { ports, host } = unlinked;
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

fn nothing_there() -> Proof {
    Proof::nothing_to_cut("there is no subsystem of the lease")
}
