//! Asks over RDMA: by a process of its own, since what the connection manager and a queue pair are asked for can
//! wait in the kernel, and a process that is stuck there keeps whatever it holds. That must not be the daemon's
//! regions and windows.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    mem,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use super::{super::fabrics::Question, Answer, asked, helper::Helper};

/// For one answer. The connection manager itself tries again only after seconds.
const SILENCE_MAX: Duration = Duration::from_millis(600);

/// Of one question without an answer, each by another process.
const TRIES: u32 = 2;

/// A port by number and address: a number may become another port's.
type Port = (u16, SocketAddr);

/// Whoever runs [`super::ask_rdma_main`], and which ports it can ask.
#[derive(Clone, Debug)]
pub(in super::super) struct Asker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    command: Vec<OsString>,
    ports: Mutex<BTreeMap<Port, Standing>>,
    /// One that waits for questions, so that a cut need not wait for a program to start, which may be on a disk
    /// that is stuck.
    ready: Mutex<Option<Helper>>,
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
            ready: Mutex::default(),
        }))
    }

    pub(in super::super) fn is_there(&self) -> bool {
        !self.0.command.is_empty()
    }

    /// Tries a port with a question about a subsystem that it has and that lets nobody in. `Err`: why it
    /// cannot be asked.
    pub(in super::super) fn greet(&self, port: Port, greeting: &Question) -> Result<(), String> {
        // A process of its own: nobody else waits for a port that may not answer.
        let mut helper = None;
        let greeted = match self.answer(&mut helper, port.1, greeting) {
            Answer::Status(status) if !status.says_no_such_subsystem() => Ok(()),
            Answer::Silence(why) => Err(why),
            other => Err(other.to_string()),
        };
        let standing = greeted
            .clone()
            .map_or_else(Standing::Unable, |()| Standing::Able);
        self.0.ports().insert(port, standing);
        self.0.put_back(helper);
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

    /// A port that is silent about one is not asked on.
    fn ask_all(&self, address: SocketAddr, questions: &[Question]) -> Vec<Answer> {
        let mut helper = self.0.take_ready();
        let mut answers: Vec<Answer> = Vec::with_capacity(questions.len());
        for question in questions {
            answers.push(match answers.last() {
                Some(silence @ Answer::Silence(_)) => silence.clone(),
                _ => self.answer(&mut helper, address, question),
            });
        }
        self.0.put_back(helper);
        answers
    }

    fn answer(
        &self,
        helper: &mut Option<Helper>,
        address: SocketAddr,
        question: &Question,
    ) -> Answer {
        let mut silence = String::new();
        for _ in 0..TRIES {
            match self.try_once(helper, address, question) {
                Ok(answer) => return answer,
                Err(why) => silence = why,
            }
            tracing::info!(%address, why = silence, "no answer to a Connect over RDMA");
            // Whatever it is in, the next one is not.
            *helper = None;
        }
        Answer::Silence(silence)
    }

    fn try_once(
        &self,
        helper: &mut Option<Helper>,
        address: SocketAddr,
        question: &Question,
    ) -> Result<Answer, String> {
        let helper = match helper {
            Some(helper) => helper,
            none => none.insert(Helper::start(&self.0.command)?),
        };
        let line = asked::question_line(address, question);
        let line = line.ok_or("a name has a blank or is too long")?;
        asked::read_answer(&helper.ask(&line, SILENCE_MAX)?)
    }
}

impl Inner {
    fn ports(&self) -> MutexGuard<'_, BTreeMap<Port, Standing>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready(&self) -> MutexGuard<'_, Option<Helper>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_ready(&self) -> Option<Helper> {
        self.ready().take()
    }

    /// One is enough: another ends.
    fn put_back(&self, helper: Option<Helper>) {
        let mut ready = self.ready();
        if ready.is_none() {
            *ready = helper;
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::HostId;

    use super::{super::super::fabrics::Status, *};

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

    /// Does as `script` says for each question, whose words are `$address`, `$id`, `$subsystem` and `$host`.
    fn says(script: &str) -> Asker {
        let script = format!("while read -r address id subsystem host; do {script}; done");
        Asker::new(["sh", "-c", &script].map(OsString::from).to_vec())
    }

    fn ask(asker: &Asker, count: u8) -> Result<Vec<Answer>, String> {
        let questions: Vec<_> = (1..=count).map(question).collect();
        asker.ask(port(), &question(0), &questions)
    }

    /// Answers a greeting, and then does as `script` says.
    fn able(script: &str) -> Asker {
        let asker = says(&format!(
            "if test $subsystem = nqn.s0; then echo status 4184; else {script}; fi"
        ));
        asker.greet(port(), &question(0)).unwrap();
        asker
    }

    #[test]
    fn answers_come_in_the_order_of_the_questions() {
        let asker = able(
            "case $subsystem in nqn.s1) echo status 4182;; nqn.s2) echo nobody;; *) echo absent;; esac",
        );
        let expected = [
            Answer::Status(Status(0x4182)),
            Answer::NobodyListens,
            Answer::NoSuchAddress,
        ];
        assert_eq!(ask(&asker, 3).unwrap(), expected);
    }

    #[test]
    fn one_process_has_all_questions() {
        let place = tempfile::tempdir().unwrap();
        let note = place.path().join("pids");
        let asker = able(&format!("echo $$ >> {}; echo status 4182", note.display()));
        ask(&asker, 3).unwrap();
        ask(&asker, 2).unwrap();
        let text = std::fs::read_to_string(note).unwrap();
        let pids: std::collections::BTreeSet<&str> = text.lines().collect();
        assert_eq!((text.lines().count(), pids.len()), (5, 1));
    }

    #[test]
    fn who_does_not_greet_cannot_be_asked() {
        for (script, words) in [
            ("echo silence librdmacm is missing", "librdmacm is missing"),
            ("exit 1", "ended without an answer"),
            ("echo nobody", "nobody listens"),
            ("echo hello", "hello"),
            // Whoever it is, it does not know the node.
            ("echo status 4182", "0x4182"),
            ("read -r never", "nothing for 600 ms"),
        ] {
            let why = says(script).greet(port(), &question(0)).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        let nobody = Asker::new(Vec::new());
        assert!(nobody.greet(port(), &question(0)).is_err());
        let absent = Asker::new(vec!["/nonexistent/program".into()]);
        let why = absent.greet(port(), &question(0)).unwrap_err();
        assert!(why.contains("/nonexistent/program"), "{why}");
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
    fn a_lost_answer_is_asked_for_by_another_process() {
        let place = tempfile::tempdir().unwrap();
        let mark = place.path().join("lost");
        let mark = mark.display();
        let asker = able(&format!(
            "test -e {mark} || {{ touch {mark}; exit 1; }}; echo status 4182"
        ));
        let told = Answer::Status(Status(0x4182));
        assert_eq!(ask(&asker, 2).unwrap(), [told.clone(), told]);
    }

    #[test]
    fn a_port_that_has_answered_once_must_answer() {
        let asker = able("test $subsystem = nqn.s2 && exit 1; echo status 4182");
        let answers = ask(&asker, 3).unwrap();
        assert_eq!(answers[0], Answer::Status(Status(0x4182)));
        let lost = |answer: &Answer| matches!(answer, Answer::Silence(_));
        assert!(answers[1..].iter().all(lost), "{answers:?}");
    }
}
