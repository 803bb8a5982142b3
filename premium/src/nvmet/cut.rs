//! Ends access to a lease's subsystem, and proves it. docs/decisions/0008-nvmet-cut.md has the reasons.

use std::net::SocketAddr;

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::{HostId, LeaseId};

use super::{
    faults,
    names::{allowed_at, link_at, subsystem_at},
    nvme_tcp::Status,
    plan, ports,
    probe::{self, Answer},
    run::Run,
    survey::{Seen, survey},
};

/// A host name to ask with where the lease has none (any more). What is asked for is looked up first.
const NOBODY: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000000";

/// One cut.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    pub(super) tree: &'a Tree,
    pub(super) anchor: &'a str,
    pub(super) lease: LeaseId,
    pub(super) subsystem: String,
}

/// What a cut did, for its proof.
struct Done {
    unlinked: Vec<Seen>,
    hosts: Vec<String>,
    fell: Option<usize>,
}

impl Cut<'_> {
    /// `Ok`: proven unreachable.
    pub(super) fn run(&self) -> Result<String, StepError> {
        let exists = self.tree.exists(subsystem_at(&self.subsystem));
        if !exists.map_err(|error| self.error(error))? {
            return Ok("there is no subsystem of the lease".to_owned());
        }
        let seen = survey(self.tree)?;
        let done = self.unlink(&seen)?;
        // Asking takes a moment in which a connection that was let in just before is made.
        self.ask_all(&seen, &done).ok();
        self.sweep(&done.unlinked)?;
        self.check_links()?;
        let answers = self.ask_all(&seen, &done)?;
        Ok(done.proof(&answers))
    }

    /// The same without the proof, for whoever has to do it in the daemon's stead; from how many ports.
    pub(super) fn shut(&self) -> Result<usize, StepError> {
        let exists = self.tree.exists(subsystem_at(&self.subsystem));
        if !exists.map_err(|error| self.error(error))? {
            return Ok(0);
        }
        let done = self.unlink(&survey(self.tree)?)?;
        self.sweep(&done.unlinked)?;
        Ok(done.unlinked.len())
    }

    /// New connections stop with the host, old ones with the link.
    fn unlink(&self, seen: &[Seen]) -> Result<Done, StepError> {
        let addresses: Vec<SocketAddr> = seen.iter().filter_map(Seen::tcp_address).collect();
        let before = probe::connections(&addresses);
        let hosts = self.disallow_hosts()?;
        let mut unlinked = Vec::new();
        for port in seen {
            if ports::unlink(self.tree, "unlink port", port.number, &self.subsystem)? {
                unlinked.push(port.clone());
            }
        }
        let after = probe::connections(&addresses);
        let fell = before.zip(after);
        Ok(Done {
            unlinked,
            hosts,
            fell: fell.map(|(before, after)| before.saturating_sub(after)),
        })
    }

    fn disallow_hosts(&self) -> Result<Vec<String>, StepError> {
        let failed = |error| StepError::new("disallow host", error);
        let hosts = self.allowed_hosts()?;
        for host in &hosts {
            let link = allowed_at(&self.subsystem, host);
            self.tree.unlink(link).map_err(failed)?;
            faults::passed("disallow host");
        }
        Ok(hosts)
    }

    fn allowed_hosts(&self) -> Result<Vec<String>, StepError> {
        let path = format!("{}/allowed_hosts", subsystem_at(&self.subsystem));
        let listed = self.tree.list(path);
        listed.map_err(|error| self.error(error))
    }

    /// Links and unlinks once more: a connection that had passed the kernel's checks before the unlink, and
    /// was entered in its list only after it, falls now. With no host allowed, no new one comes in.
    /// A port without the anchor stopped listening at the unlink, and dropped all that it had.
    fn sweep(&self, unlinked: &[Seen]) -> Result<(), StepError> {
        let anchored = |port: &&Seen| port.subsystems.iter().any(|name| name == self.anchor);
        for port in unlinked.iter().filter(anchored) {
            let mut link = plan::port_link(port.number, &self.subsystem);
            link.name = "sweep link";
            Run::new(self.tree).take(&link)?;
            ports::unlink(self.tree, "sweep unlink", port.number, &self.subsystem)?;
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), StepError> {
        for port in survey(self.tree)? {
            if port.subsystems.contains(&self.subsystem) {
                let link = link_at(port.number, &self.subsystem);
                return Err(self.error(format_args!("{link} is still there")));
            }
        }
        match self.allowed_hosts()?.first() {
            Some(host) => Err(self.error(format_args!("host {host} is still allowed"))),
            None => Ok(()),
        }
    }

    /// Every port for TCP that could have had the subsystem says that it has not.
    fn ask_all(&self, seen: &[Seen], done: &Done) -> Result<Vec<(u16, Status)>, StepError> {
        let anchored = |port: &Seen| port.subsystems.iter().any(|name| name == self.anchor);
        let mut answers = Vec::new();
        for port in seen {
            let concerned = anchored(port) || done.unlinked.contains(port);
            if let Some(address) = port.tcp_address().filter(|_| concerned) {
                let status = self.ask(port, address, anchored(port), done)?;
                answers.extend(status.map(|status| (port.number, status)));
            }
        }
        Ok(answers)
    }

    fn ask(
        &self,
        port: &Seen,
        address: SocketAddr,
        anchored: bool,
        done: &Done,
    ) -> Result<Option<Status>, StepError> {
        let host = done.hosts.first().map_or(NOBODY, String::as_str);
        let host_id = HostId(self.lease.0.to_be_bytes());
        match probe::ask(address, host_id, &self.subsystem, host) {
            Answer::Status(status) if status.says_no_such_subsystem() => Ok(Some(status)),
            Answer::NobodyListens if !anchored => Ok(None),
            answer => Err(self.error(format_args!(
                "ports/{} at {address} should answer a Connect with status 0x4182, and: {answer}",
                port.number
            ))),
        }
    }

    fn error(&self, detail: impl std::fmt::Display) -> StepError {
        let subsystem = &self.subsystem;
        StepError::new("cut", format_args!("subsystem {subsystem}: {detail}"))
    }
}

impl Done {
    fn proof(&self, answers: &[(u16, Status)]) -> String {
        let mut parts = vec![format!("unlinked from {} ports", self.unlinked.len())];
        let mut statuses: Vec<u16> = answers.iter().map(|(_, status)| status.0).collect();
        statuses.sort_unstable();
        statuses.dedup();
        let statuses = statuses.iter();
        parts.extend(statuses.map(|status| format!("Connect refused with status {status:#06x}")));
        let silent = self
            .unlinked
            .iter()
            .filter(|port| port.tcp_address().is_none());
        match silent.count() {
            0 => {}
            count => parts.push(format!(
                "{count} of them without TCP, where the missing link is the proof"
            )),
        }
        parts.push(match self.fell {
            Some(count) => format!("{count} connections fell"),
            None => "connections could not be counted".to_owned(),
        });
        parts.join(", ")
    }
}
