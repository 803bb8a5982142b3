//! Proves that subsystems cannot be reached. Cuts share batches in which the ports are listed and asked.

use std::{collections::BTreeSet, sync::Arc, thread, time::Duration};

use fabricbios_kernfs::Tree;
use fabricbios_lease::StepError;
use fabricbios_wire::{HostId, LeaseId, NvmeofTransport};

use super::{
    batcher::Batcher,
    fabrics::Question,
    fair_lock::FairLock,
    listed_port::{ListedPort, list_ports},
    names::{port_link_path, subsystem_path},
    probe::{self, Answer, CannotAsk, Prober},
};

/// The host to ask with if the lease has no host any more. Any name works: the kernel looks for the subsystem first.
const UNKNOWN_HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000000";

/// Pause without a port for TCP: longer than such a port takes to answer.
const SETTLE_TIME: Duration = Duration::from_millis(5);

/// Largest number of cases in one batch. An answer over RDMA takes a connection, and waiting threads should see
/// progress.
const CASES_MAX: usize = 2;

/// The state that all cuts of a target share.
#[derive(Debug)]
pub(super) struct Proofs {
    pub(super) tree: Tree,
    anchor: String,
    prober: Arc<Prober>,
    pub(super) fair_lock: FairLock,
    settling: Batcher<(), Result<BTreeSet<u16>, StepError>>,
    proving: Batcher<Case, Result<Proven, StepError>>,
}

/// One subsystem whose access has ended, to be proved.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) lease: LeaseId,
    pub(super) subsystem: String,
    /// Numbers of the ports that it was linked to; empty if unknown.
    pub(super) ports: Vec<u16>,
    /// A host that was allowed, if there was one.
    pub(super) host: Option<String>,
}

/// The answers of the ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Proven {
    /// Each answer to a Connect, with its port.
    pub(super) answers: Vec<String>,
    /// Ports that may have had the subsystem and could not be asked, each with the reason.
    pub(super) not_asked: Vec<String>,
}

impl Proofs {
    /// `prober` asks ports for RDMA.
    pub(super) fn new(tree: Tree, anchor: String, prober: Arc<Prober>) -> Self {
        Self {
            tree,
            anchor,
            prober,
            fair_lock: FairLock::default(),
            settling: Batcher::default(),
            proving: Batcher::with_max_batch(CASES_MAX),
        }
    }

    /// Waits as long as a port takes to answer: in this time, connections that were accepted just before are
    /// established. Returns the numbers of the ports that have the anchor.
    pub(super) fn settle(&self) -> Result<BTreeSet<u16>, StepError> {
        let once = |all: &[()]| vec![self.ask_for_anchor(); all.len()];
        let asked = self.settling.ask((), once);
        asked.ok_or_else(|| stuck("look at ports"))?
    }

    /// Tests the ports of this node for RDMA. Logs those that this machine cannot ask.
    pub(super) fn test_rdma_ports(&self) -> Result<(), StepError> {
        if !self.prober.is_there() {
            return Ok(());
        }
        let ports = list_ports(&self.tree)?;
        for port in ports.iter().filter(|port| self.is_anchored(port)) {
            let tested = match port.listens_at() {
                Some((NvmeofTransport::Rdma, address)) => self
                    .prober
                    .test_port((port.number, address), &self.test_question()),
                _ => Ok(()),
            };
            if let Err(why) = tested {
                tracing::warn!(%port, %why, "cannot be asked: its cuts are proved by the missing link alone");
            }
        }
        Ok(())
    }

    /// Proves a case: no port has the subsystem, no host is allowed, and every port that may have had the subsystem
    /// answers that it does not have it, except ports that cannot be asked.
    pub(super) fn prove(&self, case: Case) -> Result<Proven, StepError> {
        let proven = self.proving.ask(case, |cases| self.prove_all(cases));
        proven.ok_or_else(|| stuck("cut"))?
    }

    fn is_anchored(&self, port: &ListedPort) -> bool {
        port.subsystems.contains(&self.anchor)
    }

    fn ask_for_anchor(&self) -> Result<BTreeSet<u16>, StepError> {
        let ports = list_ports(&self.tree)?;
        let anchored: Vec<&ListedPort> = ports.iter().filter(|it| self.is_anchored(it)).collect();
        let addresses = anchored.iter().filter_map(|port| match port.listens_at() {
            Some((NvmeofTransport::Tcp, address)) => Some(address),
            _ => None,
        });
        let asked = addresses.map(|address| probe::tcp::ask(address, &[self.test_question()]));
        // A question over RDMA would take too long here.
        if asked.count() == 0 && !anchored.is_empty() {
            thread::sleep(SETTLE_TIME);
        }
        Ok(anchored.iter().map(|port| port.number).collect())
    }

    /// A question that the ports of this node answer without letting a host in.
    fn test_question(&self) -> Question {
        Question {
            host_id: HostId([0; 16]),
            subsystem: self.anchor.clone(),
            host: UNKNOWN_HOST.to_owned(),
        }
    }

    fn ask(&self, port: &ListedPort, questions: &[Question]) -> Result<Vec<Answer>, CannotAsk> {
        match port.listens_at() {
            Some((NvmeofTransport::Tcp, address)) => Ok(probe::tcp::ask(address, questions)),
            Some((NvmeofTransport::Rdma, address)) => {
                let port = (port.number, address);
                self.prober.ask(port, &self.test_question(), questions)
            }
            None => Err(CannotAsk::OtherTransport),
        }
    }

    fn prove_all(&self, cases: &[Case]) -> Vec<Result<Proven, StepError>> {
        let ports = match list_ports(&self.tree) {
            Ok(ports) => ports,
            Err(error) => return vec![Err(error); cases.len()],
        };
        let unlinked = |case: &Case| {
            let checked = self.check_links(case, &ports);
            checked.map(|()| Proven::default())
        };
        let mut results: Vec<_> = cases.iter().map(unlinked).collect();
        for port in &ports {
            self.ask_port(port, cases, &mut results);
        }
        results
    }

    fn check_links(&self, case: &Case, ports: &[ListedPort]) -> Result<(), StepError> {
        let linked = |port: &&ListedPort| port.subsystems.contains(&case.subsystem);
        if let Some(port) = ports.iter().find(linked) {
            let link = port_link_path(port.number, &case.subsystem);
            return Err(case.error(format_args!("{link} is still there")));
        }
        let allowed = format!("{}/allowed_hosts", subsystem_path(&case.subsystem));
        let allowed = match self.tree.list(allowed) {
            // The export was only half made, and the thread that made it has removed it meanwhile.
            Err(error) if error.is_absent() => return Ok(()),
            allowed => allowed.map_err(|error| case.error(error))?,
        };
        match allowed.first() {
            Some(host) => Err(case.error(format_args!("host {host} is still allowed"))),
            None => Ok(()),
        }
    }

    /// Asks one port about all cases that the port may have had and that have not failed yet.
    fn ask_port(
        &self,
        port: &ListedPort,
        cases: &[Case],
        results: &mut [Result<Proven, StepError>],
    ) {
        let anchored = self.is_anchored(port);
        // A port for RDMA disappears with its device. If the ports of a case are known, then only the cases that had
        // this port fail.
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
                    cases[at].judge(port, anchored, answer, &mut results[at]);
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
    let why = "an earlier proof of cuts has not ended: look at what the kernel's NVMe target does (dmesg)";
    StepError::new(step, why)
}

impl Case {
    fn question(&self) -> Question {
        Question {
            host_id: HostId(self.lease.0.to_be_bytes()),
            subsystem: self.subsystem.clone(),
            host: self.host.clone().unwrap_or_else(|| UNKNOWN_HOST.to_owned()),
        }
    }

    /// Keeps the result of a case only if the port answers that the subsystem does not exist.
    fn judge(
        &self,
        port: &ListedPort,
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
