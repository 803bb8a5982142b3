//! Asks over RDMA: by a process of its own, since what the connection manager and a queue pair are asked for can
//! wait in the kernel, and a process that is stuck there keeps whatever it holds. That must not be the daemon's
//! regions and windows.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    ffi::OsString,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use fabricbios_kernfs::Sacrifice;

use super::{super::fabrics::Question, Answer, asked};

/// For one answer. The connection manager tries again by itself.
const SILENCE_MAX: Duration = Duration::from_millis(900);

/// Whoever runs [`super::ask_rdma_main`], and the ports that have ever answered it.
#[derive(Debug)]
pub(in super::super) struct Asker {
    command: Vec<OsString>,
    able: Mutex<BTreeSet<u16>>,
}

impl Asker {
    /// Without a command nothing is asked.
    pub(in super::super) fn new(command: Vec<OsString>) -> Self {
        Self {
            command,
            able: Mutex::default(),
        }
    }

    /// Asks the port of that number all of it; the answers in the same order. `greeting` is a question that a
    /// port which can be asked at all has an answer to. `Err`: it has not, and never had one; so this machine
    /// cannot ask (it has no librdmacm, or its device no way back to itself).
    pub(in super::super) fn ask(
        &self,
        number: u16,
        address: SocketAddr,
        greeting: &Question,
        questions: &[Question],
    ) -> Result<Vec<Answer>, String> {
        let all = [std::slice::from_ref(greeting), questions].concat();
        let mut answers = self.ask_all(address, &all);
        let greeted = answers.remove(0);
        let mut able = self.able.lock().unwrap_or_else(PoisonError::into_inner);
        match greeted {
            Answer::Silence(why) if !able.contains(&number) => Err(why),
            Answer::Silence(_) => Ok(answers),
            _ => {
                able.insert(number);
                Ok(answers)
            }
        }
    }

    fn ask_all(&self, address: SocketAddr, questions: &[Question]) -> Vec<Answer> {
        if self.command.is_empty() {
            return vec![Answer::Silence("not asked".to_owned()); questions.len()];
        }
        let command = self.command.iter().cloned();
        let command = command.chain(asked::arguments(address, questions));
        let answers = RefCell::new(Vec::with_capacity(questions.len()));
        let ended = Sacrifice::new(command).run(SILENCE_MAX, &|line| {
            answers.borrow_mut().push(asked::read(line));
        });
        let silence = match ended {
            Ok(()) => "it ended too early".to_owned(),
            Err(why) => why.to_string(),
        };
        let mut answers = answers.into_inner();
        answers.resize(questions.len(), Answer::Silence(silence));
        answers
    }
}

#[cfg(test)]
mod tests {
    use fabricbios_wire::HostId;

    use super::{super::super::fabrics::Status, *};

    fn questions(count: u8) -> Vec<Question> {
        let question = |number| Question {
            host_id: HostId([number; 16]),
            subsystem: "nqn.s".to_owned(),
            host: "nqn.h".to_owned(),
        };
        (0..count).map(question).collect()
    }

    fn says(script: &str) -> Asker {
        Asker::new(["sh", "-c", script, "asker"].map(OsString::from).to_vec())
    }

    fn ask(asker: &Asker, count: u8) -> Result<Vec<Answer>, String> {
        let all = questions(count + 1);
        asker.ask(7, "10.0.0.1:4420".parse().unwrap(), &all[0], &all[1..])
    }

    #[test]
    fn answers_come_in_the_order_of_the_questions() {
        let asker = says("echo status 4184; echo status 4182; echo nobody; echo silence of a kind");
        let expected = [
            Answer::Status(Status(0x4182)),
            Answer::NobodyListens,
            Answer::Silence("of a kind".to_owned()),
        ];
        assert_eq!(ask(&asker, 3).unwrap(), expected);
    }

    #[test]
    fn a_machine_that_cannot_ask_says_why() {
        let why = ask(&says("echo silence no librdmacm"), 1).unwrap_err();
        assert_eq!(why, "no librdmacm");
        assert!(ask(&Asker::new(Vec::new()), 1).is_err());
        let why = ask(&says("echo broken >&2; exit 1"), 1).unwrap_err();
        assert!(why.contains("broken"), "{why}");
    }

    #[test]
    fn a_port_that_has_answered_once_must_answer() {
        let place = tempfile::tempdir().unwrap();
        let mark = place.path().join("asked");
        let script = format!(
            "test -e {0} && exit 1; touch {0}; echo status 4184; echo status 4182",
            mark.display()
        );
        let asker = says(&script);
        assert_eq!(ask(&asker, 1).unwrap(), [Answer::Status(Status(0x4182))]);
        let answers = ask(&asker, 1).unwrap();
        assert!(matches!(answers[..], [Answer::Silence(_)]), "{answers:?}");
    }
}
