//! Asks over RDMA: by a process of its own, since what the connection manager and a queue pair are asked for can
//! wait in the kernel, and a process that is stuck there keeps whatever it holds. That must not be the daemon's
//! regions and windows.

use std::{
    collections::BTreeMap,
    mem,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use fabricbios_helper::{Session, Supervisor};

use super::{super::fabrics::Question, Answer, asked::AskRdma};

/// For one answer. The connection manager itself tries again only after seconds.
const SILENCE_MAX: Duration = Duration::from_millis(600);

/// Of one question without an answer, each by another process.
const TRIES: u32 = 2;

/// A port by number and address: a number may become another port's.
type Port = (u16, SocketAddr);

/// Whoever makes the call [`AskRdma`], and which ports it can ask.
#[derive(Debug)]
pub(in super::super) struct Asker {
    supervisor: Option<Supervisor>,
    ports: Mutex<BTreeMap<Port, Standing>>,
    /// One that waits for questions, so that a cut need not wait until librdmacm is loaded, from a disk that may be stuck.
    ready: Mutex<Option<Session>>,
}

/// Whether a port can be asked.
#[derive(Clone, Debug)]
enum Standing {
    /// It has answered: from then on it must.
    Able,
    /// It has not, for this reason, so this machine cannot ask it: it has no librdmacm, or its device no way back to
    /// itself.
    Unable(String),
    /// As before, and it is being tried.
    Trying,
}

impl Asker {
    /// Without a supervisor nothing is asked.
    pub(in super::super) fn new(supervisor: Option<Supervisor>) -> Arc<Self> {
        Arc::new(Self {
            supervisor,
            ports: Mutex::default(),
            ready: Mutex::default(),
        })
    }

    pub(in super::super) fn is_there(&self) -> bool {
        self.supervisor.is_some()
    }

    /// Tries a port with a question about a subsystem that it has and that lets nobody in. `Err`: why it
    /// cannot be asked.
    pub(in super::super) fn greet(&self, port: Port, greeting: &Question) -> Result<(), String> {
        // A process of its own: nobody else waits for a port that may not answer.
        let mut session = None;
        let greeted = match self.answer(&mut session, port.1, greeting) {
            Answer::Status(status) if !status.says_no_such_subsystem() => Ok(()),
            Answer::Silence(why) => Err(why),
            other => Err(other.to_string()),
        };
        let standing = greeted
            .clone()
            .map_or_else(Standing::Unable, |()| Standing::Able);
        self.ports().insert(port, standing);
        self.put_back(session);
        greeted
    }

    /// Asks the port all of it; the answers in the same order. `Err`: why it cannot be asked. Then it is
    /// greeted again, by somebody for whom nobody waits.
    pub(in super::super) fn ask(
        self: &Arc<Self>,
        port: Port,
        greeting: &Question,
        questions: &[Question],
    ) -> Result<Vec<Answer>, String> {
        let mut ports = self.ports();
        let unknown = || Standing::Unable("it has not been tried".to_owned());
        let standing = ports.entry(port).or_insert_with(unknown);
        match mem::replace(standing, Standing::Trying) {
            Standing::Able => {
                *standing = Standing::Able;
                drop(ports);
                Ok(self.ask_all(port.1, questions))
            }
            Standing::Trying => Err("it is being tried".to_owned()),
            Standing::Unable(why) => {
                drop(ports);
                let (asker, greeting) = (Arc::clone(self), greeting.clone());
                thread::spawn(move || asker.greet(port, &greeting));
                Err(why)
            }
        }
    }

    /// A port that is silent about one is not asked on.
    fn ask_all(&self, address: SocketAddr, questions: &[Question]) -> Vec<Answer> {
        let mut session = self.ready().take();
        let mut answers: Vec<Answer> = Vec::with_capacity(questions.len());
        for question in questions {
            answers.push(match answers.last() {
                Some(silence @ Answer::Silence(_)) => silence.clone(),
                _ => self.answer(&mut session, address, question),
            });
        }
        self.put_back(session);
        answers
    }

    fn answer(
        &self,
        session: &mut Option<Session>,
        address: SocketAddr,
        question: &Question,
    ) -> Answer {
        let mut silence = String::new();
        for _ in 0..TRIES {
            match self.try_once(session, address, question) {
                Ok(answer) => return answer,
                Err(why) => silence = why,
            }
            tracing::info!(%address, why = silence, "no answer to a Connect over RDMA");
            // It may hang: another process asks again.
            *session = None;
        }
        Answer::Silence(silence)
    }

    fn try_once(
        &self,
        session: &mut Option<Session>,
        address: SocketAddr,
        question: &Question,
    ) -> Result<Answer, String> {
        let session = match session {
            Some(session) => session,
            none => {
                let supervisor = self.supervisor.as_ref();
                let supervisor = supervisor.ok_or("nobody is there to ask it")?;
                none.insert(supervisor.session().map_err(|error| error.to_string())?)
            }
        };
        let call = AskRdma {
            address,
            question: question.clone(),
        };
        match session.ask(&call, SILENCE_MAX, &|_what| ()) {
            Ok(Answer::Silence(why)) => Err(why),
            Ok(answer) => Ok(answer),
            Err(error) => Err(error.to_string()),
        }
    }

    fn ports(&self) -> MutexGuard<'_, BTreeMap<Port, Standing>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self) -> MutexGuard<'_, Option<Session>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One is enough: another ends.
    fn put_back(&self, session: Option<Session>) {
        let mut ready = self.ready();
        if ready.is_none() {
            *ready = session;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use fabricbios_helper::{Failure, Handler};
    use fabricbios_wire::HostId;

    use super::{super::super::fabrics::Status, *};

    /// Longer than anybody waits for an answer.
    const LONG: Duration = Duration::from_secs(600);

    fn question(number: u8) -> Question {
        Question {
            host_id: HostId([number; 16]),
            subsystem: format!("nqn.s{number}"),
            host: "nqn.h".to_owned(),
        }
    }

    fn port() -> Port {
        (7, "10.0.0.1:4420".parse().unwrap())
    }

    type Reply = Result<Answer, Failure>;
    type Says = fn() -> Reply;

    /// Answers so.
    fn says(reply: impl Fn(&Question) -> Reply + Send + Sync + 'static) -> Arc<Asker> {
        let handler = Handler::by(move |call: AskRdma, _| reply(&call.question));
        Asker::new(Some(Supervisor::of_threads(vec![handler])))
    }

    fn status(number: u16) -> Reply {
        Ok(Answer::Status(Status(number)))
    }

    fn silence(why: &str) -> Reply {
        Ok(Answer::Silence(why.to_owned()))
    }

    fn ask(asker: &Arc<Asker>, count: u8) -> Result<Vec<Answer>, String> {
        let questions: Vec<_> = (1..=count).map(question).collect();
        asker.ask(port(), &question(0), &questions)
    }

    /// Answers a greeting, and then so.
    fn able(reply: impl Fn(&Question) -> Reply + Send + Sync + 'static) -> Arc<Asker> {
        let asker = says(move |question| match &*question.subsystem {
            "nqn.s0" => status(0x4184),
            _ => reply(question),
        });
        asker.greet(port(), &question(0)).unwrap();
        asker
    }

    #[test]
    fn answers_come_in_the_order_of_the_questions() {
        let asker = able(|question| match &*question.subsystem {
            "nqn.s1" => status(0x4182),
            "nqn.s2" => Ok(Answer::NobodyListens),
            _ => Ok(Answer::NoSuchAddress),
        });
        let expected = [
            Answer::Status(Status(0x4182)),
            Answer::NobodyListens,
            Answer::NoSuchAddress,
        ];
        assert_eq!(ask(&asker, 3).unwrap(), expected);
    }

    #[test]
    fn one_process_has_all_questions() {
        let threads = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&threads);
        let asker = able(move |_| {
            seen.lock().unwrap().push(thread::current().id());
            status(0x4182)
        });
        ask(&asker, 3).unwrap();
        ask(&asker, 2).unwrap();
        let threads = threads.lock().unwrap();
        assert_eq!(threads.len(), 5);
        assert!(threads.iter().all(|it| *it == threads[0]), "{threads:?}");
    }

    #[test]
    fn who_does_not_greet_cannot_be_asked() {
        let late = || {
            thread::park_timeout(LONG);
            silence("late")
        };
        let replies: [(Says, &str); 5] = [
            (|| silence("librdmacm is missing"), "librdmacm is missing"),
            (|| panic!("it dies"), "ended without an answer"),
            (|| Ok(Answer::NobodyListens), "nobody listens"),
            // Whoever it is, it does not know the node.
            (|| status(0x4182), "0x4182"),
            (late, "600 ms"),
        ];
        for (reply, words) in replies {
            let asker = says(move |_| reply());
            let why = asker.greet(port(), &question(0)).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        let nobody = Asker::new(None);
        assert!(nobody.greet(port(), &question(0)).is_err());
    }

    #[test]
    fn a_port_that_could_not_be_asked_is_tried_again_aside() {
        let asker = says(|_| status(0x4184));
        assert_eq!(ask(&asker, 1).unwrap_err(), "it has not been tried");
        while ask(&asker, 1).is_err() {
            thread::yield_now();
        }
        assert_eq!(ask(&asker, 1).unwrap(), [Answer::Status(Status(0x4184))]);
    }

    #[test]
    fn a_lost_answer_is_asked_for_by_another_process() {
        let lost = AtomicBool::new(false);
        let asker = able(move |_| {
            assert!(lost.swap(true, Ordering::SeqCst), "the first one dies");
            status(0x4182)
        });
        let told = Answer::Status(Status(0x4182));
        assert_eq!(ask(&asker, 2).unwrap(), [told.clone(), told]);
    }

    #[test]
    fn a_port_that_has_answered_once_must_answer() {
        let asker = able(|question| {
            assert_ne!(question.subsystem, "nqn.s2", "it dies of this one");
            status(0x4182)
        });
        let answers = ask(&asker, 3).unwrap();
        assert_eq!(answers[0], Answer::Status(Status(0x4182)));
        let lost = |answer: &Answer| matches!(answer, Answer::Silence(_));
        assert!(answers[1..].iter().all(lost), "{answers:?}");
    }
}
