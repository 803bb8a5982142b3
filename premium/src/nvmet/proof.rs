//! Proves that subsystems cannot be reached, many at once: the ports are looked at and asked in rounds that
//! all cuts share.

use std::collections::BTreeSet;

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::{HostId, LeaseId, NvmeofTransport};

use super::{
    fabrics::Question,
    names::{link_at, subsystem_at},
    probe::{self, Answer, Asker},
    rounds::Rounds,
    survey::{Seen, survey},
    turns::Turns,
};

/// A host name to ask with where the lease has none (any more). What is asked for is looked up first.
const NOBODY: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000000";

/// What all cuts of a target share.
#[derive(Debug)]
pub(super) struct Proofs {
    tree: Tree,
    anchor: String,
    asker: Asker,
    pub(super) turns: Turns,
    settling: Rounds<(), Result<BTreeSet<u16>, StepError>>,
    proving: Rounds<Case, Result<Proven, StepError>>,
}

/// A subsystem of which access has ended.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) lease: LeaseId,
    pub(super) subsystem: String,
    /// It was linked to these.
    pub(super) ports: Vec<u16>,
    /// One that was allowed.
    pub(super) host: Option<String>,
}

/// What the ports said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Proven {
    /// To Connect.
    pub(super) statuses: BTreeSet<u16>,
    /// Ports that had the subsystem and cannot be asked.
    pub(super) not_asked: Vec<String>,
}

impl Proofs {
    /// `asker` is what asks ports for RDMA.
    pub(super) fn new(tree: Tree, anchor: String, asker: Asker) -> Self {
        Self {
            tree,
            anchor,
            asker,
            turns: Turns::default(),
            settling: Rounds::default(),
            proving: Rounds::default(),
        }
    }

    /// Takes a moment, in which connections that were let in just before are made: as long as ports take
    /// for an answer. The ports with our anchor.
    pub(super) fn settle(&self) -> Result<BTreeSet<u16>, StepError> {
        let once = |all: &[()]| vec![self.ask_for_anchor(); all.len()];
        self.settling.ask((), once)
    }

    /// Tells the log which of our ports for RDMA cannot be asked from this machine.
    pub(super) fn try_to_ask(&self) -> Result<(), StepError> {
        for port in survey(&self.tree)?
            .iter()
            .filter(|port| self.is_anchored(port))
        {
            if let Err(why) = self.ask(port, &[]) {
                tracing::warn!(%port, why, "cannot be asked: its cuts are proved by the missing link alone");
            }
        }
        Ok(())
    }

    /// `Ok`: no port has the subsystem, no host is allowed, and every port that could have had it says that it
    /// has not, but for those that cannot be asked.
    pub(super) fn prove(&self, case: Case) -> Result<Proven, StepError> {
        self.proving.ask(case, |cases| self.prove_all(cases))
    }

    fn is_anchored(&self, port: &Seen) -> bool {
        port.subsystems.contains(&self.anchor)
    }

    fn ask_for_anchor(&self) -> Result<BTreeSet<u16>, StepError> {
        let seen = survey(&self.tree)?;
        let question = [self.greeting()];
        let anchored = seen.iter().filter(|port| self.is_anchored(port));
        let ask = |port: &Seen| {
            if let Some((NvmeofTransport::Tcp, address)) = port.listens_at() {
                probe::tcp::ask(address, &question);
            }
            port.number
        };
        Ok(anchored.map(ask).collect())
    }

    /// Our ports have an answer to it; it lets nobody in.
    fn greeting(&self) -> Question {
        Question {
            host_id: HostId([0; 16]),
            subsystem: self.anchor.clone(),
            host: NOBODY.to_owned(),
        }
    }

    /// `Err`: why the port cannot be asked.
    fn ask(&self, port: &Seen, questions: &[Question]) -> Result<Vec<Answer>, String> {
        match port.listens_at() {
            Some((NvmeofTransport::Tcp, address)) => Ok(probe::tcp::ask(address, questions)),
            Some((NvmeofTransport::Rdma, address)) => {
                let greeting = self.greeting();
                self.asker.ask(port.number, address, &greeting, questions)
            }
            None => Err("neither for TCP nor for RDMA".to_owned()),
        }
    }

    fn prove_all(&self, cases: &[Case]) -> Vec<Result<Proven, StepError>> {
        let seen = match survey(&self.tree) {
            Ok(seen) => seen,
            Err(error) => return vec![Err(error); cases.len()],
        };
        let unlinked = |case: &Case| {
            let checked = self.check_links(case, &seen);
            checked.map(|()| Proven::default())
        };
        let mut results: Vec<_> = cases.iter().map(unlinked).collect();
        for port in &seen {
            self.ask_port(port, cases, &mut results);
        }
        results
    }

    fn check_links(&self, case: &Case, seen: &[Seen]) -> Result<(), StepError> {
        let linked = |port: &&Seen| port.subsystems.contains(&case.subsystem);
        if let Some(port) = seen.iter().find(linked) {
            let link = link_at(port.number, &case.subsystem);
            return Err(case.error(format_args!("{link} is still there")));
        }
        let allowed = format!("{}/allowed_hosts", subsystem_at(&case.subsystem));
        let allowed = match self.tree.list(allowed) {
            // It was only half made, and has been taken back since.
            Err(error) if error.is_absent() => return Ok(()),
            allowed => allowed.map_err(|error| case.error(error))?,
        };
        match allowed.first() {
            Some(host) => Err(case.error(format_args!("host {host} is still allowed"))),
            None => Ok(()),
        }
    }

    /// One port, for every case that it could have had and that stands so far.
    fn ask_port(&self, port: &Seen, cases: &[Case], results: &mut [Result<Proven, StepError>]) {
        let anchored = self.is_anchored(port);
        let concerned = |case: &Case| anchored || case.ports.contains(&port.number);
        let stands = |at: &usize| results[*at].is_ok() && concerned(&cases[*at]);
        let asked: Vec<usize> = (0..cases.len()).filter(stands).collect();
        if asked.is_empty() {
            return;
        }
        let questions: Vec<Question> = asked.iter().map(|at| cases[*at].question()).collect();
        let Ok(answers) = self.ask(port, &questions) else {
            let had = |at: &usize| cases[*at].ports.contains(&port.number);
            for at in asked.into_iter().filter(had) {
                note(&mut results[at], |proven| {
                    proven.not_asked.push(port.to_string());
                });
            }
            return;
        };
        for (at, answer) in asked.into_iter().zip(answers) {
            match answer {
                Answer::Status(status) if status.says_no_such_subsystem() => {
                    note(&mut results[at], |proven| {
                        proven.statuses.insert(status.0);
                    });
                }
                Answer::NobodyListens if !anchored => {}
                answer => {
                    results[at] = Err(cases[at].error(format_args!(
                        "{port} should answer a Connect with status 0x4182, and: {answer}"
                    )));
                }
            }
        }
    }
}

impl Case {
    fn question(&self) -> Question {
        Question {
            host_id: HostId(self.lease.0.to_be_bytes()),
            subsystem: self.subsystem.clone(),
            host: self.host.clone().unwrap_or_else(|| NOBODY.to_owned()),
        }
    }

    fn error(&self, detail: impl std::fmt::Display) -> StepError {
        let subsystem = &self.subsystem;
        StepError::new("cut", format_args!("subsystem {subsystem}: {detail}"))
    }
}

fn note(result: &mut Result<Proven, StepError>, what: impl FnOnce(&mut Proven)) {
    if let Ok(proven) = result {
        what(proven);
    }
}

#[cfg(test)]
mod tests;
