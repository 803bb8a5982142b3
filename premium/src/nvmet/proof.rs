//! Proves that subsystems cannot be reached, many at once: the ports are looked at and asked in rounds that
//! all cuts share.

use std::{collections::BTreeSet, net::SocketAddr};

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::{HostId, LeaseId};

use super::{
    names::{link_at, subsystem_at},
    probe::{self, Answer, Question},
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
    /// Ports that had the subsystem, and are for no transport that can be asked.
    pub(super) not_asked: usize,
}

impl Proofs {
    pub(super) fn new(tree: Tree, anchor: String) -> Self {
        Self {
            tree,
            anchor,
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

    /// `Ok`: no port has the subsystem, no host is allowed, and every port for TCP that could have had it
    /// says that it has not.
    pub(super) fn prove(&self, case: Case) -> Result<Proven, StepError> {
        self.proving.ask(case, |cases| self.prove_all(cases))
    }

    fn is_anchored(&self, port: &Seen) -> bool {
        port.subsystems.contains(&self.anchor)
    }

    fn ask_for_anchor(&self) -> Result<BTreeSet<u16>, StepError> {
        let seen = survey(&self.tree)?;
        let question = Question {
            host_id: HostId([0; 16]),
            subsystem: self.anchor.clone(),
            host: NOBODY.to_owned(),
        };
        let anchored = seen.iter().filter(|port| self.is_anchored(port));
        let ask = |port: &Seen| {
            let address = port.tcp_address();
            address.map(|address| probe::ask(address, std::slice::from_ref(&question)));
            port.number
        };
        Ok(anchored.map(ask).collect())
    }

    fn prove_all(&self, cases: &[Case]) -> Vec<Result<Proven, StepError>> {
        let seen = match survey(&self.tree) {
            Ok(seen) => seen,
            Err(error) => return vec![Err(error); cases.len()],
        };
        let unlinked = |case: &Case| {
            self.check_links(case, &seen)
                .map(|()| case.without_tcp(&seen))
        };
        let mut results: Vec<_> = cases.iter().map(unlinked).collect();
        for port in &seen {
            if let Some(address) = port.tcp_address() {
                self.ask_port(port, address, cases, &mut results);
            }
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
    fn ask_port(
        &self,
        port: &Seen,
        address: SocketAddr,
        cases: &[Case],
        results: &mut [Result<Proven, StepError>],
    ) {
        let anchored = self.is_anchored(port);
        let concerned = |case: &Case| anchored || case.ports.contains(&port.number);
        let stands = |at: &usize| results[*at].is_ok() && concerned(&cases[*at]);
        let asked: Vec<usize> = (0..cases.len()).filter(stands).collect();
        let questions: Vec<Question> = asked.iter().map(|at| cases[*at].question()).collect();
        let answers = probe::ask(address, &questions);
        for (at, answer) in asked.into_iter().zip(answers) {
            match (answer, &mut results[at]) {
                (Answer::Status(status), Ok(proven)) if status.says_no_such_subsystem() => {
                    proven.statuses.insert(status.0);
                }
                (Answer::NobodyListens, _) if !anchored => {}
                (answer, result) => {
                    *result = Err(cases[at].error(format_args!(
                        "ports/{} at {address} should answer a Connect with status 0x4182, and: {answer}",
                        port.number
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

    fn without_tcp(&self, seen: &[Seen]) -> Proven {
        let had = |port: &&Seen| self.ports.contains(&port.number);
        let had = seen.iter().filter(had);
        Proven {
            statuses: BTreeSet::new(),
            not_asked: had.filter(|port| port.tcp_address().is_none()).count(),
        }
    }

    fn error(&self, detail: impl std::fmt::Display) -> StepError {
        let subsystem = &self.subsystem;
        StepError::new("cut", format_args!("subsystem {subsystem}: {detail}"))
    }
}

#[cfg(test)]
mod tests;
