//! Asks a port over RDMA: as a call of the daemon, and as a command for operators.

use std::{
    io::{self, BufRead, Write},
    net::SocketAddr,
    process::ExitCode,
};

use fabricbios_helper::{Call, Caller, Failure};
use fabricbios_wire::HostId;
use serde::{Deserialize, Serialize};

use super::{
    super::{
        fabrics::{Question, connect_data},
        nvme_rdma,
    },
    Answer,
};
use fabricbios_verbs::managed::{NoAnswer, exchange};

/// Asks the port at this address for a connection. The call may wait in the kernel for ever, so the daemon itself must
/// not make it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AskRdma {
    pub(crate) address: SocketAddr,
    pub(crate) question: Question,
}

impl Call for AskRdma {
    const NAME: &'static str = "ask-rdma";
    type Answer = Answer;

    fn make(self, _caller: &Caller) -> Result<Answer, Failure> {
        Ok(ask(self.address, &self.question))
    }
}

/// The command for people who examine a port. Each line of standard input is one question: address and port, host id as
/// 32 hexadecimal digits, NQN of the subsystem, NQN of the host. The command prints one line for each, in the same
/// order: `status` and the status of the Connect; `nobody` if no process listens; `absent` if this machine does not
/// have the address; otherwise `silence` and the reason. It ends at the end of its input.
#[must_use]
pub fn ask_rdma_main() -> ExitCode {
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match parse(&line) {
            Some((address, question)) => ask(address, &question),
            None => Answer::Silence("ADDRESS:PORT HOST_ID SUBSYSTEM_NQN HOST_NQN".to_owned()),
        };
        // No process reads the output any more.
        if writeln!(io::stdout(), "{}", answer_line(&answer)).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn ask(address: SocketAddr, question: &Question) -> Answer {
    let Some(data) = connect_data(question) else {
        return Answer::Silence("a name is too long".to_owned());
    };
    match exchange(address, &nvme_rdma::request(), &data, nvme_rdma::connect) {
        Ok(response) => Answer::Status(nvme_rdma::status(response)),
        Err(NoAnswer::NobodyListens) => Answer::NobodyListens,
        Err(NoAnswer::NoSuchAddress) => Answer::NoSuchAddress,
        Err(why) => Answer::Silence(why.to_string()),
    }
}

fn parse(line: &str) -> Option<(SocketAddr, Question)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [address, id, subsystem, host] = words[..] else {
        return None;
    };
    let question = Question {
        host_id: HostId(u128::from_str_radix(id, 16).ok()?.to_be_bytes()),
        subsystem: subsystem.to_owned(),
        host: host.to_owned(),
    };
    let is_one_line = !line.contains('\n');
    is_one_line.then_some((address.parse().ok()?, question))
}

fn answer_line(answer: &Answer) -> String {
    match answer {
        Answer::Status(status) => format!("status {:04x}", status.0),
        Answer::NobodyListens => "nobody".to_owned(),
        Answer::NoSuchAddress => "absent".to_owned(),
        Answer::Silence(why) => format!("silence {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(subsystem: &str) -> Question {
        Question {
            host_id: HostId([0xF0; 16]),
            subsystem: subsystem.to_owned(),
            host: "nqn.h".to_owned(),
        }
    }

    #[test]
    fn a_line_is_a_question_or_is_refused() {
        let line = format!("[fd00::1]:4420 {} nqn.s nqn.h", "f0".repeat(16));
        let address = "[fd00::1]:4420".parse().unwrap();
        assert_eq!(parse(&line), Some((address, question("nqn.s"))));
        for nonsense in [
            "",
            "4420",
            "10.0.0.1:4420 00 nqn.s",
            "10.0.0.1 00 nqn.s nqn.h",
            "10.0.0.1:4420 00 nqn.s nqn.h more",
        ] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_not_asked_for() {
        let answer = ask("127.0.0.1:1".parse().unwrap(), &question(&"n".repeat(256)));
        assert_eq!(answer, Answer::Silence("a name is too long".to_owned()));
    }
}
