//! Proves that subsystems cannot be reached, many at once: the ports are looked at and asked in rounds that
//! all cuts share.

use std::{collections::BTreeSet, sync::Arc, thread, time::Duration};

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

/// As long as a port for TCP takes to answer, and longer.
const MOMENT: Duration = Duration::from_millis(5);

/// Proved in one round: an answer over RDMA takes a connection, and who waits should see that cuts move.
const CASES_MAX: usize = 2;

/// What all cuts of a target share.
#[derive(Debug)]
pub(super) struct Proofs {
    pub(super) tree: Tree,
    anchor: String,
    asker: Arc<Asker>,
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
    /// To a Connect, with the port that gave each.
    pub(super) answers: Vec<String>,
    /// Ports that may have had the subsystem and were not asked, and why.
    pub(super) not_asked: Vec<String>,
}

impl Proofs {
    /// `asker` is what asks ports for RDMA.
    pub(super) fn new(tree: Tree, anchor: String, asker: Arc<Asker>) -> Self {
        Self {
            tree,
            anchor,
            asker,
            turns: Turns::default(),
            settling: Rounds::default(),
            proving: Rounds::of_at_most(CASES_MAX),
        }
    }

    /// Takes a moment, in which connections that were let in just before are made: as long as ports take
    /// for an answer. The ports with our anchor.
    pub(super) fn settle(&self) -> Result<BTreeSet<u16>, StepError> {
        let once = |all: &[()]| vec![self.ask_for_anchor(); all.len()];
        let asked = self.settling.ask((), once);
        asked.ok_or_else(|| stuck("look at ports"))?
    }

    /// Tells the log which of our ports for RDMA cannot be asked from this machine.
    pub(super) fn try_to_ask(&self) -> Result<(), StepError> {
        if !self.asker.is_there() {
            return Ok(());
        }
        let seen = survey(&self.tree)?;
        for port in seen.iter().filter(|port| self.is_anchored(port)) {
            let greeted = match port.listens_at() {
                Some((NvmeofTransport::Rdma, address)) => {
                    self.asker.greet((port.number, address), &self.greeting())
                }
                _ => Ok(()),
            };
            if let Err(why) = greeted {
                tracing::warn!(%port, why, "cannot be asked: its cuts are proved by the missing link alone");
            }
        }
        Ok(())
    }

    /// `Ok`: no port has the subsystem, no host is allowed, and every port that could have had it says that it
    /// has not, but for those that cannot be asked.
    pub(super) fn prove(&self, case: Case) -> Result<Proven, StepError> {
        let proven = self.proving.ask(case, |cases| self.prove_all(cases));
        proven.ok_or_else(|| stuck("cut"))?
    }

    fn is_anchored(&self, port: &Seen) -> bool {
        port.subsystems.contains(&self.anchor)
    }

    fn ask_for_anchor(&self) -> Result<BTreeSet<u16>, StepError> {
        let seen = survey(&self.tree)?;
        let anchored: Vec<&Seen> = seen.iter().filter(|it| self.is_anchored(it)).collect();
        let addresses = anchored.iter().filter_map(|port| match port.listens_at() {
            Some((NvmeofTransport::Tcp, address)) => Some(address),
            _ => None,
        });
        let asked = addresses.map(|address| probe::tcp::ask(address, &[self.greeting()]));
        // What asks a port for RDMA is too slow for this.
        if asked.count() == 0 && !anchored.is_empty() {
            thread::sleep(MOMENT);
        }
        Ok(anchored.iter().map(|port| port.number).collect())
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
                let port = (port.number, address);
                self.asker.ask(port, &self.greeting(), questions)
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
        // A port for RDMA goes with its device: that is the trouble of those alone that had it, where that is known.
        let alone = matches!(port.listens_at(), Some((NvmeofTransport::Rdma, _)));
        let concerned = |case: &Case| {
            let may_have_had = anchored && (case.ports.is_empty() || !alone);
            may_have_had || case.ports.contains(&port.number)
        };
        let stands = |at: &usize| results[*at].is_ok() && concerned(&cases[*at]);
        let asked: Vec<usize> = (0..cases.len()).filter(stands).collect();
        if asked.is_empty() {
            return;
        }
        let questions: Vec<Question> = asked.iter().map(|at| cases[*at].question()).collect();
        match self.ask(port, &questions) {
            Ok(answers) => {
                for (at, answer) in asked.into_iter().zip(answers) {
                    cases[at].hear(port, anchored, answer, &mut results[at]);
                }
            }
            Err(why) => {
                let why = format!("{port} cannot be asked ({why})");
                for at in asked {
                    results[at]
                        .iter_mut()
                        .for_each(|it| it.not_asked.push(why.clone()));
                }
            }
        }
    }
}

fn stuck(step: &'static str) -> StepError {
    let why = "the proof of cuts before this one does not end: look at what the kernel's NVMe target does (dmesg)";
    StepError::new(step, why)
}

impl Case {
    fn question(&self) -> Question {
        Question {
            host_id: HostId(self.lease.0.to_be_bytes()),
            subsystem: self.subsystem.clone(),
            host: self.host.clone().unwrap_or_else(|| NOBODY.to_owned()),
        }
    }

    /// Only what says that the subsystem is not there lets the proof stand.
    fn hear(
        &self,
        port: &Seen,
        anchored: bool,
        answer: Answer,
        result: &mut Result<Proven, StepError>,
    ) {
        let Ok(proven) = result else { return };
        match answer {
            Answer::Status(status) if status.says_no_such_subsystem() => {
                let answer = format!("refused with status {:#06x} by {port}", status.0);
                proven.answers.push(answer);
            }
            Answer::NobodyListens if !anchored => {}
            Answer::NoSuchAddress => proven.not_asked.push(format!("{port} {answer}")),
            answer => {
                *result = Err(self.error(format_args!(
                    "{port} should answer a Connect with status 0x4182, and: {answer}"
                )));
            }
        }
    }

    fn error(&self, detail: impl std::fmt::Display) -> StepError {
        let subsystem = &self.subsystem;
        StepError::new("cut", format_args!("subsystem {subsystem}: {detail}"))
    }
}

#[cfg(test)]
mod tests;
