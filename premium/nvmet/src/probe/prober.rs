//! Asks over RDMA, in a helper process. Calls to the connection manager and to a queue pair can wait in the kernel. A
//! process that is stuck there keeps everything that it holds; the daemon's regions and windows must not be part of
//! that.

use std::{
    collections::BTreeMap,
    mem,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use fabricbios_helper::{CallError, Session, Supervisor};

use super::{super::fabrics::Question, Answer, call::AskRdma};

/// Longest wait for one answer. The connection manager repeats a request only after seconds.
const SILENCE_MAX: Duration = Duration::from_millis(600);

/// Number of tries for a question without an answer, each in another process.
const TRIES: u32 = 2;

/// Number and address of a port. The address is part of it because another port may get the number later.
type Port = (u16, SocketAddr);

/// Makes the calls [`AskRdma`], and records which ports can be asked.
#[derive(Debug)]
pub(in super::super) struct Prober {
    supervisor: Option<Supervisor>,
    ports: Mutex<BTreeMap<Port, PortTest>>,
    /// A spare helper process, already started: a cut must not wait until librdmacm is loaded from a disk that may be
    /// stuck.
    spare: Mutex<Option<Session>>,
}

/// Why this machine cannot ask a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum CannotAsk {
    #[error("neither for TCP nor for RDMA")]
    OtherTransport,
    #[error("this port has not been asked yet")]
    NotYet,
    #[error("it is being tried")]
    Testing,
    /// The answer to the test question. Silence: librdmacm is missing, or the device cannot reach itself.
    #[error("{0}")]
    Answered(Answer),
}

/// The result of testing whether this machine can ask a port.
#[derive(Clone, Debug)]
enum PortTest {
    /// The port has answered, so from now on it must answer.
    Passed,
    Failed(CannotAsk),
    /// The port has not answered yet, and another test is in progress.
    Running,
}

impl Prober {
    /// A prober. Without a supervisor it asks no port.
    pub(in super::super) fn new(supervisor: Option<Supervisor>) -> Arc<Self> {
        Arc::new(Self {
            supervisor,
            ports: Mutex::default(),
            spare: Mutex::default(),
        })
    }

    pub(in super::super) fn is_there(&self) -> bool {
        self.supervisor.is_some()
    }

    /// Tests a port with a question about a subsystem that the port has and that allows no host.
    pub(in super::super) fn test_port(
        &self,
        port: Port,
        test_question: &Question,
    ) -> Result<(), CannotAsk> {
        // The test gets its own process: no other question must wait for a port that may not answer.
        let mut session = None;
        let tested = match self.answer(&mut session, port.1, test_question) {
            Answer::Status(status) if !status.says_no_such_subsystem() => Ok(()),
            other => Err(CannotAsk::Answered(other)),
        };
        let result = tested
            .clone()
            .map_or_else(PortTest::Failed, |()| PortTest::Passed);
        self.ports().insert(port, result);
        self.keep_spare(session);
        tested
    }

    /// Asks the port all questions; the answers have the same order. `Err`: another thread tests the port again, and
    /// this call does not wait for it.
    pub(in super::super) fn ask(
        self: &Arc<Self>,
        port: Port,
        test_question: &Question,
        questions: &[Question],
    ) -> Result<Vec<Answer>, CannotAsk> {
        let mut ports = self.ports();
        let unknown = PortTest::Failed(CannotAsk::NotYet);
        let result = ports.entry(port).or_insert(unknown);
        match mem::replace(result, PortTest::Running) {
            PortTest::Passed => {
                *result = PortTest::Passed;
                drop(ports);
                Ok(self.ask_all(port.1, questions))
            }
            PortTest::Running => Err(CannotAsk::Testing),
            PortTest::Failed(why) => {
                drop(ports);
                let (prober, test_question) = (Arc::clone(self), test_question.clone());
                thread::spawn(move || prober.test_port(port, &test_question));
                Err(why)
            }
        }
    }

    /// Asks all questions. After the first silence the port is not asked again: the remaining answers are the same
    /// silence.
    fn ask_all(&self, address: SocketAddr, questions: &[Question]) -> Vec<Answer> {
        let mut session = self.spare().take();
        let mut answers: Vec<Answer> = Vec::with_capacity(questions.len());
        for question in questions {
            answers.push(match answers.last() {
                Some(silence @ Answer::Silence(_)) => silence.clone(),
                _ => self.answer(&mut session, address, question),
            });
        }
        self.keep_spare(session);
        answers
    }

    fn answer(
        &self,
        session: &mut Option<Session>,
        address: SocketAddr,
        question: &Question,
    ) -> Answer {
        let Some(supervisor) = &self.supervisor else {
            return Answer::Silence("no process can ask this port".to_owned());
        };
        let call = AskRdma {
            address,
            question: question.clone(),
        };
        let try_once = |session: Option<Session>| -> Result<(Answer, Session), CallError> {
            let mut session = session.map_or_else(|| supervisor.session(), Ok)?;
            let answer = session.ask(&call, SILENCE_MAX, &|_what| ())?;
            Ok((answer, session))
        };
        let mut silence = String::new();
        for _ in 0..TRIES {
            match try_once(session.take()) {
                // The helper process may hang: the next try uses another one.
                Ok((Answer::Silence(why), _)) => silence = why,
                Ok((answer, asked)) => {
                    *session = Some(asked);
                    return answer;
                }
                Err(error) => silence = error.to_string(),
            }
            tracing::info!(%address, why = silence, "no answer to a Connect over RDMA");
        }
        Answer::Silence(silence)
    }

    fn ports(&self) -> MutexGuard<'_, BTreeMap<Port, PortTest>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare(&self) -> MutexGuard<'_, Option<Session>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps one spare process and ends others.
    fn keep_spare(&self, session: Option<Session>) {
        let mut spare = self.spare();
        if spare.is_none() {
            *spare = session;
        }
    }
}

#[cfg(test)]
mod tests;
