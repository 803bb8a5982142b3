//! Asks over RDMA: by a process of its own, since what the connection manager and a queue pair are asked for can
//! wait in the kernel, and a process that is stuck there keeps whatever it holds. That must not be the daemon's
//! regions and windows.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::OsString,
    mem,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use fabricbios_kernfs::Sacrifice;

use super::{super::fabrics::Question, Answer, asked};

/// For one answer, the start of the process included. The connection manager itself tries again only after
/// seconds.
const SILENCE_MAX: Duration = Duration::from_millis(450);

/// Processes that are started for one question without an answer.
const TRIES: usize = 2;

/// A port by number and address: a number may become another port's.
type Port = (u16, SocketAddr);

/// Whoever runs [`super::ask_rdma_main`], and which ports it can ask.
#[derive(Clone, Debug)]
pub(in super::super) struct Asker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    command: Vec<OsString>,
    ports: Mutex<BTreeMap<Port, Standing>>,
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
    /// Without a command nothing is asked.
    pub(in super::super) fn new(command: Vec<OsString>) -> Self {
        Self(Arc::new(Inner {
            command,
            ports: Mutex::default(),
        }))
    }

    pub(in super::super) fn is_there(&self) -> bool {
        !self.0.command.is_empty()
    }

    /// Tries a port with a question about a subsystem that it has and that lets nobody in. `Err`: why it
    /// cannot be asked.
    pub(in super::super) fn greet(&self, port: Port, greeting: &Question) -> Result<(), String> {
        let answer = self
            .ask_all(port.1, std::slice::from_ref(greeting))
            .remove(0);
        let greeted = match answer {
            Answer::Status(status) if !status.says_no_such_subsystem() => Ok(()),
            other => Err(other.to_string()),
        };
        let standing = greeted
            .clone()
            .map_or_else(Standing::Unable, |()| Standing::Able);
        self.0.ports().insert(port, standing);
        greeted
    }

    /// Asks the port all of it; the answers in the same order. `Err`: why it cannot be asked. Then it is
    /// greeted again, by somebody for whom nobody waits.
    pub(in super::super) fn ask(
        &self,
        port: Port,
        greeting: &Question,
        questions: &[Question],
    ) -> Result<Vec<Answer>, String> {
        let mut ports = self.0.ports();
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
                let (asker, greeting) = (self.clone(), greeting.clone());
                thread::spawn(move || asker.greet(port, &greeting));
                Err(why)
            }
        }
    }

    fn ask_all(&self, address: SocketAddr, questions: &[Question]) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(questions.len());
        let mut silence = String::new();
        for _ in 0..TRIES {
            let rest = &questions[answers.len()..];
            if !rest.is_empty() {
                silence = self.ask_rest(address, rest, &mut answers);
            }
        }
        answers.resize(questions.len(), Answer::Silence(silence));
        answers
    }

    /// By one process, which ends at the first question without an answer; why there is none.
    fn ask_rest(
        &self,
        address: SocketAddr,
        questions: &[Question],
        answers: &mut Vec<Answer>,
    ) -> String {
        if !self.is_there() {
            return "nobody is there to ask it".to_owned();
        }
        let command = self.0.command.iter().cloned();
        let command = command.chain(asked::arguments(address, questions));
        let heard = RefCell::new(answers);
        let ended = Sacrifice::new(command).run(SILENCE_MAX, &|line| {
            heard.borrow_mut().extend(asked::read(line));
        });
        match ended {
            Ok(()) => "the process that asks it ended too early".to_owned(),
            Err(why) => why.to_string(),
        }
    }
}

impl Inner {
    fn ports(&self) -> MutexGuard<'_, BTreeMap<Port, Standing>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::HostId;

    use super::{super::super::fabrics::Status, *};

    fn question(number: u8) -> Question {
        Question {
            host_id: HostId([number; 16]),
            subsystem: "nqn.s".to_owned(),
            host: "nqn.h".to_owned(),
        }
    }

    fn port() -> Port {
        (7, "10.0.0.1:4420".parse().unwrap())
    }

    fn says(script: &str) -> Asker {
        Asker::new(["sh", "-c", script, "asker"].map(OsString::from).to_vec())
    }

    fn ask(asker: &Asker, count: u8) -> Result<Vec<Answer>, String> {
        let questions: Vec<_> = (1..=count).map(question).collect();
        asker.ask(port(), &question(0), &questions)
    }

    /// Answers a greeting, which has three arguments and the address, and then does as `script` says.
    fn able(script: &str) -> Asker {
        let script = format!("test $# = 4 && echo status 4184 && exit; {script}");
        let asker = says(&script);
        asker.greet(port(), &question(0)).unwrap();
        asker
    }

    #[test]
    fn answers_come_in_the_order_of_the_questions() {
        let asker = able("echo status 4182; echo nobody; echo absent");
        let expected = [
            Answer::Status(Status(0x4182)),
            Answer::NobodyListens,
            Answer::NoSuchAddress,
        ];
        assert_eq!(ask(&asker, 3).unwrap(), expected);
    }

    #[test]
    fn who_does_not_greet_cannot_be_asked() {
        for (script, words) in [
            (
                "echo librdmacm is missing >&2; exit 1",
                "librdmacm is missing",
            ),
            ("echo nobody", "nobody listens"),
            // Whoever it is, it does not know the node.
            ("echo status 4182", "0x4182"),
            ("sleep 60", "no progress"),
        ] {
            let why = says(script).greet(port(), &question(0)).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        assert!(Asker::new(Vec::new()).greet(port(), &question(0)).is_err());
    }

    #[test]
    fn a_port_that_could_not_be_asked_is_tried_again_aside() {
        let asker = says("echo status 4184");
        assert_eq!(ask(&asker, 1).unwrap_err(), "it has not been tried");
        while ask(&asker, 1).is_err() {
            thread::yield_now();
        }
        assert_eq!(ask(&asker, 1).unwrap(), [Answer::Status(Status(0x4184))]);
    }

    #[test]
    fn a_port_that_has_answered_once_must_answer() {
        let asker = able("echo status 4182; echo lost >&2; exit 1");
        let answers = ask(&asker, 3).unwrap();
        let lost = |answer: &Answer| matches!(answer, Answer::Silence(why) if why.contains("lost"));
        assert_eq!(
            answers[..2],
            [(); 2].map(|()| Answer::Status(Status(0x4182))),
            "it is asked twice"
        );
        assert!(lost(&answers[2]), "{answers:?}");
    }
}
